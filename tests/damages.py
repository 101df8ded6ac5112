"""Damage a file that a command reads, in each of the ways that tests tabulate."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000


def empty(path: pathlib.Path) -> None:
    """Leave no byte."""
    path.write_bytes(b"")


def cut(path: pathlib.Path) -> None:
    """Cut off the end."""
    path.write_bytes(path.read_bytes()[:-7])


def random(path: pathlib.Path) -> None:
    """Write random bytes."""
    path.write_bytes(np.random.default_rng(7).bytes(900))


def nul_bytes(path: pathlib.Path) -> None:
    """Write zeros of the same length, as file systems leave after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


def nested(path: pathlib.Path) -> None:
    """Write JSON deeper than Python's stack."""
    path.write_bytes(DEEP)


def other_type(path: pathlib.Path) -> None:
    """Write JSON that is no object."""
    path.write_bytes(b"[1, 2]")


def huge(path: pathlib.Path) -> None:
    """Make the file a sparse terabyte, which takes no disk space."""
    os.truncate(path, 1 << 40)


def link_outwards(path: pathlib.Path) -> None:
    """Put a link to a file elsewhere in its place."""
    path.unlink()
    path.symlink_to("/etc/hostname")


def link_to_itself(path: pathlib.Path) -> None:
    """Replace the file by a link to itself."""
    path.unlink()
    path.symlink_to(path.name)


def fifo(path: pathlib.Path) -> None:
    """Replace the file by a pipe without a writer."""
    path.unlink()
    os.mkfifo(path)


def folder(path: pathlib.Path) -> None:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()


def flip_a_bit(path: pathlib.Path) -> None:
    """Change a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit_json(path: pathlib.Path, change: Callable[[Any], object]) -> None:
    """Let a function change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
