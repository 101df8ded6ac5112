"""Keep the devices busy: place batches in advance, and queue two steps at a time.

One thread produces and places batches. Another waits for steps to finish, so the loop blocks only
when the queue is full. Without this bound the loop would run ahead by as many steps as the runtime
queues, each with its batch in device memory, and a stop signal would wait for all of them.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

STEPS_AHEAD = 2  # dispatched steps: one running, one queued


def _wait_for_end(sums: Any) -> float:
    jax.block_until_ready(sums)
    return time.perf_counter()


class StepsInFlight:
    """Track the dispatched steps that have not finished, oldest first. Must be closed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "steps")
        # Per step: its end, and the times at which the loop asked for and got its batch.
        self._steps: collections.deque[tuple[Future[float], float, float]] = collections.deque()
        self._last_end_secs = 0.0

    @property
    def count(self) -> int:
        """Return the number of unfinished steps."""
        return len(self._steps)

    def add(self, sums: Any, asked_secs: float, got_secs: float) -> None:
        """Add a dispatched step, its result, and the times of asking for and getting its batch."""
        self._steps.append((self._thread.submit(_wait_for_end, sums), asked_secs, got_secs))

    def make_room(self) -> float:
        """Wait until another step may be dispatched.

        Return how many seconds the devices were idle, without a batch, before the steps that this
        call waited for. Raise any error of those steps.
        """
        return self._wait_until_at_most(STEPS_AHEAD - 1)

    def wait_for_all(self) -> float:
        """Wait for all steps; return the idle seconds, as make_room does."""
        return self._wait_until_at_most(0)

    def _wait_until_at_most(self, steps: int) -> float:
        starved_secs = 0.0
        while len(self._steps) > steps:
            end_secs, asked_secs, got_secs = self._steps.popleft()
            idle_since_secs = max(self._last_end_secs, asked_secs)
            starved_secs += max(0.0, got_secs - idle_since_secs)
            self._last_end_secs = end_secs.result()
        return starved_secs

    def close(self) -> None:
        """Wait for unfinished steps."""
        self._thread.shutdown(wait=True)


BATCHES_AHEAD = 2  # batches prepared in advance: one placed, one in transfer

PlacedBatch = dict[str, jax.Array]


@contextlib.contextmanager
def place_ahead(
    source: Generator[dict[str, np.ndarray], None, None],
    place: Callable[[dict[str, np.ndarray]], PlacedBatch],
) -> Iterator[Iterator[PlacedBatch]]:
    """Yield an iterator over a source's batches on the devices, prefetching BATCHES_AHEAD of them.

    An error of the source is raised by the call that would have returned the batch. On exit the
    thread ends after its current batch, and the source is closed.
    """

    def make() -> PlacedBatch | None:
        batch = next(source, None)
        return None if batch is None else place(batch)

    thread = ThreadPoolExecutor(1, "batches")
    coming = collections.deque(thread.submit(make) for _ in range(BATCHES_AHEAD))

    def batches() -> Iterator[PlacedBatch]:
        while (batch := coming.popleft().result()) is not None:
            coming.append(thread.submit(make))
            yield batch

    try:
        yield batches()
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        source.close()
