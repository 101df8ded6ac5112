"""Mount disks of a given size, to fill or make read-only; mounting needs root."""

import contextlib
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def _mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs a user who may mount a tmpfs ({done.stderr.strip()})")


@contextlib.contextmanager
def disk(folder: pathlib.Path, size_bytes: int) -> Iterator[None]:
    """Mount a disk in a new folder; unmount and remove it after the block."""
    if shutil.which("mount") is None:
        pytest.skip("needs mount")
    folder.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: pathlib.Path) -> None:
    """Leave no byte on the disk of a folder."""
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def make_read_only(folder: pathlib.Path) -> None:
    """Remount the disk read-only; no file there may be open for writing."""
    _mount("-o", "remount,ro", folder)


def make_writable(folder: pathlib.Path) -> None:
    """Remount the disk writable."""
    _mount("-o", "remount,rw", folder)
