"""Append to, read and repair the JSON-lines records of a run, which a kill may truncate.

Writing follows no symbolic link, and reading none that leads out of the folder.
"""

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_file
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.small_files import NUL, DamagedFile

DAMAGED = ".damaged"  # suffix of the file that keeps what was cut off
MAX_BYTES = 1 << 30  # limit of a records file: millions of lines
Read = Callable[[pathlib.Path], list[dict[str, Any]]]
_MEND = "delete or correct that line, or put a copy of the file back"


def append_record(path: pathlib.Path, line: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file, replacing a truncated line that a killed process left."""
    repair_end(path)
    _append(path, f"{json.dumps(line)}\n".encode())


def _append(path: pathlib.Path, data: bytes) -> None:
    with (
        explain_errors(str(path.parent), f"writing {path.name}"),
        os.fdopen(small_files.open_to_write(path, os.O_WRONLY | os.O_APPEND), "ab") as file,
    ):
        file.write(data)


def read_records(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read records that each have a step, such as bad_steps.jsonl; none if the file is missing.

    A truncated line or NULs at the end, left by a kill or a power cut, are skipped. Raises
    DamagedFile for any other line that is malformed.
    """
    if not path.exists() and not path.is_symlink():
        return []
    whole, _ = _split_end(path)
    records = []
    for number, line in enumerate(whole.split(b"\n"), 1):
        if not line.strip():
            continue
        name = f"{path}, line {number}"
        try:
            content = small_files.parse_object(line, name)
            if small_files.field(content, "step", int, name) < 0:
                raise DamagedFile(f"{name} has the step {content['step']}")
        except DamagedFile as error:
            raise DamagedFile(f"{error}; {_MEND}") from None
        records.append(content)
    return records


FINDING = "finding"  # "split" of a line with a monitoring rule's sentence instead of numbers
_SPLITS = ("train", "heldout", FINDING)
_TEXTS = ("split", "rule", "sentence", "try")


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl: lines of numbers for a step and a split, and findings.

    Raises as read_records does.
    """
    lines = read_records(path)
    for line in lines:
        name = f"{path}, the line of step {line['step']}"
        for key, value in line.items():
            kind: type = str if key in _TEXTS else float
            if type(value) is kind:
                continue
            try:
                small_files.field({key: value}, key, kind, name)
            except DamagedFile as error:
                raise DamagedFile(f"{error}; {_MEND}") from None
        if line.get("split") not in _SPLITS:
            raise DamagedFile(f"{name}: its split is none of {', '.join(_SPLITS)}; {_MEND}")
    return lines


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read the lines of numbers of a metrics.jsonl; raise as read_records does."""
    return [line for line in read_lines(path) if line["split"] != FINDING]


def truncate_records(
    path: pathlib.Path, last_step: int, read: Read = read_records
) -> list[dict[str, Any]]:
    """Keep and return the lines up to last_step; drop later ones and a truncated line."""
    kept = [line for line in read(path) if line["step"] <= last_step]
    write_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    return kept


def repair_end(path: pathlib.Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Remove what a kill or a power cut left after the last complete line.

    NULs and the text before them on their line are appended to PATH.damaged and reported. Raises
    DamagedFile if the end is neither a truncated line nor NULs.
    """
    if (not path.exists() and not path.is_symlink()) or _ends_whole(path):
        return
    whole, end = _split_end(path)
    if NUL in end:
        kept = path.with_name(path.name + DAMAGED)
        _append(kept, end)
        say(
            f"{path} ended in {len(end):,} bytes that are not a line, as after a power cut; they "
            f"were moved to {kept.name}"
        )
    write_file(path, whole)


def _ends_whole(path: pathlib.Path) -> bool:
    """Return whether a file is no link, and is empty or ends in a newline; read only its end."""
    if path.is_symlink():
        return False
    with small_files.open_regular(path, path.parent, may_stand_in=True) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")


def _split_end(path: pathlib.Path) -> tuple[bytes, bytes]:
    """Return the complete lines of a file, and the truncated line or the NULs after them."""
    data = small_files.read_bytes(path, path.parent, MAX_BYTES)
    lines, newline, end = data.rpartition(b"\n")
    whole = lines + newline
    written = end.rstrip(NUL)
    if not end or (written != end and (not written or _is_half(written))) or _is_half(end):
        return whole, end
    try:
        small_files.parse_object(written, path)
    except DamagedFile:
        raise DamagedFile(f"{path} ends in bytes that are not a line of a run; {_MEND}") from None
    return (data + b"\n", b"") if written == end else (whole + written + b"\n", end[len(written) :])


def _is_half(line: bytes) -> bool:
    """Return whether a line starts like a record, in ASCII, and has an unclosed bracket."""
    if not line.startswith(b"{") or not line.isascii() or NUL in line:
        return False
    outside = small_files.STRINGS.sub(b"", line)
    return outside.count(b"{") + outside.count(b"[") > outside.count(b"}") + outside.count(b"]")
