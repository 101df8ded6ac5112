"""Read parsed JSON by the annotations of a dataclass or TypedDict, which say what it must hold.

    class Row(TypedDict):
        steps: Annotated[int, 0, 1 << 48]   # bounds, both included
        names: list[str]
        note: NotRequired[str]              # of a dataclass: a field with a default

A TypedDict stays the object it is, and may have more keys; a dataclass is built, and may not.
"""

import dataclasses
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeVar, cast

from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile, check_kind

Value = TypeVar("Value")

MAX_COUNT = (1 << 48) - 1  # a larger count is damage
Count = Annotated[int, 0, MAX_COUNT]
_CONTAINERS: dict[Any, type] = {tuple: list, list: list, dict: dict, Mapping: dict}


def read_record(path: pathlib.Path, kind: type[Value], root: pathlib.Path | None = None) -> Value:
    """Read a file of JSON as a dataclass or TypedDict; raise as read_bytes and parse_record do."""
    return parse_record(small_files.read_object(path, root), kind, path)


def parse_record(content: Any, kind: type[Value], name: object) -> Value:
    """Return parsed JSON as an annotated type, or raise DamagedFile with the name and the key.

    A bool is no int, an int is a float, and what is annotated as a tuple is a list in JSON.
    """
    return cast(Value, _parse(content, kind, str(name)))


def _parse(value: Any, kind: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        low, high = arguments[1:]
        if not low <= _parse(value, arguments[0], name) <= high:
            raise DamagedFile(f"{name} is {value!r:.80}, not from {low} to {high}")
        return value
    if origin in (types.UnionType, typing.Union):
        (some,) = (each for each in arguments if each is not type(None))
        return None if value is None else _parse(value, some, name)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _parse_fields(value, kind, name)
    if origin is Literal:
        if value not in arguments:
            raise DamagedFile(f"{name} is {value!r:.80}, not {' or '.join(map(repr, arguments))}")
        return value
    if kind is Any:
        return value
    check_kind(value, _CONTAINERS.get(origin or kind, kind), name)
    if origin in (list, tuple):
        items = [_parse(item, arguments[0], f"{name}: item {i}") for i, item in enumerate(value)]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping):
        places = {key: f"{name}: {key!r:.80}" for key in value}
        return {key: _parse(value[key], arguments[1], places[key]) for key in value}
    return value


def _parse_fields(value: Any, kind: Any, name: str) -> Any:
    check_kind(value, dict, name)
    is_dataclass = dataclasses.is_dataclass(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass:
        own = dataclasses.fields(kind)
        optional = {
            field.name
            for field in own
            if field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        }
        if unknown := sorted(value.keys() - hints.keys()):
            raise DamagedFile(f"{name} has the unknown key {unknown[0]!r:.80}")
    else:
        optional = set(kind.__optional_keys__)
    fields = {}
    for key, hint in hints.items():
        if key in value:
            inner = typing.get_args(hint)[0] if typing.get_origin(hint) is NotRequired else hint
            fields[key] = _parse(value[key], inner, f"{name}: {key!r:.80}")
        elif key not in optional:
            raise DamagedFile(f"{name} has no key {key!r:.80}")
    return kind(**fields) if is_dataclass else {**value, **fields}
