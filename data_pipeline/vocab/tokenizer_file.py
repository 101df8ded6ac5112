"""Run a tokenizer.json with the tokenizers library, unchanged, and read what pre-training needs.

The library splits text and returns ids. This module finds the ids of the special tokens, and the
places where a text can be cut without changing the ids of its parts.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tokenizers

from data_pipeline.io import Refused
from data_pipeline.vocab.byte_level import BYTE_OF, SPACE, decode_piece
from data_pipeline.vocab.sentencepiece_model import BYTE_PIECE, WORD_START
from data_pipeline.vocab.template import (
    A,
    Template,
    find_special_ids,
    flatten,
    make_bert_template,
    read_template,
)
from data_pipeline.vocab.vocabulary import (
    BYTE_LEVEL,
    OF_WORDS,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    WORDPIECE,
    Encode,
    EncodeDocuments,
    Vocabulary,
    encode_documents_whole,
    encode_sentences_alone,
    flatten_ids,
    token_dtype,
)
from data_pipeline.vocab.wordpiece import (
    MAX_PIECES,
    WordEncoder,
    find_words,
    refuse_one_text,
    replace_surrogates,
)

_WORDPIECE, _BPE, _UNIGRAM = "WordPiece", "BPE", "Unigram"  # the library's names of models
_MAX_GAPS = 10  # a tenth of the ids
# Bytes that no text in UTF-8 has: some published vocabularies lack their pieces.
_NOT_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
# A cut here is exact: GPT-2's splitter ends a match before a single space between words, and NFC
# composes nothing with a space.
cut_at_words = re.compile(r"(?<=\S)(?= \S)").split

Result = TypeVar("Result")
Cut = Callable[[str], Sequence[str]]
EncodeText = Callable[[str], tokenizers.Encoding]


def find_failures() -> tuple[type[BaseException], ...]:
    """Return the exception classes that the library raises: Exception itself, and Rust's panic.

    The panic class exists only after the first panic. `except find_failures()` is evaluated once an
    exception is raised, so the class exists by then.
    """
    classes = BaseException.__subclasses__()
    return (Exception, *(kind for kind in classes if kind.__module__ == "pyo3_runtime"))


@contextlib.contextmanager
def _silence_stderr() -> Iterator[None]:
    """Hide what Rust prints about a panic; the error that follows says it in one sentence."""
    sys.stderr.flush()
    screen = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def guard(call: Callable[[str], Result], path: pathlib.Path) -> Callable[[str], Result]:
    """Wrap a call of the library: a failure or a panic raises Refused with the file and text."""

    def guarded(text: str) -> Result:
        try:
            return call(text if text.isascii() else replace_surrogates(text))
        except find_failures() as error:
            if isinstance(error, Exception) and type(error) is not Exception:
                raise  # not the library's: it raises Exception itself, never a subclass
            raise Refused(
                f"--vocab is {path}, by which the tokenizers library cannot read {text[:40]!r} "
                f"({str(error)[:80]}); give another vocabulary, or remove that text"
            ) from error

    return guarded


def make_encode_text(tokenizer: tokenizers.Tokenizer, path: pathlib.Path) -> EncodeText:
    """Return a guarded function that encodes a text without special tokens around it."""
    return guard(functools.partial(tokenizer.encode, add_special_tokens=False), path)


def make_normalize(tokenizer: tokenizers.Tokenizer, path: pathlib.Path) -> Callable[[str], str]:
    """Return a guarded function that normalizes a text."""
    normalizer = tokenizer.normalizer
    return guard(lambda text: str(normalizer.normalize_str(text)) if normalizer else text, path)


def load_tokenizer_file(path: pathlib.Path, data: bytes, reads_special_tokens: bool) -> Vocabulary:
    """Load the bytes of a tokenizer.json.

    A special token that a text spells is text, unless `reads_special_tokens`.

    Raises:
      Refused: no tokenizer, many ids without a piece, a byte or a special role
        without a token, or pieces that begin with a mark that no rule writes.
    """
    tokenizer = open_tokenizer(path, data)
    id_of = tokenizer.get_vocab(with_added_tokens=True)
    pieces = _order_pieces(id_of, path)
    # The file as the library writes it, with every default filled in.
    rules: dict[str, Any] = json.loads(tokenizer.to_str())
    model = rules["model"]
    kind, marks_words = _find_kind(tokenizer, rules, pieces, path)
    unk_id = model.get("unk_id")
    if model["type"] != _UNIGRAM and kind != BYTE_LEVEL:
        unk_id = id_of.get(model["unk_token"])
    unknown_id = {} if unk_id is None else {"unk": unk_id}
    _check_model(path, rules, kind, id_of, bool(unknown_id), marks_words)
    special_ids, template = _find_special(path, rules, pieces, unknown_id)
    tokenizer = _set_roles(tokenizer, path, data, pieces, special_ids, reads_special_tokens)
    # The template is read already; the processor adds nothing here, but a fifth of a word's time.
    tokenizer.post_processor = None
    encode_text, normalize = make_encode_text(tokenizer, path), make_normalize(tokenizer, path)
    with _silence_stderr():
        lowercase = "A" not in normalize("A")
        first_piece = (encode_text("a").tokens or [""])[0]
    whole = LibraryEncoder(encode_text, token_dtype(len(pieces)))
    roles = {pieces[i] for i in special_ids.values()}
    encode, encode_documents = _cut_texts(whole, rules, roles, reads_special_tokens)
    mark = model.get("continuing_subword_prefix") or ""
    end_mark = model.get("end_of_word_suffix") or ""
    adds_space_before = first_piece.startswith((WORD_START, SPACE))
    added = roles | (id_of.keys() - dict(model["vocab"])) if kind == BYTE_LEVEL else roles
    return Vocabulary(
        kind=kind,
        path=path,
        file_name=TOKENIZER_JSON,
        lowercase=lowercase,
        special_ids=special_ids,
        file_bytes=data,
        encode=encode,
        encode_documents=encode_documents,
        decode=_make_decode(kind, pieces, mark, end_mark, adds_space_before, added),
        normalize=normalize,
        template=template,
        _pieces=pieces,
        encode_aligned=whole.encode_aligned,
        continuation_mark=mark,
        end_mark=end_mark,
        adds_space_before=adds_space_before,
        max_word_chars=model.get("max_input_chars_per_word", 0),
    )


def _order_pieces(id_of: Mapping[str, int], path: pathlib.Path) -> tuple[str, ...]:
    """Return the piece of each id, "" where an id has none."""
    size = max(id_of.values(), default=-1) + 1
    if size > MAX_PIECES:
        raise Refused(f"--vocab is {path}, which has {size:,} ids; at most {MAX_PIECES:,}")
    piece_of = {number: piece for piece, number in id_of.items()}
    # A vocab.txt with a piece on two lines leaves an id without a piece, which no text encodes to.
    if len(piece_of) < len(id_of) or (size - len(id_of)) * _MAX_GAPS > size:
        raise Refused(
            f"--vocab is {path}, whose {len(id_of)} pieces have {len(piece_of)} of the ids 0 to "
            f"{size - 1}; each needs its own, with few gaps: copy the file again, or correct them"
        )
    return tuple(piece_of.get(number, "") for number in range(size))


def _find_kind(
    tokenizer: tokenizers.Tokenizer,
    rules: Mapping[str, Any],
    pieces: Sequence[str],
    path: pathlib.Path,
) -> tuple[str, bool]:
    """Return the kind of vocabulary, and whether its rules mark the space between two words."""
    model = rules["model"]["type"]
    normalizers = flatten(rules["normalizer"], "normalizers")
    splitters = flatten(rules["pre_tokenizer"], "pretokenizers")
    has_bytes = "ByteLevel" in [step["type"] for step in (*normalizers, *splitters)]
    is_wordpiece = model == _WORDPIECE
    kind = WORDPIECE if is_wordpiece else BYTE_LEVEL if has_bytes else SENTENCEPIECE
    with _silence_stderr():
        marks_words = _marks_words(tokenizer, kind, path)
    marks = ("##",) if is_wordpiece else (WORD_START, SPACE)
    has_marked = has_bytes or any(piece.startswith(marks) for piece in pieces)
    has_rule = rules["model"].get("continuing_subword_prefix") if is_wordpiece else marks_words
    return (kind, marks_words) if has_marked or has_rule else (OF_WORDS.format(model), True)


def _find_special(
    path: pathlib.Path,
    rules: Mapping[str, Any],
    pieces: Sequence[str],
    unknown_id: dict[str, int],
) -> tuple[dict[str, int], Template]:
    """Return the ids of the special tokens, and where they go around texts."""
    template = read_template(rules, {"cls": 0}, path)
    if template is not None and template.largest_id >= len(pieces):
        raise Refused(
            f"--vocab is {path}, whose post_processor puts the id {template.largest_id} around "
            f"texts, and it has {len(pieces):,} pieces; copy it again, or correct those ids"
        )
    marked = {token["content"] for token in rules["added_tokens"] if token["special"]}
    special_ids = find_special_ids(path, pieces, _find_ends(template) | unknown_id, marked)
    template = template or make_bert_template(special_ids)
    return special_ids, dataclasses.replace(template, cls_id=special_ids["cls"])


def _set_roles(
    tokenizer: tokenizers.Tokenizer,
    path: pathlib.Path,
    data: bytes,
    pieces: Sequence[str],
    special_ids: Mapping[str, int],
    reads_special_tokens: bool,
) -> tokenizers.Tokenizer:
    """Return a tokenizer that reads a special token in a text as that token, or as text."""
    roles = {pieces[i] for i in special_ids.values()}
    if reads_special_tokens:  # also a role's piece that is no added token, as in transformers
        registered = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_special_tokens(sorted(roles - registered))
        return tokenizer
    tokenizer.encode_special_tokens = True  # not saved in the file
    with _silence_stderr():
        encode_text = make_encode_text(tokenizer, path)
        spelled = [i for i in special_ids.values() if i in encode_text(pieces[i]).ids]
    if spelled:  # a literal [SEP] in a text would end a sentence
        model, unknown = type(tokenizer.model).__name__, pieces[special_ids["unk"]]
        tokenizer = open_tokenizer(path, _hide_special(data, model, roles, unknown))
        tokenizer.encode_special_tokens = True
    return tokenizer


def _cut_texts(
    whole: "LibraryEncoder",
    rules: Mapping[str, Any],
    roles: Collection[str],
    reads_special_tokens: bool,
) -> tuple[Encode, EncodeDocuments]:
    """Return encoders that cut texts where that is exact, else encoders of whole texts."""
    extra = [t for t in rules["added_tokens"] if not t["special"] and t["content"] not in roles]
    cut = None if reads_special_tokens else _find_cut(rules, extra)
    with _silence_stderr():
        # A space before an added token may be a token of its own where one before "a" is ignored.
        starts = ["a", *(token["content"] + "a" for token in extra)]
        ignores_space = [
            whole.encode_text(text).ids == whole.encode_text(f" {text}").ids for text in starts
        ]
    if cut is None or not (all(ignores_space) or not ignores_space[0]):
        return whole.encode, whole.encode_documents
    encode = WordEncoder(whole.encode_text, whole.dtype, cut).encode
    return encode, encode_sentences_alone(encode, has_spaces=not ignores_space[0])


def _make_decode(
    kind: str,
    pieces: Sequence[str],
    mark: str,
    end_mark: str,
    adds_space_before: bool,
    added: Collection[str],
) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes ids to text; broken UTF-8 becomes U+FFFD.

    `added` are the tokens that no model has; ByteLevel's pieces spell bytes, and these characters.
    """

    def to_bytes(piece: str) -> bytes:
        if kind != BYTE_LEVEL:
            return _decode_marked(piece)
        return piece.encode() if piece in added else decode_piece(piece)

    def decode(ids: Sequence[int]) -> str:
        if end_mark:
            return "".join(pieces[i] for i in ids).replace(end_mark, " ").rstrip(" ")
        if kind not in (SENTENCEPIECE, BYTE_LEVEL):
            text = " ".join(pieces[i] for i in ids)
            return text.replace(f" {mark}", "") if mark else text
        text = b"".join(to_bytes(pieces[i]) for i in ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if adds_space_before else text

    return decode


def _decode_marked(piece: str) -> bytes:
    """Return the bytes of a piece; WORD_START is a space, and <0x41> the byte 0x41."""
    if BYTE_PIECE.fullmatch(piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(WORD_START, " ").encode()


def open_tokenizer(path: pathlib.Path, data: bytes) -> tokenizers.Tokenizer:
    """Open the bytes of a tokenizer.json, without its truncation and padding, or raise Refused."""
    try:
        with _silence_stderr():
            tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8-sig"))
    except find_failures() as error:
        raise Refused(
            f"--vocab is {path}, which is not a tokenizer.json that this version of tokenizers "
            f"reads ({str(error)[:80]}); copy it again, or give the vocab.txt next to it"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _hide_special(data: bytes, model: str, roles: set[str], unknown: str) -> bytes:
    """Return the file with the role tokens marked as special and unreachable from text.

    A model matches every piece (BPE by merges, or if it ignores them), so a role's piece gets a
    leading space, which no word has, and loses the merges that make it. Its added token goes after
    the others, so that they keep their ids.
    """
    settings = json.loads(data)
    vocab = settings["model"]["vocab"]
    pairs = vocab if model == _UNIGRAM else [*vocab.items()]
    hidden = {piece for piece, _ in pairs if piece in roles - {unknown}}
    if model == _BPE:
        settings["model"]["merges"] = [
            merge
            for merge in settings["model"]["merges"]
            if (merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)) not in hidden
        ]
    pairs = [(f" {piece}" if piece in hidden else piece, value) for piece, value in pairs]
    settings["model"]["vocab"] = pairs if model == _UNIGRAM else dict(pairs)
    added = settings.get("added_tokens", [])
    for token in added:
        token["special"] = token["special"] or token["content"] in roles
    settings["added_tokens"] = sorted(added, key=lambda token: token["content"] in hidden)
    return json.dumps(settings).encode()


def _marks_words(tokenizer: tokenizers.Tokenizer, kind: str, path: pathlib.Path) -> bool:
    """Return whether the rules mark the space between two words; True for WordPiece."""
    mark = {WORDPIECE: "", BYTE_LEVEL: SPACE}.get(kind, WORD_START)
    text, splitter = make_normalize(tokenizer, path)("a a"), tokenizer.pre_tokenizer
    parts = guard(splitter.pre_tokenize_str, path)(text) if splitter else [(text, (0, 3))]
    return mark in "".join(part for part, _ in parts)[1:]


def _check_model(
    path: pathlib.Path,
    rules: Mapping[str, Any],
    kind: str,
    id_of: Mapping[str, int],
    has_unknown: bool,
    marks_words: bool,
) -> None:
    """Refuse a model that pre-training cannot use, and name the reason."""
    model = rules["model"]
    has_bytes = model.get("byte_fallback") and sum(map(bool, map(BYTE_PIECE.fullmatch, id_of)))
    for rule, is_broken in (
        ("its merges are dropped at random", bool(model.get("dropout"))),
        (
            "pieces begin with the mark of a space, and no normalizer or pre_tokenizer writes it: "
            f"{WORD_START} (Metaspace), as for SentencePiece, or {SPACE} (ByteLevel), as for "
            "ModernBERT",
            not marks_words,
        ),
        (
            "it has neither an unknown token nor byte_fallback with the pieces <0x00> to <0xFF>, "
            "so that characters without a piece would be lost",
            kind != BYTE_LEVEL and not has_unknown and has_bytes != len(BYTE_OF),
        ),
        (
            "pieces begin with ##, and continuing_subword_prefix is empty",
            kind == WORDPIECE and not model["continuing_subword_prefix"],
        ),
    ):
        if is_broken:
            raise Refused(
                f"--vocab is {path}, whose rules cannot be followed: {rule}; give another "
                "vocabulary, or train one with --train_vocab"
            )
    needed = [char for char, byte in BYTE_OF.items() if byte not in _NOT_IN_UTF8]
    missing = [char for char in needed if char not in id_of]
    if kind == BYTE_LEVEL and missing and not (has_unknown or model.get("unk_token")):
        raise Refused(
            f"--vocab is {path}, which has no piece for {len(missing)} of the 256 bytes, such as "
            f"{missing[0]!r}; give a byte-level vocabulary with all of them"
        )


def _find_ends(template: Template | None) -> dict[str, int]:
    """Return the ids that a template puts around a text; keys: cls, sep."""
    parts = [part for part, _ in template.single] if template else [A]
    place = parts.index(A)
    before, after = parts[:place], parts[place + 1 :]
    if not before and len(after) == 2:  # XLNet's
        return {"sep": int(after[0]), "cls": int(after[1])}
    ends = {"cls": before[:1], "sep": after[-1:]}
    return {name: int(ids[0]) for name, ids in ends.items() if ids}


def _find_cut(rules: Mapping[str, Any], extra: Sequence[Mapping[str, Any]]) -> Cut | None:
    """Return where a text may be cut, for the combinations of rules that tests prove exact.

    `extra` are the added tokens that the library finds in a text.
    """
    normalizer = rules["normalizer"] or {"type": None}
    splitter = flatten(rules["pre_tokenizer"], "pretokenizers")
    names = [step["type"] for step in splitter]
    model = rules["model"]["type"]
    if (
        model == _WORDPIECE
        and (normalizer["type"], names) == ("BertNormalizer", ["BertPreTokenizer"])
        and normalizer["handle_chinese_chars"]
        and not extra
    ):
        return find_words
    is_byte_level = names == ["ByteLevel"] or is_prefix_of_texts(splitter)
    strips = any(token[name] for token in extra for name in ("lstrip", "rstrip", "single_word"))
    spans = any(len(cut_at_words(f"a{token['content']}a")) > 1 for token in extra)
    if (
        model == _BPE
        and normalizer["type"] in (None, "NFC")
        and is_byte_level
        and splitter[-1]["use_regex"]
        and not strips
        and not spans
    ):
        return cut_at_words
    return None


def is_prefix_of_texts(splitter: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a space is put before a text, but not after special tokens within it."""
    if [step["type"] for step in splitter] != ["Metaspace", "ByteLevel"]:
        return False
    first, second = splitter
    prefix = (first["replacement"], first["prepend_scheme"], first["split"])
    return prefix == (" ", "first", False) and not second["add_prefix_space"]


class LibraryEncoder:
    """Encode texts with the library, each as a whole.

    Texts are encoded one by one: the library's batches use their own threads, and the build already
    runs a process per core.
    """

    def __init__(self, encode_text: EncodeText, dtype: np.dtype) -> None:
        self.encode_text = encode_text
        self.dtype = dtype
        self.encode_documents = encode_documents_whole(self.encode_aligned, dtype)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return all ids one after another, and int64[N], the number of ids of each text."""
        refuse_one_text(texts)
        return flatten_ids([self.encode_text(text).ids for text in texts], self.dtype)

    def encode_aligned(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the characters of it that each covers."""
        encoding = self.encode_text(text)
        return encoding.ids, encoding.offsets
