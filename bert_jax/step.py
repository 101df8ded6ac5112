"""One optimiser step and one evaluation step as compiled functions.

The step takes its dropout from its own number, adds gradients up over micro-batches, divides sums
by weights once, and gives its state's memory to the state it returns.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from bert_jax import data_parallel, guard, layer_rates, mesh
from bert_jax.config import Config, MeshConfig, Phase, phase_start
from bert_jax.dropout import Dropout, row_numbers
from bert_jax.models.bert import Model
from bert_jax.objectives import SMALLEST_WEIGHT, Batch, Objective, Term
from bert_jax.optim import schedule
from bert_jax.run_config import RunConfig
from bert_jax.state import TrainState
from data_pipeline.schema import row_shape

Sums = dict[str, Any]


def _mean_loss(
    model: Model,
    objective: Objective,
    weights: dict[str, jax.Array],
    params: Any,
    batch: Batch,
    dropout: Dropout | None,
) -> tuple[jax.Array, dict[str, Term]]:
    terms = objective.terms(model.bind(params), batch, dropout)
    means = [term.loss_sum / weights[name] for name, term in terms.items()]
    return sum(means, start=jnp.zeros(())), terms


def _added_up(
    grad: Callable[..., Any],
    params: Any,
    batch: Batch,
    dropout: Dropout | None,
    micro_batches: int,
) -> Any:
    """What grad gives for one device's rows, computed in so many parts."""
    if micro_batches == 1:
        return grad(params, batch, dropout)

    def cut(array: jax.Array) -> jax.Array:
        rows, *rest = array.shape
        return jnp.reshape(array, (micro_batches, rows // micro_batches, *rest))

    def part(rows: Batch, rows_B: jax.Array | None) -> Any:
        if dropout is None or rows_B is None:
            return grad(params, rows, None)
        return grad(params, rows, dataclasses.replace(dropout, rows_B=rows_B))

    parts = jax.tree.map(cut, (dict(batch), None if dropout is None else dropout.rows_B))
    shapes = jax.eval_shape(part, *jax.tree.map(lambda array: array[0], parts))
    zeros = jax.tree.map(
        lambda of: jnp.zeros(of.shape, of.dtype, out_sharding=of.sharding.spec), shapes
    )
    total, _ = jax.lax.scan(
        lambda total, rows: (jax.tree.map(jnp.add, total, part(*rows)), None), zeros, parts
    )
    return total


def gradients(
    model: Model,
    objective: Objective,
    params: Any,
    batch: Batch,
    dropout: Dropout | None,
    micro_batches: int = 1,
    gradient_dtype: jnp.dtype | None = None,
) -> tuple[Any, dict[str, Term], dict[str, jax.Array]]:
    """Gradient of the loss over the whole batch: (gradient tree, terms, weights).

    The gradients lie as the parameters do. Each device adds its own up over its micro-batches, and
    devices exchange them once, at the end; kernels' and tables' in gradient_dtype, by default that
    of the matmuls.
    """
    specs = data_parallel.specs_of(params)
    exchanged = jax.tree.map(
        lambda of: (gradient_dtype or model.dtype) if of.is_matrix else jnp.dtype(jnp.float32),
        model.declared,
    )

    def on_a_device(
        params: Any, batch: Batch, dropout: Dropout | None
    ) -> tuple[Any, dict[str, Term], dict[str, jax.Array]]:
        counted = data_parallel.sums(objective.weights(batch))
        weights = {name: jnp.maximum(sum, SMALLEST_WEIGHT) for name, sum in counted.items()}
        whole = data_parallel.gathered(params, specs, model.dtype)
        grad = jax.grad(
            lambda *of_a_part: _mean_loss(model, objective, weights, *of_a_part), has_aux=True
        )
        tree, terms = _added_up(grad, whole, batch, dropout, micro_batches)
        tree = data_parallel.reduced(tree, specs, exchanged)
        return tree, data_parallel.sums(terms), weights

    everywhere = PartitionSpec()
    return data_parallel.over_batch(
        on_a_device, (params, dict(batch), dropout), (specs, everywhere, everywhere)
    )


def train_step(
    model: Model,
    objective: Objective,
    tx: optax.GradientTransformationExtraArgs,
    config: RunConfig,
    phase: Phase,
    where: TrainState,
) -> jax.stages.Wrapped:
    """The compiled step of a phase: (state, batch) -> (next state, sums), state donated.

    The sums are float32 scalars on the device: {"terms": {name: Term}, "weights": {name: ...},
    "grad_norm", "learning_rate", "guard": Verdict}; metrics.py turns them into numbers to read. A
    step that the guard calls bad changes nothing but the step's number.
    """
    rate = schedule(config)
    starts = np.array([phase_start(config, index) for index in range(len(config.phases))])
    gradient_dtype = gradients_exchanged_in(config.mesh)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        dropout = Dropout(
            seed=jnp.uint32(config.seed),
            step=state.step.astype(jnp.uint32),
            rows_B=row_numbers(phase.batch_size),
        )
        grads, terms, weights = gradients(
            model, objective, state.params, batch, dropout, phase.micro_batches, gradient_dtype
        )
        sums = {"terms": terms, "weights": weights, "grad_norm": optax.tree.norm(grads)}
        loss = sum(
            (term.loss_sum / weights[name] for name, term in terms.items()), start=jnp.zeros(())
        )
        verdict, window = guard.judge(
            config.guard,
            state.guard,
            jnp.any(state.step == starts),
            loss,
            sums["grad_norm"],
            (terms, weights),
        )
        is_bad = verdict.is_bad > 0.0
        direction, opt_state = tx.update(grads, state.opt_state, state.params, is_bad=is_bad)
        learning_rate = rate(state.step)
        rates = layer_rates.rates(config.optim, state.params, learning_rate, state.step)
        params = jax.tree.map(lambda p, rate, d: p - rate * d, state.params, rates, direction)
        params |= {name: state.params[name] for name in objective.untrained}
        params = guard.unless(is_bad, params, state.params)
        sums |= {"learning_rate": learning_rate, "guard": verdict}
        return TrainState(state.step + 1, params, opt_state, window), sums

    return jax.jit(step, donate_argnums=0, out_shardings=(where, None))


def gradients_exchanged_in(config: MeshConfig) -> jnp.dtype | None:
    """The dtype of config.mesh.gradient_dtype; None for that of the matmuls."""
    return None if config.gradient_dtype == "auto" else jnp.dtype(config.gradient_dtype)


def eval_step(model: Model, objective: Objective) -> jax.stages.Wrapped:
    """The compiled evaluation of one batch without dropout: (params, batch) -> sums.

    Where the objective has outputs, theirs for every row of the batch stand beside the sums.
    """

    def step(params: Any, batch: Batch) -> Sums:
        specs = data_parallel.specs_of(params)

        def on_a_device(params: Any, batch: Batch) -> Sums:
            whole = data_parallel.gathered(params, specs, model.dtype)
            bert = model.bind(whole)
            sums = {
                "terms": objective.terms(bert, batch, None),
                "weights": objective.weights(batch),
            }
            found = data_parallel.sums(sums)
            if objective.outputs is not None:
                found["outputs"] = data_parallel.rows_of_all(objective.outputs(bert, batch))
            return found

        return data_parallel.over_batch(on_a_device, (params, dict(batch)), PartitionSpec())

    return jax.jit(step)


def abstract_batch(config: Config, phase: Phase, of: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The global batch of a phase of pre-training without its numbers: to compile for."""
    shape = row_shape(config.data, phase.seq_len, phase.max_predictions_per_seq)
    return mesh.abstract_batch(shape.arrays(phase.batch_size), of)
