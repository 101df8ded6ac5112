"""Write a vocabulary as the tokenizer.json that Hugging Face's tokenizers and transformers read.

It encodes to the ids of Vocabulary.encode, with these differences. [PAD], [UNK], [CLS], [SEP],
[MASK] and SentencePiece's other control pieces stand for themselves if a text spells them out, as
readers of the file expect. Unigram models may put pieces of equal probability in another order
("00 0" for "0 00"): SentencePiece adds in float32. Letters under heaps of combining marks may be
normalised differently, and if a model falls back to bytes, a "<0x41>" in a text is read as the
byte.

Private-use characters (U+E000 and on) are dropped from WordPiece text, here and in
Vocabulary.encode, as Hugging Face's BERT tokenizers drop them with control characters. Google's
tokenization.py keeps them, and a word with one becomes [UNK]. The ids here are Hugging
Face's, because its library normalizes text here and wherever an exported model is used.

SentencePiece's library does not report some fields of a model file, which is a protocol buffer.
The reader that comes with it requires a newer protobuf than TensorFlow allows; `read_model` reads
the few fields that are needed.
Source: sentencepiece_model.proto, sentencepiece v0.2.0.
"""

import collections
import dataclasses
import json
import pathlib
import struct

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from data_pipeline.vocab import BYTE_LEVEL, WORD_START, WORDPIECE, Vocabulary
from data_pipeline.vocab.template import make_store_template, read_template
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5  # wire types; the other, 2, is prefixed by its length
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_MODEL_TYPE, _SPACE_IS_SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of TrainerSpec
_CHARSMAP, _DUMMY_PREFIX, _FEWER_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5  # of NormalizerSpec


@dataclasses.dataclass(frozen=True)
class SentencepieceModel:
    """Hold the fields of a model file; its N pieces are in the order of their ids."""

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


TOKENIZER_JSON = "tokenizer.json"  # in a store, beside the vocabulary that the ids are made with

_USER_DEFINED_SCORE = -0.1  # Source: unigram_model.cc, sentencepiece v0.2.0


def write_tokenizer_json(vocabulary: Vocabulary, directory: pathlib.Path) -> None:
    """Write tokenizer.json into a folder, unless the format cannot express the vocabulary."""
    if vocabulary.kind == BYTE_LEVEL:  # the store has it as the vocabulary
        return
    template = make_store_template(vocabulary.template, vocabulary.special_ids)
    text = make_tokenizer_json(dataclasses.replace(vocabulary, template=template))
    if text is not None:
        (directory / TOKENIZER_JSON).write_text(text, encoding="utf-8")


def make_tokenizer_json(vocabulary: Vocabulary) -> str | None:
    """Return the text of tokenizer.json, which is the same for the same vocabulary.

    None for a SentencePiece model with rules that the format cannot express: words or characters
    for pieces, spaces that end words, are not marked or are kept in runs, pieces across spaces,
    unused pieces, user-defined ones of BPE or that its normaliser would change.
    """
    if vocabulary.kind == BYTE_LEVEL:  # its file is one
        text, special_ids = vocabulary.file_bytes.decode(), vocabulary.special_ids
        own = read_template(json.loads(text), special_ids, vocabulary.path)
        return text if own == vocabulary.template else _set_template(text, vocabulary)
    pieces = vocabulary.pieces()
    special = {name: pieces[i] for name, i in vocabulary.special_ids.items()}
    registered = list(special.values())
    if vocabulary.kind == WORDPIECE:
        tokenizer = make_wordpiece_tokenizer(pieces, special["unk"], vocabulary.lowercase)
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    else:
        model = read_model(vocabulary.file_bytes)
        if not _can_be_expressed(model):
            return None
        tokenizer = _sentencepiece_tokenizer(model)
        kinds = zip(model.pieces, model.piece_types, strict=True)
        registered += [piece for piece, kind in kinds if kind == CONTROL]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(piece, normalized=False, special=True) for piece in registered]
    )
    return _set_template(tokenizer.to_str(), vocabulary)


def _set_template(text: str, vocabulary: Vocabulary) -> str:
    """Return the text of a tokenizer.json with the vocabulary's template."""
    processor = vocabulary.template.make_processor(vocabulary.pieces())
    settings = json.loads(text) | {"post_processor": processor}
    return tokenizers.Tokenizer.from_str(json.dumps(settings)).to_str(pretty=True) + "\n"


def _can_be_expressed(model: SentencepieceModel) -> bool:
    kinds = zip(model.pieces, model.piece_types, strict=True)
    own = [piece for piece, kind in kinds if kind == USER_DEFINED]
    normalizer = _normalizer(model)
    return (
        model.model_type in (UNIGRAM, BPE)
        and (not own or model.model_type == UNIGRAM)
        and all(normalizer.normalize_str(piece) == piece for piece in own)
        and model.marks_spaces
        and model.removes_extra_spaces
        and not model.space_ends_a_word
        and UNUSED not in model.piece_types
        and not any(WORD_START in piece[1:] for piece in model.pieces)
    )


def _sentencepiece_tokenizer(model: SentencepieceModel) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(_bpe(model) if model.model_type == BPE else _unigram(model))
    tokenizer.normalizer = _normalizer(model)
    # "first", so that text right after a [MASK] continues its word.
    scheme = "first" if model.adds_space_before_text else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(WORD_START, prepend_scheme=scheme)]
    )
    return tokenizer


def _normalizer(model: SentencepieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    # At the start too where no mark is set before a text; elsewhere the mark takes its place.
    ends = r" +\z" if model.adds_space_before_text else r"\A +| +\z"
    steps.append(normalizers.Replace(tokenizers.Regex(ends), ""))
    steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    return normalizers.Sequence(steps)


def _unigram(model: SentencepieceModel) -> models.Unigram:
    """Build the model of pieces with scores; user-defined pieces get SentencePiece's constant."""
    scored = [
        (piece, _USER_DEFINED_SCORE if kind == USER_DEFINED else score)
        for piece, score, kind in zip(model.pieces, model.scores, model.piece_types, strict=True)
    ]
    unk_id = model.piece_types.index(UNKNOWN)
    return models.Unigram(scored, unk_id=unk_id, byte_fallback=model.has_byte_fallback)


def _bpe(model: SentencepieceModel) -> models.BPE:
    """Build the model of pieces as merges of two others, those with higher scores first."""
    id_of = {piece: i for i, piece in enumerate(model.pieces)}
    of_text = {
        piece: score
        for piece, score, kind in zip(model.pieces, model.scores, model.piece_types, strict=True)
        if kind == NORMAL
    }
    merges = sorted(
        (-score, id_of[left], id_of[right])
        for piece, score in of_text.items()
        for left, right in ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if left in of_text and right in of_text
    )
    return models.BPE(
        id_of,
        [(model.pieces[left], model.pieces[right]) for _, left, right in merges],
        unk_token=model.pieces[model.piece_types.index(UNKNOWN)],
        fuse_unk=True,
        byte_fallback=model.has_byte_fallback,
    )
