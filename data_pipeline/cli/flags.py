"""Declare the flags of a command as a dataclass, read a command line into it, and write --help.

A field `steps: int = flag(100, "steps to time", minimum=1)` is the flag --steps. argparse splits
the command line and lays out the help; types, ranges and choices are checked as a setting's are.
"""

import argparse
import dataclasses
import difflib
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from data_pipeline.cli.terminal import INDENT, wrap_command, wrap_text
from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields, describe_setting, parse_text, setting, shorten

MAX_WORKERS = 4096
Values = TypeVar("Values")
_FORM = "flag"
ARGUMENTS = "arguments"  # section of positional arguments
_METAVARS: dict[Any, str] = {int: "N", float: "X"}
_is_list = re.compile(r"(\w+)(,\.\.\.|\[,\1\])").fullmatch  # N,... or FILE[,FILE]
# The flags by which commands take a model: the error for a wrong one suggests the right one.
_MODELS = {"checkpoint", "from", "workdir", "model", "init"}
_MAX_COLUMNS = 100


class FlagWithParts(Protocol):
    """Define a flag --NAME whose parts are flags too, as --config and --config.optim.name."""

    def take(self, arguments: Sequence[str]) -> tuple[Any, list[str]]:
        """Separate the parts from the other arguments."""

    def make(self, text: str, parts: Any) -> Any:
        """Return the value of the field, from the text of --NAME and the parts."""

    def suggest(self, name: str) -> list[str]:
        """Return the flags of parts whose names are like an unknown one."""


@dataclasses.dataclass(frozen=True)
class _Form:
    """Hold what a flag has in addition to its Setting."""

    section: str = ""
    metavar: str = ""
    is_required: bool = False
    is_positional: bool = False
    with_parts: FlagWithParts | None = None
    names: Sequence[str] | None = None  # a nested dataclass's fields that are flags; None: all


def flag(
    default: Any,
    help: str,
    section: str = "",
    metavar: str = "",
    is_required: bool = False,
    is_positional: bool = False,
    with_parts: FlagWithParts | None = None,
    **known: Any,
) -> Any:
    """Declare a field that is a flag; `known` are the other fields of Setting.

    A field of type tuple[str, ...] collects the values of a repeated flag, or all positional
    arguments. A required flag has "" or None as its default, and a command line without it is
    refused. A field such as from_ (from is a Python keyword) is the flag --from.
    """
    field = setting(default, help, **known)
    form = _Form(section, metavar, is_required, is_positional, with_parts)
    return dataclasses.field(default=default, metadata={**field.metadata, _FORM: form})


def section(title: str, names: Sequence[str] | None = None) -> Any:
    """Declare a field that holds a dataclass of settings: all its fields, or `names`, are flags."""
    return dataclasses.field(metadata={_FORM: _Form(title, names=names)})


@dataclasses.dataclass(frozen=True)
class Command(Generic[Values]):
    """Describe a command; fields of `flags` that are dataclasses hold further flags."""

    module: str
    about: str | None  # its docstring
    flags: type[Values]
    example: str  # a whole command

    def read(self, arguments: Sequence[str]) -> Values:
        """Read and check the flags.

        Raises:
          Refused: a flag is unknown or missing, a list given twice, a value not of its type.
        """
        fields = {_write_name(field): field for _, field in _list_flags(self.flags)}
        rest, parts = list(arguments), {}
        for field in fields.values():
            if (with_parts := _get_form(field).with_parts) is not None:
                parts[field.name], rest = with_parts.take(rest)
        try:
            given, unknown = self._make_parser().parse_known_intermixed_args(
                list(_spell_out_booleans(rest, fields))
            )
        except argparse.ArgumentError as error:
            name = error.argument_name or ""
            raise Refused(f"{name} has no value; write {name}=VALUE") from error
        if unknown:
            raise Refused(self._describe_unknown(unknown, fields))
        values: Values = self._build(self.flags, vars(given), parts)
        return values

    def format_help(self) -> str:
        """Write the help in the width of the terminal."""
        return self._make_parser().format_help()

    def _make_parser(self) -> argparse.ArgumentParser:
        fields = list(_list_flags(self.flags))
        forms = [(_get_form(field), _write_flag(field)) for _, field in fields]
        first = [text for form, text in forms if form.is_required]
        first += [f"[{text}]" for form, text in forms if form.is_positional > form.is_required]
        rest = ["[flags]"] if len(fields) > len(first) else []
        usage = " ".join(["python -m", self.module, *first, *rest])
        parser = _Parser(
            prog=f"python -m {self.module}",
            usage="\n".join(wrap_text(usage, _find_width() - len("usage: "), hanging=2 * INDENT)),
            description=self.about,
            epilog="\n".join(["example:", *wrap_command(self.example, _find_width(), INDENT)]),
            formatter_class=_HelpLayout,
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
        )
        groups: dict[str, Any] = {}
        # Positional arguments first, then flags without a section.
        for title, field in sorted(fields, key=lambda pair: (pair[0] != ARGUMENTS, pair[0] != "")):
            if title not in groups:
                groups[title] = parser.add_argument_group(title or "flags")
            _add(groups[title], field)
        return parser

    def _build(
        self,
        kind: type[Any],
        given: dict[str, Any],
        parts: dict[str, Any],
        names: Sequence[str] | None = None,
    ) -> Any:
        """Return a dataclass of flags with its values, each of the field's type."""
        values = {}
        for field in dataclasses.fields(kind):
            form, text = _get_form(field), _get_text(field, given)
            if form.with_parts is not None:
                values[field.name] = form.with_parts.make(text or "", parts[field.name])
            elif dataclasses.is_dataclass(field.type):
                nested = typing.cast(type, field.type)
                values[field.name] = self._build(nested, given, parts, form.names)
            elif names is not None and field.name not in names:
                continue
            elif not text and form.is_required:
                known = describe_setting(field)
                raise Refused(f"{_write_name(field)} is missing: {known}; as in: {self.example}")
            elif text is not None and (text or not form.is_positional):
                values[field.name] = _convert(field, text)
        built = kind(**values)
        check_fields(built, "--")
        return built

    def _describe_unknown(self, unknown: Sequence[str], fields: dict[str, Any]) -> str:
        given = next((text for text in unknown if text.startswith("-")), unknown[0])
        name = given.lstrip("-").partition("=")[0]
        if not given.startswith("-"):
            return (
                f"{shorten(given)!r} is not a flag; put quotes around a value with spaces or *, "
                f"as in: {self.example}"
            )
        if name.partition(".")[0] == "config" and "--config" not in fields:
            return f"{shorten(given)}: this command takes no --config; --help lists its flags"
        written = name.replace("-", "_")
        flags = [flag.removeprefix("--") for flag in fields if flag.startswith("--")]
        near = [other for other in flags if {name, other} <= _MODELS]
        near = near or difflib.get_close_matches(written, flags, 2, 0.65)
        similar = [f"--{other}" for other in near]
        for field in fields.values():
            if (with_parts := _get_form(field).with_parts) is not None:
                if name in _MODELS:
                    similar += with_parts.suggest("init")
                elif not near:
                    similar += with_parts.suggest(written)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "--help lists the flags"
        return f"{shorten(given)}: there is no such flag; {hint}"


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Hold the commands from which the first argument chooses, as in `study grid --workdir=DIR`.

    The command under the key "" takes a command line that does not open with a kind.
    """

    about: str | None  # the docstring of the module
    commands: Mapping[str, Command[Any]]

    def read(self, arguments: Sequence[str]) -> Any:
        """Read and check the flags of the kind that the first argument names.

        Raises:
          Refused: there is no such kind, or its Command refuses the rest.
        """
        word = _first_word(arguments)
        if word not in self.commands:
            example = next(iter(self.commands.values())).example
            given = repr(shorten(word)) if word else "missing"
            raise Refused(
                f"KIND is {given}; it must be one of {', '.join(filter(None, self.commands))}; as "
                f"in: {example}"
            )
        return self.commands[word].read(arguments[1:] if word else arguments)

    def format_help(self) -> str:
        """Write the help of the kind that this process's command line names, or of all kinds."""
        chosen = self.commands.get(_first_word(sys.argv[1:]) or "?")
        if chosen is not None:
            return chosen.format_help()
        helps = [command.format_help() for command in self.commands.values()]
        return "\n".join([*_wrap_paragraphs(self.about or "", _find_width()), *helps])


def _first_word(arguments: Sequence[str]) -> str:
    return arguments[0] if arguments and not arguments[0].startswith("-") else ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


class _HelpLayout(argparse.HelpFormatter):
    """Lay out help: paragraphs stay apart, indented ones stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=_find_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(_wrap_paragraphs(text, width)), indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap_text(text, width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return str(action.metavar)


def _wrap_paragraphs(text: str, columns: int) -> list[str]:
    """Break paragraphs into lines, an empty one after each; indented ones stay as they are."""
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        is_layout = any(line.startswith(INDENT) for line in paragraph.splitlines())
        whole = " ".join(paragraph.split())
        lines += [*(paragraph.splitlines() if is_layout else wrap_text(whole, columns)), ""]
    return lines


def _find_width() -> int:
    return min(shutil.get_terminal_size().columns, _MAX_COLUMNS)


def _list_flags(
    kind: Any, title: str = "", names: Sequence[str] | None = None
) -> Iterator[tuple[str, "dataclasses.Field[Any]"]]:
    """Yield the fields that are flags, nested dataclasses included, and their sections."""
    for field in dataclasses.fields(kind):
        form = _get_form(field)
        own = ARGUMENTS if form.is_positional else form.section or title
        if dataclasses.is_dataclass(field.type) and form.with_parts is None:
            yield from _list_flags(field.type, own, form.names)
        elif field.metadata and (names is None or field.name in names):
            yield own, field


def _get_form(field: "dataclasses.Field[Any]") -> _Form:
    form: _Form = field.metadata.get(_FORM) or _Form()
    return form


def _write_name(field: "dataclasses.Field[Any]") -> str:
    form = _get_form(field)
    if form.is_positional:
        return form.metavar or field.name.upper()
    return f"--{field.name.rstrip('_')}"


def _write_flag(field: "dataclasses.Field[Any]") -> str:
    """Write a flag with a placeholder for its value, as help shows it."""
    kind = _find_kind(field)
    if _get_form(field).is_positional:
        return _write_name(field) + " ..." * (kind is tuple)
    if kind is bool:
        return f"{_write_name(field)}=BOOL" if field.default else _write_name(field)
    return f"{_write_name(field)}={_get_form(field).metavar or _METAVARS.get(kind, 'TEXT')}"


def _find_kind(field: "dataclasses.Field[Any]") -> Any:
    """Return the type of a flag's value: float for `float | None`, tuple for tuple[str, ...]."""
    hint: Any = field.type
    if typing.get_origin(hint) is tuple:
        return tuple
    return next(iter(typing.get_args(hint)), hint)


def _add(group: Any, field: "dataclasses.Field[Any]") -> None:
    """Add a flag to a group of a parser; its value stays text."""
    form, kind = _get_form(field), _find_kind(field)
    about = {"help": describe_setting(field).replace("%", "%%"), "metavar": _write_flag(field)}
    if form.is_positional:
        group.add_argument(field.name, nargs="*" if kind is tuple else "?", **about)
    else:
        group.add_argument(_write_name(field), dest=field.name, action="append", **about)


def _get_text(field: "dataclasses.Field[Any]", given: Mapping[str, Any]) -> Any:
    """Return a flag's text: the last if it was repeated, all if it is repeatable, None if absent.

    A flag whose value is a list with commas may not be repeated: all lists but the last would be
    ignored.
    """
    texts = given.get(field.name)
    if _find_kind(field) is tuple or not isinstance(texts, list):
        return texts
    if _is_list(_get_form(field).metavar) and len({*texts} - {""}) > 1:
        raise Refused(
            f"{_write_name(field)} is given {len(texts)} times; give it once, as a list with "
            f"commas: {_write_name(field)}={shorten(','.join(texts))}"
        )
    return texts[-1]


def _spell_out_booleans(
    arguments: Sequence[str], fields: dict[str, "dataclasses.Field[Any]"]
) -> Iterator[str]:
    """Write a boolean's bare --NAME as --NAME=true, unless true or false follows it."""
    booleans = {_write_name(field) for field in fields.values() if _find_kind(field) is bool}
    ends = arguments.index("--") if "--" in arguments else len(arguments)
    for index, text in enumerate(arguments):
        follower = arguments[index + 1].lower() if index + 1 < ends else ""
        is_bare = index < ends and text in booleans and follower not in ("true", "false")
        yield f"{text}=true" if is_bare else text


def _convert(field: "dataclasses.Field[Any]", text: Any) -> Any:
    kind = _find_kind(field)
    try:
        return tuple(text) if kind is tuple else parse_text(kind, text)
    except Refused as error:
        raise Refused(f"{_write_name(field)} is {shorten(text)!r}; {error}") from error
