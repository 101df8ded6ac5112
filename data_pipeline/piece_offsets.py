"""Text to pieces and the characters that each stands for, a word at a time, each word once."""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import sentencepiece

from data_pipeline.vocab import WORDPIECE, Vocabulary
from data_pipeline.wordpiece import wordpiece_tokenizer

# What BERT takes for white space, and so for the end of a word in any vocabulary.
# Source: tokenization.py@eedf5716ce _is_whitespace.
_find_words = re.compile("[^ \t\n\r\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+").finditer
_CACHED_WORDS = 1 << 17
_LONGEST_CACHED_WORD_CHARS = 32  # longer ones do not come back

# Of a word: ids, and where each piece starts and ends in it.
_Word = tuple[Sequence[int], Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class AlignedPieces:
    """T pieces of a text; piece t stands for text[starts_T[t]:ends_T[t]]."""

    ids_T: np.ndarray  # int32[T]
    starts_T: np.ndarray  # int32[T], never falling
    ends_T: np.ndarray  # int32[T], never falling


class PieceAligner:
    """Pieces of texts with their characters: the ids are those of Vocabulary.encode.

    With a SentencePiece vocabulary they are those of each word on its own, which differ where a
    model has pieces across words. What leaves no piece (control characters) has no characters
    here, but for accents: they belong to the letter before them. Several pieces may stand for one
    character (½), and a mark of a word's start for none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces_of = (
            _wordpiece(vocabulary) if vocabulary.kind == WORDPIECE else _sentencepiece(vocabulary)
        )
        self._words: dict[str, _Word] = {}

    def encode(self, text: str) -> AlignedPieces:
        """The pieces of a text."""
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for found in _find_words(text):
            at = found.start()
            word_ids, word_starts, word_ends = self._word(found.group())
            ids += word_ids
            starts += [at + start for start in word_starts]
            ends += [at + end for end in word_ends]
        return AlignedPieces(
            np.array(ids, np.int32), np.array(starts, np.int32), np.array(ends, np.int32)
        )

    def _word(self, word: str) -> _Word:
        known = self._words.get(word)
        if known is None:
            known = _with_accents(word, *self._pieces_of(word))
            if len(word) <= _LONGEST_CACHED_WORD_CHARS:
                if len(self._words) >= _CACHED_WORDS:
                    self._words.clear()
                self._words[word] = known
        return known


_Pieces = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]


def _wordpiece(vocabulary: Vocabulary) -> _Pieces:
    pieces = vocabulary.pieces()
    unk = pieces[vocabulary.special_ids["unk"]]
    tokenizer = wordpiece_tokenizer(pieces, unk, vocabulary.lowercase)

    def pieces_of(word: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoding = tokenizer.encode(word, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    return pieces_of


def _sentencepiece(vocabulary: Vocabulary) -> _Pieces:
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.file_bytes)

    def pieces_of(word: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoding = processor.EncodeAsOffsetMapping(word)
        return encoding["ids"], encoding["offsets"]

    return pieces_of


def _with_accents(word: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> _Word:
    """A word's pieces, each up to the last accent that follows it and stands for nothing."""
    starts = [start for start, _ in spans]
    ends = [end for _, end in spans]
    for piece in range(len(ends)):
        limit = starts[piece + 1] if piece + 1 < len(starts) else len(word)
        while ends[piece] < limit and unicodedata.category(word[ends[piece]]).startswith("M"):
            ends[piece] += 1
    return ids, starts, ends
