"""Run gcloud and kubectl with a time limit, and read what they say of a failure."""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from .text import escape, refuse

# An answer has some kilobytes, and a pod at most 2,048 workers; a line is shown in parts of
# MAX_LINE.
MAX_ANSWER, MAX_LINE = 4_000_000, 65536
ASK_SECS = 180
TIMED_OUT = 124

_ABSENT = re.compile(
    r"NOT_FOUND|HTTPError 404|\(NotFound\)|not found: 404|was not found|matched no objects"
    r"|Image not found"
)
# A missing permission, login or chip quota, or a wrong argument: a retry cannot help. A rate limit
# is called quota too, but passes.
_TRANSIENT = re.compile(r"(?i)per minute|per 100 seconds|rate.?limit")
_PERMANENT = re.compile(
    r"PERMISSION_DENIED|does not have (permission|access)|Required '[\w.]+' permission"
    r"|insufficient authentication scopes|HTTPError 40[13]|\(Forbidden\)|UNAUTHENTICATED"
    r"|\(Unauthorized\)|client to provide credentials|localhost:8080 was refused"
    r"|exec: executable \S+ not found|gcloud auth login|INVALID_ARGUMENT|Invalid (value|choice)"
    r"|unrecognized arguments|QUOTA_EXCEEDED|Quota (limit|')|[Qq]uota exceeded|could not be started"
    r"|was not made here|have a resource type|no matches for kind|is invalid:|\(BadRequest\)"
)


@dataclasses.dataclass(frozen=True)
class Command:
    """Hold a command line, its stdin (`given`), and whether a NOT_FOUND counts as success."""

    words: list[str]
    given: str | None = None
    may_be_absent: bool = False
    owner: str = ""  # the answer must be this, if not ''
    secs: float = ASK_SECS

    def print(self) -> None:
        """Print the command as a shell reads it."""
        print(shlex.join(self.words) + (" <<'END'" if self.given is not None else ""))
        if self.given is not None:
            print(self.given.rstrip("\n") + "\nEND")


def make(line: str, *words: str, **options: Any) -> Command:
    """Return a command from a line to split at blanks, and words to keep whole."""
    return Command([*line.split(), *words], **options)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Hold the output and the exit code of a command."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def is_absent(self) -> bool:
        """Return whether the resource does not exist."""
        return self.code != 0 and bool(_ABSENT.search(self.err))

    @property
    def is_permanent(self) -> bool:
        """Return whether a retry cannot help; an unknown error may pass."""
        is_known = self.is_absent or (self.code != 0 and bool(_PERMANENT.search(self.err)))
        return is_known and not _TRANSIENT.search(self.err)

    @property
    def words(self) -> str:
        """Return the error in one line, as gcloud or kubectl tells it, else the last line."""
        lines = [line for line in self.err.split("\n") if line.strip()]
        told = re.split("\nERROR: |\n(?=Unable to |error: )", f"\n{self.err}", maxsplit=1)[1:]
        return " ".join((told or lines[-1:] or ["no message"])[0].split())[:500]


Ask = Callable[[Command], Answer]


def ask(command: Command) -> Answer:
    """Run a command silently; after `secs` kill it with its children."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source = subprocess.DEVNULL if command.given is None else subprocess.PIPE
        try:
            child = subprocess.Popen(
                command.words, stdin=source, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            return Answer(127, "", f"{command.words[0]} could not be started: {error}")
        try:
            given = os.fsencode(command.given or "")  # a folder's name may not be UTF-8
            child.communicate(given or None, timeout=command.secs)
        except BaseException as error:  # KeyboardInterrupt included
            for number in (signal.SIGTERM, signal.SIGKILL):
                # macOS does not permit it for a group that has ended and was not waited for.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(1)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            words = f"{_read(err)}\nno answer within {command.secs:g} s"
            return Answer(TIMED_OUT, _read(out), words)
        return Answer(child.returncode, _read(out), _read(err))


def _read(file: Any) -> str:
    file.seek(0)
    return file.read(MAX_ANSWER).decode("utf-8", "surrogateescape")


def ask_all(commands: Sequence[Command], ask: Ask) -> Answer:
    """Run commands until one fails in a way that matters; return the last answer."""
    answer = Answer(0)
    for command in commands:
        answer = ask(command)
        if command.may_be_absent and answer.is_absent:
            answer = Answer(0, answer.out, answer.err)
        elif not answer.code and command.owner not in ("", answer.out.strip()):
            words = f"{command.words[4]} was not made here, as it lacks {command.owner}; delete it"
            answer = Answer(1, "", f"{words}, or change TPU_NAME")
        if answer.code:
            break
    return answer


def run_all(commands: Sequence[Command], is_dry_run: bool = False) -> int:
    """Run commands and show their output until one fails, or only print them; return the code."""
    if is_dry_run:
        for command in commands:
            command.print()
        return 0
    said = ask_all(commands, lambda c: ask(c) if c.may_be_absent else Answer(_run(c)))
    if said.code and said.err:  # of what ran silently
        print(escape(f"error: {said.words}"), file=sys.stderr)
    return said.code


def _run(command: Command) -> int:
    source = subprocess.DEVNULL if command.given is None else subprocess.PIPE
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        child = subprocess.Popen(command.words, stdin=source, **pipes)
    except OSError as error:
        refuse(f"{command.words[0]} could not be started: {error.strerror}; install it", 127)
    with child:
        errors = threading.Thread(target=_show, args=(child.stderr, sys.stderr))
        errors.start()
        if child.stdin:
            child.stdin.write((command.given or "").encode())
            child.stdin.close()
        with contextlib.suppress(KeyboardInterrupt):
            _show(child.stdout, sys.stdout)
        errors.join()
        return child.wait()


def _show(source: Any, file: TextIO) -> None:
    while line := source.readline(MAX_LINE):
        text = line.decode("utf-8", "surrogateescape")
        end = "\n" * text.endswith("\n")
        print(escape(text.removesuffix("\n")), end=end, file=file, flush=True)


CONTEXT = make("kubectl config current-context")
# The list has the account of a machine inside Google Cloud, but not what two properties name.
LOGINS = (
    make("gcloud auth list --filter=status:ACTIVE --format=value(account)"),
    make("gcloud config get auth/access_token_file"),
    make("gcloud config get auth/credential_file_override"),
)


def check_login() -> None:
    """Refuse where gcloud is not on PATH or has no account."""
    if shutil.which("gcloud") is None:
        refuse(
            "gcloud is not on PATH; install it (https://cloud.google.com/sdk/docs/install) and run "
            "'gcloud auth login', or print the command with --dry-run"
        )
    if not any(ask(question).out.strip() for question in LOGINS):
        refuse("gcloud is not logged in, as 'gcloud auth list' shows; run 'gcloud auth login'")
