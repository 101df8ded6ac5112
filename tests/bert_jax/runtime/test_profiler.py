"""Which steps may be traced, and where a trace goes."""

import jax.numpy as jnp
import pytest

from bert_jax.runtime import profiler as profiling
from bert_jax.runtime.profiler import Profiler, Window, check_window, read_window


@pytest.mark.parametrize(
    "text", ["", "100", "100-105", "105:100", "0:5", "-1:5", "1:x", "1:2:3", " 1:2", "1:2 "]
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=rf"^--profile_steps={text} is not FIRST:LAST.*100:105$"):
        read_window(text)


def test_a_window_inside_the_run_is_taken():
    assert read_window("8:13") == Window(8, 13)
    for first, last, done in ((1, 13, 0), (13, 13, 0), (8, 9, 7)):
        check_window(Window(first, last), done, 13)


@pytest.mark.parametrize(
    ("first", "last", "done", "allowed"),
    [
        (10, 14, 0, "give steps from 1 to 13"),
        (100, 105, 0, "give steps from 1 to 13"),
        (7, 9, 7, "give steps from 8 to 13"),
        (1, 2, 7, "give steps from 8 to 13"),
        (1, 2, 13, "has all its 13 steps already"),
    ],
)
def test_a_window_outside_what_is_left_of_the_run_is_refused(first, last, done, allowed):
    with pytest.raises(ValueError, match=rf"--profile_steps={first}:{last}\b.*{allowed}"):
        check_window(Window(first, last), done, 13)


def test_no_window_traces_nothing(tmp_path):
    profiler = Profiler(None, tmp_path / "profile")
    for step in (1, 2):
        profiler.before(step, jnp.zeros(()))
        assert not profiler.is_last(step)
    assert profiler.close() is None
    assert not (tmp_path / "profile").exists()


def test_a_run_that_ends_within_the_window_leaves_what_was_traced(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(profiling.jax.profiler, "start_trace", calls.append)
    monkeypatch.setattr(profiling.jax.profiler, "stop_trace", lambda: calls.append("stop"))
    profiler = Profiler(Window(2, 5), tmp_path)
    for step in (1, 2, 3):
        profiler.before(step, jnp.zeros(()))
        assert not profiler.is_last(step)
    assert calls == [str(tmp_path)]
    assert profiler.close() == str(tmp_path)
    assert profiler.close() is None
    assert calls == [str(tmp_path), "stop"]
