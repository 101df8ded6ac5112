"""The beginning of a run: step 0 is saved before the first step, and gone on from."""

import contextlib
import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax import checkpoint, loop, preparation
from bert_jax.beginning import checkpoints_of, start
from bert_jax.config import CheckpointConfig, Config, EvalConfig, OptimConfig, Phase
from bert_jax.objectives import find
from data_pipeline.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL


@pytest.fixture
def setup(tiny_store, tmp_path):
    config = Config(
        seed=3,
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=16, steps=2, batch_size=16, max_predictions_per_seq=3),),
        optim=OptimConfig(warmup_steps=1),
        data=PretrainOptions(store=str(tiny_store)),
        eval=EvalConfig(every_steps=4, examples=21),
        checkpoint=CheckpointConfig(every_steps=5, keep=2),
        log_every_steps=3,
    )
    return preparation.prepare(config, find(config.objective), tmp_path, jax.devices()[:1])


def begun(setup):
    with contextlib.closing(checkpoints_of(setup)) as checkpoints:
        state, _ = start(setup, checkpoints)
    return jax.tree.map(np.asarray, state)


def test_a_run_stopped_before_its_first_step_goes_on_from_step_0(
    setup, tmp_path, monkeypatch, capsys
):
    fresh = begun(setup)
    receipt = json.loads((tmp_path / "checkpoints" / "0" / "receipt" / "receipt.json").read_text())
    made = receipt["run"]
    assert made["config"]["seed"] == 3
    assert made["store"]["digest"] == setup.feed.store.digest
    assert len(made["vocabulary"]["sha256"]) == 64
    assert made["code"]["packages"].keys() >= {"jax", "jaxlib", "flax", "optax", "numpy"}
    assert made["processes"] == 1
    jax.tree.map(np.testing.assert_array_equal, begun(setup), fresh)
    capsys.readouterr()
    monkeypatch.setattr(loop._Run, "all_phases", lambda self: {})
    loop.train(setup)
    assert "resuming at step 0 of 2" in capsys.readouterr().out


def test_a_run_that_cannot_save_ends_before_its_first_step(setup, tmp_path, monkeypatch):
    def full(content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.checkpoint_folder, "sealed", full)
    with pytest.raises(OSError, match=r"saving the checkpoint of step 0 failed, no space is left"):
        loop.train(setup)
    assert not (tmp_path / "metrics.jsonl").exists()
