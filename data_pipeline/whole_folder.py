"""A folder that appears whole: made in a working folder inside it, moved up at the end.

    OUTPUT/.bert_jax-building/lock     held by the process at work
                             /files    what it makes
                             /moving   the names that it moves; from the first move to the last

At any moment the output is whole, which the file that is moved last says, or it is not. A process
that is killed leaves the working folder; the same command again starts afresh.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence

from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile
from data_pipeline.store import FORMAT, MANIFEST

WORKING = ".bert_jax-building"
FILES, _LOCK, _MOVING = "files", "lock", "moving"


def check_output(output: pathlib.Path, last: str, overwrite: bool | None = None) -> None:
    """Refuse an output folder that holds something else, before any work is done.

    `last` is the name that whole_folder moves last. `overwrite` says whether a finished store may
    be replaced; None where no flag can say so.

    Raises:
      ValueError: it is a file, a finished store that may not be replaced, or somebody's folder.
    """
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output is {output}, which is a file; give a folder")
    if not output.exists() or _is_half_moved(output, last):
        return
    if not {path.name for path in output.iterdir()} - {WORKING}:
        return
    if not _is_ours(output):
        raise ValueError(
            f"--output is {output}, a folder with files that are not a store; give a new or an "
            "empty folder"
        )
    if not overwrite:
        way_out = "" if overwrite is None else ", or replace it with --overwrite=true"
        raise ValueError(
            f"--output is {output}, which holds a finished store; give another folder{way_out}"
        )


def _is_half_moved(output: pathlib.Path, last: str) -> bool:
    """Whether a process was killed between its moves: its names are known, all else stays."""
    return (output / WORKING / _MOVING).exists() and not (output / last).exists()


def _is_ours(output: pathlib.Path) -> bool:
    """Whether the folder's manifest is a store's, of whatever version."""
    try:
        return small_files.read_object(output / MANIFEST).get("format") == FORMAT
    except (FileNotFoundError, ValueError):
        return False


@contextlib.contextmanager
def whole_folder(
    output: pathlib.Path,
    last: str,
    overwrite: bool | None = None,
    replaces: Sequence[str] = (),
) -> Iterator[pathlib.Path]:
    """Yield a folder to write into; its files then move to `output`, the one called `last` last.

    What has one of the names `replaces` is removed first. Where the work raises, `output` is left
    as it was.

    Raises:
      ValueError: what check_output refuses, or another process that works there.
    """
    check_output(output, last, overwrite)
    was_there = output.exists()
    working = output / WORKING
    try:
        working.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--output is {output}, which cannot be written here ({error.strerror}); give a folder "
            "in a place that you may write"
        ) from error
    with _locked(working / _LOCK, output):
        try:
            check_output(output, last, overwrite)  # another process may have finished it meanwhile
            _remove(working / FILES)
            (working / FILES).mkdir()
            yield working / FILES
        except BaseException:
            _remove(working / FILES)
            if not _is_half_moved(output, last):
                _remove(working)
            if not was_there and output.is_dir() and not any(output.iterdir()):
                output.rmdir()
            raise
        with _without_ctrl_c():
            _move(working, output, last, replaces)


def _move(working: pathlib.Path, output: pathlib.Path, last: str, replaces: Sequence[str]) -> None:
    """Replace what is in `output` by the files; the old last one goes first, the new comes last."""
    files, moving = working / FILES, working / _MOVING
    for path in (*files.rglob("*"), files):
        _sync(path)
    names = sorted(path.name for path in files.iterdir())
    earlier = _earlier_names(moving) if moving.exists() else []
    replaced = sorted({*names, *earlier, *replaces})
    unfinished = moving.with_suffix(".tmp")
    unfinished.write_text(json.dumps(replaced))
    _sync(unfinished)
    unfinished.replace(moving)
    _sync(working)
    (output / last).unlink(missing_ok=True)
    _sync(output)
    for name in replaced:
        _remove(output / name)
    for name in names:
        if name != last:
            (files / name).rename(output / name)
    _sync(output)
    (files / last).rename(output / last)
    _sync(output)
    _remove(working)


def _earlier_names(moving: pathlib.Path) -> list[str]:
    """Read the names in a folder that a killed process had begun to replace.

    Raises:
      ValueError: the list is damaged, or has what is no name in that folder.
    """
    names = small_files.parse_json(small_files.read_bytes(moving), moving)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DamagedFile(f"{moving} is not a list of names; remove the folder {moving.parent}")
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise DamagedFile(f"{moving} has {name!r}; remove the folder {moving.parent}")
    return names


def _sync(path: pathlib.Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk; a host may lose its power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: pathlib.Path, output: pathlib.Path) -> Iterator[None]:
    """Hold the file alone; whoever is killed lets go of it.

    Raises:
      ValueError: another process holds it, or has just removed it at its end.
    """
    with open(path, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except BlockingIOError:
            is_held = False
        if not is_held:
            raise ValueError(
                f"--output is {output}, where another process is at work; wait until it is done, "
                "or give another folder"
            )
        yield


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C does nothing in the block, a few renames at the end of the work."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
