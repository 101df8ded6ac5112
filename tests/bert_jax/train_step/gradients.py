"""Losses and gradients of a batch on any mesh, with parameters that NumPy draws."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, step
from bert_jax.train_step.step import Teacher
from tests.bert_jax import packed_rows
from tests.bert_jax.tiny_models import SMALL, random_batch

# Without dropout, which is half of a step's program.
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PLAIN = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, **NO_DROPOUT))
EXAMPLES = 32
ROW = 59, 17, 3  # tokens, slots and examples: three of the longest examples, and some room


def one_by_one():
    """Examples with a row each."""
    return random_batch(batch_size=EXAMPLES)


def side_by_side(batch=None):
    """The same examples, or others, in half as many rows."""
    return packed_rows.side_by_side(one_by_one() if batch is None else batch, *ROW)


def masked_once(batch_size=16):
    """No masked position twice in a row, as the sampler makes them; all before the last token."""
    batch, rng = random_batch(batch_size=batch_size), np.random.default_rng(5)
    for row in range(batch_size):
        drawn = np.sort(rng.choice(np.arange(1, 9), 5, replace=False)).astype(np.int32)
        batch["masked_lm_positions"][row] = drawn * (batch["masked_lm_weights"][row] > 0)
    return batch


def rows_of(batch, ids=None):
    """What an encoder is given of unpacked rows, with ids of their own or others."""
    ids = batch["input_ids"] if ids is None else ids
    return EncoderRows(ids, batch["segment_ids"], hide_padding(batch["input_mask"]))


def restored(batch):
    """The ids of a batch before they were masked, and the rows and places of the masks."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    places = batch["masked_lm_positions"][row, slot]
    ids[row, places] = batch["masked_lm_ids"][row, slot]
    return ids, (row, places)


def draw(model, deviation=0.1, seed=3):
    """Draw parameters away from the start, where heads are near zero and biases at it."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: np.float32(
            leaf.initial.constant + rng.normal(0, deviation, leaf.logical_dims)
        ),
        model.declared,
    )


def logical(tree, model):
    """Copy to the host, without the padded vocabulary rows."""
    return jax.tree.map(
        lambda leaf, of: np.asarray(leaf)[tuple(slice(0, size) for size in of.logical_dims)],
        tree,
        model.declared,
    )


def on_mesh(tree, at):
    """Pad vocabulary rows and lay arrays out as the model says."""
    return jax.tree.map(
        lambda leaf, of, where: jax.device_put(
            np.pad(leaf, [(0, held - has) for held, has in zip(of.dims, leaf.shape, strict=True)]),
            where,
        ),
        tree,
        at.model.declared,
        at.where.params,
    )


def computer(at, objective, drops=False, micro_batches=1, teacher=None):
    """A function (params, batch) -> metrics and gradients, compiled once for batches of a shape.

    A teacher is a setting and parameters.
    """

    @jax.jit
    def run(params, taught, batch):
        rows = number_rows(len(batch["input_ids"]))
        dropout = Dropout(jax.numpy.uint32(3), jax.numpy.uint32(5), rows) if drops else None
        taught = Teacher(teacher[0].model, taught) if teacher else None
        step_loss = step.StepLoss(at.model, objective, dropout, micro_batches, teacher=taught)
        return step.compute_gradients(step_loss, params, batch)

    def compute_on(params, batch):
        jax.set_mesh(at.mesh)
        taught = on_mesh(teacher[1], teacher[0]) if teacher else None
        placed = mesh.place_batch(batch, at.mesh)
        grads, terms, weights = run(on_mesh(params, at), taught, placed)
        numbers = metrics.flatten({"terms": terms, "weights": weights})
        return metrics.compute_means(metrics.add_step({}, numbers)), logical(grads, at.model)

    return compute_on


def compute(at, objective, params, batch, drops=False, micro_batches=1, teacher=None):
    """Return the metrics and the gradients of a batch, of a program for this batch alone."""
    return computer(at, objective, drops, micro_batches, teacher)(params, batch)


def assert_same(got, expected):
    """Compare what `compute` returns."""
    for name, loss in expected[0].items():
        assert got[0][name] == pytest.approx(loss, rel=2e-6), name
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    jax.tree.map(
        lambda g, e: np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-6 * largest),
        got[1],
        expected[1],
    )
