"""Copy a store from a bucket to a local folder, once per host: only local files can be mapped.

    CACHE/DIGEST        the copy, made by io.atomic.new_folder: its manifest appears last, after
                        every file was checked against its SHA-256
    CACHE/DIGEST.lock   locked by the process that makes the copy, and names it; others wait

A copy is named by the store's digest, so a rebuilt store is copied again. Old copies stay until
they are deleted by hand.
"""

import contextlib
import datetime
import fcntl
import os
import pathlib
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import expand_home, is_address, open_filesystem
from data_pipeline.io.atomic import Destination, new_folder
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import MANIFEST, check_is_local, is_store, parse_manifest
from data_pipeline.store.reader import hash_file, list_checksums

_THREADS = 8
_PART_BYTES = 16 << 20  # fetched by one request; the largest array is most of a store
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_HOLDER_BYTES = 256

Advance = Callable[[int, int], None]


def fetch_store(
    address: str,
    cache_dir: str,
    advance: Advance = lambda done_bytes, total_bytes: None,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Return the local folder of a store; copy a store in a bucket unless a copy exists.

    Calls `advance` with the bytes copied so far and their total; never if a copy exists. Calls
    `say` with a line before it waits for another process to make the copy.

    Raises:
      Refused: cache_dir is missing, there is no store, a file is missing or has another SHA-256,
        or the disk is too small; the message says how to fix this. No copy is left then.
      OSError: the bucket cannot be read, or the copy cannot be written.
    """
    if not is_address(address):
        return pathlib.Path(address)
    if not cache_dir:
        raise Refused(
            f"the store is {address}, which cannot be mapped into memory; name a local folder for "
            "a copy of it, on a disk with room for all of it: --config.data.data_cache=FOLDER"
        )
    check_is_local("config.data.data_cache", cache_dir)
    address = address.rstrip("/")
    manifest_bytes = fetch_manifest(address)
    manifest = parse_manifest(manifest_bytes, address)
    checksums = _read_checksums(address, manifest)
    copy = expand_home("config.data.data_cache", cache_dir) / manifest["digest"]
    if is_store(copy):
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _lock(copy.with_suffix(".lock"), say):
        if not is_store(copy):  # another process may have made it meanwhile
            destination = Destination(copy, MANIFEST, flag="config.data.data_cache")
            with new_folder(destination) as folder:
                # The files of a killed copy are gone by now, and their room is free.
                sizes = _measure_files(address, checksums, copy.parent)
                _copy(address, checksums, sizes, folder, advance)
                (folder / MANIFEST).write_bytes(manifest_bytes)
    return copy


def fetch_manifest(address: str) -> bytes:
    """Read the manifest of a store in a bucket; raises as fetch_store does."""
    with _open_remote(address, MANIFEST) as (files, path):
        if files.size(path) > small_files.MAX_BYTES:
            raise Refused(f"{address}/{MANIFEST} is too large to be the manifest of a store")
        return bytes(files.cat_file(path))


def _read_checksums(address: str, manifest: dict[str, Any]) -> dict[str, str]:
    checksums, digest = list_checksums(manifest), manifest["digest"]
    try:  # the names become paths on this host
        for name in checksums:
            small_files.join_inside(pathlib.Path("/store"), name)
        is_ours = bool(_DIGEST.fullmatch(digest)) and MANIFEST not in checksums
    except DamagedFile:
        is_ours = False
    if not is_ours:
        raise Refused(
            f"{address}/{MANIFEST} has file names that no store has; copy the store there again"
        )
    return checksums


@contextlib.contextmanager
def _lock(path: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the file against other processes of this host; a killed process releases it.

    Raises DamagedFile if the path is a link or no regular file.
    """
    descriptor = small_files.open_to_write(path, os.O_RDWR)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(_MAX_HOLDER_BYTES).decode("utf-8", "replace").strip()
            holder = (
                holder if holder.isprintable() and holder else "a process that it does not name"
            )
            say(f"waiting for a copy of the store: {path} is locked by {holder}; stop it to go on")
            fcntl.flock(file, fcntl.LOCK_EX)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        file.truncate(0)
        file.seek(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode())
        yield


def _measure_files(address: str, checksums: dict[str, str], cache: pathlib.Path) -> dict[str, int]:
    """Return the bytes of each file; raise Refused if the cache has no room for all files."""
    sizes = {}
    for name in checksums:
        with _open_remote(address, name) as (files, path):
            sizes[name] = int(files.size(path))
    total_bytes, free_bytes = sum(sizes.values()), shutil.disk_usage(cache).free
    if total_bytes > free_bytes:
        raise Refused(
            f"{address} takes {total_bytes / 1e9:.3f} GB and {cache} has "
            f"{free_bytes / 1e9:.3f} GB left; make room, or name a folder on another disk: "
            "--config.data.data_cache=FOLDER"
        )
    return sizes


def _copy(
    address: str,
    checksums: dict[str, str],
    sizes: dict[str, int],
    folder: pathlib.Path,
    advance: Advance,
) -> None:
    """Copy the files in parts, several at a time, and check each."""
    for name, size_bytes in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "wb") as file:
            file.truncate(size_bytes)
    parts = [
        (name, start, min(start + _PART_BYTES, size_bytes))
        for name, size_bytes in sizes.items()
        for start in range(0, size_bytes, _PART_BYTES)
    ]
    done_bytes, total_bytes = 0, sum(sizes.values())
    pool = ThreadPoolExecutor(_THREADS)
    try:
        copies = [pool.submit(_copy_part, address, folder, part) for part in parts]
        for copied in as_completed(copies):
            done_bytes += copied.result()
            advance(done_bytes, total_bytes)
        for name, actual in zip(
            checksums, pool.map(lambda name: hash_file(folder / name), checksums), strict=True
        ):
            if actual != checksums[name]:
                raise Refused(
                    f"{address}/{name} differs from the store's manifest (its SHA-256): it was "
                    "changed, or is of another build; copy the store there again"
                )
    finally:
        pool.shutdown(cancel_futures=True)


def _copy_part(address: str, folder: pathlib.Path, part: tuple[str, int, int]) -> int:
    name, start, end = part
    with _open_remote(address, name) as (files, path):
        data = files.cat_file(path, start=start, end=end)
    with open(folder / name, "r+b") as file:
        file.seek(start)
        file.write(data)
    return len(data)


@contextlib.contextmanager
def _open_remote(store: str, name: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system and the path of a store's file; raise Refused if it is missing."""
    address = f"{store}/{name}"
    files, path = open_filesystem(address)
    try:
        with explain_errors(address):
            yield files, path
    except FileNotFoundError as error:
        raise Refused(
            f"{store} is not a complete store: it has no {name}; copy one there: gcloud storage cp "
            f"--recursive STORE {store}"
        ) from error
