"""Batches placed ahead: in order, so many in advance and no more, errors, and an orderly end."""

import threading

import numpy as np
import pytest

from bert_jax.placed_batches import BATCHES_AHEAD, PlacedBatches


class Source:
    """A generator of numbered batches that knows how many were made, and when to wait."""

    def __init__(self, batches, fails_at=None):
        self.made, self.is_closed, self.go_on = 0, False, threading.Semaphore(0)
        self._batches, self._fails_at = batches, fails_at

    def __call__(self):
        try:
            for number in range(self._batches):
                assert self.go_on.acquire(timeout=30)
                if number == self._fails_at:
                    raise OSError("the store is gone")
                self.made += 1
                yield {"input_ids": np.full((2, 3), number)}
        finally:
            self.is_closed = True


def placed(batch):
    return {name: array + 100 for name, array in batch.items()}


def let(source, batches):
    for _ in range(batches):
        source.go_on.release()


def test_every_batch_comes_once_in_order():
    source = Source(5)
    let(source, 5)
    batches = PlacedBatches(source(), placed)
    assert [int(batch["input_ids"][0, 0]) for batch in batches] == [100, 101, 102, 103, 104]
    batches.close()
    assert source.is_closed
    with pytest.raises(StopIteration):
        next(batches)


def test_no_more_are_made_in_advance_than_may_be():
    source = Source(9)
    let(source, 9)
    batches = PlacedBatches(source(), placed)
    next(batches)
    batches.close()  # waits for what was ordered
    assert 1 <= source.made <= 1 + BATCHES_AHEAD < 9
    assert source.is_closed


def test_they_are_made_before_they_are_asked_for():
    source = Source(2)
    batches = PlacedBatches(source(), placed)
    let(source, 2)
    for _ in range(3000):
        if source.made == 2:
            break
        threading.Event().wait(0.01)
    assert source.made == 2
    batches.close()


def test_an_error_of_the_source_reaches_the_one_who_asks_for_that_batch():
    source = Source(9, fails_at=1)
    let(source, 9)
    batches = PlacedBatches(source(), placed)
    assert int(next(batches)["input_ids"][0, 0]) == 100
    with pytest.raises(OSError, match="the store is gone"):
        next(batches)
    batches.close()


def test_an_error_while_placing_is_raised_too():
    source = Source(2)
    let(source, 2)

    def full(batch):
        raise MemoryError("no room on the device")

    batches = PlacedBatches(source(), full)
    with pytest.raises(MemoryError, match="no room"):
        next(batches)
    batches.close()
    assert source.is_closed
