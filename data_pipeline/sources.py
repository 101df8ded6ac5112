"""What a build reads: --input as a list of sources, each read from start to end on its own."""

import dataclasses
import glob
import os

from data_pipeline.files import read_blocks
from data_pipeline.text_options import TextOptions


@dataclasses.dataclass(frozen=True)
class Source:
    """One input: a file, by its path or address. Can be sent to another process."""

    address: str
    stored_bytes: int


def find_sources(patterns: str, options: TextOptions) -> list[Source]:
    """The files that a comma-separated list of globs names, each once, checked as far as is cheap.

    Order: that of the patterns, sorted by name within one. `**` reaches into folders.

    Raises:
      ValueError: a pattern without a file, a directory, an empty file, binary data at its start.
    """
    paths: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise ValueError(
                f"--input has {pattern!r}, which matches no file under {os.getcwd()}; give files "
                "or globs, and put quotes around a glob so that the shell leaves it alone"
            )
        paths |= dict.fromkeys(matches)
    if not paths:
        raise ValueError("--input is empty; give files or globs, as in --input='corpus/*.txt.gz'")
    return [_checked(path) for path in paths]


def _checked(path: str) -> Source:
    if os.path.isdir(path):
        raise ValueError(f"--input has {path}, a directory; give its files: --input='{path}/*'")
    stored_bytes = os.stat(path).st_size
    if stored_bytes == 0:
        raise ValueError(f"{path} is empty (0 bytes); remove it from --input")
    if next(read_blocks(path, lambda stored_bytes: None), None) is None:
        raise ValueError(f"{path} is the gzip of an empty file; remove it from --input")
    return Source(path, stored_bytes)
