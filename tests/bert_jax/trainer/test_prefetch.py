"""Steps in flight, which end when the test says so, and batches placed ahead."""

import threading

import numpy as np
import pytest

from bert_jax.trainer import prefetch
from bert_jax.trainer.prefetch import BATCHES_AHEAD, STEPS_AHEAD, StepsInFlight, place_ahead


class Step:
    """What a step returns: there once the step has ended."""

    def __init__(self):
        self.ended, self.end_secs, self.error = threading.Event(), 0.0, None

    def end(self, secs=0.0, error=None):
        self.end_secs, self.error = secs, error
        self.ended.set()

    def block_until_ready(self):
        assert self.ended.wait(30)
        if self.error is not None:
            raise self.error
        return self


@pytest.fixture
def flight(monkeypatch):
    """Steps in flight whose ends are stamped with the time that the test gave them."""
    monkeypatch.setattr(prefetch, "_wait_for_end", lambda step: step.block_until_ready().end_secs)
    steps = StepsInFlight()
    yield steps
    steps.close()


def test_there_is_room_again_only_when_the_oldest_step_has_ended(flight):
    steps = [Step() for _ in range(STEPS_AHEAD)]
    for step in steps:
        flight.make_room()
        flight.add(step, 0.0, 0.0)
    has_room = threading.Event()
    waiting = threading.Thread(target=lambda: (flight.make_room(), has_room.set()))
    waiting.start()
    assert not has_room.wait(0.05)
    steps[0].end()
    assert has_room.wait(30)
    waiting.join()
    for step in steps[1:]:
        step.end()


def test_only_time_without_work_for_want_of_a_batch_counts(flight):
    first, second, third = Step(), Step(), Step()
    first.end(secs=10.0)
    second.end(secs=18.0)
    third.end(secs=20.0)
    flight.add(first, asked_secs=1.0, got_secs=3.0)  # nothing ran before: 2 s
    flight.add(second, asked_secs=4.0, got_secs=15.0)  # asked early, idle from 10 on: 5 s
    starved_secs = flight.make_room()
    flight.add(third, asked_secs=15.5, got_secs=17.0)  # there before the second step ended
    starved_secs += flight.wait_for_all()
    assert starved_secs == 7.0
    last = Step()
    last.end(secs=41.0)
    flight.add(last, asked_secs=39.0, got_secs=40.0)  # an evaluation lay between
    assert flight.wait_for_all() == 1.0


def test_an_error_of_a_step_is_raised_where_room_is_asked_for(flight):
    for number in range(STEPS_AHEAD):
        step = Step()
        step.end(error=RuntimeError("the chip halted") if number == 0 else None)
        flight.add(step, 0.0, 0.0)
    with pytest.raises(RuntimeError, match="the chip halted"):
        flight.make_room()


class Source:
    """A generator of numbered batches that knows how many were made, and when to wait."""

    def __init__(self, batches, may_make=99, fails_at=None):
        self.made, self.is_closed, self.go_on = 0, False, threading.Semaphore(may_make)
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


def test_every_batch_comes_once_in_order():
    source = Source(5)
    with place_ahead(source(), placed) as batches:
        assert [int(batch["input_ids"][0, 0]) for batch in batches] == [100, 101, 102, 103, 104]
    assert source.is_closed
    with pytest.raises(StopIteration):
        next(batches)


def test_so_many_are_made_before_they_are_asked_for_and_no_more():
    source = Source(9, may_make=0)
    with place_ahead(source(), placed) as batches:  # waits at its end for what was ordered
        for _ in range(9):
            source.go_on.release()
        for _ in range(3000):
            if source.made == BATCHES_AHEAD:
                break
            threading.Event().wait(0.01)
        assert source.made == BATCHES_AHEAD
        next(batches)
    assert BATCHES_AHEAD <= source.made <= 1 + BATCHES_AHEAD < 9
    assert source.is_closed


def test_an_error_of_the_source_or_of_placing_is_raised_for_its_batch():
    with place_ahead(Source(9, fails_at=1)(), placed) as batches:
        assert int(next(batches)["input_ids"][0, 0]) == 100
        with pytest.raises(OSError, match="the store is gone"):
            next(batches)

    def full(batch):
        raise MemoryError("no room on the device")

    source = Source(2)
    with place_ahead(source(), full) as batches, pytest.raises(MemoryError, match="no room"):
        next(batches)
    assert source.is_closed
