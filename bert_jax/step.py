"""One optimiser step and one evaluation step as compiled functions.

The step takes its dropout from its own number, adds gradients up over micro-batches, divides sums
by weights once, and gives its state's memory to the state it returns.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from bert_jax import mesh, ops
from bert_jax.config import Config, Phase
from bert_jax.models.bert import Model
from bert_jax.objectives import SMALLEST_WEIGHT, Batch, Objective, Term
from bert_jax.optim import schedule
from bert_jax.state import Layout, TrainState
from data_pipeline.schema import row_shape

Sums = dict[str, Any]


def _loss(
    model: Model,
    objective: Objective,
    params: Any,
    batch: Batch,
    weights: dict[str, jax.Array],
    dropout: ops.Dropout | None,
) -> tuple[jax.Array, dict[str, Term]]:
    terms = objective.terms(model.bind(params), batch, dropout)
    means = [term.loss_sum / weights[name] for name, term in terms.items()]
    return sum(means, start=jnp.zeros(())), terms


def _split(array: jax.Array, parts: int) -> jax.Array:
    """[B,...] -> [parts, B/parts, ...] without moving rows between devices.

    Each device deals its own rows out, so which rows meet in a micro-batch depends on the mesh;
    sums over micro-batches do not.
    """
    shards = mesh.batch_shards(jax.typeof(array).sharding.mesh)
    rest = array.shape[1:]
    whole = (None,) * len(rest)
    local = array.shape[0] // shards
    apart = jax.lax.reshape(
        array,
        (shards, parts, local // parts, *rest),
        out_sharding=PartitionSpec(mesh.BATCH_AXES, None, None, *whole),
    )
    return jax.lax.reshape(
        jnp.swapaxes(apart, 0, 1),
        (parts, array.shape[0] // parts, *rest),
        out_sharding=PartitionSpec(None, mesh.BATCH_AXES, *whole),
    )


def gradients(
    model: Model,
    objective: Objective,
    params: Any,
    batch: Batch,
    dropout: ops.Dropout | None,
    micro_batches: int = 1,
) -> tuple[Any, dict[str, Term], dict[str, jax.Array]]:
    """Gradient of the loss over the whole batch: (gradient tree, terms, weights)."""
    weights = {
        name: jnp.maximum(weight, SMALLEST_WEIGHT)
        for name, weight in objective.weights(batch).items()
    }
    grad = jax.grad(
        lambda params, batch, dropout: _loss(model, objective, params, batch, weights, dropout),
        has_aux=True,
    )
    if micro_batches == 1:
        tree, terms = grad(params, batch, dropout)
        return tree, terms, weights

    def add(total: Any, part: tuple[Batch, ops.Dropout | None]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, grad(params, *part)), None

    parts = jax.tree.map(lambda array: _split(array, micro_batches), dict(batch))
    if dropout is not None:
        everywhere = functools.partial(jnp.broadcast_to, shape=(micro_batches,))
        dropout = ops.Dropout(
            seed=everywhere(dropout.seed),
            step=everywhere(dropout.step),
            rows_B=_split(dropout.rows_B, micro_batches),
        )
    shapes = jax.eval_shape(grad, params, *jax.tree.map(lambda a: a[0], (parts, dropout)))
    zeros = jax.tree.map(
        lambda of: jnp.zeros(of.shape, of.dtype, out_sharding=of.sharding.spec), shapes
    )
    (tree, terms), _ = jax.lax.scan(add, zeros, (parts, dropout))
    return tree, terms, weights


def train_step(
    model: Model,
    objective: Objective,
    tx: optax.GradientTransformation,
    config: Config,
    phase: Phase,
    where: Layout,
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """The compiled step of a phase: (state, batch) -> (next state, sums), state donated.

    The sums are float32 scalars on the device: {"terms": {name: Term}, "weights": {name: ...},
    "grad_norm", "learning_rate"}; metrics.py turns them into numbers to read.
    """
    rate = schedule(config)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        dropout = ops.Dropout(
            seed=jnp.uint32(config.seed),
            step=state.step.astype(jnp.uint32),
            rows_B=ops.row_numbers(phase.batch_size),
        )
        grads, terms, weights = gradients(
            model, objective, state.params, batch, dropout, phase.micro_batches
        )
        grads = jax.tree.map(jax.sharding.reshard, grads, where.moments)
        params = jax.tree.map(jax.sharding.reshard, state.params, where.moments)
        direction, opt_state = tx.update(grads, state.opt_state, params)
        learning_rate = rate(state.step)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)
        params = jax.tree.map(jax.sharding.reshard, params, where.state.params)
        params |= {name: state.params[name] for name in objective.untrained}
        sums = {
            "terms": terms,
            "weights": weights,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": learning_rate,
        }
        return TrainState(state.step + 1, params, opt_state), sums

    return jax.jit(step, donate_argnums=0, out_shardings=(where.state, None))


def eval_step(model: Model, objective: Objective) -> Callable[[Any, Batch], Sums]:
    """The compiled evaluation of one batch without dropout: (params, batch) -> sums."""

    def step(params: Any, batch: Batch) -> Sums:
        weights = objective.weights(batch)
        return {
            "terms": objective.terms(model.bind(params), batch, None),
            "weights": weights,
        }

    return jax.jit(step)


def abstract_batch(config: Config, phase: Phase, of: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """A phase's global batch without its numbers: to compile for."""
    shape = row_shape(config.data, phase.seq_len, phase.max_predictions_per_seq)
    return {
        name: jax.ShapeDtypeStruct(dims, dtype, sharding=mesh.batch_sharding(of, len(dims)))
        for name, (dims, dtype) in shape.arrays(phase.batch_size).items()
    }
