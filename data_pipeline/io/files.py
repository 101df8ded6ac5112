"""Find stored files by globs and open them, in folders or in buckets.

A path without "://" is a local file. Everything else is an address that fsspec reads, such as
gs://bucket/corpus/a.txt.
"""

import contextlib
import dataclasses
import glob
import io
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import check_utf8, is_address, open_filesystem
from data_pipeline.io.errors import explain_errors

# Bytes that one request fetches from a bucket. A request takes about 50 ms, however small it is.
_REQUEST_BYTES = 8 << 20
_ANY_FOLDERS = re.compile(r"(?<![^/])(?:\*\*(?:/+|$))+")


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """Describe a file or folder that a glob matches."""

    address: str
    stored_bytes: int
    is_directory: bool


def find_files(pattern: str) -> list[StoredFile]:
    """Return the files and folders that a glob matches, sorted by name; `**` enters folders.

    A hidden name, such as .gitattributes, is only matched by a pattern with that dot. The name of
    an existing local file, such as "a[1].txt", is taken literally.

    Raises:
      Refused: the file system is unknown, or its driver is not installed.
      OSError: it cannot be listed.
    """
    if not is_address(pattern):
        name = os.path.expanduser(pattern)
        is_literal = os.path.lexists(name)
        paths = [name] if is_literal else sorted(_glob(name))
        # A dangling link has no size; reading it reports the error.
        return [
            StoredFile(
                path,
                os.stat(path, follow_symlinks=os.path.exists(path)).st_size,
                os.path.isdir(path),
            )
            for path in paths
        ]
    files, path = open_filesystem(pattern)
    with explain_errors(pattern, "listing"):
        files.invalidate_cache()
        entries: dict[str, dict[str, Any]] = files.glob(path, detail=True)
    return [
        StoredFile(
            address=files.unstrip_protocol(name),
            stored_bytes=int(entries[name]["size"] or 0),
            is_directory=entries[name]["type"] == "directory",
        )
        for name in sorted(entries)
        if name.count("/.") <= path.count("/.")
    ]


def identify(flag: str, file: StoredFile) -> str:
    """Return a key that is equal for two names of a local file; the key of an address is itself.

    Raises Refused, with the flag that names the file, if its name is not UTF-8.
    """
    address = file.address
    check_utf8(address, f"{flag} has", "no store can keep; rename the file")
    return address if is_address(address) else os.path.realpath(address)


def _glob(pattern: str) -> Iterator[str]:
    """Yield what a local glob matches; `**` enters a folder once, as links may lead in circles."""
    head, *tail = _ANY_FOLDERS.split(pattern, 1)
    if not tail:
        yield from glob.glob(pattern)
        return
    entered: set[str] = set()

    def enter(folder: str) -> bool:
        is_new = (place := os.path.realpath(folder)) not in entered
        entered.add(place)
        return is_new

    for top in filter(enter, glob.glob(head) if head else [os.curdir]):
        for folder, names, _ in os.walk(top, followlinks=True):
            visible = sorted(name for name in names if not name.startswith("."))
            names[:] = [name for name in visible if enter(os.path.join(folder, name))]
            inside = os.path.join(glob.escape(folder), tail[0] or "*")
            yield from _glob(inside if head else inside.removeprefix("./"))


@contextlib.contextmanager
def open_file(address: str, request_bytes: int = _REQUEST_BYTES) -> Iterator[BinaryIO]:
    """Open a listed file; explain errors of reading it in the block.

    Raises Refused if it is gone or is not a regular file.
    """
    try:
        with explain_errors(address), _open(address, request_bytes) as file:
            yield file
    except FileNotFoundError as error:
        if os.path.islink(address):
            raise Refused(
                f"{address} is a link to {os.readlink(address)}, which is not there; remove the "
                "link, or put the file there"
            ) from error
        raise Refused(
            f"{address} was listed and is not there any more; wait until whatever moves or writes "
            "the corpus is done, then start the same command again"
        ) from error


def _open(address: str, request_bytes: int) -> BinaryIO:
    if not is_address(address):
        return small_files.open_regular(pathlib.Path(address), may_stand_in=True)
    files, path = open_filesystem(address)
    # Drivers read ahead by different amounts, or not at all, and decoders ask for 8 KiB at a time.
    stored = files.open(path, "rb", cache_type="none")
    return cast(BinaryIO, io.BufferedReader(stored, request_bytes))
