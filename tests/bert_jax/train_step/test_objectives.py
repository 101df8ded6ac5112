"""Objectives: packed rows learn what their examples learn alone; rows of one cost nothing more."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimConfig
from bert_jax.model import ops
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, schedule, state, step
from bert_jax.train_step.objectives import MLM, MLM_NSP, Objective, Term, sum_term
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store
from tests.bert_jax.tiny_models import abstract_batch, random_batch, setting
from tests.bert_jax.train_step.gradients import (
    PLAIN,
    assert_same,
    compute,
    computer,
    draw,
    logical,
    on_mesh,
    one_by_one,
    rows_of,
    side_by_side,
)


@pytest.fixture(scope="module")
def params():
    return draw(setting(PLAIN, 1).model)


@pytest.fixture(scope="module")
def on_one_device():
    return computer(setting(PLAIN, 1), MLM_NSP)


@pytest.mark.slow
def test_packed_rows_have_the_metrics_and_gradients_of_their_examples(params, on_one_device):
    """On eight devices and over micro-batches, too."""
    got = compute(setting(PLAIN, 8), MLM_NSP, params, side_by_side(), micro_batches=2)
    assert {name for name in got[0] if name.endswith("_accuracy")} == {
        "mlm_accuracy",
        "nsp_accuracy",
    }
    assert_same(got, on_one_device(params, one_by_one()))


@pytest.mark.slow
def test_unpacked_rows_compile_to_a_step_that_knows_of_no_packing():
    def terms(bert, batch, dropout):
        hidden = bert.encode(dataclasses.replace(rows_of(batch), dropout=dropout))
        vectors = ops.gather_positions(hidden, batch["masked_lm_positions"])
        sums = [
            jnp.sum(each * batch["masked_lm_weights"])
            for each in bert.compute_target_losses(vectors, batch["masked_lm_ids"])
        ]
        mlm = Term(loss_sum=sums[0], correct_sum=sums[1])
        logits = bert.nsp(jnp.tanh(bert.pooler(hidden[:, 0]))).astype(jnp.float32)
        labels, weights = batch["next_sentence_labels"], batch["next_sentence_weights"]
        return {"mlm": mlm, "nsp": sum_term(logits, labels, weights)}

    at = setting(PLAIN, 8)
    first = state.make_abstract_state(at.model, at.tx, at.where)

    def program(objective, config):
        batch = abstract_batch(config, PLAIN.phases[0], at.mesh)
        taken = (at.model, objective, at.tx, at.config, at.config.phases[0], at.where)
        pace = schedule.Pace(np.float32(0), np.bool_(False))
        return step.make_train_step(*taken).lower(first, batch, pace).as_text()

    plain = Objective(weights=MLM_NSP.weights, terms=terms)
    assert program(MLM_NSP, PLAIN) == program(plain, PLAIN)
    packing = dataclasses.replace(PLAIN, data=PretrainOptions(packed_examples=2))
    assert program(MLM_NSP, packing) != program(MLM_NSP, PLAIN)


@pytest.mark.slow
def test_a_batch_with_nothing_to_weigh_has_no_nan(params, on_one_device):
    batch = one_by_one()
    for name in ("masked_lm_weights", "next_sentence_weights"):
        batch[name] = np.zeros_like(batch[name])
    losses, grads = on_one_device(params, batch)
    assert losses["mlm_loss"] == losses["nsp_loss"] == losses["nsp_accuracy"] == 0.0
    assert all((leaf == 0.0).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.long
def test_mlm_alone_leaves_the_pooler_as_it_was_drawn():
    config = dataclasses.replace(
        PLAIN, optim=OptimConfig(name="lamb", learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    )
    at = setting(config, 2)
    before = draw(at.model, 0.02)
    first = state.make_state(on_mesh(before, at), at.tx, at.where)
    last, _ = at.train_step(MLM)(first, mesh.place_batch(random_batch(), at.mesh))
    after = logical(last.params, at.model)
    moved = jax.tree.map(lambda old, new: bool((old != new).any()), before, after)
    for part, leaves in moved.items():
        assert any(jax.tree.leaves(leaves)) == (part not in ("pooler", "nsp")), part


@pytest.mark.slow
def test_an_epoch_of_packed_rows_has_the_losses_of_its_examples(tiny_store):
    """The sampler's rows: the same examples with the same masks, whatever rows they share."""
    store = open_store(tiny_store)
    model = dataclasses.replace(PLAIN.model, max_position_embeddings=64)
    at = setting(dataclasses.replace(PLAIN, model=model), 1)
    weights = on_mesh(draw(at.model), at)
    evaluate, sums = step.make_eval_step(at.model, MLM_NSP), []
    for packed_examples in (1, 4):
        options = PretrainOptions(
            packed_examples=packed_examples, short_seq_prob=0.5, dupe_factor=1
        )
        source = open_examples(store, store.heldout, options, 64, 9)
        batch = source.rows(np.arange(source.rows_in_epoch(0)))
        assert ("example_ids" in batch) == (packed_examples > 1)
        seen = evaluate(weights, mesh.place_batch(batch, at.mesh))
        sums.append(metrics.flatten(seen) | {"rows": len(batch["input_ids"])})
    alone, beside = sums
    assert beside.pop("rows") < 0.9 * alone.pop("rows")
    assert beside == pytest.approx(alone, rel=1e-5)
