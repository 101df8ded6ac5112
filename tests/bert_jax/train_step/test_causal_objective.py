"""A left-to-right objective, written here from outside: neither loop nor step knows of it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Config, EvalConfig, OptimConfig, Phase
from bert_jax.interop import export, load
from bert_jax.model.attention import Visible, hide_padding
from bert_jax.model.bert import Heads
from bert_jax.parallel import mesh
from bert_jax.train_step import objectives, step
from bert_jax.train_step.objectives import Objective, sum_term
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL, random_batch, setting


def next_word_weights(batch):
    return {"next_word": jnp.sum(batch["input_mask"][:, 1:], dtype=jnp.float32)}


def next_word_terms(bert, batch, dropout):
    ids_BS, seen_BS = batch["input_ids"], batch["input_mask"]
    length = ids_BS.shape[1]
    earlier_ST = jnp.tril(jnp.ones((length, length), bool))
    visible = Visible(hide_padding(seen_BS).mask & earlier_ST)
    hidden_BSD = bert.encode(ids_BS, batch["segment_ids"], visible, dropout)
    every_BP = jax.lax.broadcasted_iota(
        jnp.int32, (ids_BS.shape[0], length - 1), 1, out_sharding=mesh.spec("batch", None)
    )
    logits_BPV = bert.compute_mlm_logits(hidden_BSD, every_BP)
    return {"next_word": sum_term(logits_BPV, ids_BS[:, 1:], seen_BS[:, 1:])}


NEXT_WORD = Objective(next_word_weights, next_word_terms, untrained=("pooler", "nsp"))


@pytest.mark.slow
def test_it_trains_through_the_same_loop(tiny_store, tmp_path):
    config = Config(
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=24, steps=40, batch_size=16, max_predictions_per_seq=4),),
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=5),
        data=PretrainOptions(store=str(tiny_store)),
        eval=EvalConfig(every_steps=100, examples=32),
    )
    config = dataclasses.replace(config, objective="next_word")  # as a user's config names it
    workdir = tmp_path / "run"
    summary = loop.train(build_setup(config, NEXT_WORD, workdir, jax.devices()[:1]))
    assert summary["heldout_next_word_loss"] < 4.0  # log(200) = 5.3 before the first step
    _check_export(workdir, tmp_path / "exported")


def _check_export(workdir, folder):
    """The run is read and exported where its objective is unknown, without untrained parts."""
    assert "next_word" not in objectives.OBJECTIVES
    held = load.load(str(workdir))
    assert held.heads == Heads(mlm=True, nsp=False)
    assert "pooler" not in held.params
    export.write(held, export.parse_target(f"hf:{folder}"), ())
    copy = load.load(f"hf:{folder}")
    np.testing.assert_array_equal(
        copy.params["embeddings"]["word"]["embedding"],
        held.params["embeddings"]["word"]["embedding"],
    )
    shown = json.loads((workdir / "run.json").read_text())
    del shown["untrained"]  # as an earlier version left it
    (workdir / "run.json").write_text(json.dumps(shown))
    with pytest.raises(ValueError, match=r"objective = 'next_word', which is not of bert_jax"):
        load.load(str(workdir))


def test_it_sees_nothing_to_come():
    """The loss of a prefix does not depend on what follows it."""
    config = Config(model=MODEL, phases=(Phase(19, 1, 16),))
    at = setting(config, 1)
    params = at.model.init(jax.random.key(0))
    batch = random_batch()
    batch["input_mask"] = (
        np.where(np.arange(19) < 8, 1, 0).astype(np.int32) + 0 * batch["input_mask"]
    )
    other = dict(batch, input_ids=batch["input_ids"].copy())
    other["input_ids"][:, 8:] = 5
    evaluate = step.make_eval_step(at.model, NEXT_WORD)
    losses = [
        float(evaluate(params, mesh.place_batch(b, at.mesh))["terms"]["next_word"].loss_sum)
        for b in (batch, other)
    ]
    assert losses[0] == losses[1]
    other["input_ids"][:, 7] = (batch["input_ids"][:, 7] + 1) % 211
    changed = evaluate(params, mesh.place_batch(other, at.mesh))["terms"]["next_word"].loss_sum
    assert float(changed) != losses[0]
