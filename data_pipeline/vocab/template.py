"""Find the special tokens that BERT needs, and describe where they go around a text and a pair.

BERT has [CLS] A [SEP] and [CLS] A [SEP] B [SEP], XLNet A [SEP] [CLS] with [CLS] in segment 2. The
post_processor of a tokenizer.json describes both.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile

A, B = "A", "B"  # the places of the two texts
MAX_SEGMENT, _MAX_PARTS = 127, 128
RECORDED = "template"  # key in the record of a vocabulary
Part = tuple[int | str, int]  # a token id, A or B; its segment
_TEXTS = {"single": [A], "pair": [A, B]}
_ADD_TOKENS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")

# The spellings of each special token: BERT's, then ALBERT's and XLNet's, then RoBERTa's. The keys
# are a store's names for the tokens.
SPECIAL_PIECES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
# Words in the spelling of a token that a file marks as special: <|mask|>, <MASK|LLM-jp>, <bos>.
_WORDS = {"cls": {"cls", "bos"}, "sep": {"sep", "eos"}}
_LETTERS = re.compile("[a-z]+")
# Slots that BERT's lists keep for a later use. Source: google-research/bert#9.
UNUSED = re.compile(r"\[unused\d+\]")


def find_special_ids(
    path: pathlib.Path,
    pieces: Sequence[str],
    known: Mapping[str, int],
    marked: Collection[str] = (),
) -> dict[str, int]:
    """Return the ids of the special tokens: the known ones, the rest by spelling.

    If a vocabulary has several spellings of a token (MPNet's has BERT's too), the one marked as
    special is taken; if it has none, the only marked token with the token's name as a word in it.

    Raises:
      Refused: one is missing, or has two roles.
    """
    id_of = {piece: i for i, piece in enumerate(pieces)}
    special_ids = {}
    for name, spellings in SPECIAL_PIECES.items():
        marked_first = sorted(spellings, key=lambda spelling: spelling not in marked)
        candidates = [spelling for spelling in marked_first if spelling in id_of]
        if not candidates:
            words = _WORDS.get(name, {name})
            named = [token for token in marked if words & {*_LETTERS.findall(token.lower())}]
            candidates = named if len(named) == 1 else []
        ids = [id_of[token] for token in candidates]
        if name not in known and not ids:
            raise Refused(
                f"{path} has no piece {' or '.join(spellings)} among its {len(pieces)}; BERT needs "
                "[PAD], [UNK], [CLS], [SEP] and [MASK]: take the vocabulary of a BERT, RoBERTa or "
                "ModernBERT, or train one with --train_vocab"
            )
        special_ids[name] = known[name] if name in known else ids[0]
    if len(set(special_ids.values())) != len(special_ids):
        raise Refused(f"{path} has one token for two roles of {special_ids}; each needs its own")
    return special_ids


@dataclasses.dataclass(frozen=True)
class Template:
    """List the parts of a row with one text and of a row with two, in order."""

    single: tuple[Part, ...]
    pair: tuple[Part, ...]
    cls_id: int

    def parts(self, is_pair: bool) -> tuple[Part, ...]:
        """Return the parts of a pair or of a single text."""
        return self.pair if is_pair else self.single

    def count_specials(self, is_pair: bool) -> int:
        """Return how many special tokens a row has."""
        return len(self.parts(is_pair)) - 1 - is_pair

    def margins(self, is_pair: bool) -> tuple[int, ...]:
        """Return how many special tokens are before, between and after the texts of a row."""
        parts = self.parts(is_pair)
        texts = [place for place, (part, _) in enumerate(parts) if isinstance(part, str)]
        bounds = [-1, *texts, len(parts)]
        return tuple(end - start - 1 for start, end in itertools.pairwise(bounds))

    @property
    def largest_id(self) -> int:
        """Return the largest id of a special token in a row; -1 without any."""
        parts = (part for part, _ in (*self.single, *self.pair))
        return max((part for part in parts if isinstance(part, int)), default=-1)

    @property
    def is_cls_first(self) -> bool:
        """Return whether every row begins with [CLS]."""
        return all(parts[0][0] == self.cls_id for parts in (self.single, self.pair))

    @property
    def place_of_cls(self) -> str:
        """Return where rows have [CLS], as XLNet's summary_type names it."""
        return "first" if self.is_cls_first else "last"

    def drop_segments(self) -> "Template":
        """Return the template with every part in segment 0."""
        single, pair = (tuple((p, 0) for p, _ in parts) for parts in (self.single, self.pair))
        return Template(single, pair, self.cls_id)

    def to_json(self) -> dict[str, Any]:
        """Return the parts for a record; from_json reads them."""
        return {name: [list(part) for part in getattr(self, name)] for name in ("single", "pair")}

    def make_processor(self, pieces: Sequence[str]) -> dict[str, Any]:
        """Return the template as the post_processor of a tokenizer.json; pieces are by id."""

        def describe(part: int | str, segment: int) -> dict[str, Any]:
            if isinstance(part, str):
                return {"Sequence": {"id": part, "type_id": segment}}
            return {"SpecialToken": {"id": pieces[part], "type_id": segment}}

        used = {part for part, _ in (*self.single, *self.pair) if isinstance(part, int)}
        return {
            "type": "TemplateProcessing",
            "single": [describe(*part) for part in self.single],
            "pair": [describe(*part) for part in self.pair],
            "special_tokens": {
                pieces[i]: {"id": pieces[i], "ids": [i], "tokens": [pieces[i]]}
                for i in sorted(used)
            },
        }


def make_bert_template(
    special_ids: Mapping[str, int], separators: int = 1, second_segment: int = 1
) -> Template:
    """Return [CLS] A [SEP] and [CLS] A [SEP] B [SEP], with so many [SEP] between A and B."""
    cls, sep = special_ids["cls"], special_ids["sep"]
    single = ((cls, 0), (A, 0), (sep, 0))
    between = ((sep, 0),) * (separators - 1)
    return Template(single, (*single, *between, (B, second_segment), (sep, second_segment)), cls)


def make_xlnet_template(special_ids: Mapping[str, int]) -> Template:
    """Return A [SEP] [CLS] and A [SEP] B [SEP] [CLS], [CLS] in segment 2.

    Source: tokenization_xlnet.py@transformers 4.57 create_token_type_ids_from_sequences.
    """
    cls, sep = special_ids["cls"], special_ids["sep"]
    first = ((A, 0), (sep, 0))
    return Template((*first, (cls, 2)), (*first, (B, 1), (sep, 1), (cls, 2)), cls)


def make_store_template(template: Template, special_ids: Mapping[str, int]) -> Template:
    """Return the template if its rows begin with [CLS], as rows of a store must; else BERT's."""
    return template if template.is_cls_first else make_bert_template(special_ids)


def from_json(record: Mapping[str, Any], special_ids: Mapping[str, int], name: object) -> Template:
    """Build a template from the output of to_json; `name` names the file in DamagedFile."""
    parts: list[tuple[Part, ...]] = []
    for key, texts in _TEXTS.items():
        listed = small_files.field(record, key, list, name)
        is_read = all(
            isinstance(part, list)
            and [*map(type, part)] in ([int, int], [str, int])
            and 0 <= part[1] <= MAX_SEGMENT
            for part in listed
        )
        if not is_read or [part for part, _ in listed if isinstance(part, str)] != texts:
            raise DamagedFile(f"{name}: {key!r} is not a template: {listed!r:.80}")
        parts.append(tuple((part, segment) for part, segment in listed))
    single, pair = parts
    return Template(single, pair, special_ids["cls"])


def read_template(
    settings: Mapping[str, Any], special_ids: Mapping[str, int], path: pathlib.Path
) -> Template | None:
    """Read the template in a parsed tokenizer.json; None if it adds no special tokens.

    Raises:
      Refused: the file is damaged, or has the texts of a pair in another order or not once.
    """
    try:
        steps = flatten(settings.get("post_processor"), "processors")
        adding = [step for step in steps if step["type"] in _ADD_TOKENS]
        if not adding:
            return None
        if len(adding) > 1:
            raise Refused(f"{len(adding)} steps add special tokens")
        processor = adding[0]
        if processor["type"] != "TemplateProcessing":
            # The processor's own ids, equal to the ids of [CLS] and [SEP] in any sound file.
            ends = {name: int(processor[name][1]) for name in ("cls", "sep")}
            is_bert = processor["type"] == "BertProcessing"
            return make_bert_template(ends, 1 if is_bert else 2, 1 if is_bert else 0)
        ids_of = {
            name: [int(i) for i in token["ids"]]
            for name, token in processor["special_tokens"].items()
        }
        single, pair = (_read_parts(processor[name], ids_of) for name in ("single", "pair"))
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise Refused(
            f"{path} has a post_processor that cannot be read ({error!r:.80}); copy it again"
        ) from error
    for (name, texts), parts in zip(_TEXTS.items(), (single, pair), strict=True):
        given = [part for part, _ in parts if isinstance(part, str)]
        if given != texts:
            raise Refused(
                f"{path} has the texts {given} in its template for {name}, not {texts}; give a "
                "tokenizer.json with each text once, the first before the second"
            )
    return Template(single, pair, special_ids["cls"])


def flatten(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer or post-processor, Sequences unpacked."""
    if not part:
        return []
    if part["type"] != "Sequence":
        return [part]
    return list(itertools.chain.from_iterable(flatten(step, key) for step in part[key]))


def _read_parts(described: Any, ids_of: Mapping[str, list[int]]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for part in described:
        ((kind, content),) = part.items()
        segment = int(content["type_id"])
        if not 0 <= segment <= MAX_SEGMENT:
            raise Refused(f"type_id {segment}, not 0 to {MAX_SEGMENT}")
        if kind == "Sequence":
            parts.append((str(content["id"]), segment))
        else:
            parts += [(token_id, segment) for token_id in ids_of[content["id"]]]
        if len(parts) > _MAX_PARTS:
            raise Refused(f"a row with more than {_MAX_PARTS} special tokens")
    return tuple(parts)
