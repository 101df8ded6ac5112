"""Start and end a command: signals, output without a reader, exit codes, one line for an error.

Shells and restart scripts read the exit codes:

0         the command did its work; a run reached its last step
1         it failed, or what it checked does not hold; a run resumes by the same command
2         the request was refused, and would be again
3         the guard against bad steps stopped the run, and would again
86        a step, a save or another piece of work took longer than config.hosts allows
128 + n   signal n stopped it: 129 (HUP), 130 (Ctrl-C), 138 (USR1), 140 (USR2) and 143 (TERM); a
          training run saves first; 134: another process died; 141: the reader of stdout has gone
"""

import atexit
import errno
import io
import os
import pathlib
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io import Refused
from data_pipeline.io.errors import FULL, is_transient

Values = TypeVar("Values")
Read = TypeVar("Read", covariant=True)

BY_SIGNAL = 128  # the exit code adds the signal's number
DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, BY_SIGNAL + signal.SIGINT
BAD_NUMBERS, STUCK = 3, 86
READER_LEFT = BY_SIGNAL + signal.SIGPIPE
# Requests to stop: Ctrl-C, kill, a terminal that closes, a scheduler's warning before its limit.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LEFT_TO_PARENT = tuple(number for number in STOP_SIGNALS if number != signal.SIGTERM)
# Errors of writing to a pipe or a socket without a reader, and to a terminal that was closed.
_NO_READER = (errno.EPIPE, errno.ECONNRESET, errno.EIO, errno.ENXIO)
# Error handlers of stdout that may raise; the second is the C locale's.
_RAISING = ("strict", "surrogateescape")


class CommandLine(Protocol[Read]):
    """Define what run_main needs of a data_pipeline.cli.flags.Command.

    Every import of a package loads this module, which therefore does not import flags.py.
    """

    def read(self, arguments: Sequence[str]) -> Read:
        """Return the flags, or raise Refused."""

    def format_help(self) -> str:
        """Return the text of --help."""


class Stopped(KeyboardInterrupt):
    """Signal that a signal other than Ctrl-C asked the command to stop."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class ReaderLeft(Exception):
    """Signal that stdout has lost its reader, as after `| head`."""


def start_command(package: str) -> None:
    """Prepare for the imports of `python -m PACKAGE.COMMAND`, if this process is one.

    A program that only imports the package is unaffected.
    """
    if sys.argv[0] == "-m" and any(name.startswith(f"{package}.") for name in sys.orig_argv[1:]):
        start()


def start() -> None:
    """Prepare for the imports of a command, until `begin_work` is called.

    Ctrl-C then ends the process without a traceback, output that nobody reads is dropped, and the
    live line shows that libraries are imported.
    """
    end_on_ctrl_c()
    outlive_readers()
    # Processes of one run may share a terminal; there only process 0 starts the line, later.
    if not any("multihost" in flag for flag in sys.argv):
        LINE.start("importing libraries")


def is_starting() -> bool:
    """Return whether `start` began this process and `begin_work` was not called yet."""
    return _state["is_starting"]


def end_on_ctrl_c() -> None:
    """Make Ctrl-C clear the live line and end the process, if Python's own handler is in place.

    During imports that handler would print pages of tracebacks, or be swallowed by jax. A SIGINT
    that is ignored, as in a shell's background job, stays ignored.
    """
    _state["is_starting"] = True
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, _: Any) -> None:
    LINE.close()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def begin_work(outlives_reader: bool = False) -> None:
    """Make the STOP_SIGNALS raise KeyboardInterrupt from now on, in a process that `start` began.

    So commands clean up, whichever signal stops them. A signal that is ignored, as SIGHUP under
    nohup, stays ignored. Once stdout has no reader, the first text to it raises ReaderLeft, unless
    the command outlives its reader.
    """
    if not _state["is_starting"]:
        return
    _state["is_starting"] = False
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, _end):
            signal.signal(number, _interrupt if number == signal.SIGINT else _stop)
    if not outlives_reader:
        end_with_reader()


def end_with_reader() -> None:
    """Make the first write to a stdout without a reader raise ReaderLeft from now on."""
    _state["ends_with_reader"] = True


# Global, since signal handlers and output streams are global too.
_state = {"is_starting": False, "ends_with_reader": False}


def _interrupt(number: int, _: Any) -> None:
    raise KeyboardInterrupt


def _stop(number: int, _: Any) -> None:
    """Raise Stopped. A second SIGTERM ends the process at once; the other signals may repeat.

    A terminal that closes sends SIGHUP twice, and systemd sends it after SIGTERM.
    """
    for other in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
    raise Stopped(number)


def leave_stops_to_parent() -> None:
    """Ignore signals to stop in a worker process; a terminal's signals reach its parent, too.

    SIGTERM still ends the worker, as the parent may send it. Signals blocked so far are dropped.
    """
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_PARENT)


class _Output(io.FileIO):
    """Write to stdout or stderr; drop the output once there is no reader.

    A full disk raises for stdout. For stderr the text is dropped: the exit code matters more.
    """

    _has_reader = True

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            while rest and self._has_reader:
                count = super().write(rest)
                if count is None:  # another program made the pipe non-blocking, and it is full
                    select.select([], [self], [])
                rest = rest[count or 0 :]
        except OSError as error:
            if error.errno in _NO_READER:
                self._has_reader = False
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())  # libraries write to it past this object
                os.close(null)
            elif self.fileno() == 1:
                raise
        if rest and self.fileno() == 1 and _state["ends_with_reader"]:
            raise ReaderLeft
        return memoryview(data).nbytes


def outlive_readers() -> None:
    """Replace sys.stdout and sys.stderr by streams that drop what nobody reads.

    A stream that the caller closed (`>&-`, `<&-`) is opened as /dev/null: otherwise the next file
    to be opened would get its descriptor, and the output of the command.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = _replace(sys.stdout, 1)
    sys.stderr = _replace(sys.stderr, 2)
    atexit.register(_state.update, ends_with_reader=False)  # Python then writes the rest of both


def _replace(stream: Any, number: int) -> Any:
    raw = _Output(number, "w", closefd=False)
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace")
    if not isinstance(stream, io.TextIOWrapper):  # replaced by the calling program
        return stream
    stream.flush()
    return io.TextIOWrapper(
        # As Python does: unbuffered where -u or PYTHONUNBUFFERED asks for it.
        raw if stream.write_through else io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors="backslashreplace" if stream.errors in _RAISING else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def describe_error(error: Exception) -> tuple[int, str] | None:
    """Return the exit code and the line of an error that is not a bug; None for a bug."""
    if isinstance(error, OSError):
        return FAILED if is_transient(error) else REFUSED, f"error: {describe_os_error(error)}"
    return (REFUSED, f"error: {error}") if isinstance(error, Refused) else None


def describe_failure(error: BaseException) -> tuple[int, str]:
    """Return the exit code of a run that ends with an error, and the error in one line."""
    if isinstance(error, OSError):
        return FAILED, f"error: {describe_os_error(error)}"
    if isinstance(error, Refused):
        return REFUSED, f"error: {error}"
    if isinstance(error, FloatingPointError):
        return BAD_NUMBERS, f"error: {error}"
    return FAILED, f"{type(error).__name__}: {error}"


def run_main(
    command: CommandLine[Values],
    work: Callable[[LibraryLog, Values], int | None],
    argv: Sequence[str] | None = None,
    after_stop: str = "nothing was written",
    describe: Callable[[Exception], tuple[int, str] | None] = describe_error,
    leave: Callable[[int, str], None] = lambda code, message: None,
    outlives_reader: bool = True,
    hides_libraries: bool = False,
) -> int:
    """Read the flags of a command, do its work, and return the exit code of the process.

    0 after success, or the code of `work`; 2 after Refused or an OSError that would recur, 1
    after an OSError that may pass, 128 + n after signal n, each with one line on stderr; 141 if
    stdout lost its reader and the command does not outlive it. Other errors are bugs and are
    raised. `describe` maps an error to its code and line; for None the error is raised.
    `after_stop` ends the line of a command that a signal has stopped. `leave` receives the code and
    the line, and may end the process. If argv is None, the arguments are sys.argv, and
    hides_libraries then hides what libraries such as TensorFlow write to stderr.
    """
    LINE.show("")  # libraries are imported
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_help = asks_for_help(arguments)
    begin_work(outlives_reader or is_help)
    code, message = DONE, ""
    try:
        with LibraryLog() as log:
            try:
                if is_help:
                    print(command.format_help(), end="")
                else:
                    if hides_libraries and argv is None:
                        log.hold()
                    code = work(log, command.read(arguments)) or DONE
                sys.stdout.flush()
            except ReaderLeft:
                code = READER_LEFT
            except KeyboardInterrupt as error:
                code, message = accept_stop(error), f"interrupted; {after_stop}"
            except Exception as error:
                described = describe(error)
                if described is None:
                    raise
                code, message = described
            if message:
                log.say(message)
    except Exception as error:
        leave(FAILED, f"{type(error).__name__}: {error}")
        raise
    leave(code, message)
    return code


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for help."""
    return bool({"--help", "-h"} & set(arguments))


def accept_stop(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal has stopped.

    A further Ctrl-C then ends the process at once; Python's shutdown would show a traceback.
    """
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return BY_SIGNAL + stop.signal_number if isinstance(stop, Stopped) else INTERRUPTED


def describe_os_error(error: OSError) -> str:
    """Return the message of an OSError with its file and without its number."""
    place = f"{error.filename}: " if error.filename else ""
    # NumPy reports a full disk without an errno: "40000 requested and 4096 written".
    is_short_write = error.errno is None and "requested and" in str(error)
    number = errno.ENOSPC if is_short_write else error.errno
    if number in FULL and (error.strerror or is_short_write):
        return f"{place}{'; '.join(FULL[number])}"
    if isinstance(error, FileNotFoundError) and str(error.strerror).startswith("No usable temp"):
        return f"{error.strerror}; name a folder with room by the environment variable TMPDIR"
    if isinstance(error, FileNotFoundError) and error.strerror and not place and _has_lost_folder():
        return "the current folder is there no more; cd to one that exists"
    return f"{place}{error.strerror or error}"


def _has_lost_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def find_python() -> str:
    """Return the shortest command that calls the running interpreter: python, or its path.

    The path is quoted for a shell.
    """
    ours = pathlib.Path(sys.executable)
    first = shutil.which("python")
    if first and pathlib.Path(first) == ours:
        return "python"
    here = pathlib.Path.cwd()
    if ours.is_relative_to(here) and ours.parent != here:
        ours = ours.relative_to(here)
    return shlex.quote(str(ours))
