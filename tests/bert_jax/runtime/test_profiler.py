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
    """One that an earlier start has traced, too: the command that is given again must resume."""
    assert read_window("8:13") == Window(8, 13)
    for first, last in ((1, 13), (13, 13), (8, 9)):
        check_window(Window(first, last), 13)


@pytest.mark.parametrize(("first", "last"), [(10, 14), (100, 105)])
def test_a_window_past_the_end_of_the_run_is_refused(first, last):
    with pytest.raises(ValueError, match=rf"--profile_steps={first}:{last}\b.*steps from 1 to 13"):
        check_window(Window(first, last), 13)


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
