"""A folder that appears whole: made in a working folder inside it, moved up at the end."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

WORKING = "unfinished"  # its presence marks a folder as ours


@contextlib.contextmanager
def whole_folder(output: pathlib.Path, last: str) -> Iterator[pathlib.Path]:
    """Yield a folder to write into; its files then move to `output`, the one called `last` last.

    Where the work raises, `output` is left as it was.

    Raises:
      ValueError: --output is a file, or a folder that holds something.
    """
    check_is_free(output)
    was_there = output.exists()
    working = output / WORKING
    try:
        shutil.rmtree(working, ignore_errors=True)  # of an earlier attempt that was killed
        working.mkdir(parents=True)
        yield working
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        if not was_there:
            with contextlib.suppress(OSError):  # somebody put a file there meanwhile
                output.rmdir()
        raise
    for path in sorted(working.iterdir(), key=lambda path: path.name == last):
        path.rename(output / path.name)
    working.rmdir()


def check_is_free(output: pathlib.Path) -> None:
    """Raise ValueError where --output is a file, or a folder that holds something."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output is {output}, which is a file; give a folder")
    if output.is_dir() and {path.name for path in output.iterdir()} - {WORKING}:
        raise ValueError(f"--output is {output}, which is not empty; give a new or an empty folder")
