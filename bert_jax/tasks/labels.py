"""Find labels that a person reads as one, and labels that stand for a missing value."""

import decimal
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from data_pipeline.io import Refused

_NUMBER = re.compile(r"[+-]?(\d++\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
# Spellings of a missing value in programs, "#n/a" in Excel, and in data sets, "-" in SNLI.
_MISSING = ("nan", "-nan", "null", "none", "na", "n/a", "<na>", "nat", "#n/a", ".", "?", "-")
# A label equal to its column's name is taken for a repeated header up to this share of rows.
_HEADER_SHARE = 0.05
# Cyrillic and Greek letters that look like Latin letters, and signs with a plain form that NFKC
# does not map to it.
_LOOK_ALIKES = str.maketrans(
    "АВЕЅІЈКМНОРСТХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο‐–—−’‘",
    "ABESIJKMHOPCTXaesijopcyxABEZHIKMNOPTYXo----''",
)
# In addition to the category Cf: variation selectors, fillers and joiners without a glyph.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)


def fold_text(text: str) -> str:
    """Return a text as a person reads it, for comparison: NFKC, no invisible characters."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    composed = unicodedata.normalize("NFKC", text)
    visible = "".join(
        c for c in composed if c.isspace() or unicodedata.category(c) not in ("Cf", "Cc")
    )
    return " ".join(_INVISIBLE.sub("", visible).translate(_LOOK_ALIKES).split())


def check_labels(labels: Iterable[tuple[str, str]], column: str) -> tuple[str, ...]:
    """Refuse labels that only a machine tells apart; return a sentence on each that looks wrong.

    `labels` has the label and the place of each row, such as "train.csv row 3". Two labels are
    refused if they look the same, or are the same number. Upper and lower case, a missing value's
    name and the name of the column may be meant.

    Raises:
      Refused: names the labels, in ASCII, their rows and the first row of each.
    """
    counts, first_places = Counter[str](), dict[str, str]()
    for label, place in labels:
        counts[label] += 1
        first_places.setdefault(label, place)

    def describe(*alike: str) -> str:
        return " and ".join(
            f"{label!a:.60} ({counts[label]:,} rows, the first {first_places[label]})"
            for label in alike
        )

    if alike := _find_equal(counts, _read_number):
        raise Refused(
            f"the labels under {column!r} that read the same are several classes: "
            f"{describe(*alike)}; write each class in one way"
        )
    findings = []
    if alike := _find_equal(counts, _fold_case):
        findings.append(
            f"{describe(*alike)} differ in upper and lower case alone: are they one class?"
        )
    names = {*_MISSING} - {"-" if "+" in counts else ""}
    names |= {"-1"} if {"0", "1", "2"} <= counts.keys() else set()
    if missing := [label for label in counts if _fold_case(label) in names]:
        findings.append(
            f"{describe(*missing)} may be a missing label, and is learned as a class: remove "
            "such rows if it is"
        )
    most = _HEADER_SHARE * counts.total()
    for label, count in counts.items():
        if _fold_case(label) == _fold_case(column) and count < max(2.0, most):
            findings.append(
                f"{describe(label)} is the name of its column, and is learned as a class: "
                "remove such rows if they are headers"
            )
    return tuple(findings)


def is_header(names: Sequence[str], fields: Sequence[object]) -> bool:
    """Return whether a row of a table repeats the names of its columns, in any order."""
    longest = 2 * max(map(len, names))
    texts = [field for field in fields if isinstance(field, str) and len(field) <= longest]
    if len(texts) < len(fields):  # most rows of a large table, known without folding
        return False
    return sorted(map(_fold_case, names)) == sorted(map(_fold_case, texts))


def read_number(text: str) -> float:
    """Return the number that a text spells, infinite if too large; NaN for any other text."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else math.nan


def _fold_case(text: str) -> str:
    return fold_text(text).casefold()


def _read_number(label: str) -> object:
    text = fold_text(label)
    return decimal.Decimal(text) if _NUMBER.fullmatch(text) else text


def _find_equal(labels: Iterable[str], key: Callable[[str], object]) -> list[str]:
    """Return the first labels that have the same key; none if all differ."""
    groups: dict[object, list[str]] = {}
    for label in labels:
        groups.setdefault(key(label), []).append(label)
    return next((group for group in groups.values() if len(group) > 1), [])
