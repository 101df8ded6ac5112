"""Read the fields of a SentencePiece model file.

SentencePiece's library does not report some fields of a model file, which is a protocol buffer.
The reader that comes with it requires a newer protobuf than TensorFlow allows; `read_model` reads
the few fields that are needed.
Source: sentencepiece_model.proto, sentencepiece v0.2.0.
"""

import collections
import dataclasses
import re
import struct

WORD_START = "\u2581"  # stands in pieces for the space before a word
# A byte of a character that a vocabulary with SentencePiece's fallback has no piece for.
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5  # wire types; the other, 2, is prefixed by its length
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # fields of SentencePiece
_MODEL_TYPE, _SPACE_IS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # fields of TrainerSpec
_CHARSMAP, _DUMMY_PREFIX, _FEWER_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5  # fields of NormalizerSpec


@dataclasses.dataclass(frozen=True)
class SentencepieceModel:
    """Hold the fields of a model file; its N pieces are in the order of their ids."""

    model_type: int  # UNIGRAM, BPE; 3 and 4 are words and characters
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    piece_types: tuple[int, ...]
    has_byte_fallback: bool
    charsmap: bytes  # the compiled table of the normalizer, empty for none
    adds_space_before_text: bool
    removes_extra_spaces: bool
    marks_spaces: bool
    space_ends_a_word: bool  # the mark is a word's last character, not its first


def read_model(data: bytes) -> SentencepieceModel:
    """Read the bytes of a model file that SentencePiece's library has accepted."""
    _, parts = _parse_message(data)
    pieces = [_parse_message(piece) for piece in parts[_PIECES]]
    trainer, _ = _parse_message(b"".join(parts[_TRAINER]))
    rules, tables = _parse_message(b"".join(parts[_NORMALIZER]))
    no_score = [bytes(4)]
    return SentencepieceModel(
        model_type=trainer.get(_MODEL_TYPE, UNIGRAM),
        pieces=tuple(texts[_PIECE][0].decode() for _, texts in pieces),
        scores=tuple(struct.unpack("<f", texts.get(_SCORE, no_score)[0])[0] for _, texts in pieces),
        piece_types=tuple(numbers.get(_TYPE, NORMAL) for numbers, _ in pieces),
        has_byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        charsmap=b"".join(tables[_CHARSMAP]),
        adds_space_before_text=bool(rules.get(_DUMMY_PREFIX, 1)),
        removes_extra_spaces=bool(rules.get(_FEWER_SPACES, 1)),
        marks_spaces=bool(rules.get(_ESCAPE_SPACES, 1)),
        space_ends_a_word=bool(trainer.get(_SPACE_IS_SUFFIX, 0)),
    )


def _parse_message(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Return the numbers and the bytes of a message by field; a repeated field keeps all bytes."""
    numbers: dict[int, int] = {}
    parts: dict[int, list[bytes]] = collections.defaultdict(list)
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            numbers[field], place = _varint(data, place)
            continue
        size_bytes = {_FIXED32: 4, _FIXED64: 8}.get(wire_type)
        if size_bytes is None:
            size_bytes, place = _varint(data, place)
        parts[field].append(data[place : place + size_bytes])
        place += size_bytes
    return numbers, parts


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, the lowest first, and the index after it."""
    value = shift = 0
    while data[place] & 0x80:
        value |= (data[place] & 0x7F) << shift
        shift += 7
        place += 1
    return value | data[place] << shift, place + 1
