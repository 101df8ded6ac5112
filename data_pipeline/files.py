"""Stored files, in folders or in buckets: finds them by globs and opens them.

A path without "://" is a local file. Everything else is an address (gs://bucket/corpus/a.txt) and
fsspec's to read; where a driver is missing the sentence names the package.
"""

import contextlib
import dataclasses
import errno
import glob
import io
import os
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import fsspec

from data_pipeline import passing
from data_pipeline.interpreter import how_to_install

# What is fetched of a bucket's file in one request. A request takes about 50 ms wherever it goes.
_REQUEST_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file that a glob found."""

    address: str
    stored_bytes: int
    is_directory: bool


def is_address(path: str) -> bool:
    """Whether a path names a file system of its own, as gs:// does."""
    return "://" in path


def find_files(pattern: str) -> list[StoredFile]:
    """What a glob matches, sorted by name; `**` reaches into folders.

    Raises:
      ValueError: the file system is unknown, or its driver is missing.
      OSError: it cannot be listed.
    """
    if not is_address(pattern):
        return [
            _local(path) for path in sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        ]
    files, path = filesystem(pattern)
    with driver_errors(pattern):
        files.invalidate_cache()
        found: dict[str, dict[str, Any]] = files.glob(path, detail=True)
    return [
        StoredFile(
            address=files.unstrip_protocol(name),
            stored_bytes=int(found[name]["size"] or 0),
            is_directory=found[name]["type"] == "directory",
        )
        for name in sorted(found)
    ]


def _local(path: str) -> StoredFile:
    is_directory = os.path.isdir(path)
    # A link to nothing has no size; reading it says what is wrong.
    stored_bytes = os.stat(path, follow_symlinks=os.path.exists(path)).st_size
    return StoredFile(path, stored_bytes, is_directory)


def filesystem(address: str) -> tuple[Any, str]:
    """The file system of an address and the path within it; Any, for fsspec has no types.

    Raises:
      ValueError: fsspec does not know it, or its driver is missing.
    """
    protocol = address.partition("://")[0]
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(address))
    except ImportError as error:
        way_out = how_to_install("gcs") if protocol in ("gs", "gcs") else f"install it ({error})"
        raise ValueError(
            f"{address} needs a package that reads {protocol}:// and is not installed: {way_out}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{address} cannot be read: {protocol}:// is no file system that fsspec knows; give a "
            "local path or gs://BUCKET/PATH"
        ) from error


def open_file(address: str, request_bytes: int = _REQUEST_BYTES) -> BinaryIO:
    """Open a stored file for reading from its start on; use it within one_sentence()."""
    if not is_address(address):
        return _open_regular(address)
    files, path = filesystem(address)
    # Drivers differ in what they read ahead, down to nothing, and decoders ask for 8 KiB at a time.
    stored = files.open(path, "rb", cache_type="none")
    return cast(BinaryIO, io.BufferedReader(stored, request_bytes))


def _open_regular(path: str) -> BinaryIO:
    """Open a local file; a pipe would make the command wait for whoever writes into it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise ValueError(
        f"{path} is a pipe or a device, and what is read twice must be a file; write it into one"
    )


@contextlib.contextmanager
def one_sentence(address: str) -> Iterator[None]:
    """Say in a sentence why a file that was listed cannot be read.

    Raises:
      ValueError: it is gone, may not be read, or is a directory.
      OSError: whatever else keeps it from being read.
    """
    try:
        with driver_errors(address):
            yield
    except FileNotFoundError as error:
        raise ValueError(
            f"{address} was listed by --input and is not there any more; wait until whatever "
            "moves or writes the corpus is done, then build again"
        ) from error
    except PermissionError as error:
        raise ValueError(
            f"{address} may not be read by this user; change its permissions, or remove it from "
            "--input"
        ) from error


@contextlib.contextmanager
def driver_errors(address: str) -> Iterator[None]:
    """Turn errors of a bucket's driver, which have no common base, into OSError.

    What may well be answered later becomes ConnectionError: whoever starts the run may try again.
    """
    try:
        yield
    except (TimeoutError, ConnectionError, ValueError):
        raise
    except Exception as error:
        if is_address(address) and passing.is_late(error, address):
            raise ConnectionError(
                f"{address} cannot be read now: {type(error).__name__}: {error}; look at this "
                "host's network, then start the same command again"
            ) from error
        if isinstance(error, OSError) or not is_address(address):
            raise
        raise OSError(f"{address} cannot be read: {type(error).__name__}: {error}") from error
