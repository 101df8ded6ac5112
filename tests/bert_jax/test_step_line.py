"""The live line of a run's steps: the pace of the last seconds, and the time left at it."""

import pytest

from bert_jax import step_line as step_line_lib
from bert_jax.screen import Screen
from bert_jax.step_line import StepLine
from data_pipeline.live_line import LiveLine


@pytest.fixture
def shown(monkeypatch):
    """What the screen was told to show."""
    words = []
    monkeypatch.setattr(LiveLine, "is_on", True)
    monkeypatch.setattr(Screen, "show", lambda self, text: words.append(text))
    return words


def test_steps_are_shown_with_the_pace_of_the_last_seconds_and_the_time_left(shown):
    times = iter([0.0, 0.1, 2.0, 30.0, 60.0])
    line = StepLine(Screen(is_writer=False), 1_000, clock=lambda: next(times))
    line.show(1, 10, 999)
    line.show(2, 10, 998)  # sooner than anybody reads
    line.show(3, 10, 997)  # two steps of 10 in 2 s
    line.show(31, 10, 100)  # 28 steps in 28 s: what is older than the window no longer counts
    line.show(61, 10, 70)
    assert shown == [
        "step 1/1,000",
        "step 3/1,000  10 seq/s  16:37 left",
        "step 31/1,000  10 seq/s  1:40 left",
        "step 61/1,000  10 seq/s  1:10 left",
    ]


def test_a_pause_is_no_part_of_the_pace(shown):
    times = iter([0.0, 1.0, 100.0, 101.0])
    line = StepLine(Screen(is_writer=False), 9, clock=lambda: next(times))
    line.show(1, 5, 8)
    line.show(2, 5, 7)
    line.restart(3)  # after a save
    line.show(4, 5, 5)
    line.show(5, 5, 4)
    assert shown[2:] == ["step 3/9", "step 4/9", "step 5/9  5 seq/s  0:04 left"]


def test_without_a_terminal_nothing_is_computed(monkeypatch):
    monkeypatch.setattr(step_line_lib.time, "perf_counter", lambda: 1 / 0)
    StepLine(Screen(is_writer=False), 9, clock=lambda: 1 / 0).show(1, 5, 8)
