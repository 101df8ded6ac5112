"""A file that appears whole or not at all: written beside its place, and renamed at the end."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


def check_new(output: pathlib.Path, flag: str) -> None:
    """Refuse a place that is taken, or whose folder is not there.

    Raises:
      ValueError: names the flag that gave it.
    """
    if output.is_dir():
        raise ValueError(f"{flag} is {output}, which is a folder; give the name of a file")
    if output.exists():
        raise ValueError(
            f"{flag} is {output}, which is there already; give another name, or delete it first"
        )
    if not output.parent.is_dir():
        raise ValueError(
            f"{flag} is {output}, but there is no folder {output.parent}; make it first, or give "
            "another"
        )


def check_place(output: pathlib.Path, flag: str) -> None:
    """Refuse a place where no file can be written; a file that is there may be replaced.

    Raises:
      ValueError: names the flag that gave it.
    """
    if output.is_dir():
        raise ValueError(f"{flag} is {output}, which is a folder; give the name of a file in it")
    if not output.parent.is_dir():
        raise ValueError(f"{flag} is {output}, in a folder that does not exist; make it first")


@contextlib.contextmanager
def whole_file(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a name to write under; the file is then called `output`. Gone where the work raises.

    A process that is killed leaves it, by a name that ends in .unfinished.

    Raises:
      FileExistsError: somebody made `output` meanwhile.
    """
    unfinished = output.with_name(f"{output.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        if output.exists():
            raise FileExistsError(17, "it has been made by somebody else meanwhile", str(output))
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
