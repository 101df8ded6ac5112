"""Runs with bad steps: skipped and recorded, rolled back, or stopped; no checkpoint holds a NaN."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import CheckpointConfig, EvalConfig, GuardConfig, OptimConfig, RunConfig
from bert_jax.logging.metrics_writer import MetricsFile
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime.workdir import open_local_workdir
from bert_jax.train_step import guard, schedule
from bert_jax.train_step import state as state_lib
from bert_jax.trainer import bad_steps
from bert_jax.trainer.bad_steps import make_record
from bert_jax.trainer.compile import Programs
from bert_jax.trainer.feed import StoreFeed
from bert_jax.trainer.readings import Progress
from bert_jax.verify_resume import compare_runs
from data_pipeline.io import Refused
from tests.bert_jax.small_runs import (
    assert_stops_change_nothing,
    compiled_once,
    config,
    final_state,
    lines_of,
    prepare,
    train,
)

__all__ = ["compiled_once", "config"]  # fixtures


@pytest.fixture
def short(config):
    """Its first phase alone: nine steps, saved after the fifth."""
    return dataclasses.replace(config, phases=config.phases[:1])


@pytest.fixture
def rolling(short):
    rolls = GuardConfig(action="roll_back", most_in_a_row=3)
    evaluated = EvalConfig(every_steps=100, examples=21)
    return dataclasses.replace(short, eval=evaluated, guard=rolls, log_every_steps=1)


def poison(monkeypatch, steps):
    """Give the first row of these steps' batches a weight that is infinite."""
    train_batches = StoreFeed.train_batches

    def poisoned(self, index, first_step, rows):
        before = first_step + sum(phase.steps for phase in self.config.phases[:index])
        for step, batch in enumerate(train_batches(self, index, first_step, rows), before + 1):
            if step in steps:
                weights = batch["masked_lm_weights"].copy()
                weights[0] = np.inf
                batch = batch | {"masked_lm_weights": weights}
            yield batch

    monkeypatch.setattr(StoreFeed, "train_batches", poisoned)


def bad_lines(workdir):
    return [json.loads(line) for line in (workdir / "bad_steps.jsonl").read_text().splitlines()]


def skipped(workdir):
    ranges = json.loads((workdir / "left_out.json").read_text())
    return [(entry["after_step"], entry["through_step"]) for entry in ranges]


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
    assert summary["skipped_steps"] == 5
    assert_stops_change_nothing(short, tmp_path / "whole", tmp_path / "parts", (5,))
    whole = final_state(tmp_path / "whole", short)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole))
    assert int(whole.step) == 9 and int(whole.guard.count) == 4
    trained = [line for line in lines_of(tmp_path / "whole") if line["split"] == "train"]
    assert [line["skipped_steps"] for line in trained] == [1, 3, 1]
    assert [np.isfinite(line.get("loss", np.nan)) for line in trained] == [True, False, True]
    assert all(np.isfinite(line["learning_rate"]) for line in trained)
    assert screen.count("changes nothing: mlm_loss is ") == 5


@pytest.mark.long
@pytest.mark.fault(13, "a weight of one row is infinite in every step")
def test_too_many_in_a_row_stop_the_run_naming_steps_rows_and_what_shows_them(
    config, tmp_path, monkeypatch
):
    poison(monkeypatch, {1, *range(7, 14)})
    words = (
        r"steps 7 to 11 were bad \(mlm_loss is (nan|inf) at the last\) and "
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


@pytest.mark.long
def test_a_guard_set_to_stop_stops_at_the_first(short, tmp_path, monkeypatch):
    poison(monkeypatch, {4, 5})
    words = r"step 4 was bad .* and config.guard.action is 'stop': the run stops"
    with pytest.raises(FloatingPointError, match=words):
        train(guarded(short, action="stop"), tmp_path)
    assert [line["step"] for line in bad_lines(tmp_path)] == [4]


@pytest.mark.long
@pytest.mark.fault(13, "a learning rate of 1e30")
def test_a_run_of_too_high_a_rate_saves_finite_numbers_alone(short, tmp_path):
    wild = dataclasses.replace(
        guarded(short, most_in_a_row=4),
        optim=OptimConfig(learning_rate=1e30, warmup_steps=0, clip_norm=0.0),
        checkpoint=CheckpointConfig(keep_every_steps=1),
    )
    with pytest.raises(FloatingPointError, match=r"(steps \d to \d were bad|not finite after)"):
        train(wild, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    state = final_state(tmp_path / "run", wild)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.slow
@pytest.mark.fault(13, "weights that are not finite after a step that was")
def test_no_checkpoint_holds_a_number_that_is_not_finite(short, tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "all_finite", lambda tree: jnp.bool_(False))
    with pytest.raises(FloatingPointError, match=r"not finite after step 5, .*learning_rate"):
        train(short, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["0"]


@pytest.mark.slow
def test_a_record_says_how_far_a_spike_leaps_and_names_both_epochs(short, tmp_path):
    feed = prepare(short, tmp_path).feed
    numbers = {"mlm/loss_sum": 90.0, "mlm/correct_sum": 1.0, "mlm/weight": 10.0, "grad_norm": 2.0}
    line = make_record(feed.config, feed, 3, numbers, np.array([7.0, 0.5, 1.5, 1.0], np.float32))
    assert line["reason"] == "loss is 9, 4.0 deviations above 7"
    assert line["grad_norm"] == {"value": 2.0, "mean": 1.5, "deviation": 1.0}
    assert line["rows"]["first"] == 32
    nothing = np.zeros(4, np.float32)
    inf = make_record(feed.config, feed, 3, numbers | {"grad_norm": np.inf}, nothing)
    assert (inf["reason"], inf["grad_norm"]["value"]) == ("grad_norm is inf", "inf")
    nan = make_record(feed.config, feed, 3, numbers | {"mlm/loss_sum": np.nan}, nothing)
    assert nan["reason"] == "mlm_loss is nan"  # the name in metrics.jsonl
    assert json.loads(json.dumps(inf, allow_nan=False)) == inf
    step = int(feed.open_source(0).mean_rows_per_epoch // 16) + 1
    longer = dataclasses.replace(feed.config.phases[0], steps=10**6)
    feed.config = dataclasses.replace(feed.config, phases=(longer,))
    epochs = [
        epoch
        for near in (step - 1, step, step + 1)
        for epoch in make_record(feed.config, feed, near, numbers, nothing)["rows"]["epochs"]
    ]
    assert {epoch["epoch"] for epoch in epochs} == {0, 1}
    assert sum(epoch["last_index"] - epoch["first_index"] + 1 for epoch in epochs) == 48


def test_a_run_that_replay_does_not_read_is_not_sent_there(short, tmp_path):
    setup = prepare(short, tmp_path)
    messages = [
        str(
            bad_steps.BadSteps(setup.storage, kind, setup.feed, setup.screen).make_error(
                3, 1, "loss is nan", "config.guard.action is 'stop'"
            )
        )
        for kind in (short, RunConfig(phases=short.phases))
    ]
    assert ["bert_jax.replay" in message for message in messages] == [True, False]
    assert all("rows 32 to 47 of phase 0's stream" in message for message in messages)


def by_hand(config, workdir, steps):
    """The weights after these steps alone, each with its own batch, rate and dropout."""
    setup = prepare(config, workdir)
    parts = setup.parts
    state = state_lib.init_state(parts.model, parts.tx, parts.shardings, config.seed)
    programs = Programs(parts, setup.feed, setup.phases)
    programs.compile_steps(0, 0)
    pace_of = schedule.make_pace_of(config)
    for step in steps:
        batch = setup.feed.open_source(0).rows(setup.feed.locate_step(step).positions_B)
        number = jax.device_put(np.int32(step - 1), parts.shardings.step)
        placed = mesh_lib.place_batch(batch, parts.mesh)
        take_step = programs.step(0, placed)
        pace = pace_of(step - 1)
        state, _ = take_step(dataclasses.replace(state, step=number), placed, pace)
    return jax.tree.map(np.asarray, state.params)


@pytest.mark.slow
@pytest.mark.fault(13, "a bad step rolls back; the run is killed just after that is written down")
def test_the_batches_up_to_the_bad_step_are_left_out_also_after_a_kill(
    rolling, tmp_path, monkeypatch, capsys
):
    whole, parts = tmp_path / "whole", tmp_path / "killed"
    expected = by_hand(rolling, tmp_path / "by_hand", [1, 2, 3, 4, 5, 8, 9])
    poison(monkeypatch, {7})
    summary = train(rolling, whole)
    assert "back at the weights of step 5; steps 6 to 7 are skipped" in capsys.readouterr().out
    assert (summary["left_out_steps"], summary["steps"]) == (2, 9)
    jax.tree.map(np.testing.assert_array_equal, final_state(whole, rolling).params, expected)
    trained = [line["step"] for line in lines_of(whole) if line["split"] == "train"]
    assert trained == [1, 2, 3, 4, 5, 8, 9]
    assert skipped(whole) == [(5, 7)]

    start = MetricsFile.on_start

    def killed(self, step):
        if step:
            raise KeyboardInterrupt
        start(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(MetricsFile, "on_start", killed)
        with pytest.raises(KeyboardInterrupt):
            train(rolling, parts)
    assert (parts / "left_out.json").read_bytes() == (whole / "left_out.json").read_bytes()
    assert train(rolling, parts)["left_out_steps"] == 2
    assert compare_runs(whole, parts).differences == ()


@pytest.mark.slow
def test_a_bad_last_step_of_a_run_still_ends_it_evaluated_and_saved(rolling, tmp_path, monkeypatch):
    poison(monkeypatch, {9})
    summary = train(rolling, tmp_path)
    assert (summary["left_out_steps"], summary["steps"]) == (4, 9)
    assert lines_of(tmp_path)[-1]["split"] == "heldout"
    assert int(final_state(tmp_path, rolling).step) == 9


@pytest.mark.long
@pytest.mark.fault(13, "three bad steps in a row, each rolling back to one checkpoint")
def test_too_many_rolls_back_to_one_checkpoint_stop_the_run(rolling, tmp_path, monkeypatch):
    poison(monkeypatch, {6, 7, 8})
    words = r"step 8 was bad .* and this is roll-back 3 to step 5 .*most_in_a_row is 3"
    for _ in range(2):  # the same command ends in the same way
        with pytest.raises(FloatingPointError, match=words):
            train(rolling, tmp_path)
        assert skipped(tmp_path) == [(5, 6), (5, 7)]


@pytest.mark.long
@pytest.mark.fault(13, "bad steps that each roll back to another checkpoint")
def test_a_new_checkpoint_in_between_starts_the_count_anew(rolling, tmp_path, monkeypatch):
    often = dataclasses.replace(rolling, checkpoint=CheckpointConfig(every_steps=2))
    poison(monkeypatch, {3, 5, 7, 9})
    assert train(often, tmp_path)["steps"] == 9
    assert skipped(tmp_path) == [(2, 3), (4, 5), (6, 7), (8, 9)]


@pytest.mark.slow
def test_a_phase_whose_first_step_is_left_out_begins_with_an_empty_window(config, tmp_path):
    setup = prepare(config, tmp_path)
    parts, where = setup.parts, setup.parts.shardings
    state = state_lib.init_state(parts.model, parts.tx, where, config.seed)
    window = dataclasses.replace(state.guard, count=jax.device_put(np.int32(7), where.guard.count))
    counts = {}
    for after, through in ((7, 8), (8, 9), (8, 11), (9, 10), (10, 12)):  # phase 1 begins after 9
        bad_steps.write_left_out(tmp_path, [bad_steps.LeftOutRange(after, through, "loss is nan")])
        before = dataclasses.replace(
            state, step=jax.device_put(np.int32(after), where.step), guard=window
        )
        known = bad_steps.BadSteps(setup.storage, config, setup.feed, setup.screen)
        passed = known.resume(before, Progress(), where)
        assert int(passed.step) == through
        counts[after, through] = int(passed.guard.count)
    assert counts == {(7, 8): 7, (8, 9): 7, (8, 11): 0, (9, 10): 0, (10, 12): 7}


def test_the_other_processes_hear_of_a_damaged_file(short, tmp_path, monkeypatch):
    answers = []
    monkeypatch.setattr(
        bad_steps.processes, "agree", lambda name, answer, secs: answers.append(answer) or [answer]
    )
    (tmp_path / "left_out.json").write_text("{")
    with pytest.raises(Refused, match=r"left_out\.json"):
        bad_steps.BadSteps(open_local_workdir(tmp_path), short, None, None)
    (answer,) = answers
    assert answer.startswith("refused ") and "left_out.json" in answer


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "left_out.json").write_text('[{"step": 3}]')
    with pytest.raises(ValueError, match=r"left_out\.json: item 0 has the unknown key 'step'"):
        bad_steps.read_left_out(tmp_path)
