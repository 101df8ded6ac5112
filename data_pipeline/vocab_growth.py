"""Words of a corpus that a WordPiece list cuts into pieces, and the list grown by some of them."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from data_pipeline.vocab import Vocabulary
from data_pipeline.wordpiece import find_words, wordpiece_normalizer

# Slots that BERT's lists keep for a later use. Source: google-research/bert#9.
UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class CutWord:
    """A word that is no piece of a vocabulary."""

    word: str  # as BERT's tokeniser sees it: without accents and capitals where it lowercases
    count: int
    pieces: tuple[str, ...]  # that it is cut into; the unknown piece alone where it cannot be

    @property
    def saved(self) -> int:
        """Tokens of the corpus that a piece of its own would save, or make known."""
        return self.count * max(len(self.pieces) - 1, 1)


class WordCounter:
    """Counts words as BERT's tokeniser finds them, each spelling looked at once."""

    def __init__(self, lowercase: bool) -> None:
        self._normalizer = wordpiece_normalizer(lowercase)
        self._splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
        self._spelled: collections.Counter[str] = collections.Counter()

    def add(self, text: str) -> None:
        """Count the words of a text."""
        self._spelled.update(find_words(text))

    def counts(self) -> dict[str, int]:
        """How often each word occurred."""
        counts: collections.Counter[str] = collections.Counter()
        for spelled, count in self._spelled.items():
            cleaned = self._normalizer.normalize_str(spelled)
            for word, _ in self._splitter.pre_tokenize_str(cleaned):
                counts[word] += count
        return dict(counts)


def cut_words(counts: dict[str, int], vocabulary: Vocabulary, min_count: int) -> list[CutWord]:
    """Words with a letter that occur so often and are no piece, those that save most tokens first.

    Words that save as much stand in the order of the alphabet.
    """
    words = [
        word
        for word, count in counts.items()
        if count >= min_count and any(char.isalpha() for char in word)
    ]
    if not words:
        return []
    pieces, unk_id = vocabulary.pieces(), vocabulary.special_ids["unk"]
    ids, lengths = vocabulary.encode(words)
    found = [
        CutWord(word, counts[word], tuple(pieces[i] for i in of_word))
        for word, of_word in zip(words, np.split(ids, np.cumsum(lengths)[:-1]), strict=True)
        if len(of_word) > 1 or unk_id in of_word
    ]
    return sorted(found, key=lambda cut: (-cut.saved, cut.word))


def tokens(counts: dict[str, int], vocabulary: Vocabulary) -> int:
    """Tokens of the counted text."""
    _, lengths = vocabulary.encode(list(counts))
    return int(lengths @ np.fromiter(counts.values(), np.int64, len(counts)))


def grown(pieces: Sequence[str], words: Iterable[str], fills_unused: bool) -> list[str]:
    """The pieces with the words in the [unusedN] slots, in order, and then at the end.

    Every other piece keeps its id. Without `fills_unused` all go to the end.
    """
    new = iter(words)
    filled = list(pieces)
    if fills_unused:
        slots = [i for i, piece in enumerate(pieces) if UNUSED.fullmatch(piece)]
        for slot, word in zip(slots, new, strict=False):
            filled[slot] = word
    return [*filled, *new]
