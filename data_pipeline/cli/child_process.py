"""Run other commands as child processes with their output in a log, as a study does."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

_POLL_SECS = 1.0
# This program becomes the command, after it has asked Linux to send it SIGTERM when the thread that
# started it is gone, as after SIGKILL. (A shell's background jobs and their children ignore SIGINT,
# and a preexec_fn may block in a process with several threads.)
_WITH_PARENT = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {signal.SIGTERM:d})  # PR_SET_PDEATHSIG of linux/prctl.h
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def start(
    command: Sequence[str], log: pathlib.Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command without input; append its output to `log`.

    environment is added to this process's own. The child gets a session of its own, so that Ctrl-C
    reaches it only through this process. On Linux the child stops when this process is killed.
    """
    if sys.platform == "linux":
        parent = str(os.getpid())
        command = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, parent, *command]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def run(
    command: Sequence[str],
    log: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    show_progress: Callable[[], None] = lambda: None,
) -> int:
    """Start a command, wait for its end and return its exit code.

    show_progress is called every second. An exception that ends this wait (Ctrl-C, another signal)
    first stops the child and waits for it, so that it can save.
    """
    process = start(command, log, environment)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECS)
            show_progress()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


def last_error(log: pathlib.Path, old_bytes: int = 0) -> str:
    """Return the last line of a log past old_bytes that begins with "error"; else its last line."""
    lines = log.read_bytes()[old_bytes:].decode("utf-8", "replace").strip().splitlines()
    errors = (line for line in reversed(lines) if line.startswith("error"))
    return next(errors, lines[-1] if lines else f"nothing was written to {log}")
