"""A store in a bucket to a local copy, made once a host: only a local file can be memory-mapped.

    CACHE/DIGEST           the copy; it appears whole, checked against the manifest's SHA-256
    CACHE/DIGEST.partial   while it is made
    CACHE/DIGEST.lock      held by the process that makes it; others wait for it

A copy is named by the store's digest, so a store that is built again is copied again. Old copies
stay until somebody removes them.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from data_pipeline import small_files
from data_pipeline.files import driver_errors, filesystem, is_address
from data_pipeline.small_files import DamagedFile
from data_pipeline.store import MANIFEST, check_is_local, is_store, parse_manifest
from data_pipeline.store_writing import sha256

_THREADS = 8
_PART_BYTES = 16 << 20  # fetched by one request; the largest array is most of a store
_DIGEST = re.compile(r"[0-9a-f]{64}")

Advance = Callable[[int, int], None]


def cached_store(
    address: str, cache_dir: str, advance: Advance = lambda done_bytes, total_bytes: None
) -> pathlib.Path:
    """The local folder of a store: itself, or the copy of one in a bucket, made if there is none.

    `advance` is told the bytes copied so far and all there are; not at all where there is a copy.

    Raises:
      ValueError: no cache_dir for an address, no store there, a file of it missing or not what the
        manifest says, too little room; the sentence names the way out. Nothing is left then.
      OSError: the bucket cannot be read, or the copy not written.
    """
    if not is_address(address):
        return pathlib.Path(address)
    if not cache_dir:
        raise ValueError(
            f"the store is {address}, which cannot be mapped into memory; name a local folder for "
            "a copy of it, on a disk with room for all of it: --config.data.data_cache=FOLDER"
        )
    check_is_local("config.data.data_cache", cache_dir)
    address = address.rstrip("/")
    manifest_address = f"{address}/{MANIFEST}"
    if _stored_bytes(manifest_address, address) > small_files.MAX_BYTES:
        raise ValueError(f"{manifest_address} is too large to be the manifest of a store")
    manifest_bytes = _fetch(manifest_address, None, address)
    manifest = parse_manifest(manifest_bytes, address)
    checksums = _checksums(address, manifest)
    copy = pathlib.Path(cache_dir).expanduser() / manifest["digest"]
    if is_store(copy):
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _locked(copy.with_suffix(".lock")):
        if not is_store(copy):  # another process may have made it meanwhile
            with _whole_folder(copy) as partial:
                _copy(address, checksums, partial, advance)
                (partial / MANIFEST).write_bytes(manifest_bytes)
    return copy


def _checksums(address: str, manifest: dict[str, Any]) -> dict[str, str]:
    """SHA-256 of each file of a store by its name there."""
    try:
        vocabulary = manifest["vocabulary"]
        checksums = {name: array["sha256"] for name, array in manifest["arrays"].items()}
        checksums[vocabulary["file"]] = vocabulary["sha256"]
        names = [*checksums, manifest["digest"]]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{address}/{MANIFEST} is damaged (no {error}); copy the store there again"
        ) from error
    try:  # they become paths here
        for name in checksums:
            small_files.path_inside(pathlib.Path("/store"), name)
    except DamagedFile:
        names = []
    if not names or not _DIGEST.fullmatch(names[-1]) or MANIFEST in checksums:
        raise ValueError(
            f"{address}/{MANIFEST} has names that no store has; copy the store there again"
        )
    return checksums


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Hold the file alone among the processes of this host; whoever is killed lets go of it."""
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _whole_folder(copy: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a folder that takes its name once the work in it is done, and is removed otherwise."""
    if copy.exists():
        raise ValueError(f"{copy} is there and is no store; remove it, or give another data_cache")
    partial = copy.with_suffix(".partial")
    if partial.exists():
        shutil.rmtree(partial)  # of a process that was killed: we have the lock
    try:
        partial.mkdir()
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(copy)


def _copy(address: str, checksums: dict[str, str], partial: pathlib.Path, advance: Advance) -> None:
    """Copy the files in parts, several at a time, and check each."""
    sizes = {name: _stored_bytes(f"{address}/{name}", address) for name in checksums}
    total_bytes, free_bytes = sum(sizes.values()), shutil.disk_usage(partial).free
    if total_bytes > free_bytes:
        raise ValueError(
            f"{address} takes {total_bytes / 1e9:.3f} GB and {partial.parent} has "
            f"{free_bytes / 1e9:.3f} GB left; make room, or name a folder on another disk: "
            "--config.data.data_cache=FOLDER"
        )
    for name, size_bytes in sizes.items():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        with open(partial / name, "wb") as file:
            file.truncate(size_bytes)
    parts = [
        (name, start, min(start + _PART_BYTES, size_bytes))
        for name, size_bytes in sizes.items()
        for start in range(0, size_bytes, _PART_BYTES)
    ]
    done_bytes = 0
    pool = ThreadPoolExecutor(_THREADS)
    try:
        copies = [pool.submit(_copy_part, address, partial, part) for part in parts]
        for copied in as_completed(copies):
            done_bytes += copied.result()
            advance(done_bytes, total_bytes)
        checks = pool.map(lambda name: _check(address, partial, name, checksums[name]), checksums)
        list(checks)
    finally:
        pool.shutdown(cancel_futures=True)


def _copy_part(address: str, partial: pathlib.Path, part: tuple[str, int, int]) -> int:
    name, start, end = part
    data = _fetch(f"{address}/{name}", (start, end), address)
    with open(partial / name, "r+b") as file:
        file.seek(start)
        file.write(data)
    return len(data)


def _check(address: str, partial: pathlib.Path, name: str, checksum: str) -> None:
    with open(partial / name, "rb") as file:
        os.fsync(file.fileno())  # or a host that loses power may keep the name without the bytes
    if sha256(partial / name) != checksum:
        raise ValueError(
            f"{address}/{name} is not what the store's manifest says (its SHA-256 differs): it was "
            "changed, or is of another build; copy the store there again"
        )


def _fetch(file_address: str, span: tuple[int, int] | None, store: str) -> bytes:
    """The bytes of a file of a store, or those from span[0] to before span[1]."""
    files, path = filesystem(file_address)
    start, end = span or (None, None)
    with _missing(file_address, store), driver_errors(file_address):
        return bytes(files.cat_file(path, start=start, end=end))


def _stored_bytes(file_address: str, store: str) -> int:
    files, path = filesystem(file_address)
    with _missing(file_address, store), driver_errors(file_address):
        return int(files.size(path))


@contextlib.contextmanager
def _missing(file_address: str, store: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(
            f"{store} is not a whole store: it has no {file_address.removeprefix(store + '/')}; "
            f"copy one there: gcloud storage cp --recursive STORE {store}"
        ) from error
