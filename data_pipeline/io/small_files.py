"""Read small files that may be damaged: bounded in size, regular, inside their folder.

Commands read manifests, run records, checkpoint metadata and vocabularies through this module. A
damaged file raises ValueError with one sentence (exit code 2), never RecursionError or MemoryError;
a named pipe never blocks.

The annotations of a dataclass or TypedDict declare what a file of JSON holds for `read_record`:

    class Row(TypedDict):
        steps: Annotated[int, 0, 1 << 48]   # bounds, both included
        names: list[str]
        note: NotRequired[str]              # a dataclass gives the field a default

An object of JSON becomes an instance of a dataclass, which refuses unknown keys, or of a NamedTuple
without defaults; for a TypedDict it stays a dict, and may have more keys.
"""

import dataclasses
import errno
import functools
import itertools
import json
import os
import pathlib
import re
import stat
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, BinaryIO, Literal, NotRequired, TypeVar, cast

from data_pipeline.io import Refused
from data_pipeline.io.file_kinds import HEAD_BYTES, find_stand_in

MAX_BYTES = 64 << 20  # limit of such a file; a vocabulary of 4 million pieces fits
MAX_DEPTH = 64  # limit of nested JSON; this project's files need 6
# File systems may leave a page of NUL bytes at the end of a file after a power cut.
NUL = b"\0"

# Within Linux's limits (255 and 4,096): a longer one raises an OSError, as a disk's fault does.
_MAX_BYTES_OF_A_NAME, _MAX_BYTES_OF_A_PATH = 255, 2000

_NO_FILE = "is a folder, pipe, device or link to itself; save the content to a file and give that"
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for its other end

# Also a string that does not close: its escaped quotes would each be tried as a string's start.
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[{\]}]")

Value = TypeVar("Value")


class DamagedFile(Refused):
    """Report a file whose content is not what its writer wrote."""


def join_inside(root: pathlib.Path, name: object) -> pathlib.Path:
    """Join a name that was read from a file to its folder.

    Raises DamagedFile if name is not a relative path, leads out of root by `..` or by a symbolic
    link, or cannot be the name of a file.
    """
    if not isinstance(name, str) or not is_file_name(name):
        raise DamagedFile(f"{name!r:.80} is not the name of a file in {root}")
    pure = pathlib.PurePosixPath(name)
    path = root / name
    if pure.is_absolute() or ".." in pure.parts or not _resolves_inside(root, path):
        raise DamagedFile(f"{name!r:.80} leads out of {root}; only files in that folder are read")
    return path


def is_file_name(name: str) -> bool:
    """Return whether a file may have this name, with or without folders before it."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may hold
        return False
    longest = max(map(len, encoded.split(b"/")))
    is_short = 0 < len(encoded) <= _MAX_BYTES_OF_A_PATH and longest <= _MAX_BYTES_OF_A_NAME
    return is_short and NUL not in encoded


def _resolves_inside(root: pathlib.Path, path: pathlib.Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False


def open_regular(
    path: pathlib.Path, root: pathlib.Path | None = None, may_stand_in: bool = False
) -> BinaryIO:
    """Open a regular file for reading; with `root`, refuse a link that leads out of that folder.

    Unless `may_stand_in`, a file in the place of another is refused: a git-lfs pointer, a
    web page, a server's message.

    Raises:
      DamagedFile: it is a folder, pipe or device, outside root, or such a file.
      OSError: there is no such file, or it cannot be read now.
    """
    if root is not None and not _resolves_inside(root, path):
        raise DamagedFile(f"{path} is a link out of {root}; put the file itself there")
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket, a link to itself
            raise DamagedFile(f"{path} {_NO_FILE}") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFile(f"{path} {_NO_FILE}")
    file = os.fdopen(descriptor, "rb")
    if not may_stand_in:
        kind = find_stand_in(os.pread(descriptor, HEAD_BYTES, 0))
        if kind is not None:
            file.close()
            raise DamagedFile(
                f"{path} is {kind.looks}, not the file that should be there; {kind.gets_file}"
            )
    return file


def read_bytes(
    path: pathlib.Path, root: pathlib.Path | None = None, max_bytes: int = MAX_BYTES
) -> bytes:
    """Read a regular file by open_regular; a file over max_bytes raises DamagedFile too."""
    with open_regular(path, root) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DamagedFile(
            f"{path} is larger than {max_bytes:,} bytes, too large for what it should be"
        )
    return data


def open_to_write(path: pathlib.Path, flags: int) -> int:
    """Open a regular file for writing, made if there is none; no symbolic link is followed.

    Raises DamagedFile if a link, a pipe, a device or a folder has its name.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DamagedFile(
            f"{path} is a link, a folder or a device, where a file of its own is written; remove it"
        )
    return os.open(path, flags | os.O_CREAT | _NO_LINK, 0o666)


def decode(data: bytes, name: object) -> str:
    """Decode UTF-8, with or without a byte order mark, or raise DamagedFile with `name`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{name} is not UTF-8 text (byte {error.start:,})") from None


def check_unicode(text: str, key: str, place: object) -> None:
    r"""Raise DamagedFile if a text of JSON has an unpaired surrogate (\u), which UTF-8 lacks."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DamagedFile(
            f"{place} has half a character, \\u{ord(text[error.start]):04x}, under the key "
            f"{key!r:.80} at character {error.start + 1}: its writer cut a pair of \\u escapes in "
            "two; write the file again, or remove the text"
        ) from None


def parse_json(data: bytes, name: object) -> Any:
    """Parse JSON; raise DamagedFile with `name` if it is invalid or nested over MAX_DEPTH deep."""
    text = decode(data, name)
    may_be_deep = data.count(b"[") + data.count(b"{") > MAX_DEPTH  # a line of metrics is not
    if may_be_deep and measure_nesting(data) > MAX_DEPTH:
        raise DamagedFile(f"{name} is nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" ({error})" if isinstance(error, json.JSONDecodeError) else ""
        raise DamagedFile(f"{name} is not JSON{place}") from None


def measure_nesting(data: bytes) -> int:
    """Return the deepest nesting of brackets outside strings, without recursion."""
    brackets = _BRACKETS.findall(STRINGS.sub(b"", data))
    steps = (1 if bracket in b"[{" else -1 for bracket in brackets)
    return max(itertools.accumulate(steps, initial=0))


def parse_object(data: bytes, name: object) -> dict[str, Any]:
    """Parse a JSON object; raise as parse_json does, and for any other JSON value."""
    value = parse_json(data, name)
    if not isinstance(value, dict):
        raise DamagedFile(f"{name} holds {name_kind(value)}, not a JSON object")
    return value


def read_object(path: pathlib.Path, root: pathlib.Path | None = None) -> dict[str, Any]:
    """Read a file that holds a JSON object; raises what read_bytes and parse_object do."""
    return parse_object(read_bytes(path, root), path)


def field(
    content: Mapping[str, Any], key: str, kind: type[Value], name: object, default: Any = ...
) -> Value:
    """Return a value of a parsed file after checking its type.

    A bool is not accepted as an int; an int is accepted as a float.

    Raises DamagedFile if the key is missing without a default, or its value is of another type.
    """
    if key not in content:
        if default is ...:
            raise DamagedFile(f"{name} has no key {key!r:.80}")
        return default  # type: ignore[no-any-return]
    check_kind(content[key], kind, f"{name}: {key!r:.80}")
    return content[key]  # type: ignore[no-any-return]


def check_kind(value: object, kind: type, name: str) -> None:
    """Raise DamagedFile if a parsed value is of another type, by the rules of `field`."""
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        wanted = _KINDS.get(kind, kind.__name__)
        raise DamagedFile(f"{name} is {name_kind(value)}, not {wanted}")
    if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
        raise DamagedFile(f"{name} is too large for a number")


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


MAX_COUNT = (1 << 48) - 1  # a larger count is damage
Count = Annotated[int, 0, MAX_COUNT]
_CONTAINERS: dict[Any, type] = {tuple: list, list: list, dict: dict, Mapping: dict}


def read_record(path: pathlib.Path, kind: type[Value], root: pathlib.Path | None = None) -> Value:
    """Read a file of JSON as a dataclass or TypedDict; raise as read_bytes and parse_record do."""
    return parse_record(read_object(path, root), kind, path)


def parse_record(content: Any, kind: type[Value], name: object) -> Value:
    """Return parsed JSON as an annotated type, or raise DamagedFile with the name and the key.

    A bool is not an int, an int is a float, and a field annotated as a tuple is a list in JSON.
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
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_fields"):
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


@functools.cache  # a file may have a million records
def _find_hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _parse_fields(value: Any, kind: Any, name: str) -> Any:
    check_kind(value, dict, name)
    hints = _find_hints(kind)
    if dataclasses.is_dataclass(kind):
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
        optional = set(getattr(kind, "__optional_keys__", ()))
    fields = {}
    for key, hint in hints.items():
        if key in value:
            inner = typing.get_args(hint)[0] if typing.get_origin(hint) is NotRequired else hint
            fields[key] = _parse(value[key], inner, f"{name}: {key!r:.80}")
        elif key not in optional:
            raise DamagedFile(f"{name} has no key {key!r:.80}")
    return {**value, **fields} if typing.is_typeddict(kind) else kind(**fields)


def list_names(names: Sequence[str], count: int = 20, characters: int = 40) -> str:
    """List names of a file for a message: the first `count`, shortened and escaped."""
    texts = [
        name
        if name.isprintable() and len(name) <= characters
        else f"{name[:characters]!r:.{characters + 20}}"
        for name in names[:count]
    ]
    more = [f"and {len(names) - count:,} more"] * (len(names) > count)
    return ", ".join([*texts, *more]) or "none"


def name_kind(value: object) -> str:
    """Name the JSON type of a value: "a list"."""
    return _KINDS.get(type(value), type(value).__name__)
