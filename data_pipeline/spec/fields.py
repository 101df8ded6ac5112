"""Declare a setting once: its default, help, unit, range and choices, as metadata of its field.

A dataclass of settings writes `warmup_steps: int = setting(10_000, "...", minimum=0)`. The metadata
drives the checks (`check_fields`), the help of the flags and the reference page
(`describe_setting`).
"""

import dataclasses
import decimal
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

from data_pipeline.io import Refused

_METADATA = "setting"
_KINDS: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a finite number"),
    str: (str, "text"),
}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
# Integers with more digits are typing errors, and slow to format.
_MAX_DIGITS = 30
_MAX_SHOWN = 60  # characters of a value in an error message
_HOME = re.compile(r"(^|[,:]\s*)~/")  # ~/ at the start, in a list, or after hf:
_LOCAL = re.compile(r"(^|[,:]\s*)file://(?:localhost)?(?=/)")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Describe a field beyond its name, type and default; None and "" mean unset."""

    help: str
    unit: str = ""
    minimum: float | None = None  # the least allowed value
    maximum: float | None = None  # the greatest allowed value
    above: float | None = None  # lower bound, itself not allowed
    below: float | None = None  # upper bound, itself not allowed
    choices: Sequence[Any] | None = None
    source: str = ""  # origin of the default or the range

    def allows(self, value: Any) -> bool:
        """Return whether a value of the right type is in the range and among the choices."""
        return (
            (self.choices is None or value in self.choices)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def allowed(self) -> str:
        """Describe the choices or the range: "one of a, b", "from 1 to 64"; "" for any value."""
        if self.choices is not None:
            return f"one of {', '.join(str(choice) for choice in self.choices if choice != '')}"
        if self.above is not None and self.below is not None:
            return f"between {self.above} and {self.below}"
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum} to {self.maximum}"
        if self.minimum is not None and self.below is not None:
            return f"from {self.minimum} to below {self.below}"
        bounds = (
            (self.minimum, f"{self.minimum} or more"),
            (self.above, f"above {self.above}"),
            (self.maximum, f"at most {self.maximum}"),
            (self.below, f"below {self.below}"),
        )
        return " and ".join(words for bound, words in bounds if bound is not None)


def setting(default: Any, help: str, **known: Any) -> Any:
    """Declare a field of a dataclass of settings: `known` are the other fields of Setting.

    Pass dataclasses.MISSING for no default.
    """
    return dataclasses.field(default=default, metadata={_METADATA: Setting(help, **known)})


def get_setting(field: "dataclasses.Field[Any]") -> Setting | None:
    """Return the Setting of a field; None for an ordinary field."""
    return field.metadata.get(_METADATA)


def describe_setting(field: "dataclasses.Field[Any]") -> str:
    """Return a field's help with its unit, its range or choices, and its default, in one line."""
    known = get_setting(field)
    if known is None:
        return ""
    parts = [f"{known.help} [{known.unit}]" if known.unit else known.help, known.allowed()]
    default = field.default
    if default not in (dataclasses.MISSING, None, "", ()):
        parts.append(f"default {str(default).lower() if isinstance(default, bool) else default}")
    return "; ".join(part for part in parts if part)


def check_fields(options: Any, prefix: str) -> None:
    """Raise if a value is not of its field's type, or not one that `setting` allows.

    Fields that are dataclasses, or tuples of them, are checked too. A value is named by its path,
    "prefix.name" or "prefix.phases[0].name"; the prefix "--" makes flags: "--name".

    Raises:
      Refused: "prefix.name is VALUE; it must be ..." for the first such value.
    """
    kinds = typing.get_type_hints(type(options))
    for field in dataclasses.fields(options):
        name = f"--{field.name}" if prefix == "--" else f"{prefix}.{field.name}"
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_fields(value, name)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    check_fields(item, f"{name}[{index}]")
        known = get_setting(field)
        if known is None:
            continue
        if wrong := _name_expected_type(value, kinds[field.name]):
            raise Refused(f"{name} is {value!r}; it must be {wrong}")
        if value is not None and not known.allows(value):
            source = f" ({known.source})" if known.source else ""
            raise Refused(f"{name} is {value!r}; it must be {known.allowed()}{source}")


def _name_expected_type(value: Any, kind: Any) -> str:
    """Name the type that a value should have; "" if it has this type, or is not checked."""
    if isinstance(kind, types.UnionType):
        accepted = typing.get_args(kind)
        if value is None and type(None) in accepted:
            return ""
        wrong = [_name_expected_type(value, part) for part in accepted if part is not type(None)]
        return " or ".join(wrong) if all(wrong) else ""
    if kind not in _KINDS:
        return ""
    accepted_type, words = _KINDS[kind]
    fits = isinstance(value, accepted_type) and (kind is bool or not isinstance(value, bool))
    return "" if fits and (kind is not float or math.isfinite(value)) else words


def parse_text(kind: type[Any], text: str) -> Any:
    """Parse a command-line text as an integer (also 1e3 and 1_000), number, boolean or text.

    A text is unchanged, but ~/ at the start of a path becomes the home folder, as shells do not
    expand it after --NAME=, and file:///PATH is /PATH. Raises Refused without the name of the
    setting.
    """
    parse = {bool: lambda text: _BOOLEANS.get(text.lower()), int: _parse_int, float: _parse_float}
    if kind not in parse:
        home = os.path.expanduser("~")
        if home == "~" and _HOME.search(text):  # no HOME, and a user without an entry
            raise Refused("the home folder is not known here; give a path without ~")
        return _HOME.sub(lambda match: f"{match[1]}{home}/", _LOCAL.sub(r"\1", text))
    if (value := parse[kind](text)) is None:
        raise Refused(f"it must be {_KINDS[kind][1]}")
    return value


def _parse_int(text: str) -> int | None:
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() >= _MAX_DIGITS:
        return None
    return int(number) if number == number.to_integral_value() else None


def _parse_float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def shorten(text: str) -> str:
    """Shorten a value for an error message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
