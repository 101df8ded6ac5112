"""argparse for our entries: every mistake on the command line is raised as one sentence."""

import argparse
import difflib
import re
from typing import NoReturn

MOST_WORKERS = 4096
_WRONG_NUMBER = re.compile(r"argument (\S+): invalid (int|float) value: (.*)", re.DOTALL)
_NUMBERS = {"int": "whole number", "float": "number"}


class FlagParser(argparse.ArgumentParser):
    """argparse, with its errors raised as ValueError; `prog` is the entry's whole command."""

    def error(self, message: str) -> NoReturn:
        if wrong := _WRONG_NUMBER.fullmatch(message):
            flag, kind, text = wrong.groups()
            message = f"{flag} is {text}; it must be a {_NUMBERS[kind]}"
        raise ValueError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            name = unknown[0].split("=")[0]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"flags are {', '.join(known[2:])}"
            raise ValueError(f"{unknown[0]!r} is not a flag of {self.prog}; {hint}")
        return values


def boolean(text: str) -> bool:
    """The value of a flag that is true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def check_range(name: str, value: float, least: float, most: float, also: str = "") -> None:
    """Raise ValueError where the value of a flag is NaN, too small or absurdly large."""
    if not least <= value <= most:
        raise ValueError(f"--{name} is {value}; it must be from {least} to {most}{also}")
