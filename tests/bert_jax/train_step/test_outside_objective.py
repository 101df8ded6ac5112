"""An objective written here, outside of bert_jax: neither loop nor step knows of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Config, EvalConfig, OptimConfig, Phase
from bert_jax.interop import export, load
from bert_jax.model import ops
from bert_jax.model.bert import Heads
from bert_jax.train_step import objectives
from bert_jax.train_step.objectives import Objective, Term, encode_batch
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.train_step.gradients import PLAIN


def weigh(batch):
    """Each row the same, however many of its words are masked."""
    used_BP = batch["masked_lm_weights"]
    return used_BP / jnp.maximum(jnp.sum(used_BP, axis=1, keepdims=True), 1.0)


def guess_words(bert, batch, dropout):
    hidden_BSD = encode_batch(bert, batch, dropout)
    vectors_BPD = ops.gather_positions(hidden_BSD, batch["masked_lm_positions"])
    nll_BP, right_BP = bert.compute_target_losses(vectors_BPD, batch["masked_lm_ids"])
    weights_BP = weigh(batch)
    return {"row": Term(jnp.sum(nll_BP * weights_BP), jnp.sum(right_BP * weights_BP))}


OF_ROWS = Objective(
    lambda batch: {"row": jnp.sum(weigh(batch))}, guess_words, untrained=("pooler", "nsp")
)


@pytest.mark.long
def test_it_trains_through_the_same_loop(tiny_store, tmp_path, monkeypatch):
    config = Config(
        model=dataclasses.replace(PLAIN.model, vocab_size=0),
        phases=(Phase(seq_len=24, steps=40, batch_size=16, max_predictions_per_seq=4),),
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=5),
        data=PretrainOptions(store=str(tiny_store)),
        eval=EvalConfig(every_steps=100, examples=32),
        objective="rows",
    )
    workdir = tmp_path / "run"
    with pytest.raises(ValueError, match=r"config\.objective is 'rows'; it must be one of"):
        objectives.find_each(config)
    with monkeypatch.context() as config_file:  # as a user's config file adds it
        config_file.setitem(objectives.OBJECTIVES, "rows", OF_ROWS)
        summary = loop.train(build_setup(config, workdir, jax.devices()[:1]))
    assert summary["heldout_row_loss"] < 5.0  # log(200) = 5.3 before the first step
    _check_export(workdir, tmp_path / "exported")


def _check_export(workdir, folder):
    """The run is read and exported where its objective is unknown, without untrained parts."""
    saved = load.load(str(workdir))
    assert saved.heads == Heads(mlm=True, nsp=False)
    assert "pooler" not in saved.params
    export.write(saved, export.parse_target(f"hf:{folder}"), ())
    copy = load.load(f"hf:{folder}")
    np.testing.assert_array_equal(
        copy.params["embeddings"]["word"]["embedding"],
        saved.params["embeddings"]["word"]["embedding"],
    )
