"""Small files of a run: written whole, or grown by lines; what a disk refuses in a sentence.

No symbolic link is followed for writing, and none out of the folder for reading.
"""

import contextlib
import json
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_jax import storage_errors
from data_pipeline import small_files
from data_pipeline.small_files import NUL, DamagedFile

DAMAGED = ".damaged"  # ends the name of the file that keeps what was cut off
_MOST_BYTES = 1 << 30  # of a file of lines: millions of them
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
Read = Callable[[pathlib.Path], list[dict[str, Any]]]
_MEND = "delete or mend that line, or put a copy of the file back"


@contextlib.contextmanager
def in_a_sentence(folder: pathlib.Path) -> Iterator[None]:
    """Have what the disk refuses said with its place and the room that it has."""
    try:
        yield
    except OSError as error:
        said = storage_errors.explained(error, str(folder), "writing the records of the run")
        raise error if said is None else said from error


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Put a file in the place of another at once: whoever is killed leaves the one or the other."""
    partial = path.with_name(f"{path.name}.partial")
    with in_a_sentence(path.parent):
        if partial.is_symlink():
            partial.unlink()
        with os.fdopen(small_files.open_to_write(partial, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(content)
        partial.replace(path)


def add_line(path: pathlib.Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file, in the place of the half line that a killed process left."""
    mend_end(path)
    with (
        in_a_sentence(path.parent),
        os.fdopen(small_files.open_to_write(path, os.O_WRONLY | os.O_APPEND), "ab") as file,
    ):
        file.write(f"{json.dumps(line)}\n".encode())


def read_lines(path: pathlib.Path, skips_halves: bool = True) -> list[dict[str, Any]]:
    """Read a file of lines that each have a step, such as bad_steps.jsonl; none without a file.

    Half a line and NULs at the end are what a killed process or a power cut left, and are skipped;
    with skips_halves so is half a line in the middle, after which older versions went on.

    Raises:
      DamagedFile: names the line that is none of these.
    """
    if not path.exists() and not path.is_symlink():
        return []
    whole, _ = _split_end(path)
    found = []
    for number, line in enumerate(whole.split(b"\n"), 1):
        if not line.strip() or (skips_halves and _is_half(line)):
            continue
        name = f"{path}, line {number}"
        try:
            content = small_files.parse_object(line, name)
            if small_files.field(content, "step", int, name) < 0:
                raise DamagedFile(f"{name} has the step {content['step']}")
        except DamagedFile as error:
            raise DamagedFile(f"{error}; {_MEND}") from None
        found.append(content)
    return found


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl: lines of a step, a split and numbers; otherwise as read_lines."""
    lines = read_lines(path, skips_halves=False)
    for line in lines:
        for key, value in line.items():
            kind: type = str if key == "split" else float
            name = f"{path}, the line of step {line['step']}"
            try:
                small_files.field({key: value}, key, kind, name)
            except DamagedFile as error:
                raise DamagedFile(f"{error}; {_MEND}") from None
        if "split" not in line:
            raise DamagedFile(f"{path}, the line of step {line['step']} has no split; {_MEND}")
    return lines


def cut_lines_after(path: pathlib.Path, last_step: int, read: Read = read_lines) -> None:
    """Leave the lines of steps up to this one; a half line at the end goes."""
    kept = [line for line in read(path) if line["step"] <= last_step]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def mend_end(path: pathlib.Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Cut off what a killed process or a power cut left after the last whole line.

    NULs, with what stands before them on their line, are added to PATH.damaged, and reported.

    Raises:
      DamagedFile: the end is neither; or as read_lines and open_to_write.
    """
    if not path.exists() and not path.is_symlink():
        return
    if _ends_whole(path):
        return
    whole, end = _split_end(path)
    if NUL in end:
        kept = path.with_name(path.name + DAMAGED)
        with (
            in_a_sentence(path.parent),
            os.fdopen(small_files.open_to_write(kept, os.O_WRONLY | os.O_APPEND), "ab") as file,
        ):
            file.write(end)
        say(
            f"{path} ended in {len(end):,} bytes that are no line, as after a power cut; they were "
            f"moved to {kept.name}"
        )
    write_whole(path, whole)


def _ends_whole(path: pathlib.Path) -> bool:
    """Whether a file is empty or ends in a newline, found without reading it all."""
    try:
        number = os.open(path, os.O_RDONLY | small_files.NO_LINK)
    except OSError:  # a link, or what cannot be read: said by who reads it
        return False
    try:
        status = os.fstat(number)
        is_regular = stat.S_ISREG(status.st_mode)
        if not is_regular or not status.st_size:
            return is_regular
        return os.pread(number, 1, status.st_size - 1) == b"\n"
    finally:
        os.close(number)


def _split_end(path: pathlib.Path) -> tuple[bytes, bytes]:
    """Return the whole lines of a file, and the half line or the NULs after them.

    Raises:
      DamagedFile: the end is something else.
    """
    data = small_files.read_bytes(path, path.parent, _MOST_BYTES)
    lines, newline, end = data.rpartition(b"\n")
    whole = lines + newline
    written = end.rstrip(NUL)
    if not end or (written != end and (not written or _is_half(written))) or _is_half(end):
        return whole, end
    try:
        small_files.parse_object(written, path)
    except DamagedFile:
        raise DamagedFile(f"{path} ends in bytes that are no line of a run; {_MEND}") from None
    return (data + b"\n", b"") if written == end else (whole + written + b"\n", end[len(written) :])


def _is_half(line: bytes) -> bool:
    """Whether a line begins as ours do, which are ASCII, and has a bracket that nothing closes."""
    if not line.startswith(b"{") or not line.isascii() or NUL in line:
        return False
    outside, _, _ = _STRING.sub(b"", line).partition(b'"')  # of which one may be cut off
    opened = sum(map(outside.count, (b"{", b"[")))
    return opened > sum(map(outside.count, (b"}", b"]")))
