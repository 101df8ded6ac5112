"""Rolling back: the weights of the checkpoint, and none of the batches up to the bad step."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax import left_out
from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax.config import CheckpointConfig, EvalConfig, GuardConfig
from bert_jax.log import Records
from bert_jax.programs import Programs
from tests.bert_jax.small_runs import (
    compiled_once,
    config,
    final_state,
    lines_of,
    prepare,
    train,
)
from tests.bert_jax.test_bad_steps import bad_lines, poison

__all__ = ["compiled_once", "config"]  # fixtures


@pytest.fixture
def rolling(config):
    """Nine steps, saved after the fifth."""
    return dataclasses.replace(
        config,
        phases=config.phases[:1],
        eval=EvalConfig(every_steps=100, examples=21),
        guard=GuardConfig(action="roll_back", most_in_a_row=3),
        log_every_steps=1,
    )


def by_hand(config, workdir, steps):
    """The weights after these steps alone, each with its own batch, rate and dropout."""
    setup = prepare(config, workdir)
    state = state_lib.init(setup.model, setup.tx, setup.where, config.seed)
    programs = Programs(setup)
    programs.compile_steps(0, 0)
    for step in steps:
        batch = setup.feed.rows(0, setup.feed.positions(step))
        number = jax.device_put(np.int32(step - 1), setup.where.step)
        placed = mesh_lib.place(batch, setup.mesh)
        take_step = programs.step(0, placed)
        state, _ = take_step(dataclasses.replace(state, step=number), placed)
    return jax.tree.map(np.asarray, state.params)


def shown(workdir):
    return json.loads((workdir / "left_out.json").read_text())


@pytest.mark.fault(13, "a bad step rolls back; the run is killed just after that is written down")
def test_the_batches_up_to_the_bad_step_are_left_out_also_after_a_kill(
    rolling, tmp_path, monkeypatch, capsys
):
    expected = by_hand(rolling, tmp_path / "by_hand", [1, 2, 3, 4, 5, 8, 9])
    poison(monkeypatch, {7})
    summary = train(rolling, tmp_path / "whole")
    assert "back at the weights of step 5; steps 6 to 7 are left out" in capsys.readouterr().out
    assert (summary["left_out_steps"], summary["steps"]) == (2, 9)
    jax.tree.map(
        np.testing.assert_array_equal, final_state(tmp_path / "whole", rolling).params, expected
    )
    trained = [line["step"] for line in lines_of(tmp_path / "whole") if line["split"] == "train"]
    assert trained == [1, 2, 3, 4, 5, 8, 9]
    (one,) = shown(tmp_path / "whole")
    assert (one["after_step"], one["through_step"]) == (5, 7)

    def killed(self, step):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Records, "go_back", killed)
        with pytest.raises(KeyboardInterrupt):
            train(rolling, tmp_path / "killed")
    assert shown(tmp_path / "killed") == shown(tmp_path / "whole")
    again = train(rolling, tmp_path / "killed")
    assert again["left_out_steps"] == 2
    whole, parts = (final_state(tmp_path / name, rolling) for name in ("whole", "killed"))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "killed")
    assert bad_lines(tmp_path / "whole") == bad_lines(tmp_path / "killed")


def test_a_bad_last_step_of_a_run_still_ends_it_evaluated_and_saved(rolling, tmp_path, monkeypatch):
    poison(monkeypatch, {9})
    summary = train(rolling, tmp_path)
    assert (summary["left_out_steps"], summary["steps"]) == (4, 9)
    assert lines_of(tmp_path)[-1]["split"] == "heldout"
    assert int(final_state(tmp_path, rolling).step) == 9


@pytest.mark.long
@pytest.mark.long
@pytest.mark.fault(13, "three bad steps in a row, each rolling back to one checkpoint")
def test_too_many_rolls_back_to_one_checkpoint_stop_the_run(rolling, tmp_path, monkeypatch):
    poison(monkeypatch, {6, 7, 8})
    words = r"step 8 was bad .* and it is roll back number 3 to step 5 .*most_in_a_row is 3"
    for _ in range(2):  # the same command ends in the same way
        with pytest.raises(FloatingPointError, match=words):
            train(rolling, tmp_path)
        assert [one["through_step"] for one in shown(tmp_path)] == [6, 7]


@pytest.mark.long
@pytest.mark.long
@pytest.mark.fault(13, "bad steps that each roll back to another checkpoint")
def test_a_new_checkpoint_in_between_starts_the_count_anew(rolling, tmp_path, monkeypatch):
    often = dataclasses.replace(rolling, checkpoint=CheckpointConfig(every_steps=2, keep=2))
    poison(monkeypatch, {3, 5, 7, 9})
    assert train(often, tmp_path)["steps"] == 9
    assert [(one["after_step"], one["through_step"]) for one in shown(tmp_path)] == [
        (2, 3),
        (4, 5),
        (6, 7),
        (8, 9),
    ]


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "left_out.json").write_text('[{"step": 3}]')
    with pytest.raises(ValueError, match=r"left_out\.json .*'after_step'"):
        left_out.read(tmp_path)
