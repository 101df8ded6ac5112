"""A store that was built here, copied into a bucket: each file checked, the manifest last.

    ADDRESS/.bert_jax-building   from the first look at the place to the end of the copy
    ADDRESS/manifest.json        written last; without it nothing there is a store

Whoever is killed leaves the first; the same command then begins the copy again.
"""

import contextlib
import hashlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import fsspec.callbacks

from data_pipeline import passing, small_files
from data_pipeline.example_arrays import FOLDER as EXAMPLES_FOLDER
from data_pipeline.files import driver_errors, filesystem
from data_pipeline.store import FORMAT, HELDOUT, MANIFEST, TRAIN
from data_pipeline.store_writing import sha256
from data_pipeline.tokenizer_json import TOKENIZER_JSON
from data_pipeline.vocab import FILE_NAMES
from data_pipeline.whole_folder import WORKING

_NAMES = {TRAIN, HELDOUT, EXAMPLES_FOLDER, *FILE_NAMES.values(), TOKENIZER_JSON, MANIFEST, WORKING}
_BLOCK_BYTES = 8 << 20

Advance = Callable[[int], None]


def check_destination(address: str, overwrite: bool) -> None:
    """Refuse a place in a bucket that holds something else, and mark it as being built in.

    Raises:
      ValueError: a bucket without a path in it, a file, a finished store that may not be replaced,
        somebody's folder, no right to write there.
      OSError: the bucket cannot be reached.
    """
    files, path = filesystem(address)
    if "/" not in path.strip("/"):
        raise ValueError(
            f"--output is {address}, which names no folder in a bucket; give one, as in "
            "gs://BUCKET/stores/mine"
        )
    with driver_errors(address):
        files.invalidate_cache()
        if files.isfile(path):
            raise ValueError(f"--output is {address}, which is a file; give a folder")
        names = _names_in(files, path)
        if strange := sorted(names - _NAMES):
            raise ValueError(
                f"--output is {address}, where {strange[0]} lies, which is no part of a store; "
                "give a new or an empty folder"
            )
        if MANIFEST in names:
            _check_manifest(files, address, path, overwrite)
        elif names and WORKING not in names:
            raise ValueError(
                f"--output is {address}, a folder with files that are not a store (no {MANIFEST}); "
                "give a new or an empty folder"
            )
        try:
            files.pipe_file(f"{path}/{WORKING}", b"a store is being built for this folder\n")
        except Exception as error:  # drivers have no common one
            if not isinstance(error, PermissionError) and not passing.is_denied(error, address):
                raise
            words = " ".join(str(error).split())
            raise ValueError(
                f"--output is {address}, where this account may not write ({words}); give it "
                "roles/storage.objectUser on the bucket, or another place"
            ) from error


def _names_in(files: Any, path: str) -> set[str]:
    try:
        found = files.ls(path, detail=False)
    except FileNotFoundError:
        return set()
    return {name.rstrip("/").rpartition("/")[2] for name in found} - {""}


def _check_manifest(files: Any, address: str, path: str, overwrite: bool) -> None:
    data = files.cat_file(f"{path}/{MANIFEST}", start=0, end=small_files.MAX_BYTES)
    try:
        is_ours = small_files.parse_object(data, f"{address}/{MANIFEST}").get("format") == FORMAT
    except small_files.DamagedFile:
        is_ours = False
    if not is_ours:
        raise ValueError(
            f"--output is {address}, whose {MANIFEST} is no store's; give a new or an empty folder"
        )
    if not overwrite:
        raise ValueError(
            f"--output is {address}, which holds a finished store; give another folder, or replace "
            "it with --overwrite=true"
        )


def unmark_destination(address: str) -> None:
    """Take the mark away again after work that failed; nothing else was written yet."""
    files, path = filesystem(address)
    with contextlib.suppress(OSError, ValueError), driver_errors(address):
        files.rm_file(f"{path}/{WORKING}")


def new_scratch(scratch: str, source_bytes: int) -> pathlib.Path:
    """Make a new folder under `scratch`, or under the system's temporary folder.

    Raises:
      ValueError: there is no such folder, it cannot be written, or it has too little room.
    """
    place = pathlib.Path(scratch or tempfile.gettempdir()).expanduser()
    try:
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < source_bytes:
            raise ValueError(
                f"--scratch is {place}, with {free_bytes / 1e9:.3f} GB left, and the input has "
                f"{source_bytes / 1e9:.3f} GB; name a folder on a larger disk with --scratch"
            )
        return pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-build-", dir=place))
    except OSError as error:
        raise ValueError(
            f"--scratch is {place}, where no folder can be made ({error.strerror}); name one on a "
            "local disk, in which the store is built before it is copied"
        ) from error


def upload_store(
    folder: pathlib.Path, address: str, manifest: dict[str, Any], advance: Advance
) -> None:
    """Copy a finished store; `advance` is told the bytes as they are written and read back.

    Raises:
      ValueError: what was read back is not what was written.
      OSError: the bucket cannot be written or read.
    """
    files, path = filesystem(address)
    checksums = {name: array["sha256"] for name, array in manifest["arrays"].items()}
    checksums[manifest["vocabulary"]["file"]] = manifest["vocabulary"]["sha256"]
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    )
    names.remove(MANIFEST)
    with driver_errors(address):
        if files.exists(f"{path}/{MANIFEST}"):  # from here on the store before is none
            files.rm_file(f"{path}/{MANIFEST}")
        for name in [*names, MANIFEST]:
            if name == MANIFEST:
                _remove_others(files, path, names)
            files.put_file(str(folder / name), f"{path}/{name}", callback=_Progress(advance))
            expected = checksums.get(name) or sha256(folder / name)
            if _sha256_there(files, f"{path}/{name}", advance) != expected:
                raise ValueError(
                    f"{address}/{name} is not what was written there (its SHA-256 differs); "
                    "something else writes to that place: give another --output"
                )
        files.rm_file(f"{path}/{WORKING}")


def upload_bytes(folder: pathlib.Path) -> int:
    """How many bytes upload_store writes and reads back."""
    return 2 * sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _remove_others(files: Any, path: str, names: list[str]) -> None:
    """Remove what a store before had and this one has not."""
    files.invalidate_cache()
    prefix = path.strip("/") + "/"
    kept = {*names, WORKING}
    for found in files.find(path):
        if found.strip("/").removeprefix(prefix) not in kept:
            files.rm_file(found)


def _sha256_there(files: Any, path: str, advance: Advance) -> str:
    digest = hashlib.sha256()
    files.invalidate_cache()
    with files.open(path, "rb", block_size=_BLOCK_BYTES) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


class _Progress(fsspec.callbacks.Callback):  # type: ignore[misc]
    """Tells `advance` what a copy of fsspec's has done."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self._advance = advance

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self._advance(inc)
