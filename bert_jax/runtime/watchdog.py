"""End a process whose work exceeds its time limit, after dumping its stacks.

A hung process is worse than a dead one, as nothing restarts it. The other processes block in
collectives, and jax notices nothing while heartbeats continue, so each process has a watchdog. The
watchdog also ends its process when another one fails or dies: a failing process reports before it
cleans up, and a dead one closes its connection. `Work` passes the name of a piece of work to the
watchdog, the goodput ledger and the screen.
"""

import contextlib
import ctypes
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

from bert_jax.config import HostsConfig
from bert_jax.logging.console import Screen
from bert_jax.parallel import processes
from bert_jax.parallel.processes import DIED
from bert_jax.runtime.goodput import TRAINING, Ledger
from bert_jax.runtime.preemption import Interrupted
from data_pipeline.cli.main import FAILED, STUCK, describe_failure
from data_pipeline.io import Refused, small_files

TICK_SECS = 0.5  # pause between two checks of the running work
LISTEN_SECS = 1.0  # pause between two looks at the other processes
# Delay after another process ended, as this process may be about to raise the same error.
GRACE_SECS = 5.0
# Time limit for cleaning up after a reported failure, when the other processes leave.
CLEANUP_SECS = 8.0
SHOW_STACKS = signal.SIGQUIT  # dumps the stacks at any time without ending the process


@dataclasses.dataclass
class _TimedWork:
    name: str
    limit_secs: float
    secs: float = 0.0  # running time so far


class Watchdog:
    """Limit the duration of each piece of work of the process, from begin() to close()."""

    def __init__(self) -> None:
        self._work: _TimedWork | None = None
        self._ended = threading.Event()
        self._has_failed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stacks: IO[bytes] | None = None
        self._path: pathlib.Path | None = None
        self._stacks_fd = 2
        self._say: Callable[[str], None] = print

    def begin(self, stacks_fd: int, say: Callable[[str], None]) -> None:
        """Start watching; write stacks to the file descriptor `stacks_fd`, messages with `say`.

        Stacks requested by SHOW_STACKS also go to `stacks_fd`, which operators of a pod can read.
        """
        self._stacks_fd, self._say = stacks_fd, say
        faulthandler.register(SHOW_STACKS, stacks_fd)
        targets = [self._watch]
        if processes.are_joined():
            watch = processes.watch_connections
            targets += [self._listen, lambda: watch(self._lose, self._ended, LISTEN_SECS)]
            _delay_aborts()
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def keep_stacks_in(self, folder: pathlib.Path) -> None:
        """Append the stacks of stuck work to FOLDER/stacks-PROCESS.txt, too."""
        self._path = folder / f"stacks-{processes.number()}.txt"
        stacks = small_files.open_to_write(self._path, os.O_WRONLY | os.O_APPEND)
        self._stacks = os.fdopen(stacks, "ab")

    @contextlib.contextmanager
    def doing(self, work: str, limit_secs: float) -> Iterator[None]:
        """Name the work inside the context; end the process if it exceeds its limit.

        A nested context suspends the outer one, whose time then starts again from 0.
        """
        outer = self._work
        self._work = _TimedWork(work, limit_secs)
        try:
            yield
        finally:
            if outer is not None:
                outer.secs = 0.0
            self._work = outer

    def report(self, error: BaseException) -> None:
        """Report a failure to the other processes, and limit the time to clean up in this one.

        May be called from any thread. Does nothing in a single-process run, or after an earlier
        report.
        """
        if processes.count() == 1 or self._has_failed.is_set():
            return
        self._has_failed.set()
        code, reason = describe_failure(error)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service may have ended
            processes.report_failure(code, reason)
        threading.Thread(target=self._end_cleanup, args=(code, reason), daemon=True).start()

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report an error raised inside the context, because other processes may not raise it.

        A stop, a Refused and a FloatingPointError are not reported: every process raises those.
        """
        try:
            yield
        except Exception as error:
            if not isinstance(error, Interrupted | Refused | FloatingPointError):
                self.report(error)
            raise

    def _end_cleanup(self, code: int, reason: str) -> None:
        if not self._ended.wait(CLEANUP_SECS):
            with contextlib.suppress(OSError):
                self._say(reason)
            processes.leave(code, reason)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=2 * LISTEN_SECS)  # the thread is abandoned if the service hangs
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
            # Sum short intervals: otherwise a suspended process or machine would count as stuck.
            seen_secs, last_secs = min(now_secs - last_secs, 4 * TICK_SECS), now_secs
            work = self._work
            if work is None:
                continue
            work.secs += seen_secs
            if work.secs > work.limit_secs:
                self._end_stuck(work)

    def _end_stuck(self, work: _TimedWork) -> None:
        reason = (
            f"{work.name} has taken {work.secs:.0f} s, and config.hosts allows "
            f"{work.limit_secs:g} s; the newest checkpoint is kept"
        )
        with contextlib.suppress(OSError):  # a full disk must not prevent the exit
            self._dump(reason)
            self._say(f"stuck: {reason}{self._locate_stacks()}")
        processes.leave(STUCK, reason)

    def _dump(self, reason: str) -> None:
        work = self._work
        doing = f"{work.name}, for {work.secs:.0f} s" if work is not None else "nothing"
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        heading = f"--- process {processes.number()}, {now}: {reason}; doing: {doing}\n"
        if self._stacks is not None:
            self._stacks.write(heading.encode())
            self._stacks.flush()
            faulthandler.dump_traceback(self._stacks)
        faulthandler.dump_traceback(self._stacks_fd)

    def _locate_stacks(self) -> str:
        return "" if self._path is None else f"; the stacks of all threads are in {self._path}"

    def _listen(self) -> None:
        """Wait until a failure or death of another process is reported, then end this process."""
        while not self._ended.wait(LISTEN_SECS):
            try:
                others = processes.read_failures()
            except jax.errors.JaxRuntimeError:
                continue  # the service is slow, or lost: then jax ends this process
            others.pop(processes.number(), None)
            # Follow a death first: other processes may have failed because of it.
            for number in sorted(others, key=lambda number: (others[number][1] != DIED, number)):
                self._follow(number, *others[number])

    def _follow(self, number: int, code: int, reason: str) -> None:
        if self._has_failed.is_set():  # this process ends by itself
            return
        if code != STUCK and self._ended.wait(GRACE_SECS):
            return
        name = processes.name_process(number)
        hint = self._locate_stacks() if code == STUCK else ""
        end = reason if reason == DIED else f"has ended with exit code {code}: {reason}"
        with contextlib.suppress(OSError):
            if code == STUCK:
                self._dump(f"{name} is stuck")
            self._say(f"{name} {end}{hint}")
        processes.leave(code, f"{name} {end}")

    def _lose(self, number: int) -> None:
        """Handle the death of a process: exit if it was process 0, else report it to all."""
        if number == 0:  # jax would abort this process next, as its service is gone
            with contextlib.suppress(OSError):
                self._say(f"{processes.name_process(0)} {DIED}")
            os._exit(FAILED)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if number not in processes.read_failures():  # otherwise it reported itself
                processes.report_failure(FAILED, DIED, number)


def _delay_aborts() -> None:
    """Delay an abort of this process by 6 s, so that the watchdog can name the process that died.

    jax aborts within milliseconds after the connection to its service in process 0 closes, and a
    Python callback cannot replace this (jaxlib 0.10 raises std::bad_cast).
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(int(signal.SIGABRT), libc.sleep)  # a handler is called with its signal: sleep(6)


class Work:
    """Name each piece of work of a run, limit its duration by config.hosts, and count its time."""

    def __init__(
        self, watchdog: Watchdog, ledger: Ledger, hosts: HostsConfig, screen: Screen
    ) -> None:
        self.ledger = ledger
        self._watchdog, self._hosts, self._screen = watchdog, hosts, screen

    @contextlib.contextmanager
    def doing(self, kind: str, work: str) -> Iterator[Callable[[str], None]]:
        """Run a piece of work that may take config.hosts.stuck_secs; count its time as `kind`.

        Yields a function that replaces its description on the screen.
        """
        with (
            self._watchdog.doing(work, self._hosts.stuck_secs),
            self.ledger.spent(kind),
            self._screen.spinning(work) as show,
        ):
            yield show

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Limit the dispatch of a step, or a wait for the devices, to config.hosts.stuck_step_secs.

        The time counts as training.
        """
        work = f"step {number}, or one of the two before it,"
        with self._watchdog.doing(work, self._hosts.stuck_step_secs), self.ledger.spent(TRAINING):
            yield
