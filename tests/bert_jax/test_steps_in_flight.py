"""Steps in flight, with steps that end when the test says so and time that it makes pass."""

import threading

import pytest

from bert_jax import steps_in_flight
from bert_jax.steps_in_flight import STEPS_AHEAD, StepsInFlight


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

    def end_secs(step):
        step.block_until_ready()
        return step.end_secs

    monkeypatch.setattr(steps_in_flight, "_end_secs", end_secs)
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
    starved_secs += flight.all_ended()
    assert starved_secs == 7.0


def test_a_wait_that_the_loop_began_late_counts_from_when_it_asked(flight):
    first, second = Step(), Step()
    first.end(secs=10.0)
    second.end(secs=31.0)
    flight.add(first, 0.0, 0.0)
    flight.add(second, asked_secs=29.0, got_secs=30.0)  # an evaluation lay between
    assert flight.all_ended() == 1.0


def test_an_error_of_a_step_is_raised_where_room_is_asked_for(flight):
    for number in range(STEPS_AHEAD):
        step = Step()
        step.end(error=RuntimeError("the chip halted") if number == 0 else None)
        flight.add(step, 0.0, 0.0)
    with pytest.raises(RuntimeError, match="the chip halted"):
        flight.make_room()
