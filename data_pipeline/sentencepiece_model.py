"""The fields of a SentencePiece model file that its library does not tell.

The file is a protocol buffer. The reader that comes with the library wants a newer protobuf than
TensorFlow allows, and a few fields of three messages are all that is needed here.
Source: sentencepiece_model.proto, sentencepiece v0.2.0.
"""

import collections
import dataclasses
import struct

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5  # wire types; the other, 2, tells its length
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_MODEL_TYPE, _SPACE_IS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of TrainerSpec
_CHARSMAP, _DUMMY_PREFIX, _FEWER_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5  # of NormalizerSpec


@dataclasses.dataclass(frozen=True)
class SentencepieceModel:
    """What a model file says, N pieces in the order of their ids."""

    model_type: int  # UNIGRAM, BPE; 3 and 4 are words and characters
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    piece_types: tuple[int, ...]
    has_byte_fallback: bool
    charsmap: bytes  # the compiled table of the normaliser, empty for none
    adds_space_before_text: bool
    removes_extra_spaces: bool
    marks_spaces: bool
    space_ends_a_word: bool  # the mark is a word's last character, not its first


@dataclasses.dataclass(frozen=True)
class _Message:
    """A message by the numbers of its fields; a field that repeats keeps all its bytes."""

    numbers: dict[int, int]
    bytes_of: dict[int, list[bytes]]


def read_model(data: bytes) -> SentencepieceModel:
    """Read the bytes of a model file that the library has taken as one."""
    whole = _message(data)
    pieces = [_message(piece) for piece in whole.bytes_of[_PIECES]]
    trainer = _message(b"".join(whole.bytes_of[_TRAINER])).numbers
    normalizer = _message(b"".join(whole.bytes_of[_NORMALIZER]))
    rules = normalizer.numbers
    no_score = [bytes(4)]
    return SentencepieceModel(
        model_type=trainer.get(_MODEL_TYPE, UNIGRAM),
        pieces=tuple(piece.bytes_of[_PIECE][0].decode() for piece in pieces),
        scores=tuple(
            struct.unpack("<f", piece.bytes_of.get(_SCORE, no_score)[0])[0] for piece in pieces
        ),
        piece_types=tuple(piece.numbers.get(_TYPE, NORMAL) for piece in pieces),
        has_byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        charsmap=b"".join(normalizer.bytes_of.get(_CHARSMAP, [])),
        adds_space_before_text=bool(rules.get(_DUMMY_PREFIX, 1)),
        removes_extra_spaces=bool(rules.get(_FEWER_SPACES, 1)),
        marks_spaces=bool(rules.get(_ESCAPE_SPACES, 1)),
        space_ends_a_word=bool(trainer.get(_SPACE_IS_SUFFIX, 0)),
    )


def _message(data: bytes) -> _Message:
    message = _Message({}, collections.defaultdict(list))
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            message.numbers[field], at = _varint(data, at)
            continue
        size_bytes = {_FIXED32: 4, _FIXED64: 8}.get(wire_type)
        if size_bytes is None:
            size_bytes, at = _varint(data, at)
        message.bytes_of[field].append(data[at : at + size_bytes])
        at += size_bytes
    return message


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1
