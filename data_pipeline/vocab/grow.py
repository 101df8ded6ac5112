"""Find the words that a WordPiece vocabulary splits into pieces, and add some of them to it."""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from data_pipeline.vocab import TOKENIZER_JSON, Vocabulary, split_ids
from data_pipeline.vocab.wordpiece import MAX_WORD_CHARS, find_words, make_wordpiece_normalizer

# Slots that BERT's lists keep for a later use. Source: google-research/bert#9.
UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class CutWord:
    """Describe a word that a vocabulary lacks and splits into pieces."""

    word: str  # BERT's normalized spelling: without accents and capitals where it lowercases
    count: int
    pieces: tuple[str, ...]  # the unknown piece alone where the word cannot be cut

    @property
    def saved(self) -> int:
        """Return how many tokens of the corpus a piece of its own would save, or make known."""
        return self.count * max(len(self.pieces) - 1, 1)


class WordCounter:
    """Count words as BERT's tokenizer splits text, normalizing each spelling once."""

    def __init__(self, lowercase: bool) -> None:
        self._normalizer = make_wordpiece_normalizer(lowercase)
        self._splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
        self._spelled: collections.Counter[str] = collections.Counter()

    def add(self, text: str) -> None:
        """Count the words of a text."""
        self._spelled.update(find_words(text))

    def counts(self) -> dict[str, int]:
        """Return how often each word occurred."""
        counts: collections.Counter[str] = collections.Counter()
        for spelled, count in self._spelled.items():
            cleaned = self._normalizer.normalize_str(spelled)
            for word, _ in self._splitter.pre_tokenize_str(cleaned):
                counts[word] += count
        return dict(counts)


def has_own_rules(vocabulary: Vocabulary) -> bool:
    """Return whether a WordPiece tokenizer.json has rules that a vocab.txt cannot record."""
    if vocabulary.file_name != TOKENIZER_JSON:
        return False
    settings = json.loads(vocabulary.file_bytes.decode("utf-8-sig"))
    normalizer, splitter = (settings.get(n) or {} for n in ("normalizer", "pre_tokenizer"))
    return (
        (normalizer.get("type"), splitter.get("type")) != ("BertNormalizer", "BertPreTokenizer")
        or not (normalizer["clean_text"] and normalizer["handle_chinese_chars"])
        or normalizer["strip_accents"] not in (None, vocabulary.lowercase)
        or vocabulary.continuation_mark != "##"
        or not all(token["special"] for token in settings.get("added_tokens", ()))
    )


def find_cut_words(counts: dict[str, int], vocabulary: Vocabulary, min_count: int) -> list[CutWord]:
    """Return frequent words with a letter that are not pieces; those that save most tokens first.

    A word over MAX_WORD_CHARS would stay unknown, and is left out. Words that save the same number
    are in alphabetical order.
    """
    words = [
        word
        for word, count in counts.items()
        if count >= min_count and len(word) <= MAX_WORD_CHARS and any(map(str.isalpha, word))
    ]
    if not words:
        return []
    pieces, unk_id = vocabulary.pieces(), vocabulary.special_ids["unk"]
    cut = [
        CutWord(word, counts[word], tuple(pieces[i] for i in word_ids))
        for word, word_ids in zip(words, split_ids(*vocabulary.encode(words)), strict=True)
        if len(word_ids) > 1 or unk_id in word_ids
    ]
    return sorted(cut, key=lambda word: (-word.saved, word.word))


def count_tokens(counts: dict[str, int], vocabulary: Vocabulary) -> int:
    """Count the tokens of a text from the counts of its words."""
    _, lengths = vocabulary.encode(list(counts))
    return int(lengths @ np.fromiter(counts.values(), np.int64, len(counts)))


def grow_list(pieces: Sequence[str], words: Iterable[str], fills_unused: bool) -> list[str]:
    """Return the pieces with words in the [unusedN] slots, in order, and then at the end.

    Every other piece keeps its id. Without `fills_unused` all go to the end.
    """
    new = iter(words)
    filled = list(pieces)
    if fills_unused:
        slots = [i for i, piece in enumerate(pieces) if UNUSED.fullmatch(piece)]
        for slot, word in zip(slots, new, strict=False):
            filled[slot] = word
    return [*filled, *new]
