"""Encode a text and return the characters that each piece covers, one word at a time."""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from data_pipeline.vocab import TOKENIZER_JSON, Vocabulary
from data_pipeline.vocab.wordpiece import replace_surrogates

# What BERT takes for white space, and so for the end of a word in any vocabulary.
# Source: tokenization.py@eedf5716ce _is_whitespace.
_find_words = re.compile("[^ \t\n\r\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+").finditer
_CACHED_WORDS = 1 << 17
_MAX_CACHED_WORD_CHARS = 32  # longer ones rarely recur

# The ids of a word or a text, and the start and the end of each piece in it.
_Pieces = tuple[Sequence[int], Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class AlignedPieces:
    """Hold T pieces of a text; piece t covers text[starts_T[t]:ends_T[t]]."""

    ids_T: np.ndarray  # int32[T]
    starts_T: np.ndarray  # int32[T], never falling
    ends_T: np.ndarray  # int32[T], never falling


class PieceAligner:
    """Encode texts to the ids of Vocabulary.encode, with the characters of each piece.

    A SentencePiece vocabulary encodes each word on its own, which gives other ids if its model has
    pieces across words. Characters without a piece (control characters) belong to none, but accents
    belong to the letter before them. Several pieces may cover one character (½), and the mark of a
    word's start covers none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode_aligned
        self._encodes_whole = vocabulary.file_name == TOKENIZER_JSON
        self._align_cached = functools.lru_cache(_CACHED_WORDS)(self._align_word)

    def encode(self, text: str) -> AlignedPieces:
        """Encode a text."""
        align = self._align_whole if self._encodes_whole else self._align_words
        pieces = align(replace_surrogates(text))
        return AlignedPieces(*(np.array(numbers, np.int32) for numbers in pieces))

    def _align_words(self, text: str) -> _Pieces:
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for match in _find_words(text):
            offset, word = match.start(), match.group()
            is_short = len(word) <= _MAX_CACHED_WORD_CHARS
            word_ids, word_starts, word_ends = (
                self._align_cached(word) if is_short else self._align_word(word)
            )
            ids += word_ids
            starts += [offset + start for start in word_starts]
            ends += [offset + end for end in word_ends]
        return ids, starts, ends

    def _align_word(self, word: str) -> _Pieces:
        return _with_accents(word, *self._encode(word))

    def _align_whole(self, text: str) -> _Pieces:
        """Encode a text as a whole; the spaces before a word belong to no piece."""
        ids, library_spans = self._encode(text)
        spans = []
        for start, end in library_spans:
            while start < end and text[start].isspace():
                start += 1
            spans.append((start, end))
        return _with_accents(text, ids, spans)


def _with_accents(word: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> _Pieces:
    """Extend each piece of a word up to the last accent after it that has no piece."""
    starts = [start for start, _ in spans]
    ends = [end for _, end in spans]
    for piece in range(len(ends)):
        limit = starts[piece + 1] if piece + 1 < len(starts) else len(word)
        while ends[piece] < limit and unicodedata.category(word[ends[piece]]).startswith("M"):
            ends[piece] += 1
    return ids, starts, ends
