"""Load a vocabulary by the kind that its file name gives; it encodes text and decodes token ids."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.vocab import byte_level, sentencepiece_rules, tokenizer_file
from data_pipeline.vocab.documents import (
    Encode,
    EncodeAligned,
    EncodeDocuments,
    encode_documents_whole,
    encode_sentences_alone,
    flatten_ids,
)
from data_pipeline.vocab.sentencepiece_model import BPE, CONTROL, UNIGRAM, WORD_START, read_model
from data_pipeline.vocab.special_tokens import SPECIAL_PIECES, find_special_ids
from data_pipeline.vocab.template import Template, make_bert_template
from data_pipeline.vocab.tokenizer_file import BYTE_PIECE
from data_pipeline.vocab.wordpiece import (
    MAX_WORD_CHARS,
    WordEncoder,
    check_case,
    join_pieces,
    make_wordpiece_normalizer,
    make_wordpiece_tokenizer,
    read_list,
)

WORDPIECE, SENTENCEPIECE, BYTE_LEVEL = "wordpiece", "sentencepiece", "byte_level"
LIST, MODEL, TOKENIZER_JSON = FILE_NAMES = ("vocab.txt", "vocab.model", "tokenizer.json")
_KINDS = {
    tokenizer_file.WORDPIECE: WORDPIECE,
    tokenizer_file.UNIGRAM: SENTENCEPIECE,
    tokenizer_file.SENTENCEPIECE_BPE: SENTENCEPIECE,
    tokenizer_file.BPE: BYTE_LEVEL,
}

# Scripts that put no space between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_NO_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks and tabs among them
_RARE = "\U00012000"  # a sign of cuneiform, of which no vocabulary has a piece


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

    kind: str  # WORDPIECE, SENTENCEPIECE or BYTE_LEVEL
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
    continuation_mark: str = "##"  # WORDPIECE alone has one
    sentencepiece_rules: str = sentencepiece_rules.NONE  # one of CHOICES; only a MODEL has others
    adds_space_before: bool = False  # the first piece of a text begins with the mark of a space
    max_word_chars: int = 0  # WORDPIECE: a longer word is unknown; 0: none is too long

    @property
    def size(self) -> int:
        return len(self._pieces)

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
        others = {} if named == sentencepiece_rules.NONE else {sentencepiece_rules.RECORDED: named}
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
        """Return the text that each token stands for, as another vocabulary would encode it.

        A space before a word is in it where `encode` needs one.
        """
        if self.kind == WORDPIECE:
            return [self._pieces[i].removeprefix(self.continuation_mark) for i in ids]
        added = self._read_added()
        return [self._pieces[i] if self._pieces[i] in added else self.decode([i]) for i in ids]

    def _read_added(self) -> set[str]:
        """Read the added tokens of a tokenizer.json, whose spellings are not in the model's."""
        if self.file_name != TOKENIZER_JSON:
            return set()
        settings = json.loads(self.file_bytes.decode("utf-8-sig"))
        return {token["content"] for token in settings.get("added_tokens", ())}

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode words as they are after a space, each alone."""
        if self.kind != WORDPIECE and not self.adds_space_before:
            words = [f" {word}" if word and not word.startswith(" ") else word for word in words]
        return self.encode(words)

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """Return bool[V]: whether a piece continues the word of the piece before it.

        WordPiece marks such pieces by ##; there each Chinese character is a word. SentencePiece
        marks the others, and in a language without spaces hardly any: there a piece that opens
        with punctuation, or in a script without spaces, is a word's start too. What follows
        punctuation without a space goes with it, and the bytes of a rare character go with the
        word before it. Byte-level BPE marks a word's start by a space; what else begins a text
        continues the word before it in the segment. An added token is a word's start if a space
        before it leaves no mark.

        Source: create_pretraining_data.py@eedf5716ce; ALBERT's create_pretraining_data.py, where
        every piece that is not English starts a word.
        """
        if self.kind == WORDPIECE:
            continues = [piece.startswith(self.continuation_mark) for piece in self._pieces]
        elif self.kind == BYTE_LEVEL:
            spaces = (byte_level.SPACE, " ")  # the second of added tokens
            continues = [not piece.startswith(spaces) for piece in self._pieces]
        else:
            continues = [not _starts_word(piece) for piece in self._pieces]
        added = self._read_added() if self.kind != WORDPIECE else set()
        for i, piece in enumerate(self._pieces):
            if continues[i] and piece in added:
                joined, spaced = (self.encode([text])[0] for text in (f".{piece}", f". {piece}"))
                continues[i] = not np.array_equal(joined, spaced)
        for special_id in self.special_ids.values():
            continues[special_id] = False
        return np.array(continues, dtype=bool)


def load_vocabulary(
    path: str | pathlib.Path,
    lowercase: bool = True,
    checks_case: bool = True,
    reads_special_tokens: bool = False,
    rules: str = sentencepiece_rules.NONE,
) -> Vocabulary:
    """Read a vocabulary: *.model is SentencePiece, *.json a tokenizer.json, the rest a vocab.txt.

    A tokenizer.json is run with the tokenizers library, unchanged; a vocab.json is one half of
    that, the other is the merges.txt next to it.

    `lowercase` also strips accents, as BERT's uncased models do. A SentencePiece model and a
    tokenizer.json carry their own rules; there `lowercase` is ignored. `checks_case` is for
    third-party lists: one trained here may have no capitals because its text has none.
    `reads_special_tokens` is for rows of a task: the special tokens that a text spells are these
    tokens there, as in transformers; in training text they are text.
    `rules` are for a SentencePiece model, one of sentencepiece_rules.CHOICES.

    Raises:
      Refused: no such file, no vocabulary, a special piece missing or matched in text, a vocab.txt
        whose case does not fit `lowercase`, a tokenizer.json of another model.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise Refused(
            f"--vocab is {path}, which is not a file; give a vocab.txt, a "
            "tokenizer.json or a *.model, or train one with --train_vocab=wordpiece "
            "--vocab_size=30522"
        )
    if rules not in sentencepiece_rules.CHOICES:
        raise Refused(
            f"{sentencepiece_rules.RECORDED} of {path} is {rules!r:.40}; it must be one of "
            f"{', '.join(sentencepiece_rules.CHOICES)}"
        )
    if rules != sentencepiece_rules.NONE and path.suffix != ".model":
        raise Refused(
            f"--sentencepiece_rules is {rules}, but --vocab={path} is no SentencePiece *.model and "
            "has rules of its own; omit the flag"
        )
    data = read_file(path)
    if path.suffix == ".model":
        return _load_sentencepiece(path, data, rules, reads_special_tokens)
    if path.name == byte_level.PIECES and b'"model"' not in data:
        raise Refused(
            f"--vocab is {path}, which has no {byte_level.MERGES} next to it; copy both or give "
            "the tokenizer.json"
        )
    if path.suffix == ".json":
        return _load_tokenizer_file(path, data, reads_special_tokens)
    return _load_list(path, data, lowercase, checks_case, reads_special_tokens)


def name_copy(path: pathlib.Path) -> str:
    """Name a copy of a vocabulary's file: a vocab.json with its merges.txt is a tokenizer.json."""
    return TOKENIZER_JSON if _has_merges(path) else path.name


def read_file(path: pathlib.Path) -> bytes:
    """Read a vocabulary's file, and the merges.txt of a vocab.json, into one file's bytes."""
    data = small_files.read_bytes(path)
    return byte_level.join_files(path, data) if _has_merges(path) else data


def _has_merges(path: pathlib.Path) -> bool:
    return path.name == byte_level.PIECES and path.with_name(byte_level.MERGES).is_file()


def load_recorded(
    path: pathlib.Path, record: Mapping[str, Any], reads_special_tokens: bool = False
) -> Vocabulary:
    """Read the vocabulary of a store or a run by the rules in its manifest or record."""
    rules = small_files.field(record, sentencepiece_rules.RECORDED, str, path, "none")
    return load_vocabulary(path, record["lowercase"], False, reads_special_tokens, rules)


def describe_case(record: Mapping[str, Any]) -> str:
    """Describe what a vocabulary's rules, recorded in a manifest, do to capitals and accents."""
    if not record.get("lowercase"):
        return "case kept"
    return "lower case" + " without accents" * (record.get("file") == LIST)


def _load_tokenizer_file(path: pathlib.Path, data: bytes, reads_special_tokens: bool) -> Vocabulary:
    file = tokenizer_file.read_tokenizer(path, data, reads_special_tokens)
    encode_text = tokenizer_file.make_encode_text(file.tokenizer, path)
    dtype = token_dtype(len(file.pieces))
    whole = tokenizer_file.LibraryEncoder(encode_text, dtype)
    encode: Encode = whole.encode
    encode_documents: EncodeDocuments = whole.encode_documents
    if file.cut is not None:
        encode = WordEncoder(encode_text, dtype, file.cut).encode
        encode_documents = encode_sentences_alone(encode, spaced=not file.ignores_space_before)
    return Vocabulary(
        kind=_KINDS[file.model],
        path=path,
        file_name=TOKENIZER_JSON,
        lowercase=file.lowercase,
        special_ids=file.special_ids,
        file_bytes=data,
        encode=encode,
        encode_documents=encode_documents,
        decode=file.decode,
        normalize=tokenizer_file.make_normalize(file.tokenizer, path),
        template=file.template,
        _pieces=file.pieces,
        encode_aligned=whole.encode_aligned,
        continuation_mark=file.continuation_mark,
        adds_space_before=file.adds_space_before,
        max_word_chars=file.max_word_chars,
    )


def _load_list(
    path: pathlib.Path, data: bytes, lowercase: bool, checks_case: bool, reads_special_tokens: bool
) -> Vocabulary:
    pieces = read_list(path, data)
    special_ids = find_special_ids(path, pieces, {})
    if checks_case:
        check_case(path, pieces, lowercase)
    tokenizer = make_wordpiece_tokenizer(pieces, pieces[special_ids["unk"]], lowercase)
    encode_text = tokenizer_file.make_encode_text(tokenizer, path)
    dtype = token_dtype(len(pieces))
    whole = tokenizer_file.LibraryEncoder(encode_text, dtype)
    by_word = WordEncoder(encode_text, dtype)
    spelled = [pieces[i] for i in special_ids.values()] if reads_special_tokens else []
    tokenizer.add_special_tokens(spelled)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        is_spelled = any(token in text for token in spelled for text in texts)
        return whole.encode(texts) if is_spelled else by_word.encode(texts)

    return Vocabulary(
        kind=WORDPIECE,
        path=path,
        file_name=LIST,
        lowercase=lowercase,
        special_ids=special_ids,
        file_bytes=join_pieces(pieces),
        encode=encode,
        encode_documents=encode_sentences_alone(encode, spaced=False),
        decode=lambda ids: " ".join(pieces[i] for i in ids).replace(" ##", ""),
        normalize=make_wordpiece_normalizer(lowercase).normalize_str,
        template=make_bert_template(special_ids),
        _pieces=tuple(pieces),
        encode_aligned=whole.encode_aligned,
        max_word_chars=MAX_WORD_CHARS,
    )


def _load_sentencepiece(
    path: pathlib.Path, data: bytes, rules: str, reads_special_tokens: bool
) -> Vocabulary:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
        pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
        model = read_model(data)
    except Exception as error:  # the class depends on the damage
        raise Refused(
            f"{path} ends in .model but is not a SentencePiece model, or is damaged; copy it "
            "again, and give a WordPiece list another name, as in vocab.txt"
        ) from error
    if set(pieces).isdisjoint(SPECIAL_PIECES["mask"]):  # DeBERTa's tokenizers append it
        pieces.append(SPECIAL_PIECES["mask"][0])
    special_ids = find_special_ids(path, pieces, {"unk": processor.unk_id()})
    for special_id in set(special_ids.values()) - {special_ids["unk"]}:
        if special_id in processor.Encode(pieces[special_id]):
            raise Refused(
                f"{path} turns the characters {pieces[special_id]} of a text into the id that "
                "BERT marks sentences with; train the model with --control_symbols instead of "
                "--user_defined_symbols"
            )
    dtype = token_dtype(len(pieces))
    control = [i for i, kind in enumerate(model.piece_types) if kind == CONTROL]
    spelled_ids = (*control, *special_ids.values()) if reads_special_tokens else ()
    spelled = {pieces[i]: i for i in spelled_ids}
    encoder = sentencepiece_rules.RuledEncoder(processor, rules, spelled)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return flatten_ids(encoder.encode(texts), dtype)

    if model.space_ends_a_word:
        raise Refused(
            f"{path} puts the mark of a space, {WORD_START}, after a word, so that its pieces do "
            "not show where a word begins; train the model without --treat_whitespace_as_suffix"
        )
    adds_space = model.adds_space_before_text
    # A model of words joins the unknown ones in a row.
    is_alone = (
        adds_space
        and model.model_type in (UNIGRAM, BPE)
        and not any(WORD_START in piece.lstrip(WORD_START) for piece in pieces)
    )
    return Vocabulary(
        kind=SENTENCEPIECE,
        path=path,
        file_name=MODEL,
        lowercase=processor.Normalize(encoder.prepare("A")) in ("a", WORD_START + "a"),
        special_ids=special_ids,
        file_bytes=data,
        encode=encode,
        encode_documents=(
            encode_sentences_alone(encode, spaced=False)
            if is_alone
            else encode_documents_whole(encoder.encode_prepared, dtype, encoder.prepare)
        ),
        normalize=lambda text: str(processor.Normalize(encoder.prepare(text))),
        template=make_bert_template(special_ids),
        # An appended [MASK] is left out, as a model's own special pieces are.
        decode=lambda ids: processor.Decode([int(i) for i in ids if i < processor.GetPieceSize()]),
        _pieces=tuple(pieces),
        sentencepiece_rules=rules,
        encode_aligned=encoder.encode_aligned,
        adds_space_before=adds_space,
    )


def _starts_word(piece: str) -> bool:
    if BYTE_PIECE.fullmatch(piece):
        return False
    first = piece[:1]
    is_punctuation = first in string.punctuation or unicodedata.category(first).startswith("P")
    return first == WORD_START or is_punctuation or _NO_SPACES.match(first) is not None
