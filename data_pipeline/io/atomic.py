"""Write files and folders atomically: a reader finds the new version, the old one, or none.

`write_file` replaces a small file; `new_file` makes a file that must not exist yet; `new_folder`
fills a working folder inside the new one and moves its files up at the end:

    OUTPUT/.bert_jax-building/lock     lock of the process at work
                             /files    the files being written
                             /moving   names of the files to move, while they are moved

The file that is moved last makes the folder complete. A process that is killed leaves the working
folder; the same command starts again from the beginning.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from data_pipeline.io import Refused, small_files
from data_pipeline.io.errors import explain_errors, is_transient
from data_pipeline.io.small_files import DamagedFile

WORKING = ".bert_jax-building"
FILES, _LOCK, _MOVING = "files", "lock", "moving"
_DEVICES = pathlib.Path("/dev")


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Replace a file atomically: a process that is killed leaves the old file or the new one.

    A device or a pipe, such as /dev/stdout, is written to; root could replace it by a file.
    """
    partial = path.with_name(f"{path.name}.partial")
    with explain_errors(str(path.parent), f"writing {path.name}"):
        # Where stdout is a file, /dev/stdout is a link to that file.
        if path.parent == _DEVICES or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        if partial.is_symlink():
            partial.unlink()
        opened = small_files.open_to_write(partial, os.O_WRONLY | os.O_TRUNC)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(content)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_json(path: pathlib.Path, content: Any) -> None:
    """Replace a file by indented JSON, as write_file does."""
    write_file(path, f"{json.dumps(content, indent=2)}\n".encode())


def keep_json(path: pathlib.Path, content: Any) -> None:
    """Cache a result for later starts, in a folder that is made if needed and possible.

    Several processes may write the file at once. If it cannot be written, nothing is raised.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}.json")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.chmod(0o644)  # readable by other users of the store, whatever the umask
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_new_file(output: pathlib.Path) -> None:
    """Raise Refused if --output already exists, or if no file can be made in its folder."""
    check_file_path(output, "--output")
    if output.exists():
        raise Refused(
            f"--output is {output}, which already exists; give another name, or delete it first"
        )
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise Refused(
            f"--output is {output}, and nothing can be written to {output.parent}; change its "
            "permissions, or give another folder"
        )


def check_file_paths(**flags: str) -> None:
    """Call check_file_path for the flags that are not ""; refuse two with the same file."""
    flag_of: dict[str, str] = {}
    for flag, place in flags.items():
        if place:
            check_file_path(pathlib.Path(place), f"--{flag}")
            if (other := flag_of.setdefault(os.path.realpath(place), flag)) != flag:
                raise Refused(f"--{other} and --{flag} are both {place}; give each its own file")


def check_file_path(output: pathlib.Path, flag: str) -> None:
    """Raise Refused for a path where no file can be written; one that exists may be replaced."""
    if output.is_dir():
        raise Refused(f"{flag} is {output}, which is a folder; give the name of a file in it")
    if not output.parent.is_dir():
        raise Refused(
            f"{flag} is {output}, but there is no folder {output.parent}; make it first, or give "
            "another"
        )


@contextlib.contextmanager
def new_file(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a path to write to; the file is renamed to `output` after the block.

    The file is removed if the block raises; a process that is killed leaves it, with a name that
    ends in .unfinished. Raises FileExistsError if another process made `output` meanwhile.
    """
    unfinished = output.with_name(f"{output.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        _sync(unfinished)
        if output.exists():
            raise FileExistsError(
                errno.EEXIST, "another process has made it meanwhile", str(output)
            )
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Destination:
    """Describe a folder to make, and which earlier one it may replace."""

    path: pathlib.Path
    last: str  # name of the file moved last, which makes the folder complete
    format: str = ""  # value of "format" in an earlier folder's `last`; "": none is recognized
    may_overwrite: bool | None = None  # None: the command has no such flag
    replaces: Sequence[str] = ()  # names that are removed even if no new file has them
    flag: str = "--output"  # the flag that gave the path


def check_no_file(path: pathlib.Path, flag: str) -> None:
    """Raise Refused if a path that a flag gave for a folder is a file, or lies below one."""
    nearest = next((place for place in (path, *path.parents) if place.exists()), None)
    if nearest is not None and not nearest.is_dir():
        which = "which" if nearest == path else f"but {nearest}"
        raise Refused(f"{flag} is {path}, {which} is a file; give a folder")


def check_new_folder(destination: Destination) -> None:
    """Raise Refused for a file, an earlier folder that may not be replaced, or other files."""
    path, flag = destination.path, destination.flag
    check_no_file(path, flag)
    if not path.exists() or _is_half_moved(destination):
        return
    if all(entry.name == WORKING for entry in path.iterdir()):
        return
    if not _is_recognized(destination):
        raise Refused(
            f"{flag} is {path}, a folder with other files; give a new folder, or empty it first"
        )
    if not destination.may_overwrite:
        fix = "" if destination.may_overwrite is None else ", or replace it with --overwrite=true"
        raise Refused(f"{flag} is {path}, which holds a finished store; give another folder{fix}")


def _is_half_moved(destination: Destination) -> bool:
    """Return whether a process was killed while it moved files; a new build replaces them."""
    moving = destination.path / WORKING / _MOVING
    return moving.exists() and not (destination.path / destination.last).exists()


def _is_recognized(destination: Destination) -> bool:
    """Return whether the folder is an earlier output of the same format, in any version."""
    try:
        content = small_files.read_object(destination.path / destination.last)
    except (FileNotFoundError, ValueError):
        return False
    return bool(destination.format) and content.get("format") == destination.format


@contextlib.contextmanager
def new_folder(destination: Destination) -> Iterator[pathlib.Path]:
    """Yield a folder to write into, whose files are moved to the destination after the block.

    If the block raises, the destination is left as it was.

    Raises:
      Refused: what check_new_folder refuses, another process at work there, or a place that
        cannot be written.
    """
    check_new_folder(destination)
    output = destination.path
    was_there = output.exists()
    working = output / WORKING
    try:
        working.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_transient(error):
            raise
        raise Refused(
            f"{destination.flag} is {output}, which cannot be written here ({error.strerror}); "
            "give a folder in a place that you may write"
        ) from error
    with _locked(working / _LOCK, destination):
        try:
            check_new_folder(destination)  # another process may have finished it meanwhile
            _remove(working / FILES)
            (working / FILES).mkdir()
            yield working / FILES
        except BaseException:
            _remove(working / FILES)
            if not _is_half_moved(destination):
                _remove(working)
            if not was_there and output.is_dir() and not any(output.iterdir()):
                output.rmdir()
            raise
        with _without_stops():
            _move(working, destination)


def _move(working: pathlib.Path, destination: Destination) -> None:
    """Replace the content of a folder: remove its old `last` file first, move the new one last."""
    output, last = destination.path, destination.last
    files, moving = working / FILES, working / _MOVING
    for path in (*files.rglob("*"), files):
        _sync(path)
    names = sorted(path.name for path in files.iterdir())
    earlier = _read_moving(moving) if moving.exists() else []
    replaced = sorted({*names, *earlier, *destination.replaces})
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


def _read_moving(moving: pathlib.Path) -> list[str]:
    """Read the names in a folder that a killed process had begun to replace."""
    names = small_files.parse_json(small_files.read_bytes(moving), moving)
    if not isinstance(names, list) or not all(map(_is_entry, names)):
        raise DamagedFile(f"{moving} is not a list of names; remove the folder {moving.parent}")
    return names


def _is_entry(name: object) -> bool:
    """Return whether a value is a valid name of a file or folder, and no path."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _sync(path: pathlib.Path) -> None:
    """Flush a file's bytes or a folder's entries to the disk."""
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
def _locked(path: pathlib.Path, destination: Destination) -> Iterator[None]:
    """Lock a file, which the system unlocks when this process ends, however it ends.

    Raises Refused if another process has locked it, or has just removed it after its work, or if
    it is a link.
    """
    with os.fdopen(small_files.open_to_write(path, os.O_WRONLY), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise Refused(
                f"{destination.flag} is {destination.path}, where another process is at work; "
                "wait until it is done, or give another folder"
            )
        yield


@contextlib.contextmanager
def _without_stops() -> Iterator[None]:
    """Ignore signals that would raise in the block, which renames a few files after the work."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    is_main = threading.current_thread() is threading.main_thread()  # other threads get no signals
    # jax's SIGTERM handler stays: to Python it looks like the default.
    before = {number: signal.getsignal(number) for number in numbers if is_main}
    raising = {number: handler for number, handler in before.items() if callable(handler)}
    for number in raising:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
