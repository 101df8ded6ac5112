"""Load a vocabulary by the kind that its file name gives; it encodes text and decodes token ids."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentencepiece

from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.vocab import byte_level
from data_pipeline.vocab.template import Template, make_bert_template, read_template
from data_pipeline.vocab.wordpiece import (
    WordEncoder,
    check_case,
    join_pieces,
    make_wordpiece_tokenizer,
    read_json,
    read_list,
    replace_surrogates,
)

WORDPIECE, SENTENCEPIECE, BYTE_LEVEL = "wordpiece", "sentencepiece", "byte_level"
FILE_NAMES = {  # in a store
    WORDPIECE: "vocab.txt",
    SENTENCEPIECE: "vocab.model",
    BYTE_LEVEL: "tokenizer.json",
}

# The pieces that BERT needs, by the names the store uses. The second spelling is ALBERT's.
SPECIAL_PIECES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
WORD_START = "\u2581"  # SentencePiece's mark for the space before a word
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # of SentencePiece models that fall back to bytes
# Scripts that put no space between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_NO_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest of uint16 and uint32 that can hold every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Encode text to token ids without special tokens, and decode them.

    `encode` turns N sentences into all their ids, one after another (token_dtype of the size), and
    int64[N], the number of ids of each sentence, which may be 0. `decode` turns ids back into text,
    as far as the vocabulary preserves it.
    """

    kind: str  # WORDPIECE, SENTENCEPIECE or BYTE_LEVEL
    path: pathlib.Path
    lowercase: bool
    special_ids: dict[str, int]  # by the names pad, unk, cls, sep, mask
    # The file that a store keeps: a list without carriage returns or JSON, or a model as it is.
    file_bytes: bytes
    encode: Encode
    decode: Callable[[Sequence[int]], str]
    template: Template  # how special tokens stand around texts
    _pieces: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file that a store keeps."""
        return hashlib.sha256(self.file_bytes).hexdigest()

    def pieces(self) -> list[str]:
        """Return the pieces in the order of their ids."""
        return list(self._pieces)

    def readable_pieces(self) -> list[str]:
        """Return the pieces for display: those of bytes as text, with WORD_START for a space.

        A piece that ends within a character stays as it is.
        """
        if self.kind != BYTE_LEVEL:
            return list(self._pieces)
        readable = []
        for piece in self._pieces:
            text = byte_level.piece_bytes(piece).decode("utf-8", errors="ignore")
            is_text = text.encode() == byte_level.piece_bytes(piece)
            is_word = is_text and piece.startswith(byte_level.SPACE)
            readable.append(WORD_START + text[1:] if is_word else text if is_text else piece)
        return readable

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode words as they stand behind a space, each by itself."""
        if self.kind == BYTE_LEVEL:
            words = [f" {word}" if word and not word.startswith(" ") else word for word in words]
        return self.encode(words)

    @property
    def is_continuation(self) -> np.ndarray:
        """Return bool[V]: whether a piece continues the word of the piece before it.

        WordPiece marks such pieces by ##; there each Chinese character is a word. SentencePiece
        marks the others, and in a language without spaces hardly any: there a piece that opens
        with punctuation, or in a script without spaces, is a word's start too. What follows
        punctuation without a space goes with it, and the bytes of a rare character go with the
        word before it. Byte-level BPE marks a word's start by a space; what else begins a text
        continues the word before it in the segment.

        Source: create_pretraining_data.py@eedf5716ce; ALBERT's create_pretraining_data.py, where
        every piece that is not English starts a word.
        """
        if self.kind == WORDPIECE:
            continues = [piece.startswith("##") for piece in self._pieces]
        elif self.kind == BYTE_LEVEL:
            spaces = (byte_level.SPACE, " ")  # the second of added tokens
            continues = [not piece.startswith(spaces) for piece in self._pieces]
            for special_id in self.special_ids.values():
                continues[special_id] = False
        else:
            continues = [not _starts_word(piece) for piece in self._pieces]
            for special_id in self.special_ids.values():
                continues[special_id] = False
        return np.array(continues, dtype=bool)


def load_vocabulary(
    path: str | pathlib.Path, lowercase: bool = True, checks_case: bool = True
) -> Vocabulary:
    """Read a vocabulary: *.model is SentencePiece, *.json a tokenizer.json, the rest a vocab.txt.

    A tokenizer.json is of WordPiece or of byte-level BPE; a vocab.json is one half of that, the
    other is the merges.txt beside it.

    `lowercase` also strips accents, as BERT's uncased models do. A SentencePiece model carries its
    own normalisation; there and for byte-level BPE, which keeps case, `lowercase` is ignored.
    `checks_case` is for third-party lists: one trained here may have no capitals because its text
    has none.

    Raises:
      Refused: no such file, no vocabulary, a special piece missing or found in texts, a piece
        twice, a list whose case does not fit `lowercase`, a tokenizer.json of other rules.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise Refused(
            f"--vocab is {path}, which is not a file; give a vocab.txt, a "
            "tokenizer.json or a *.model, or train one with --train_vocab=wordpiece "
            "--vocab_size=30522"
        )
    data = small_files.read_bytes(path)
    if path.suffix == ".model":
        return _load_sentencepiece(path, data)
    if path.name == byte_level.PIECES and path.with_name(byte_level.MERGES).is_file():
        data = byte_level.join_files(path, data)
    if path.suffix == ".json":
        settings = _parse_settings(data)
        if path.name == byte_level.PIECES and "model" not in settings:
            raise Refused(
                f"--vocab is {path}, which has no {byte_level.MERGES} beside it; copy both or give "
                "the tokenizer.json"
            )
        if byte_level.is_byte_level(settings):
            return _load_byte_level(path, data, settings)
    return _load_wordpiece(path, data, lowercase, checks_case)


def _parse_settings(data: bytes) -> dict[str, Any]:
    """Parse a tokenizer.json; {} for what is none, which the reader of WordPiece refuses."""
    try:
        settings = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _choose_template(
    path: pathlib.Path, settings: dict[str, Any], special_ids: dict[str, int]
) -> Template:
    """Return the template of a parsed tokenizer.json, BERT's where it has none."""
    return read_template(settings, special_ids, path) or make_bert_template(special_ids)


def _load_byte_level(path: pathlib.Path, data: bytes, settings: dict[str, Any]) -> Vocabulary:
    rules = byte_level.read_rules(path, settings)
    encoder = WordEncoder(rules.tokenizer, token_dtype(len(rules.pieces)), byte_level.cut_at_words)
    return Vocabulary(
        kind=BYTE_LEVEL,
        path=path,
        lowercase=False,
        special_ids=rules.special_ids,
        file_bytes=data,
        encode=lambda sentences: encoder.encode([rules.prepare(text) for text in sentences]),
        decode=rules.decode,
        template=_choose_template(path, settings, rules.special_ids),
        _pieces=rules.pieces,
    )


def _load_wordpiece(
    path: pathlib.Path, data: bytes, lowercase: bool, checks_case: bool
) -> Vocabulary:
    is_json = path.suffix == ".json"
    pieces = read_json(path, data, lowercase) if is_json else read_list(path, data)
    special_ids = _find_special_ids(path, pieces)
    if checks_case:
        check_case(path, pieces, lowercase)
    tokenizer = make_wordpiece_tokenizer(pieces, pieces[special_ids["unk"]], lowercase)
    return Vocabulary(
        kind=WORDPIECE,
        path=path,
        lowercase=lowercase,
        special_ids=special_ids,
        file_bytes=join_pieces(pieces),
        encode=WordEncoder(tokenizer, token_dtype(len(pieces))).encode,
        decode=lambda ids: " ".join(pieces[i] for i in ids).replace(" ##", ""),
        template=_choose_template(path, _parse_settings(data) if is_json else {}, special_ids),
        _pieces=tuple(pieces),
    )


def _load_sentencepiece(path: pathlib.Path, data: bytes) -> Vocabulary:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except (RuntimeError, OSError) as error:
        raise Refused(
            f"{path} ends in .model but is not a SentencePiece model; a WordPiece list must have "
            "another name, as in vocab.txt"
        ) from error
    pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
    special_ids = _find_special_ids(path, pieces)
    for special_id in set(special_ids.values()) - {special_ids["unk"]}:
        if special_id in processor.Encode(pieces[special_id]):
            raise Refused(
                f"{path} turns the characters {pieces[special_id]} of a text into the id that "
                "BERT marks sentences with; train the model with --control_symbols instead of "
                "--user_defined_symbols"
            )
    return Vocabulary(
        kind=SENTENCEPIECE,
        path=path,
        lowercase=processor.Normalize("A") in ("a", WORD_START + "a"),
        special_ids=special_ids,
        file_bytes=data,
        encode=lambda sentences: _encode_sentencepiece(processor, sentences),
        decode=lambda ids: processor.Decode([int(i) for i in ids]),
        template=make_bert_template(special_ids),
        _pieces=tuple(pieces),
    )


def _encode_sentencepiece(
    processor: sentencepiece.SentencePieceProcessor, sentences: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    # One thread: the build runs a process a core.
    encoded = processor.Encode([*map(replace_surrogates, sentences)], num_threads=1)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    dtype = token_dtype(processor.GetPieceSize())
    flat = itertools.chain.from_iterable(encoded)
    return np.fromiter(flat, dtype, int(lengths.sum())), lengths


def _starts_word(piece: str) -> bool:
    """Return whether a SentencePiece piece begins a word."""
    if _BYTE_PIECE.fullmatch(piece):
        return False
    first = piece[:1]
    is_punctuation = first in string.punctuation or unicodedata.category(first).startswith("P")
    return first == WORD_START or is_punctuation or _NO_SPACES.match(first) is not None


def _find_special_ids(path: pathlib.Path, pieces: Sequence[str]) -> dict[str, int]:
    id_of = {piece: i for i, piece in enumerate(pieces)}
    special_ids = {}
    for name, spellings in SPECIAL_PIECES.items():
        ids = [id_of[spelling] for spelling in spellings if spelling in id_of]
        if not ids:
            raise Refused(
                f"{path} has no piece {spellings[0]} among its {len(pieces)}; BERT needs [PAD], "
                "[UNK], [CLS], [SEP] and [MASK]: take a BERT vocabulary, or train one with "
                "--train_vocab"
            )
        special_ids[name] = ids[0]
    return special_ids
