"""The watch over a process: what takes longer than its limit ends it, with its stacks.

A process that waits for ever is worse than one that is gone: nobody starts it again. The others of
the run wait for it in their devices, where jax notices nothing as long as its heart beats, and each
has its own watch. It also hears when another process has ended, and why.
"""

import contextlib
import dataclasses
import datetime
import faulthandler
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

import jax

from bert_jax import processes
from bert_jax.exit_codes import STUCK
from data_pipeline import small_files

TICK_SECS = 0.5
LISTEN_SECS = 1.0
# After another process has ended for a reason of its own: this one may be about to find the same.
GRACE_SECS = 5.0
SHOW_STACKS = signal.SIGUSR1  # shows the stacks at any time, and ends nothing


@dataclasses.dataclass
class _Work:
    what: str
    limit_secs: float
    secs: float = 0.0  # for which it has been seen under way


class Watchdog:
    """What the process is doing, and for how long it may. Watches from begin() to close()."""

    def __init__(self) -> None:
        self._work: _Work | None = None
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stacks: IO[bytes] | None = None
        self._path: pathlib.Path | None = None
        self._screen = 2
        self._say: Callable[[str], None] = print

    def begin(self, screen: int, say: Callable[[str], None]) -> None:
        """Begin to watch; stacks go to the file descriptor `screen`, lines through `say`.

        So do those that SHOW_STACKS asks for: whoever looks after a pod reads its output.
        """
        self._screen, self._say = screen, say
        faulthandler.register(SHOW_STACKS, screen)
        targets = [self._watch, *[self._listen] * processes.are_joined()]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def keep_stacks_in(self, folder: pathlib.Path) -> None:
        """From now on the stacks of stuck work are also added to FOLDER/stacks-PROCESS.txt."""
        self._path = folder / f"stacks-{processes.number()}.txt"
        stacks = small_files.open_to_write(self._path, os.O_WRONLY | os.O_APPEND)
        self._stacks = os.fdopen(stacks, "ab")

    @contextlib.contextmanager
    def doing(self, what: str, limit_secs: float) -> Iterator[None]:
        """Say what is done inside the context, which ends the process if it takes longer.

        One inside another takes its place; when it is over, the outer one has its whole limit anew.
        """
        outer = self._work
        self._work = _Work(what, limit_secs)
        try:
            yield
        finally:
            if outer is not None:
                outer.secs = 0.0
            self._work = outer

    def close(self) -> None:
        """End the watch."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=2 * LISTEN_SECS)  # one that asks a stuck service is left behind
        if self._threads:
            faulthandler.unregister(SHOW_STACKS)
        if self._stacks is not None and self._path is not None:
            is_empty = self._stacks.tell() == 0
            self._stacks.close()
            if is_empty:
                self._path.unlink(missing_ok=True)

    def _watch(self) -> None:
        last_secs = time.monotonic()
        while not self._ended.wait(TICK_SECS):
            now_secs = time.monotonic()
            # Not simply the time since it began: a process that was stopped and goes on, or a
            # machine that slept, would be taken for stuck.
            seen_secs, last_secs = min(now_secs - last_secs, 4 * TICK_SECS), now_secs
            work = self._work
            if work is None:
                continue
            work.secs += seen_secs
            if work.secs > work.limit_secs:
                self._stuck(work)

    def _stuck(self, work: _Work) -> None:
        reason = (
            f"{work.what} has taken {work.secs:.0f} s, and config.hosts allows "
            f"{work.limit_secs:g} s; the newest checkpoint is kept"
        )
        with contextlib.suppress(OSError):  # a full disk is no reason to stay
            self._dump(reason)
            self._say(f"stuck: {reason}{self._where()}")
        processes.leave(STUCK, reason)

    def _dump(self, reason: str) -> None:
        work = self._work
        doing = f"{work.what}, for {work.secs:.0f} s" if work is not None else "nothing"
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        heading = f"--- process {processes.number()}, {now}: {reason}; doing: {doing}\n"
        if self._stacks is not None:
            self._stacks.write(heading.encode())
            self._stacks.flush()
            faulthandler.dump_traceback(self._stacks)
        faulthandler.dump_traceback(self._screen)

    def _where(self) -> str:
        return "" if self._path is None else f"; the stacks of all threads are in {self._path}"

    def _listen(self) -> None:
        """Wait until another process says that it has ended; then end too."""
        while not self._ended.wait(LISTEN_SECS):
            try:
                others = processes.failures()
            except jax.errors.JaxRuntimeError:
                continue  # the service is gone or late: jax ends the process, or it comes back
            others.pop(processes.number(), None)
            for number, (code, reason) in sorted(others.items()):
                self._follow(number, code, reason)

    def _follow(self, number: int, code: int, reason: str) -> None:
        if code != STUCK and self._ended.wait(GRACE_SECS):
            return
        where = self._where() if code == STUCK else ""
        with contextlib.suppress(OSError):
            if code == STUCK:
                self._dump(f"process {number} is stuck")
            self._say(f"process {number} has ended with exit code {code}: {reason}{where}")
        processes.leave(code, f"process {number} has ended: {reason}")
