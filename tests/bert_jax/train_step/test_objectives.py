"""Objectives: packed rows learn what their examples learn alone; rows of one cost nothing more."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimConfig
from bert_jax.model import ops
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, schedule, state, step
from bert_jax.train_step.objectives import MLM, MLM_NSP, Objective, Term, sum_term
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store
from tests.bert_jax import packed_rows
from tests.bert_jax.tiny_models import CONFIG, abstract_batch, random_batch, setting
from tests.bert_jax.train_step.gradients import assert_same, compute, draw

SHALLOW = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, num_hidden_layers=1))
EXAMPLES = 32
ROW_LEN, ROW_SLOTS, MAX_EXAMPLES = 59, 17, 3  # three of the longest examples, and some room


def one_by_one():
    """Examples with a row each."""
    return random_batch(batch_size=EXAMPLES)


def side_by_side():
    """The same examples in half as many rows."""
    return packed_rows.side_by_side(one_by_one(), ROW_LEN, ROW_SLOTS, MAX_EXAMPLES)


@pytest.fixture(scope="module")
def params():
    return draw(setting(SHALLOW, 1).model)


@pytest.mark.parametrize(
    ("objective", "devices", "micro_batches"), [(MLM_NSP, 1, 1), (MLM_NSP, 8, 2), (MLM, 1, 4)]
)
def test_packed_rows_have_the_metrics_and_gradients_of_their_examples(
    params, objective, devices, micro_batches
):
    expected = compute(setting(SHALLOW, 1), objective, params, one_by_one())
    at = setting(SHALLOW, devices)
    got = compute(at, objective, params, side_by_side(), micro_batches=micro_batches)
    terms = {"mlm", "nsp"} if objective is MLM_NSP else {"mlm"}
    assert {name for name in expected[0] if name.endswith("_accuracy")} == {
        f"{term}_accuracy" for term in terms
    }
    assert_same(got, expected)


@pytest.mark.slow
def test_unpacked_rows_compile_to_a_step_that_knows_of_no_packing():
    def terms(bert, batch, dropout):
        seen = hide_padding(batch["input_mask"])
        hidden = bert.encode(EncoderRows(batch["input_ids"], batch["segment_ids"], seen, dropout))
        vectors = ops.gather_positions(hidden, batch["masked_lm_positions"])
        sums = [
            jnp.sum(each * batch["masked_lm_weights"])
            for each in bert.compute_target_losses(vectors, batch["masked_lm_ids"])
        ]
        mlm = Term(loss_sum=sums[0], correct_sum=sums[1])
        logits = bert.nsp(jnp.tanh(bert.pooler(hidden[:, 0]))).astype(jnp.float32)
        labels, weights = batch["next_sentence_labels"], batch["next_sentence_weights"]
        return {"mlm": mlm, "nsp": sum_term(logits, labels, weights)}

    at = setting(SHALLOW, 8)
    first = state.make_abstract_state(at.model, at.tx, at.where)

    def program(objective, config):
        batch = abstract_batch(config, SHALLOW.phases[0], at.mesh)
        taken = (at.model, objective, at.tx, at.config, at.config.phases[0], at.where)
        pace = schedule.Pace(np.float32(0), np.bool_(False))
        return step.make_train_step(*taken).lower(first, batch, pace).as_text()

    plain = Objective(weights=MLM_NSP.weights, terms=terms)
    assert program(MLM_NSP, SHALLOW) == program(plain, SHALLOW)
    packing = dataclasses.replace(SHALLOW, data=PretrainOptions(packed_examples=2))
    assert program(MLM_NSP, packing) != program(MLM_NSP, SHALLOW)


def test_a_batch_with_nothing_to_weigh_has_no_nan(params):
    batch = one_by_one()
    for name in ("masked_lm_weights", "next_sentence_weights"):
        batch[name] = np.zeros_like(batch[name])
    losses, grads = compute(setting(SHALLOW, 1), MLM_NSP, params, batch)
    assert losses["mlm_loss"] == losses["nsp_loss"] == losses["nsp_accuracy"] == 0.0
    assert all((leaf == 0.0).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
def test_mlm_alone_leaves_the_pooler_as_it_was_drawn():
    config = dataclasses.replace(
        SHALLOW, optim=OptimConfig(name="lamb", learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    )
    at = setting(config, 2)
    first = at.init_state()
    before = jax.tree.map(np.asarray, first.params)
    after = at.train_step(MLM)(first, mesh.place_batch(random_batch(), at.mesh))[0].params
    for part in before:
        same = all(
            np.array_equal(old, new)
            for old, new in zip(
                jax.tree.leaves(before[part]), jax.tree.leaves(after[part]), strict=True
            )
        )
        assert same == (part in ("pooler", "nsp")), part


def test_an_epoch_of_packed_rows_has_the_losses_of_its_examples(tiny_store):
    """The sampler's rows: the same examples with the same masks, whatever rows they share."""
    store = open_store(tiny_store)
    model = dataclasses.replace(SHALLOW.model, max_position_embeddings=64)
    at = setting(dataclasses.replace(SHALLOW, model=model), 1)
    weights = at.model.init(jax.random.key(1))
    sums = []
    for packed_examples in (1, 4):
        options = PretrainOptions(
            packed_examples=packed_examples, short_seq_prob=0.5, dupe_factor=1
        )
        source = open_examples(store, store.heldout, options, 64, 9)
        batch = source.rows(np.arange(source.rows_in_epoch(0)))
        assert ("example_ids" in batch) == (packed_examples > 1)
        seen = step.make_eval_step(at.model, MLM_NSP)(weights, mesh.place_batch(batch, at.mesh))
        sums.append(metrics.flatten(seen) | {"rows": len(batch["input_ids"])})
    alone, beside = sums
    assert beside.pop("rows") < 0.9 * alone.pop("rows")
    assert beside == pytest.approx(alone, rel=1e-5)
