"""What libraries write to stderr goes to a file: the screen is the run's.

TensorFlow and libtpu greet from C++, past any setting of Python's, so the file descriptor itself
is turned aside: to the end of the process, for libraries talk while they are torn down too. An
exception that nobody expected turns it back and is seen.
"""

import datetime
import faulthandler
import os
import pathlib
import shutil
import sys
import tempfile
from types import TracebackType
from typing import IO

from data_pipeline.live_line import LINE
from data_pipeline.small_files import open_to_write
from data_pipeline.terminal_text import escape

FILE = "libraries.log"  # in the workdir

_STDERR = 2


class LibraryLog:
    """A context around an entry's work; stderr is as it was until hold()."""

    def __init__(self) -> None:
        self._screen: int | None = None
        self._held: IO[bytes] | None = None  # before it is known where to keep it
        self.heading = ""  # of every line of say(), where several processes share a screen

    def __enter__(self) -> "LibraryLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._release()

    def hold(self) -> None:
        """From now on nothing that is written to stderr is seen.

        Until keep() it goes to a file in the temporary folder, which stays there if C++ ends the
        process; of that the screen shows at least where in our code it was.
        """
        sys.stderr.flush()
        self._screen = os.dup(_STDERR)
        self._held = tempfile.NamedTemporaryFile(prefix="bert_jax-libraries-", suffix=".log")  # noqa: SIM115
        os.dup2(self._held.fileno(), _STDERR)
        faulthandler.enable(self._screen)

    def keep(self, path: pathlib.Path) -> None:
        """Write what was held, and what comes, to the end of this file; nothing if not holding."""
        if self._held is None:
            return
        sys.stderr.flush()
        with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            file.write(f"--- process {os.getpid()}, {now}\n".encode())
            self._held.seek(0)
            shutil.copyfileobj(self._held, file)
            file.flush()
            os.dup2(file.fileno(), _STDERR)
        self._held.close()
        self._held = None

    def say(self, text: str) -> None:
        """Print a line where stderr was."""
        sys.stderr.flush()
        with LINE.hidden():
            os.write(self.screen, f"{escape(self.heading + text)}\n".encode())

    @property
    def screen(self) -> int:
        """The file descriptor of what stderr was."""
        return _STDERR if self._screen is None else self._screen

    def _release(self) -> None:
        if self._screen is None:
            return
        sys.stderr.flush()
        os.dup2(self._screen, _STDERR)
        if self._held is not None:  # nobody will find it elsewhere
            self._held.seek(0)
            os.write(_STDERR, self._held.read())
