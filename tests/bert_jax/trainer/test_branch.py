"""A run that branches from another's checkpoint ends as if made alone, or is refused."""

import dataclasses
import shutil
import subprocess
import sys

import jax
import pytest

from bert_jax.checkpoint import directory
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, EvalConfig, OptimConfig, Phase
from bert_jax.interop import load
from bert_jax.runtime.workdir import open_local_workdir
from bert_jax.trainer import fresh_start, loop
from bert_jax.trainer.fresh_start import parse_trunk
from bert_jax.trainer.setup import build_setup
from bert_jax.verify_resume import compare_runs
from data_pipeline.io import Refused
from tests.bert_jax.small_runs import LOGGED_OFTEN, compiled_once, small_config, train, whole

__all__ = ["compiled_once", "whole"]  # fixtures

pytestmark = pytest.mark.slow

STEP = 6
RATE = OptimConfig(learning_rate=3e-3, warmup_steps=2, decay="constant")
DECAY = dataclasses.replace(RATE, decay="one_minus_sqrt", decay_steps=3)
PHASE = Phase(seq_len=16, steps=9, batch_size=16, max_predictions_per_seq=3)


@pytest.fixture(scope="module")
def config(tiny_store):
    return small_config(
        tiny_store,
        phases=(PHASE,),
        eval=EvalConfig(every_steps=4, examples=21),
        checkpoint=CheckpointConfig(keep_every_steps=3),
        **LOGGED_OFTEN | {"optim": RATE, "log_every_steps": 4},
    )


@pytest.fixture(scope="module")
def trunk(whole):
    return whole.workdir


def branch(config, trunk, workdir, step=STEP):
    asked = parse_trunk(f"{trunk}@{step}") if trunk else None
    return loop.train(build_setup(config, workdir, jax.devices()[:1], trunk=asked))


@pytest.mark.parametrize(
    "settings",
    [
        {"optim": DECAY},
        pytest.param(
            {
                "phases": (
                    dataclasses.replace(PHASE, steps=STEP),
                    dataclasses.replace(PHASE, steps=2, objective="mlm", masked_lm_prob=0.2),
                )
            },
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_leaf_ends_as_its_run_made_alone_also_killed_in_its_first_save(
    settings, config, trunk, tmp_path, monkeypatch, capsys
):
    leaf = dataclasses.replace(config, **settings)
    train(leaf, tmp_path / "alone")
    copy = shutil.copytree(trunk, tmp_path / "trunk")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "wait", lambda self: (_ for _ in ()).throw(SystemExit(9)))
        with pytest.raises(SystemExit):
            branch(leaf, copy, tmp_path / "leaf")
    shutil.rmtree(tmp_path / "leaf" / "checkpoints", ignore_errors=True)
    command = [f"--from=orbax:{copy}@{STEP}", f"--to=orbax:{copy}-{STEP}", "--with_optimizer"]
    # In a process of its own, as this one has a mesh from training.
    subprocess.run([sys.executable, "-m", "bert_jax.convert", *command], check=True)
    shutil.rmtree(copy)
    shutil.move(f"{copy}-{STEP}", copy)
    branch(leaf, copy, tmp_path / "leaf")
    assert compare_runs(tmp_path / "alone", tmp_path / "leaf").differences == ()
    assert f"from step {STEP} of {copy}" in capsys.readouterr().out
    shutil.rmtree(copy)
    branch(leaf, copy, tmp_path / "leaf")  # resumed, as it is the same branch
    branch(leaf, "", tmp_path / "leaf")
    with pytest.raises(Refused, match=f"a branch of {copy}@{STEP}"):
        branch(leaf, copy, tmp_path / "leaf", step=3)


def test_of_many_checkpoints_some_are_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(
        fresh_start.directory, "find_steps", lambda folder: dict.fromkeys(range(90))
    )
    with pytest.raises(Refused, match=r"it has checkpoints of steps 0, 1, .*, 19, and 70 more$"):
        fresh_start.publish(parse_trunk("run@99"), tmp_path)
    with pytest.raises(Refused, match=r"it has checkpoints of 0, 1, .*, 19, and 70 more$"):
        load.choose_step("orbax:run@99", "run", 99, open_local_workdir(tmp_path))
    error = directory.make_no_intact_checkpoint(tmp_path, [f"step {n} is cut" for n in range(90)])
    assert "holds 90 checkpoints" in str(error) and "step 3 is cut; ...)" in str(error)


def test_what_a_branch_cannot_begin_with_is_refused(config, trunk, tmp_path):
    with pytest.raises(Refused, match="no checkpoint of step 5; it has checkpoints of steps 3, 6"):
        branch(config, trunk, tmp_path / "leaf", step=5)
    with pytest.raises(Refused, match=r"end after step 4"):
        short = dataclasses.replace(config, phases=(dataclasses.replace(PHASE, steps=4),))
        branch(short, trunk, tmp_path / "leaf")
    with pytest.raises(Refused, match=r"step 1 differs: config.seed = 3 there.*says 8"):
        branch(dataclasses.replace(config, seed=8), trunk, tmp_path / "leaf")
    assert not (tmp_path / "leaf").exists()
    with pytest.raises(Refused, match="holds a run that began at step 0"):
        branch(config, trunk, trunk)
    changed = shutil.copytree(trunk, tmp_path / "changed")
    slower = dataclasses.replace(RATE, learning_rate=1e-3)
    longer = dataclasses.replace(PHASE, steps=12)
    train(dataclasses.replace(config, optim=slower, phases=(longer,)), changed)
    with pytest.raises(Refused, match=r"whose config.*was changed after step 9"):
        branch(config, changed, tmp_path / "leaf", step=12)
    with pytest.raises(Refused, match="--branch is 'runs/base'"):
        parse_trunk("runs/base")
