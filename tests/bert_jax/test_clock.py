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
