"""Encode text by byte-level BPE, as RoBERTa and ModernBERT do, from the rules of a tokenizer.json.

Each byte of a text is a character of the pieces, a space is Ġ, so every text has ids and none is
unknown. A piece that lacks Ġ continues the word before it. Files with `add_prefix_space` put a
space before a text, so its first word has the pieces that it has within one; vocabularies trained
here do. Others (RoBERTa's own) encode the first word without Ġ, and where a text follows another in
a segment, whole-word masking takes that word as the rest of the one before.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.vocab.wordpiece import MAX_PIECES

SPACE = "\u0120"  # stands for a space in pieces
# A cut here is exact: GPT-2's splitter ends a match before a single space between words, and NFC
# composes nothing with a space.
cut_at_words = re.compile(r"(?<=\S)(?= \S)").split
_ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_HEAD = tuple(spellings[0] for spellings in _ROLES.values())  # of vocabularies trained here
PIECES, MERGES = "vocab.json", "merges.txt"  # the two files of RoBERTa and GPT-2
BYTES = tuple(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))


def _map_bytes() -> dict[str, int]:
    """Map each character of the pieces to its byte. Source: gpt-2, encoder.py, bytes_to_unicode."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _map_bytes()


@dataclasses.dataclass(frozen=True)
class ByteLevelRules:
    """Hold what a tokenizer.json says; the tokenizer knows no special tokens and adds no space."""

    tokenizer: tokenizers.Tokenizer
    pieces: tuple[str, ...]
    special_ids: dict[str, int]
    adds_prefix_space: bool

    def prepare(self, text: str) -> str:
        """Return the text with the space that the file puts before it."""
        adds = self.adds_prefix_space and text and not text.startswith(" ")
        return f" {text}" if adds else text

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without the space put before it; broken UTF-8 becomes U+FFFD."""
        data = b"".join(piece_bytes(self.pieces[i]) for i in ids)
        text = data.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.adds_prefix_space else text


def piece_bytes(piece: str) -> bytes:
    """Return the bytes that a piece stands for; an added token stands for its own characters."""
    if all(char in _BYTE_OF for char in piece):
        return bytes(_BYTE_OF[char] for char in piece)
    return piece.encode()


def is_byte_level(settings: Mapping[str, Any]) -> bool:
    """Return whether a parsed tokenizer.json has a model of BPE."""
    model = settings.get("model")
    return isinstance(model, dict) and model.get("type") == "BPE"


def read_rules(path: pathlib.Path, settings: Mapping[str, Any]) -> ByteLevelRules:
    """Read the rules of a parsed tokenizer.json of byte-level BPE.

    Raises:
      Refused: rules of another kind, ids with gaps, a byte without a piece, a role without a
        token.
    """
    try:
        return _read_rules(path, settings)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise Refused(
            f"--vocab is {path}, which is no tokenizer.json ({error!r}); copy it again"
        ) from error


def _read_rules(path: pathlib.Path, settings: Mapping[str, Any]) -> ByteLevelRules:
    model, splitter = settings["model"], settings.get("pre_tokenizer") or {}
    normalizer = (settings.get("normalizer") or {}).get("type")
    added = list(settings.get("added_tokens") or [])
    id_of = dict(model["vocab"]) | {token["content"]: token["id"] for token in added}
    if len(id_of) > MAX_PIECES:
        raise Refused(f"--vocab is {path}, which has {len(id_of):,} pieces; at most {MAX_PIECES:,}")
    pieces = tuple(sorted(id_of, key=id_of.__getitem__))
    if [id_of[piece] for piece in pieces] != list(range(len(pieces))):
        raise Refused(
            f"--vocab is {path}, whose {len(pieces)} ids are not 0 to {len(pieces) - 1}, each "
            "once; a store needs ids without a gap"
        )
    special_ids = _find_roles(path, id_of, settings.get("post_processor") or {})
    roles = {pieces[i] for i in special_ids.values()}
    plain = [token for token in added if not token["special"] and token["content"] not in roles]
    adds_prefix_space = bool(splitter.get("add_prefix_space", True))
    _check_rules(path, model, splitter, normalizer, plain, adds_prefix_space)
    missing = [char for char in BYTES if char not in id_of]
    if missing:
        raise Refused(
            f"--vocab is {path}, which has no piece for {len(missing)} of the 256 bytes, such as "
            f"{missing[0]!r}; give a byte-level vocabulary with all of them"
        )
    own = {
        "version": "1.0",
        "normalizer": settings.get("normalizer"),
        "pre_tokenizer": {**splitter, "add_prefix_space": False},
        "model": {**model, "vocab": id_of},
        "added_tokens": plain,
    }
    try:
        # The library raises nothing narrower than Exception.
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(own))
    except Exception as error:
        raise Refused(
            f"--vocab is {path}, which is not a tokenizer.json that this version of tokenizers "
            f"reads ({str(error)[:80]}); copy it again"
        ) from error
    return ByteLevelRules(tokenizer, pieces, special_ids, adds_prefix_space)


def join_files(path: pathlib.Path, pieces: bytes) -> bytes:
    """Join RoBERTa's vocab.json, of these bytes, and the merges.txt beside it: a tokenizer.json.

    tokenizer_config.json beside them says whether a space is put before a text; without one none
    is, as in RoBERTa.

    Raises:
      Refused: a file is damaged.
    """
    merges = path.with_name(MERGES)
    lines = small_files.decode(small_files.read_bytes(merges), merges).splitlines()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    id_of = small_files.parse_object(pieces, path)
    config = path.with_name("tokenizer_config.json")
    settings = small_files.read_object(config, config.parent) if config.is_file() else {}
    if not all(type(number) is int for number in id_of.values()):
        raise Refused(f"{path} has a piece whose id is no whole number; copy it again")
    roles, piece_of = _find_roles(path, id_of, {}), {i: piece for piece, i in id_of.items()}
    special = [
        {"id": number, "content": piece_of[number], "special": True, "normalized": False}
        | {"single_word": False, "lstrip": role == "mask", "rstrip": False}
        for role, number in sorted(roles.items(), key=lambda item: item[1])
    ]
    adds_space = settings.get("add_prefix_space") is True
    splitter = {"type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": True}
    ends = {name: [piece_of[roles[name]], roles[name]] for name in ("sep", "cls")}
    joined = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": splitter | {"use_regex": True},
        "post_processor": {"type": "RobertaProcessing", **ends}
        | {"trim_offsets": True, "add_prefix_space": adds_space},
        "decoder": splitter | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": id_of,
            "merges": pairs,
        },
    }
    return f"{json.dumps(joined, ensure_ascii=False, indent=2)}\n".encode()


def _check_rules(
    path: pathlib.Path,
    model: Mapping[str, Any],
    splitter: Mapping[str, Any],
    normalizer: str | None,
    plain: Sequence[Mapping[str, Any]],
    adds_prefix_space: bool,
) -> None:
    """Refuse rules that our encoder does not have: the ids would not be those of the file."""
    marks = [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    strips = any(token[name] for token in plain for name in ("lstrip", "rstrip", "single_word"))
    spans = any(len(cut_at_words(f"a{token['content']}a")) > 1 for token in plain)
    kind = splitter.get("type")
    for rule, is_broken in (
        (f"its normalizer is {normalizer}, not NFC or none", normalizer not in (None, "NFC")),
        (f"its pre-tokenizer is {kind}, not ByteLevel", kind != "ByteLevel"),
        ("its pre-tokenizer does not split at words", not splitter.get("use_regex", True)),
        (f"its pieces have the marks {marks}", any(marks)),
        ("its merges are dropped at random", bool(model.get("dropout"))),
        ("it ignores its merges", bool(model.get("ignore_merges"))),
        ("its added tokens take spaces with them", strips),
        ("an added token spans words", spans),
        ("it adds a space and looks for added tokens", adds_prefix_space and bool(plain)),
    ):
        if is_broken:
            raise Refused(
                f"--vocab is {path}, whose rules are not those of RoBERTa or ModernBERT: {rule}; "
                "give the tokenizer.json of one, or train one with --train_vocab=byte_bpe"
            )


def _find_roles(
    path: pathlib.Path, id_of: Mapping[str, int], processor: Mapping[str, Any]
) -> dict[str, int]:
    """Return the ids of the special tokens: post_processor has cls and sep, spelling the rest."""
    known: dict[str, str] = {}
    if processor.get("type") in ("RobertaProcessing", "BertProcessing"):
        known = {name: processor[name][0] for name in ("cls", "sep")}
    elif processor.get("type") == "TemplateProcessing":
        ends = [processor["single"][i].get("SpecialToken") for i in (0, -1)]
        known = {n: e["id"] for n, e in zip(("cls", "sep"), ends, strict=True) if e}
    special_ids = {}
    for name, spellings in _ROLES.items():
        tokens = [known[name]] if name in known else [s for s in spellings if s in id_of]
        if len(tokens) != 1 or tokens[0] not in id_of:
            raise Refused(
                f"{path} has {' and '.join(tokens) or 'no token'} for the role {name}, which must "
                f"be one of its tokens, spelled {' or '.join(spellings)}; name it so in the file, "
                "or take the vocabulary of a RoBERTa or ModernBERT"
            )
        special_ids[name] = id_of[tokens[0]]
    if len(set(special_ids.values())) != len(special_ids):
        raise Refused(f"{path} has one token for two roles of {special_ids}; each needs its own")
    return special_ids


def train_byte_level(texts: Iterable[str], vocab_size: int, reserved_pieces: int) -> bytes:
    """Learn merges; return a tokenizer.json that puts a space before a text.

    Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, [unused0] and on, the 256 bytes, the merges.
    """
    head = [*_HEAD, *(f"[unused{i}]" for i in range(reserved_pieces))]
    smallest = len(head) + len(BYTES)
    if vocab_size < smallest:
        raise Refused(
            f"--vocab_size is {vocab_size}, too small: special pieces take {len(head)} and bytes "
            f"256; give {smallest} or more (ModernBERT: 50368)"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[
            tokenizers.AddedToken(piece, lstrip=piece == "[MASK]", normalized=False, special=True)
            for piece in head
        ],
        initial_alphabet=list(BYTES),
    )
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        raise Refused(
            f"--vocab_size is {vocab_size}, but the text yields no more than {size} pieces; "
            f"give --vocab_size={size} or less, or more text"
        )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(piece, tokenizer.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    return f"{tokenizer.to_str(pretty=True)}\n".encode()
