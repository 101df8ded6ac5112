"""Define a vocabulary: it encodes text and decodes token ids, whatever kind of file it is from.

A document gets the ids of its sentences joined by spaces. Some tokenizers encode a word differently
at the start of a text than after a space, or have pieces that span words; there a sentence encoded
alone has other ids than within its document.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.vocab import byte_level
from data_pipeline.vocab.sentencepiece_model import BYTE_PIECE, NO_RULES, RECORDED, WORD_START
from data_pipeline.vocab.template import Template

WORDPIECE, SENTENCEPIECE, BYTE_LEVEL = "wordpiece", "sentencepiece", "byte_level"
OF_WORDS = "{} of words"  # another model of tokenizers, whose pieces hold no spaces
LIST, MODEL, TOKENIZER_JSON = FILE_NAMES = ("vocab.txt", "vocab.model", "tokenizer.json")

# Scripts that put no space between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_NO_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks and tabs among them
_RARE = "\U00012000"  # a cuneiform sign, for which no vocabulary has a piece


Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
EncodeDocuments = Callable[[Sequence[str], Sequence[int]], tuple[np.ndarray, np.ndarray]]
# The ids of a text, and the start and the end of the characters that each covers.
EncodeAligned = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest of uint16 and uint32 that can hold every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Encode text to token ids without special tokens around it, and decode them.

    `encode` turns N texts into all their ids, one after another (token_dtype of the size), and
    int64[N], the number of ids of each text, which may be 0. `encode_documents` takes N sentences
    and the number of sentences per document, and returns the same; a document gets the ids of its
    sentences joined by spaces. `decode` turns ids back into text, as far as the vocabulary
    preserves it.
    """

    kind: str  # WORDPIECE, SENTENCEPIECE, BYTE_LEVEL or OF_WORDS
    path: pathlib.Path
    file_name: str  # a store's name for it: one of FILE_NAMES
    lowercase: bool
    special_ids: dict[str, int]  # keys: pad, unk, cls, sep, mask
    # The file that a store keeps: a list without carriage returns, or a model or JSON as it is.
    file_bytes: bytes = dataclasses.field(repr=False)
    encode: Encode
    encode_documents: EncodeDocuments
    decode: Callable[[Sequence[int]], str] = dataclasses.field(repr=False)
    normalize: Callable[[str], str]  # the text that pieces are matched against
    template: Template  # where special tokens go around texts
    _pieces: tuple[str, ...] = dataclasses.field(repr=False)
    # A text's ids and the characters that each covers; a MODEL takes a text without spaces.
    encode_aligned: EncodeAligned
    continuation_mark: str = "##"  # WORDPIECE, and some OF_WORDS, have one
    end_mark: str = ""  # ends the last piece of a word, as </w>; some OF_WORDS have one
    sentencepiece_rules: str = NO_RULES  # one of sentencepiece_model.RULES; only a MODEL has others
    adds_space_before: bool = False  # the first piece of a text begins with the mark of a space
    max_word_chars: int = 0  # WORDPIECE: a longer word is unknown; 0: none is too long

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def has_spaces(self) -> bool:
        """Return whether pieces hold the space before a word."""
        return self.kind in (SENTENCEPIECE, BYTE_LEVEL)

    @property
    def marks_words(self) -> bool:
        """Return whether a piece shows that it begins a word, which whole-word masks need."""
        return self.has_spaces or bool(self.continuation_mark)

    @property
    def has_all_bytes(self) -> bool:
        """Return whether a character without a piece is encoded as its bytes, so none is lost."""
        ids, _ = self.encode([_RARE])
        return self.kind == BYTE_LEVEL or self.special_ids["unk"] not in ids

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file that a store keeps."""
        return hashlib.sha256(self.file_bytes).hexdigest()

    @property
    def recorded_rules(self) -> dict[str, Any]:
        """Return what `load_recorded` needs in addition to the file, for manifests and records."""
        named = self.sentencepiece_rules
        others = {} if named == NO_RULES else {RECORDED: named}
        return {"lowercase": self.lowercase, **others}

    def pieces(self) -> list[str]:
        """Return the pieces in the order of their ids."""
        return list(self._pieces)

    def readable_pieces(self) -> list[str]:
        """Return the pieces for display: pieces of bytes as text, with WORD_START for a space.

        A piece that ends within a character, or breaks a line, stays as it is.
        """
        if self.kind != BYTE_LEVEL:
            return list(self._pieces)
        readable = []
        for piece in self._pieces:
            text = byte_level.decode_piece(piece).decode("utf-8", errors="ignore")
            is_text = text.encode() == byte_level.decode_piece(piece) and not _CONTROL.search(text)
            is_word = is_text and piece.startswith(byte_level.SPACE)
            readable.append(WORD_START + text[1:] if is_word else text if is_text else piece)
        return readable

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, for another vocabulary to encode.

        The text has the space before a word where `encode` needs one.
        """
        if not self.has_spaces:
            return [self.strip_marks(self._pieces[i]) for i in ids]
        added = self._list_added()
        return [self._pieces[i] if self._pieces[i] in added else self.decode([i]) for i in ids]

    def strip_marks(self, piece: str) -> str:
        """Return a piece without the marks of its place in a word, spaces aside."""
        return piece.removeprefix(self.continuation_mark).removesuffix(self.end_mark)

    def read_settings(self) -> dict[str, Any]:
        """Parse a tokenizer.json; {} for another kind of file."""
        return json.loads(self.file_bytes) if self.file_name == TOKENIZER_JSON else {}

    def _list_added(self) -> set[str]:
        """Return the added tokens of a tokenizer.json; their spelling is plain, not the model's."""
        return {token["content"] for token in self.read_settings().get("added_tokens", ())}

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode words as they are after a space, each alone."""
        if self.has_spaces and not self.adds_space_before:
            words = [f" {word}" if word and not word.startswith(" ") else word for word in words]
        return self.encode(words)

    def count_words(self, counts_V: np.ndarray) -> int:
        """Count the words of a text by how often each piece occurs; 0 if no piece shows them."""
        if self.end_mark:
            ends_word = [piece.endswith(self.end_mark) for piece in self._pieces]
            return int(counts_V[ends_word].sum())
        return int(counts_V[~self.is_continuation].sum()) if self.marks_words else 0

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return bool[V]: whether a piece continues the word of the piece before it.

        WordPiece marks such pieces by ##; there each Chinese character is a word. SentencePiece
        marks the others, and in a language without spaces hardly any: there a piece that opens
        with punctuation, or in a script without spaces, is a word's start too. What follows
        punctuation without a space goes with it, and the bytes of a rare character go with the
        word before it. Byte-level BPE marks a word's start by a space; a piece that begins a text
        without one continues the word before it in the segment. An added token is a word's start
        if a space before it leaves no mark.

        Source: create_pretraining_data.py@eedf5716ce; ALBERT's create_pretraining_data.py, where
        every piece that is not English starts a word.
        """
        if not self.has_spaces:
            mark = self.continuation_mark
            continues = [bool(mark) and piece.startswith(mark) for piece in self._pieces]
        elif self.kind == BYTE_LEVEL:
            spaces = (byte_level.SPACE, " ")  # added tokens have a plain space
            continues = [not piece.startswith(spaces) for piece in self._pieces]
        else:
            continues = [not _starts_word(piece) for piece in self._pieces]
        added = self._list_added() if self.has_spaces else set()
        for i, piece in enumerate(self._pieces):
            if continues[i] and piece in added:
                joined, spaced = (self.encode([text])[0] for text in (f".{piece}", f". {piece}"))
                continues[i] = not np.array_equal(joined, spaced)
        for special_id in self.special_ids.values():
            continues[special_id] = False
        return np.array(continues, dtype=bool)


def _starts_word(piece: str) -> bool:
    if BYTE_PIECE.fullmatch(piece):
        return False
    first = piece[:1]
    is_punctuation = first in string.punctuation or unicodedata.category(first).startswith("P")
    return first == WORD_START or is_punctuation or _NO_SPACES.match(first) is not None


def describe_case(record: Mapping[str, Any]) -> str:
    """Describe what a vocabulary's rules, recorded in a manifest, do to capitals and accents."""
    if not record.get("lowercase"):
        return "case kept"
    return "lower case" + " without accents" * (record.get("file") == LIST)


def encode_sentences_alone(encode: Encode, has_spaces: bool) -> EncodeDocuments:
    """Return an encoder of documents that encodes each sentence by itself.

    With `has_spaces` a sentence is encoded with the space that joins it to the one before it. That
    is exact where sentences neither begin nor end with white space, as a build's sentences.
    """

    def encode_documents(
        sentences: Sequence[str], sentence_counts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        if has_spaces:
            firsts = {0, *np.cumsum(sentence_counts).tolist()}
            sentences = [
                sentence if number in firsts else f" {sentence}"
                for number, sentence in enumerate(sentences)
            ]
        return encode(sentences)

    return encode_documents


def encode_documents_whole(
    encode_aligned: EncodeAligned, dtype: np.dtype, prepare: Callable[[str], str] | None = None
) -> EncodeDocuments:
    """Return an encoder of documents that encodes each as one text and cuts its tokens.

    A token belongs to the sentence in which it begins; the space before a sentence is part of it.
    `prepare` changes a sentence before they are joined.
    """

    def encode_document(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if prepare is not None:
            sentences = [*map(prepare, sentences)]
        ids, spans = encode_aligned(" ".join(sentences))
        sizes_S = np.fromiter(map(len, sentences), np.int64, len(sentences))
        ends_S = np.cumsum(sizes_S + 1) - 1
        starts_T = np.maximum.accumulate(np.array([start for start, _ in spans], np.int64))
        sentence_T = np.searchsorted(ends_S[:-1], starts_T, side="right")
        return np.array(ids, dtype), np.bincount(sentence_T, minlength=len(sentences))

    def encode_documents(
        sentences: Sequence[str], sentence_counts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        encoded: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, dtype), np.zeros(0, np.int64))]
        ends = np.cumsum(sentence_counts).tolist()
        for count, end in zip(sentence_counts, ends, strict=True):
            if count:
                encoded.append(encode_document(sentences[end - count : end]))
        ids, lengths = zip(*encoded, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    return encode_documents


def flatten_ids(encoded: Sequence[Sequence[int]], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of N texts one after another, and int64[N], the number of ids of each."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    flat = itertools.chain.from_iterable(encoded)
    return np.fromiter(flat, dtype, int(lengths.sum())), lengths


def split_ids(flat_ids: np.ndarray, lengths_N: np.ndarray) -> list[np.ndarray]:
    """Return the ids of each of N texts, from what flatten_ids or Vocabulary.encode returns."""
    return np.split(flat_ids, np.cumsum(lengths_N))[:-1]
