"""Start and end a command: Ctrl-C, exit codes, and one line on stderr for what went wrong."""

import errno
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence

from data_pipeline.cli.live_line import LINE, show_imports
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.errors import is_transient
from data_pipeline.io.refused import Refused

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # NumPy's message on a full disk


def start_command(package: str) -> None:
    """Prepare for the imports of `python -m PACKAGE.COMMAND`, if this process is one.

    Until `raise_on_ctrl_c` is called, Ctrl-C ends the process without a traceback, and the live
    line shows that libraries are imported. A program that only imports the package is unaffected.
    """
    if sys.argv[0] == "-m" and any(name.startswith(f"{package}.") for name in sys.orig_argv[1:]):
        end_on_ctrl_c()
        show_imports()


def end_on_ctrl_c() -> None:
    """Make Ctrl-C end the process at once, if Python's own handler is in place.

    During imports that handler would print pages of tracebacks, or be swallowed by jax. A SIGINT
    that is ignored, as in a shell's background job, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_on_ctrl_c() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, after end_on_ctrl_c."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run_main(
    work: Callable[[list[str]], None], argv: Sequence[str] | None, hides_libraries: bool = False
) -> int:
    """Call `work` with the arguments of a command, and return the exit code of the process.

    0 after success; 2 after Refused or an OSError that would recur, 1 after an OSError that may
    pass, 130 after Ctrl-C, each with one line on stderr. Other errors are bugs and are raised. If
    argv is None, the arguments are sys.argv, and hides_libraries then hides what libraries such as
    TensorFlow write to stderr.
    """
    raise_on_ctrl_c()
    LINE.show("")  # libraries are imported
    with LibraryLog() as log:
        if hides_libraries and argv is None:
            log.hold()
        try:
            work(list(sys.argv[1:] if argv is None else argv))
        except KeyboardInterrupt:
            log.say("error: interrupted; nothing was written")
            return INTERRUPTED
        except OSError as error:
            log.say(f"error: {describe_os_error(error)}")
            return FAILED if is_transient(error) else REFUSED
        except Refused as error:
            log.say(f"error: {error}")
            return REFUSED
    return 0


def describe_os_error(error: OSError) -> str:
    """Return the message of an OSError with its file and without its number."""
    place = f"{error.filename}: " if error.filename else ""
    if (error.errno == errno.ENOSPC and error.strerror) or _NUMPY_SHORT_WRITE.fullmatch(str(error)):
        return f"{place}no space is left on the disk; make room, or give a folder on another one"
    return f"{place}{error.strerror or error}"


def find_python() -> str:
    """Return the shortest command that calls the running interpreter: python, or its path."""
    ours = pathlib.Path(sys.executable)
    first = shutil.which("python")
    if first and pathlib.Path(first) == ours:
        return "python"
    here = pathlib.Path.cwd()
    if ours.is_relative_to(here) and ours.parent != here:
        return str(ours.relative_to(here))
    return str(ours)
