"""Small files of a run: written whole, or grown by lines; what a disk refuses in a sentence."""

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax import storage_errors


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
        partial.write_bytes(content)
        partial.replace(path)


def add_line(path: pathlib.Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file. A process that was killed may have left half a line there."""
    with in_a_sentence(path.parent), path.open("a+b") as file:
        ends_whole = file.tell() == 0 or _last_byte(file) == b"\n"
        file.write((b"" if ends_whole else b"\n") + f"{json.dumps(line)}\n".encode())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, 2)
    return bytes(file.read(1))


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, none where there is no file.

    Raises:
      ValueError: a line before the last one is not a line of metrics.
    """
    if not path.exists():
        return []
    texts = path.read_text(encoding="utf-8").splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):  # the last one may be the half line of a killed run
                raise ValueError(f"{path}, line {number} is not a line of metrics") from error
    return lines


def cut_lines_after(path: pathlib.Path, last_step: int) -> None:
    """Leave the lines of steps up to this one; a half line at the end goes."""
    kept = [line for line in read_lines(path) if line["step"] <= last_step]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
