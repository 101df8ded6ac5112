"""Copy a store that was built locally into a bucket: each file checked, the manifest last.

    ADDRESS/.bert_jax-building   exists from the first check to the end of the copy
    ADDRESS/manifest.json        written last; without it nothing there is a store

A killed process leaves .bert_jax-building; the same command then starts the copy again.
"""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import fsspec.callbacks

from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import open_filesystem
from data_pipeline.io.atomic import WORKING
from data_pipeline.io.errors import explain_errors
from data_pipeline.store import FORMAT, MANIFEST, PARTS
from data_pipeline.store.reader import hash_file, hash_stream, list_checksums

_NAMES = {*PARTS, MANIFEST, WORKING}
_BLOCK_BYTES = 8 << 20

Advance = Callable[[int], None]


def check_destination(address: str, overwrite: bool) -> None:
    """Raise Refused for a folder in a bucket with other files; otherwise mark it as being built.

    Raises:
      Refused: a bucket without a path in it, a file, a finished store that may not be replaced,
        a folder with other files, no permission to write.
      OSError: the bucket cannot be reached.
    """
    files, path = open_filesystem(address)
    if "/" not in path.strip("/"):
        raise Refused(
            f"--output is {address}, which names no folder in a bucket; give one, as in "
            "gs://BUCKET/stores/mine"
        )
    with explain_errors(address, "writing"):
        files.invalidate_cache()
        if files.isfile(path):
            raise Refused(f"--output is {address}, which is a file; give a folder")
        names = _list_names(files, path)
        is_of_a_store = bool(names & {MANIFEST, WORKING})
        if strange := sorted(names - _NAMES if is_of_a_store else names):
            raise Refused(
                f"--output is {address}, which holds {strange[0]}, which is not part of a store "
                f"with a {MANIFEST}; give a new or an empty folder"
            )
        if MANIFEST in names:
            _check_manifest(files, address, path, overwrite)
        try:
            with explain_errors(address, "writing"):
                files.pipe_file(f"{path}/{WORKING}", b"a store is being built for this folder\n")
        except PermissionError as error:
            raise Refused(
                f"--output is {address}, where this account may not write ({error}); grant "
                "it this permission, or give another place"
            ) from error


def _list_names(files: Any, path: str) -> set[str]:
    try:
        paths = files.ls(path, detail=False)
    except FileNotFoundError:
        return set()
    # An object that marks the folder, as Google's console makes it, is listed as the folder itself.
    names = {name.strip("/") for name in paths} - {path.strip("/")}
    return {name.rpartition("/")[2] for name in names}


def _check_manifest(files: Any, address: str, path: str, overwrite: bool) -> None:
    data = files.cat_file(f"{path}/{MANIFEST}", start=0, end=small_files.MAX_BYTES)
    try:
        is_ours = small_files.parse_object(data, f"{address}/{MANIFEST}").get("format") == FORMAT
    except small_files.DamagedFile:
        is_ours = False
    if not is_ours:
        raise Refused(
            f"--output is {address}, whose {MANIFEST} is not a store's; give a new or empty folder"
        )
    if not overwrite:
        raise Refused(
            f"--output is {address}, which holds a finished store; give another folder, or replace "
            "it with --overwrite=true"
        )


def unmark_destination(address: str) -> None:
    """Delete the mark after a failed build, unless an unfinished copy has left files there."""
    files, path = open_filesystem(address)
    with contextlib.suppress(OSError, ValueError), explain_errors(address, "writing"):
        files.invalidate_cache()
        if MANIFEST in (names := _list_names(files, path)) or names == {WORKING}:
            files.rm_file(f"{path}/{WORKING}")


def new_scratch(scratch: str, source_bytes: int) -> pathlib.Path:
    """Make a new folder under `scratch`, or under the system's temporary folder.

    Raises:
      Refused: the folder is missing, cannot be written, or has too little space.
    """
    place = pathlib.Path(scratch or tempfile.gettempdir())
    try:
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < source_bytes:
            raise Refused(
                f"--scratch is {place}, with {free_bytes / 1e9:.3f} GB left, and the input has "
                f"{source_bytes / 1e9:.3f} GB; name a folder on a larger disk with --scratch"
            )
        return pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-build-", dir=place))
    except OSError as error:
        raise Refused(
            f"--scratch is {place}, where no folder can be made ({error.strerror}); name one on a "
            "local disk, in which the store is built before it is copied"
        ) from error


def upload_store(
    folder: pathlib.Path, address: str, manifest: dict[str, Any], advance: Advance
) -> None:
    """Copy a finished store; call `advance` with the bytes that are written and read back.

    Raises:
      Refused: a file that was read back differs from the one written.
      OSError: the bucket cannot be written or read.
    """
    files, path = open_filesystem(address)
    checksums = list_checksums(manifest)
    names = sorted(
        file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
    )
    names.remove(MANIFEST)
    with explain_errors(address, "writing"):
        if files.exists(f"{path}/{MANIFEST}"):  # now the earlier store is incomplete
            files.rm_file(f"{path}/{MANIFEST}")
        for name in [*names, MANIFEST]:
            if name == MANIFEST:
                _remove_others(files, path, names)
            files.put_file(str(folder / name), f"{path}/{name}", callback=_CopyCallback(advance))
            expected = checksums.get(name) or hash_file(folder / name)
            files.invalidate_cache()
            with files.open(f"{path}/{name}", "rb", block_size=_BLOCK_BYTES) as file:
                written = hash_stream(file, advance)
            if written != expected:
                raise Refused(
                    f"{address}/{name} is not what was written there (its SHA-256 differs); "
                    "something else writes to that place: give another --output"
                )
        files.rm_file(f"{path}/{WORKING}")


def count_upload_bytes(folder: pathlib.Path) -> int:
    """Count the bytes that upload_store writes and reads back."""
    return 2 * sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _remove_others(files: Any, path: str, names: list[str]) -> None:
    """Remove files of an earlier store that are not in `names`."""
    files.invalidate_cache()
    for other in files.find(path):
        if other.strip("/").removeprefix(f"{path.strip('/')}/") not in (*names, WORKING):
            files.rm_file(other)


class _CopyCallback(fsspec.callbacks.Callback):  # type: ignore[misc]
    """Report the bytes that fsspec copies to `advance`."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self._advance = advance

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self._advance(inc)
