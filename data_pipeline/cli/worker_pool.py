"""Run tasks in worker processes, which keep one object each between their tasks."""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.resource_tracker
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from data_pipeline.cli.main import LEFT_TO_PARENT, leave_stops_to_parent
from data_pipeline.io import Refused


class _Process(multiprocessing.context.SpawnProcess):
    """Start with signals blocked until leave_stops_to_parent: imports would print tracebacks."""

    def start(self) -> None:
        """Start the process; end it on Ctrl-C meanwhile, as the pool does not know it yet."""
        multiprocessing.resource_tracker.ensure_running()  # started later, it would unblock signals
        with _defer_stops() as asked:
            super().start()
        for number in asked:
            self.terminate()
            signal.raise_signal(number)


@contextlib.contextmanager
def _defer_stops() -> Iterator[list[int]]:
    """Start processes with signals blocked; yield a list of the signals that come meanwhile."""
    asked: list[int] = []
    gets_signals = threading.current_thread() is threading.main_thread()
    numbers = LEFT_TO_PARENT if gets_signals else ()
    raising = {n: handler for n in numbers if callable(handler := signal.getsignal(n))}
    for number in raising:
        signal.signal(number, lambda number, _: asked.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
    try:
        yield asked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in raising.items():
            signal.signal(number, handler)


class _Context(multiprocessing.context.SpawnContext):
    """Spawn: a fork would copy locks that threads of TensorFlow or the progress bar hold."""

    Process = _Process


def count_cores(limits: pathlib.Path = pathlib.Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use, which a scheduler or a container may limit."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max" without a quota
        quota, period = map(int, (limits / "cpu.max").read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


CONTEXT = _Context()
_kept: list[Any] = []  # the object of this worker
_start_errors: list[Exception] = []


@contextlib.contextmanager
def open_workers(
    workers: int, make: Callable[..., Any], arguments: tuple[Any, ...], advice: str = ""
) -> Iterator[ProcessPoolExecutor]:
    """Start a pool whose workers each call make(*arguments) once; submit `run_task` to it.

    Raises:
      Refused: a process was killed; the error advises fewer processes, and then `advice`.
    """
    with ProcessPoolExecutor(workers, CONTEXT, _start_worker, (make, arguments)) as pool:
        with _defer_stops() as asked:
            pool.submit(int)  # starts the pool's thread, which a stop would leave half started
        for number in asked:
            signal.raise_signal(number)
        try:
            yield pool
        except BrokenProcessPool as error:
            raise Refused(
                f"one of the {workers} processes was killed, most likely for lack of memory; use "
                f"fewer with --workers=N{advice}"
            ) from error
        finally:
            # Wait for the tasks in progress, or a worker would write to a closed pipe.
            pool.shutdown(wait=True, cancel_futures=True)


def run_task(task: Callable[..., Any], *arguments: Any) -> Any:
    """Call task(object, *arguments) with the object that this worker keeps.

    Raises:
      Refused: the object could not be made.
    """
    for error in _start_errors:
        if not isinstance(error, Refused | ImportError):
            raise error
        raise Refused(
            f"a worker process could not start: {error}; try again, or without other processes, "
            "with --workers=1"
        ) from error
    return task(_kept[0], *arguments)


def _start_worker(make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    leave_stops_to_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _kept.append(make(*arguments))
    except Exception as error:  # raised here, it would break the pool and be lost
        _start_errors.append(error)


def _end_with_parent() -> None:
    """Exit this worker when the command is killed, rather than wait for a task forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
