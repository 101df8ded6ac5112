"""Encode a text and return the characters that each piece covers, one word at a time."""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from data_pipeline.vocab import TOKENIZER_JSON, Vocabulary
from data_pipeline.vocab.tokenizer_file import EncodeText
from data_pipeline.vocab.wordpiece import replace_surrogates

# What BERT takes for white space, and so for the end of a word in any vocabulary.
# Source: tokenization.py@eedf5716ce _is_whitespace.
_find_words = re.compile("[^ \t\n\r\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+").finditer
_CACHED_WORDS = 1 << 17
_MAX_CACHED_WORD_CHARS = 32  # longer ones rarely recur

# A word's ids, and the start and the end of each piece in it.
_Word = tuple[Sequence[int], Sequence[int], Sequence[int]]
_Pieces = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]


@dataclasses.dataclass(frozen=True)
class AlignedPieces:
    """Hold T pieces of a text; piece t covers text[starts_T[t]:ends_T[t]]."""

    ids_T: np.ndarray  # int32[T]
    starts_T: np.ndarray  # int32[T], never falling
    ends_T: np.ndarray  # int32[T], never falling


class PieceAligner:
    """Encode texts to the ids of Vocabulary.encode, with the characters of each piece.

    A SentencePiece vocabulary encodes each word on its own, which differs if a model has pieces
    across words. Characters without a piece (control characters) belong to none, but accents
    belong to the letter before them. Several pieces may cover one character (½), and the mark of a
    word's start covers none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        encode_text = vocabulary.encode_text
        self._encode_whole = encode_text if vocabulary.file_name == TOKENIZER_JSON else None
        pieces_of: _Pieces | None = vocabulary.encode_aligned
        if encode_text is not None:
            pieces_of = _alone(encode_text)
        assert pieces_of is not None  # a vocabulary has one of both
        self._pieces_of = pieces_of
        self._words: dict[str, _Word] = {}

    def encode(self, text: str) -> AlignedPieces:
        """Encode a text."""
        text = replace_surrogates(text)
        if self._encode_whole is not None:
            return _align_whole(self._encode_whole, text)
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for match in _find_words(text):
            offset = match.start()
            word_ids, word_starts, word_ends = self._word(match.group())
            ids += word_ids
            starts += [offset + start for start in word_starts]
            ends += [offset + end for end in word_ends]
        return AlignedPieces(
            np.array(ids, np.int32), np.array(starts, np.int32), np.array(ends, np.int32)
        )

    def _word(self, word: str) -> _Word:
        known = self._words.get(word)
        if known is None:
            known = _with_accents(word, *self._pieces_of(word))
            if len(word) <= _MAX_CACHED_WORD_CHARS:
                if len(self._words) >= _CACHED_WORDS:
                    self._words.clear()
                self._words[word] = known
        return known


def _align_whole(encode_text: EncodeText, text: str) -> AlignedPieces:
    """Encode a text as a whole; the spaces before a word belong to no piece."""
    encoding = encode_text(text)
    spans = []
    for start, end in encoding.offsets:
        while start < end and text[start].isspace():
            start += 1
        spans.append((start, end))
    ids, starts, ends = _with_accents(text, encoding.ids, spans)
    return AlignedPieces(
        np.array(ids, np.int32), np.array(starts, np.int32), np.array(ends, np.int32)
    )


def _alone(encode_text: EncodeText) -> _Pieces:
    def pieces_of(word: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoding = encode_text(word)
        return encoding.ids, encoding.offsets

    return pieces_of


def _with_accents(word: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> _Word:
    """Extend each piece of a word up to the last accent after it that has no piece."""
    starts = [start for start, _ in spans]
    ends = [end for _, end in spans]
    for piece in range(len(ends)):
        limit = starts[piece + 1] if piece + 1 < len(starts) else len(word)
        while ends[piece] < limit and unicodedata.category(word[ends[piece]]).startswith("M"):
            ends[piece] += 1
    return ids, starts, ends
