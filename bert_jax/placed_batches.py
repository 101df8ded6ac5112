"""Batches on the devices before the steps that use them, made and placed by a thread."""

import collections
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

BATCHES_AHEAD = 2  # placed and not yet taken: one lies ready while the next is on its way

HostBatch = dict[str, np.ndarray]
PlacedBatch = dict[str, jax.Array]


class PlacedBatches:
    """An iterator over a source's batches on the devices, BATCHES_AHEAD of them made in advance.

    Whatever the source raises is raised by the call that would have returned its batch. Must be
    closed, which ends the thread and closes the source.
    """

    def __init__(
        self,
        source: Generator[HostBatch, None, None],
        place: Callable[[HostBatch], PlacedBatch],
    ) -> None:
        self._source, self._place = source, place
        self._thread = ThreadPoolExecutor(1, "batches")
        self._coming: collections.deque[Future[PlacedBatch | None]] = collections.deque()
        for _ in range(BATCHES_AHEAD):
            self._order()

    def _order(self) -> None:
        self._coming.append(self._thread.submit(self._made))

    def _made(self) -> PlacedBatch | None:
        batch = next(self._source, None)
        return None if batch is None else self._place(batch)

    def __iter__(self) -> "PlacedBatches":
        return self

    def __next__(self) -> PlacedBatch:
        """Wait for the next batch; the thread goes on with one more."""
        batch = self._coming[0].result()
        if batch is None:
            raise StopIteration
        self._coming.popleft()
        self._order()
        return batch

    def close(self) -> None:
        """End once the batch that is being made is there."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._source.close()
