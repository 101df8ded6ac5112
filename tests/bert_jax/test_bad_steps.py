"""Runs with bad steps: left out and recorded, or the run stops; and no checkpoint holds a NaN."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from bert_jax.bad_steps import BadSteps, record
from bert_jax.config import CheckpointConfig, GuardConfig, OptimConfig
from bert_jax.feed import Feed
from bert_jax.stopping import Interrupted
from tests.bert_jax.small_runs import (
    compiled_once,
    config,
    final_state,
    lines_of,
    prepare,
    stop_at,
    train,
)

__all__ = ["compiled_once", "config"]  # fixtures

TEXT_STORE = types.SimpleNamespace(kind="text")  # nothing else of it is asked for


@pytest.fixture
def short(config):
    """Its first phase alone: nine steps, saved after the fifth."""
    return dataclasses.replace(config, phases=config.phases[:1])


def poison(monkeypatch, steps):
    """Give the first row of these steps' batches a weight that is infinite."""
    train_batches = Feed.train_batches

    def poisoned(self, index, first_step, rows):
        before = first_step + sum(phase.steps for phase in self.config.phases[:index])
        for step, batch in enumerate(train_batches(self, index, first_step, rows), before + 1):
            if step in steps:
                weights = batch["masked_lm_weights"].copy()
                weights[0] = np.inf
                batch = batch | {"masked_lm_weights": weights}
            yield batch

    monkeypatch.setattr(Feed, "train_batches", poisoned)


def bad_lines(workdir):
    return [json.loads(line) for line in (workdir / "bad_steps.jsonl").read_text().splitlines()]


def guarded(config, **settings):
    return dataclasses.replace(config, guard=GuardConfig(**settings))


@pytest.mark.long
@pytest.mark.fault(13, "a weight of one row is infinite in five of nine steps")
def test_bad_steps_are_left_out_recorded_and_the_same_after_a_resume(
    short, tmp_path, monkeypatch, capsys
):
    poison(monkeypatch, {2, 4, 5, 6, 9})
    summary = train(short, tmp_path / "whole")
    screen = capsys.readouterr().out
    with monkeypatch.context() as patched:
        stop_at(patched, {5})
        with pytest.raises(Interrupted):
            train(short, tmp_path / "parts")
    again = train(short, tmp_path / "parts")
    assert summary["skipped_steps"] == again["skipped_steps"] == 5
    whole, parts = (final_state(tmp_path / name, short) for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole))
    assert int(whole.step) == 9 and int(whole.guard.count) == 4
    assert bad_lines(tmp_path / "whole") == bad_lines(tmp_path / "parts")
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "parts")
    trained = [line for line in lines_of(tmp_path / "whole") if line["split"] == "train"]
    assert [line["skipped_steps"] for line in trained] == [1, 3, 1]
    assert [np.isfinite(line.get("loss", np.nan)) for line in trained] == [True, False, True]
    assert all(np.isfinite(line["learning_rate"]) for line in trained)
    assert screen.count("changes nothing: mlm/loss_sum is ") == 5


@pytest.mark.long
@pytest.mark.fault(13, "a weight of one row is infinite in every step")
def test_too_many_in_a_row_stop_the_run_naming_steps_rows_and_what_shows_them(
    config, tmp_path, monkeypatch
):
    poison(monkeypatch, {1, *range(7, 14)})
    words = (
        r"steps 7 to 11 were bad \(mlm/loss_sum is (nan|inf) at the last\) and "
        r"config.guard.most_in_a_row is 5: .* rows 96 to 143 of phase 0's stream and rows 0 to 15 "
        r"of phase 1's stream; `.* -m bert_jax.replay --workdir=\S+ --step=11`"
    )
    with pytest.raises(FloatingPointError, match=words):
        train(guarded(config, most_in_a_row=5), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    first, *others = bad_lines(tmp_path)
    assert [line["step"] for line in others] == [7, 8, 9, 10, 11]
    assert first["phase"] == 0 and first["rows"] == {
        "first": 0,
        "last": 15,
        "epochs": [{"epoch": 0, "first_index": 0, "last_index": 15}],
    }
    assert others[-1]["phase"] == 1 and others[-1]["rows"]["first"] == 8
    assert others[0]["loss"]["mean"] > 1.0 and others[0]["loss"]["value"] in ("inf", "nan")


def test_a_guard_set_to_stop_stops_at_the_first(short, tmp_path, monkeypatch):
    poison(monkeypatch, {4, 5})
    words = r"step 4 was bad .* and config.guard.action is 'stop': the run stops"
    with pytest.raises(FloatingPointError, match=words):
        train(guarded(short, action="stop"), tmp_path)
    assert [line["step"] for line in bad_lines(tmp_path)] == [4]


@pytest.mark.fault(13, "a learning rate of 1e30")
def test_no_checkpoint_holds_a_number_that_is_not_finite(short, tmp_path):
    wild = dataclasses.replace(
        guarded(short, most_in_a_row=4),
        optim=OptimConfig(learning_rate=1e30, warmup_steps=0, clip_norm=0.0),
        checkpoint=CheckpointConfig(every_steps=1, keep=10),
    )
    with pytest.raises(FloatingPointError, match=r"(steps \d to \d were bad|not finite after)"):
        train(wild, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()]
    state = final_state(tmp_path, wild)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_the_line_of_a_spike_says_how_far_it_leaps(short, tmp_path):
    feed = prepare(short, tmp_path).feed
    numbers = {"mlm/loss_sum": 90.0, "mlm/correct_sum": 1.0, "mlm/weight": 10.0, "grad_norm": 2.0}
    line = record(feed, 3, numbers, np.array([7.0, 0.5, 1.5, 1.0], np.float32))
    assert line["reason"] == "loss is 9, 4.0 deviations above 7"
    assert line["grad_norm"] == {"value": 2.0, "mean": 1.5, "deviation": 1.0}
    assert line["rows"]["first"] == 32
    inf = record(feed, 3, numbers | {"grad_norm": np.inf}, np.zeros(4, np.float32))
    assert (inf["reason"], inf["grad_norm"]["value"]) == ("grad_norm is inf", "inf")
    assert json.loads(json.dumps(inf, allow_nan=False)) == inf


def test_rows_that_end_an_epoch_name_both(short, tmp_path):
    feed = prepare(short, tmp_path).feed
    rows = feed.mean_epoch_rows(0)
    step = int(rows // 16) + 1
    numbers = {"mlm/loss_sum": 9.0, "mlm/correct_sum": 1.0, "mlm/weight": 1.0, "grad_norm": 2.0}
    long = dataclasses.replace(
        feed.config, phases=(dataclasses.replace(feed.config.phases[0], steps=10**6),)
    )
    feed.config = long
    epochs = [
        one
        for near in (step - 1, step, step + 1)
        for one in record(feed, near, numbers, np.zeros(4))["rows"]["epochs"]
    ]
    assert {one["epoch"] for one in epochs} == {0, 1}
    assert sum(one["last_index"] - one["first_index"] + 1 for one in epochs) == 48


def test_parameters_that_are_not_finite_are_not_saved(short):
    told = BadSteps(None, "gs://b/run", Feed(TEXT_STORE, short), None, None)
    told.check_finite(True, 7)
    with pytest.raises(FloatingPointError, match=r"not finite after step 7, .*learning_rate"):
        told.check_finite(False, 7)
