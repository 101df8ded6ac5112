"""Parse command lines with argparse; every mistake is raised as a Refused of one sentence."""

import argparse
import dataclasses
import difflib
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import help_of

MAX_WORKERS = 4096
_WRONG_NUMBER = re.compile(r"argument (\S+): invalid (int|float) value: (.*)", re.DOTALL)
_METAVARS = {bool: "BOOL", int: "N", float: "X", str: "TEXT"}
_NUMBERS = {"int": "whole number", "float": "number"}


class FlagParser(argparse.ArgumentParser):
    """Parse flags and raise mistakes as ValueErrors; `prog` is the whole command."""

    def __init__(self, prog: str, description: str | None = None, example: str = "") -> None:
        """Take whole flag names only; `example` is a whole command, the last line of --help."""
        epilog = f"example: {example}" if example else None
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if wrong := _WRONG_NUMBER.fullmatch(message):
            flag, kind, text = wrong.groups()
            message = f"{flag} is {text}; it must be a {_NUMBERS[kind]}"
        raise Refused(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            name = unknown[0].split("=")[0]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"flags are {', '.join(known[2:])}"
            raise Refused(f"{unknown[0]!r} is not a flag of {self.prog}; {hint}")
        return values


def boolean(text: str) -> bool:
    """Parse the value of a flag that is true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def add_settings(
    add: Callable[..., object], settings: type[Any], names: Sequence[str] | None = None
) -> None:
    """Add a flag for each field of a dataclass of settings, or for the fields of these names.

    Type, default and help come from the field; `add` is a parser's add_argument. Values are
    checked by the dataclass, not here.
    """
    for field in dataclasses.fields(settings):
        if names is None or field.name in names:
            # Of `float | None` the flag is a float.
            kind: Any = next(iter(typing.get_args(field.type)), field.type)
            add(
                f"--{field.name}",
                default=field.default,
                type=boolean if kind is bool else kind,
                metavar=_METAVARS[kind],
                help=help_of(field).replace("%", "%%"),
            )


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise Refused where the value of a flag is NaN, too small or absurdly large."""
    if not least <= value <= most:
        raise Refused(f"--{name} is {value}; it must be from {least} to {most}")
