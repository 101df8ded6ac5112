"""Read and train vocabularies of byte-level BPE, as RoBERTa and ModernBERT have them.

Pieces spell each byte of a text as one character, a space as Ġ, so that no text is unknown. A piece
that lacks Ġ continues the word before it. Vocabularies trained here put a space before a text, so
that its first word has the same pieces as within a text. Others (RoBERTa's own) encode the first
word of a text without Ġ.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from data_pipeline.io import Refused, small_files
from data_pipeline.vocab.template import find_special_ids

SPACE = "\u0120"  # stands for a space in pieces
_HEAD = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # vocabularies trained here begin like this
PIECES, MERGES = "vocab.json", "merges.txt"  # the two files of RoBERTa and GPT-2
BYTES = tuple(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))


def _map_bytes() -> dict[str, int]:
    """Map each character of the pieces to its byte. Source: gpt-2, encoder.py, bytes_to_unicode."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


BYTE_OF = _map_bytes()


def decode_piece(piece: str) -> bytes:
    """Return the bytes that a piece stands for; an added token stands for its own characters."""
    if all(char in BYTE_OF for char in piece):
        return bytes(BYTE_OF[char] for char in piece)
    return piece.encode()


def join_files(path: pathlib.Path, data: bytes) -> bytes:
    """Join RoBERTa's vocab.json (these bytes) and its merges.txt into a tokenizer.json.

    The tokenizer_config.json next to them says whether a space is put before a text; without that
    file none is, as in RoBERTa.

    Raises:
      Refused: a file is damaged.
    """
    merges = path.with_name(MERGES)
    lines = small_files.decode(small_files.read_bytes(merges), merges).splitlines()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    id_of = small_files.parse_object(data, path)
    config = path.with_name("tokenizer_config.json")
    settings = small_files.read_object(config) if config.is_file() else {}
    if not all(type(number) is int for number in id_of.values()):
        raise Refused(f"{path} has a piece whose id is not a whole number; copy it again")
    pieces = sorted(id_of, key=id_of.__getitem__)
    piece_of = {name: pieces[i] for name, i in find_special_ids(path, pieces, {}).items()}
    special = [
        {"id": id_of[piece], "content": piece, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": role == "mask", "rstrip": False}
        for role, piece in sorted(piece_of.items(), key=lambda item: id_of[item[1]])
    ]
    adds_space = settings.get("add_prefix_space") is True
    splitter = {"type": "ByteLevel", "add_prefix_space": adds_space, "trim_offsets": True}
    ends = {name: [piece_of[name], id_of[piece_of[name]]] for name in ("sep", "cls")}
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


def is_trained_here(settings: Mapping[str, Any]) -> bool:
    """Return whether a parsed tokenizer.json is byte-level BPE with our tokens and splitter.

    Others with the same tokens may have ByteLevel alone, which puts a space after each of them.
    """
    head = [token["content"] for token in settings.get("added_tokens", [])[: len(_HEAD)]]
    has_splitter = (settings.get("pre_tokenizer") or {}).get("type") == "Sequence"
    return tuple(head) == _HEAD and settings["model"].get("type") == "BPE" and has_splitter


# A piece and its merge take about 80 bytes of a tokenizer.json, which is read up to MAX_BYTES.
MAX_TRAINED = small_files.MAX_BYTES // 80


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
    # ByteLevel's own add_prefix_space would also add a space after each special token.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
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
