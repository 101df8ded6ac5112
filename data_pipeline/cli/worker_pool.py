"""Run tasks in worker processes, which keep one object each between their tasks."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from data_pipeline.cli.main import leave_stops_to_parent
from data_pipeline.io.refused import Refused

# A fork would copy locks that threads of TensorFlow, the tokenizer or the progress bar hold.
CONTEXT = multiprocessing.get_context("spawn")
_kept: list[Any] = []  # a worker's object
_start_errors: list[Exception] = []


@contextlib.contextmanager
def open_workers(
    workers: int, make: Callable[..., Any], arguments: tuple[Any, ...], advice: str = ""
) -> Iterator[ProcessPoolExecutor]:
    """Start a pool whose workers each call make(*arguments) once; submit `run_task` to it.

    Raises:
      Refused: a process was killed; `advice` is another way out than fewer processes.
    """
    with ProcessPoolExecutor(workers, CONTEXT, _start_worker, (make, arguments)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise Refused(
                f"one of the {workers} processes was killed, most likely for lack of memory; use "
                f"fewer with --workers=N{advice}"
            ) from error
        finally:
            # Wait for the tasks in progress: a worker would else write to a closed pipe.
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
    """Exit this process when the command is killed: it would wait for a task forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
