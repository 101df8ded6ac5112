"""Redirect what libraries write to stderr to a file; the terminal shows only the command's output.

TensorFlow and libtpu write from C++, which no Python setting silences, so the file descriptor is
redirected until the process ends: libraries write during shutdown too. An unhandled exception
restores the descriptor and is shown.
"""

import contextlib
import datetime
import faulthandler
import os
import pathlib
import shutil
import sys
import tempfile
from typing import IO

from data_pipeline.cli.live_line import LINE, escape
from data_pipeline.io.small_files import open_to_write

FILE = "libraries.log"  # its name in the workdir

_STDERR = 2


class LibraryLog:
    """Redirect stderr during the work of a command, from the call of `hold` on."""

    def __init__(self) -> None:
        self._screen: int | None = None
        self._temporary: IO[bytes] | None = None  # holds the output until `keep` names a file
        self.heading = ""  # begins each line of `say`: processes may share a screen

    def __enter__(self) -> "LibraryLog":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or self._screen is None:
            return
        sys.stderr.flush()
        os.dup2(self._screen, _STDERR)
        if self._temporary is not None:  # print it: no log file was chosen
            self._temporary.seek(0)
            os.write(_STDERR, self._temporary.read())

    def hold(self) -> None:
        """Redirect stderr from now on.

        Until `keep` is called the output goes to a temporary file. If C++ aborts the process, that
        file remains and the terminal shows the Python traceback.
        """
        sys.stderr.flush()
        self._screen = os.dup(_STDERR)
        self._temporary = tempfile.NamedTemporaryFile(prefix="bert_jax-libraries-", suffix=".log")  # noqa: SIM115
        os.dup2(self._temporary.fileno(), _STDERR)
        faulthandler.enable(self._screen)

    def keep(self, path: pathlib.Path) -> None:
        """Append the past and future output to this file; do nothing before `hold`."""
        if self._temporary is None:
            return
        sys.stderr.flush()
        with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            file.write(f"--- process {os.getpid()}, {now}\n".encode())
            self._temporary.seek(0)
            shutil.copyfileobj(self._temporary, file)
            file.flush()
            os.dup2(file.fileno(), _STDERR)
        self._temporary.close()
        self._temporary = None

    def say(self, text: str) -> None:
        """Print a line to the original stderr."""
        line = escape(self.heading + text)
        with LINE.hidden():
            if self._screen is None:
                print(line, file=sys.stderr, flush=True)
            else:
                sys.stderr.flush()
                with contextlib.suppress(OSError):  # nobody reads it any more
                    os.write(self._screen, f"{line}\n".encode())

    @property
    def screen(self) -> int:
        """Return the file descriptor of the original stderr."""
        return _STDERR if self._screen is None else self._screen
