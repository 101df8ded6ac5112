"""A trunk of 200 steps and three leaves, each killed inside its first save and a later one."""

import signal

import pytest

from bert_jax.verify_resume import compare_runs
from tests.faults.runs import TINY, training

pytestmark = [
    pytest.mark.long,
    pytest.mark.fault(1, "a SIGKILL inside the first save of a branch, and inside a later one"),
]

SHARED = [
    *TINY,
    *("--config.optim.decay=constant", "--config.optim.warmup_steps=20"),
    *("--config.model.hidden_dropout_prob=0.1", "--config.eval.every_steps=50"),
    "--config.checkpoint.keep_every_steps=20",
    "--config.log_every_steps=30",
]
LEAVES = {
    60: ("optim.decay=one_minus_sqrt", "optim.decay_steps=50", "phases[1].steps=30"),
    140: ("phases[1].restart_learning_rate=1e-3", "phases[1].restart_decay=polynomial"),
    180: ("optim.decay=polynomial", "optim.decay_steps=15", "phases[1].steps=60"),
}


def steps(first, second):
    return [f"--config.phases[0].steps={first}", f"--config.phases[1].steps={second}"]


@pytest.mark.parametrize("step", LEAVES)
def test_each_leaf_equals_its_run_made_alone(step, tiny_store, tmp_path):
    flags = [*SHARED, f"--config.data.store={tiny_store}"]
    with training(*flags, *steps(150, 50), workdir=tmp_path / "trunk") as trunk:
        trunk.finish()
    flags += steps(110 if step == 60 else 150, 50)
    flags += [f"--config.{setting}" for setting in LEAVES[step]]
    with training(*flags, workdir=tmp_path / "alone") as alone:
        alone.finish()
    flags.append(f"--branch={tmp_path / 'trunk'}@{step}")
    for half in (f"checkpoints/{step}.*tmp*", f"checkpoints/{step + 20}.*tmp*"):
        with training(*flags, workdir=tmp_path / "leaf") as leaf:
            leaf.wait_for_file(half)
            leaf.signal(signal.SIGKILL)
    with training(*flags, workdir=tmp_path / "leaf") as leaf:
        leaf.finish()
    compared = compare_runs(tmp_path / "alone", tmp_path / "leaf")
    assert compared.arrays > 50 and compared.differences == ()
