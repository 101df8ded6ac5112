"""The clock of a phase, with time that the test makes pass."""

import pytest

from bert_jax import clock
from bert_jax.clock import Clock, Progress


@pytest.fixture
def now(monkeypatch):
    """Seconds that have passed, in a list of one."""
    secs = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: secs[0])
    return secs


def test_a_row_counts_as_the_examples_in_it(now):
    progress = Progress()
    timer = Clock(progress, batch_size=8, examples_per_row=2.5)
    timer.start()
    timer.step()
    timer.step()
    now[0] += 4.0
    timer.note()
    assert timer.rows_per_sec == 4.0
    assert (progress.timed_sequences, progress.train_secs) == (40.0, 4.0)


def test_nothing_is_measured_before_a_step_or_since_a_new_start(now):
    progress = Progress(train_secs=7.0, timed_sequences=3.0)
    timer = Clock(progress, batch_size=8, examples_per_row=1.0)
    timer.start()
    now[0] += 60.0
    timer.note()
    timer.step()
    timer.start()  # after an evaluation, say
    now[0] += 1.0
    timer.note()
    assert timer.rows_per_sec is None
    assert progress == Progress(train_secs=7.0, timed_sequences=3.0)


def test_waits_for_batches_are_a_share_of_the_interval_and_of_the_run(now):
    progress = Progress(train_secs=6.0, input_wait_secs=1.0)
    timer = Clock(progress, batch_size=8, examples_per_row=1.0)
    timer.start()
    timer.waited(0.5)
    timer.step()
    timer.waited(0.25)
    now[0] += 3.0
    timer.note()
    assert timer.input_wait_share == 0.25
    timer.step()
    timer.waited(5.0)  # most of it in the interval before
    now[0] += 1.0
    timer.note()
    assert timer.input_wait_share == 1.0
    assert (progress.train_secs, progress.input_wait_secs) == (10.0, 6.75)


def test_steps_under_way_count_once_they_have_ended(now):
    progress = Progress()
    timer = Clock(progress, batch_size=8, examples_per_row=1.0)
    timer.start()
    timer.step()
    now[0] += 0.01  # the step takes two seconds
    timer.note(steps_under_way=1)
    assert timer.rows_per_sec is None
    for _ in range(3):
        timer.step()
        now[0] += 2.0
    now[0] -= 0.01
    timer.note(steps_under_way=1)
    assert timer.rows_per_sec == pytest.approx(4.0)
    now[0] += 2.0
    timer.note()
    assert timer.rows_per_sec == pytest.approx(4.0)
    assert (progress.timed_sequences, progress.train_secs) == (32.0, pytest.approx(8.0))


def test_the_time_that_rows_take_is_known_once_there_is_a_pace(now):
    timer = Clock(Progress(), batch_size=8, examples_per_row=2.0)
    assert timer.secs_for(8) is None
    timer.start()
    timer.step()
    now[0] += 2.0
    timer.note()
    assert timer.secs_for(24) == 6.0
