"""Read a SentencePiece model file, and apply the rules that ALBERT's and XLNet's code add to it.

The file is a protocol buffer. The reader that comes with SentencePiece's library requires a newer
protobuf than TensorFlow allows, so the fields that are needed are declared here. The rules prepare
a text for the model and correct its pieces.
Source: sentencepiece_model.proto, sentencepiece v0.2.0; tokenization.py of google-research/albert,
prepro_utils.py of zihangdai/xlnet, and the tokenizers of transformers 4.57, which also replace the
quotes of LaTeX in ALBERT's texts.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from data_pipeline.vocab.wordpiece import refuse_one_text, replace_surrogates

WORD_START = "\u2581"  # stands in pieces for the space before a word
# A byte of a character that a vocabulary with SentencePiece's fallback has no piece for.
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
UNIGRAM, BPE = 1, 2  # TrainerSpec.model_type; 3 and 4 are words and characters
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.type

NO_RULES, ALBERT, XLNET = "none", "albert", "xlnet"  # ALBERT's lowercase, XLNet's keep case
_ACCENTS, _SPACES = "+keep_accents", "+keep_spaces"
RULES = (
    NO_RULES,
    *map("".join, itertools.product((ALBERT, XLNET), ("", _ACCENTS), ("", _SPACES))),
)
RECORDED = "sentencepiece_rules"  # key of manifests and records; without it: NO_RULES
_QUOTES = ("``", "''")

# message -> its fields: name, number, type, default. Enumerations are read as numbers.
_MESSAGES = {
    "SentencePiece": (
        ("piece", 1, "STRING", ""),
        ("score", 2, "FLOAT", ""),
        ("type", 3, "INT32", "1"),
    ),
    "TrainerSpec": (
        ("model_type", 3, "INT32", "1"),
        ("treat_whitespace_as_suffix", 24, "BOOL", ""),
        ("byte_fallback", 35, "BOOL", ""),
    ),
    "NormalizerSpec": (
        ("precompiled_charsmap", 2, "BYTES", ""),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ),
    "ModelProto": (
        ("pieces", 1, "SentencePiece", ""),
        ("trainer_spec", 2, "TrainerSpec", ""),
        ("normalizer_spec", 3, "NormalizerSpec", ""),
    ),
}


def read_model(data: bytes) -> Any:
    """Read the bytes of a model file as the message ModelProto; its pieces are sorted by id."""
    return _make_message_class().FromString(data)


@functools.cache
def _make_message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="sentencepiece_model.proto")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, default in fields:
            is_message = kind in _MESSAGES
            described.field.add(
                name=name,
                number=number,
                label=kinds.LABEL_REPEATED if name == "pieces" else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if is_message else kinds.Type.Value(f"TYPE_{kind}"),
                type_name=kind if is_message else None,
                default_value=default or None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelProto"))


def list_replaced(charsmap: bytes) -> Iterator[str]:
    """Yield the texts that a model's normalizer replaces: the keys of a trie of darts-clone.

    Source: darts.h of s-yata/darts-clone, DoubleArrayUnit.
    """
    end = 4 + int.from_bytes(charsmap[:4], "little")
    units = np.frombuffer(charsmap[4:end], "<u4").tolist()
    children: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        if unit & 0xFF and unit < 1 << 31:  # others are the root, the unused and the values
            children.setdefault(place ^ unit & 0xFF, []).append(place)
    waiting = [(0, b"")] if units else []
    while waiting:
        place, key = waiting.pop()
        unit = units[place]
        if unit & 1 << 8:
            yield key.decode(errors="replace")
        base = place ^ unit >> 10 << ((unit & 1 << 9) >> 6)
        waiting += [(child, key + bytes([units[child] & 0xFF])) for child in children.get(base, ())]


def name_rules(lowercase: bool, keeps_accents: bool, removes_spaces: bool) -> str:
    """Return the one of RULES with these settings of a tokenizer_config.json."""
    accents, spaces = _ACCENTS * keeps_accents, _SPACES * (not removes_spaces)
    return f"{ALBERT if lowercase else XLNET}{accents}{spaces}"


def list_settings(rules: str) -> dict[str, bool]:
    """Return the settings of a tokenizer_config.json for rules other than NO_RULES."""
    return {
        "do_lower_case": rules.startswith(ALBERT),
        "keep_accents": _ACCENTS in rules,
        "remove_space": _SPACES not in rules,
    }


class RuledEncoder:
    """Encode texts by a SentencePiece model and rules of RULES.

    The rules turn a piece such as "9," into the pieces of "9" and a comma. A table holds these
    pieces by id, as they depend on the piece alone. `spelled` has the ids of the special tokens
    that are read where a text spells them; the parts between them are encoded as texts of their
    own, as in transformers.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        rules: str,
        spelled: Mapping[str, int],
    ) -> None:
        self._processor = processor
        self._spelled = spelled
        longest_first = sorted(map(re.escape, spelled), key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(longest_first) or '(?!)'})").split
        self._rules = rules
        self._settings = list_settings(rules)
        self._parts_of = {} if rules == NO_RULES else _split_commas(processor)

    def prepare(self, text: str) -> str:
        """Return a text as the model gets it; texts may be joined before this or after it."""
        text = replace_surrogates(text)
        if self._rules == NO_RULES:
            return text
        if self._settings["remove_space"]:
            text = " ".join(text.split())
        for quotes in _QUOTES:
            text = text.replace(quotes, '"')
        if not self._settings["keep_accents"]:
            text = _drop_accents(text)
        return text.lower() if self._settings["do_lower_case"] else text

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        refuse_one_text(texts)
        if any(token in text for token in self._spelled for text in texts):
            return [self.encode_aligned(text)[0] for text in texts]
        # One thread: the build runs a process per core.
        encoded: list[list[int]] = self._processor.Encode(
            [*map(self.prepare, texts)], num_threads=1
        )
        parts_of = self._parts_of
        if not parts_of:
            return encoded
        return [
            ids
            if parts_of.keys().isdisjoint(ids)
            else [part for i in ids for part in parts_of.get(i, (i,))]
            for ids in encoded
        ]

    def encode_prepared(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a prepared text, and the characters of it that each covers."""
        mapping = self._processor.EncodeAsOffsetMapping(text)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for piece_id, (start, end) in zip(mapping["ids"], mapping["offsets"], strict=True):
            parts = self._parts_of.get(piece_id)
            if parts is None:
                ids.append(piece_id)
                spans.append((start, end))
            else:
                ids += parts
                spans += [(start, end - 1)] * (len(parts) - 1) + [(end - 1, end)]
        return ids, spans

    def encode_aligned(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and, if it has no spaces, the characters that each covers."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        place = 0
        for part in filter(None, self._cut(text)):
            if part in self._spelled:
                part_ids, part_spans = [self._spelled[part]], [(0, len(part))]
            else:
                part_ids, part_spans = self._align(part)
            ids += part_ids
            spans += [(place + start, place + end) for start, end in part_spans]
            place += len(part)
        return ids, spans

    def _align(self, word: str) -> tuple[list[int], list[tuple[int, int]]]:
        if self._rules == NO_RULES:
            return self.encode_prepared(self.prepare(word))
        starts: list[int] = []
        place = 0
        while place < len(word):
            width = 2 if word[place : place + 2] in _QUOTES else 1
            starts += [place] * len(self._prepare_part(word[place : place + width]))
            place += width
        ids, spans = self.encode_prepared(self.prepare(word))
        if len(starts) != len(self.prepare(word)):  # white space that BERT does not know
            return ids, [(0, len(word))] * len(ids)
        aligned = []
        for start, end in spans:
            first = starts[start] if start < len(starts) else len(word)
            last = starts[end] if end < len(starts) else len(word)
            is_within = start < end and last == first  # one of several pieces of a character
            aligned.append((first, min(first + 1, len(word)) if is_within else last))
        return ids, aligned

    def _prepare_part(self, part: str) -> str:
        return part if part.isspace() else self.prepare(part)


def _drop_accents(text: str) -> str:
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _split_commas(processor: sentencepiece.SentencePieceProcessor) -> dict[int, list[int]]:
    """Return the ids that stand for a piece of a digit and a comma, by its id."""
    parts_of = {}
    for piece_id in range(processor.GetPieceSize()):
        piece = processor.IdToPiece(piece_id)
        if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
            continue
        parts = processor.EncodeAsPieces(piece[:-1].replace(WORD_START, ""))
        if parts and not piece.startswith(WORD_START) and parts[0].startswith(WORD_START):
            parts[0] = parts[0][1:]
        parts_of[piece_id] = [processor.PieceToId(part) for part in (*filter(None, parts), ",")]
    return parts_of
