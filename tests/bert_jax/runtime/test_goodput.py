"""Wall time by kind, over restarts: attempts written by hand, and a clock that the test moves."""

import contextlib
import json
import types

import pytest

from bert_jax.runtime import goodput
from bert_jax.runtime.goodput import Ledger


@pytest.fixture
def clock(monkeypatch):
    """Seconds since 1970, which move as the test says."""
    now = types.SimpleNamespace(secs=1000.0)
    times = types.SimpleNamespace(time=lambda: now.secs, perf_counter=lambda: now.secs - 77.0)
    monkeypatch.setattr(goodput, "time", times)
    return now


def passes(ledger, clock, **secs):
    """So many seconds of each kind go by, one kind after the other."""
    for kind, of in secs.items():
        with ledger.spent(kind):
            clock.secs += of


def kinds(secs):
    return {kind: round(of, 6) for kind, of in secs.items() if of}


def attempt(clock, workdir, restored, *, starting=2.0, step=None, is_writer=True, **secs):
    ledger = Ledger(workdir, clock.secs, is_writer)
    clock.secs += starting
    ledger.resume_from(restored)
    passes(ledger, clock, **secs)
    ledger.step = restored if step is None else step
    ledger.write()
    return ledger


def test_every_moment_is_of_the_innermost_kind(clock, tmp_path):
    ledger = Ledger(tmp_path, clock.secs - 3.0, True)  # the process began three seconds before
    clock.secs += 1.0
    ledger.resume_from(0)
    with ledger.spent("training"):
        passes(ledger, clock, compiling=5.0)
        clock.secs += 20.0
        with ledger.spent("evaluating"):
            passes(ledger, clock, compiling=2.0)
            clock.secs += 1.0
        passes(ledger, clock, saving=0.5)
        clock.secs += 7.5
    ledger.move_to_waiting(2.5)
    with contextlib.suppress(KeyError), ledger.spent("saving"):
        clock.secs += 0.25
        raise KeyError
    clock.secs += 0.75
    found = ledger.summary()
    assert kinds(found["wall_secs"]) == {
        **{"starting": 4.75, "compiling": 7.0, "training": 25.0},
        **{"waiting_for_data": 2.5, "evaluating": 1.0, "saving": 0.75},
    }
    assert (found["attempts"], found["goodput"]) == (1, pytest.approx(25 / 41))


def test_steps_after_the_one_that_was_restored_are_lost(clock, tmp_path):
    first = attempt(clock, tmp_path, 0, step=50, training=10.0, saving=1.0, compiling=4.0)
    passes(first, clock, training=3.0, waiting_for_data=1.0, evaluating=2.0, compiling=5.0)
    first.step = 60
    first.write()
    clock.secs += 30.0  # it is killed, and started again later
    second = attempt(clock, tmp_path, 50, restoring=1.0, training=7.0)
    assert kinds(second.summary()["wall_secs"]) == {
        **{"starting": 4.0, "compiling": 9.0, "training": 17.0, "saving": 1.0},
        **{"lost": 6.0, "restoring": 1.0, "stopped": 30.0},
    }
    assert second.summary()["attempts"] == 2
    assert second.goodput == pytest.approx(17.0 / 68.0)


def test_an_older_checkpoint_loses_steps_of_several_attempts(clock, tmp_path):
    """As where the newest two are damaged."""
    first = attempt(clock, tmp_path, 0, step=10, training=1.0)
    passes(first, clock, training=2.0)
    first.step = 20
    first.write()
    attempt(clock, tmp_path, 20, step=30, training=4.0)
    last = attempt(clock, tmp_path, 10, step=15, training=8.0)
    found = kinds(last.summary()["wall_secs"])
    assert found == {"starting": 6.0, "training": 9.0, "lost": 6.0}


def test_going_back_within_a_run_loses_its_steps_and_no_time_besides(clock, tmp_path):
    ledger = attempt(clock, tmp_path, 0, step=10, training=5.0)
    with ledger.spent("training"):
        clock.secs += 3.0
        ledger.step = 17
        passes(ledger, clock, restoring=1.0)
        ledger.resume_from(10)
        clock.secs += 4.0
    assert kinds(ledger.summary()["wall_secs"]) == {
        **{"starting": 2.0, "training": 9.0, "lost": 3.0, "restoring": 1.0}
    }


def test_an_attempt_that_finds_the_run_finished_changes_no_timing(clock, tmp_path):
    attempt(clock, tmp_path, 0, step=50, training=10.0, evaluating=2.0)
    lines = (tmp_path / goodput.FILE).read_text()
    clock.secs += 500.0
    with Ledger(tmp_path, clock.secs, True) as second:
        second.resume_from(50, is_finished=True)
        passes(second, clock, evaluating=3.0)
        assert second.opening_rows() == []
    assert (tmp_path / goodput.FILE).read_text() == lines
    assert kinds(second.summary()["wall_secs"]) == {
        "starting": 2.0,
        "training": 10.0,
        "evaluating": 2.0,
    }
    assert second.summary()["attempts"] == 1 and second.goodput == pytest.approx(10 / 14)


def test_half_a_line_is_left_out_and_the_next_one_begins_anew(clock, tmp_path):
    attempt(clock, tmp_path, 0, step=50, training=10.0)
    path = tmp_path / goodput.FILE
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:-9])
    second = attempt(clock, tmp_path, 50, training=1.0)
    assert kinds(second.summary()["wall_secs"]) == {"starting": 4.0, "training": 11.0}
    assert len(goodput.read_attempts(path)) == 2
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_only_the_writer_leaves_lines(clock, tmp_path):
    other = attempt(clock, tmp_path, 0, is_writer=False, training=1.0)
    assert not (tmp_path / goodput.FILE).exists()
    assert 0 < other.goodput < 1


def test_the_opening_and_the_closing_say_what_was_before(clock, tmp_path):
    first = attempt(clock, tmp_path, 0, step=50, training=3600.0)
    assert first.opening_rows() == []
    clock.secs += 1800.0
    second = Ledger(tmp_path, clock.secs, True)
    assert second.opening_rows() == [("attempts", "this is number 2, 1:30:02 after the first")]
    second.resume_from(50)
    rows = dict(goodput.list_closing_rows(second.summary()))
    assert rows["all"].strip() == "1:30:02"
    assert rows["training"].split()[:2] == ["1:00:00", "66.6%"]
    assert rows["stopped"].split()[:2] == ["30:00", "33.3%"]
    assert "lost" not in rows
