"""Compute losses and gradients of a batch on any mesh, with parameters drawn by NumPy."""

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
    """Draw a batch of EXAMPLES, each in a row of its own."""
    return random_batch(batch_size=EXAMPLES)


def side_by_side(batch=None):
    """Pack the examples of one_by_one, or of a batch, into half as many rows."""
    return packed_rows.side_by_side(one_by_one() if batch is None else batch, *ROW)


def masked_once(batch_size=16):
    """Draw a batch in which no position is masked twice, as in the sampler's rows."""
    batch, rng = random_batch(batch_size=batch_size), np.random.default_rng(5)
    for row in range(batch_size):
        drawn = np.sort(rng.choice(np.arange(1, 9), 5, replace=False)).astype(np.int32)
        batch["masked_lm_positions"][row] = drawn * (batch["masked_lm_weights"][row] > 0)
    return batch


def filled_up(batch, rows):
    """Return a batch with rows of [CLS] alone after its own, as the last held-out one has."""
    batch = {
        name: np.pad(array, [(0, rows - len(array)), *[(0, 0)] * (array.ndim - 1)])
        for name, array in batch.items()
    }
    batch["input_mask"][:, 0] = 1
    return batch


def rows_of(batch, ids=None):
    """Return the encoder's input for unpacked rows, with the batch's ids or others."""
    ids = batch["input_ids"] if ids is None else ids
    return EncoderRows(ids, batch["segment_ids"], hide_padding(batch["input_mask"]))


def restored(batch):
    """Return a batch's ids before masking, and the (rows, positions) that were masked."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    places = batch["masked_lm_positions"][row, slot]
    ids[row, places] = batch["masked_lm_ids"][row, slot]
    return ids, (row, places)


def draw(model, deviation=0.1, seed=3):
    """Draw parameters away from their initial values, at which heads and biases are near 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: np.float32(
            leaf.initial.constant + rng.normal(0, deviation, leaf.logical_dims)
        ),
        model.declared,
    )


def logical(tree, model):
    """Copy parameters or gradients to the host, without padded vocabulary rows."""
    return jax.tree.map(
        lambda leaf, of: np.asarray(leaf)[tuple(slice(0, size) for size in of.logical_dims)],
        tree,
        model.declared,
    )


def on_mesh(tree, at):
    """Pad vocabulary rows and place the arrays with the shardings of a Setting."""
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
    """Return a function (params, batch) -> metrics, gradients, compiled once per batch shape.

    teacher: a Setting and its parameters.
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
    """Return the metrics and gradients of one batch."""
    return computer(at, objective, drops, micro_batches, teacher)(params, batch)


def assert_same(got, expected):
    """Assert that two results of `compute` agree to float32."""
    for name, loss in expected[0].items():
        assert got[0][name] == pytest.approx(loss, rel=2e-6), name
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[1]))
    jax.tree.map(
        lambda g, e: np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-6 * largest),
        got[1],
        expected[1],
    )
