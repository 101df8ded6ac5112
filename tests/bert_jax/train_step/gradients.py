"""Losses and gradients of a batch on any mesh, with parameters that NumPy draws."""

import jax
import numpy as np
import pytest

from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, step
from bert_jax.train_step.step import Teacher


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


def compute(at, objective, params, batch, drops=False, micro_batches=1, teacher=None):
    """Return the metrics and the gradients of a batch; a teacher is a setting and parameters."""

    def run(params, taught, batch):
        rows = number_rows(len(batch["input_ids"]))
        dropout = Dropout(jax.numpy.uint32(3), jax.numpy.uint32(5), rows) if drops else None
        taught = Teacher(teacher[0].model, taught) if teacher else None
        step_loss = step.StepLoss(at.model, objective, dropout, micro_batches, teacher=taught)
        return step.compute_gradients(step_loss, params, batch)

    taught = on_mesh(teacher[1], teacher[0]) if teacher else None
    placed = mesh.place_batch(batch, at.mesh)
    grads, terms, weights = jax.jit(run)(on_mesh(params, at), taught, placed)
    numbers = metrics.flatten({"terms": terms, "weights": weights})
    return metrics.compute_means(metrics.add_step({}, numbers)), logical(grads, at.model)


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
