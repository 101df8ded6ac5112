"""Make the jitted training step and evaluation step.

A training step seeds dropout with its step number, accumulates gradients over micro-batches,
divides sums by weights once, and donates the old state's memory to the new state.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from bert_jax.config import Phase, RunConfig
from bert_jax.model.bert import Bert, Model
from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.parallel import collectives, mesh
from bert_jax.train_step import guard, schedule
from bert_jax.train_step.objectives import MIN_WEIGHT, Ahead, Batch, Objective, Term
from bert_jax.train_step.schedule import Pace
from bert_jax.train_step.state import TrainState

Sums = dict[str, Any]
# Returns terms, and arrays with one row per row of the batch.
Compute = Callable[[Bert, Batch, Dropout | None], tuple[dict[str, Term], Batch]]
TEACHER_SCOPE = "of_the_teacher"  # names a teacher's operations, for kernel prices


@dataclasses.dataclass(frozen=True)
class Teacher:
    """Hold a frozen teacher: its model, and its sharded parameters."""

    model: Model
    params: Any


def _mean_loss(terms: dict[str, Term], weights: dict[str, jax.Array]) -> jax.Array:
    means = []
    for name, term in terms.items():
        mean = term.loss_sum / weights[name]
        means.append(mean if term.scale == 1.0 else term.scale * mean)
    return sum(means, start=jnp.zeros(()))


def _accumulate(
    grad: Callable[..., Any], params: Any, batch: Batch, dropout: Dropout | None, micro_batches: int
) -> Any:
    """Sum the results of grad over one device's rows, computed in micro-batches.

    The last result, arrays with one row per row of the batch, is concatenated instead.
    """
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
    *shapes, _ = jax.eval_shape(part, *jax.tree.map(lambda array: array[0], parts))
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, out_sharding=leaf.sharding.spec), shapes
    )

    def add(total: Any, rows: Any) -> Any:
        *sums, made = part(*rows)
        return jax.tree.map(jnp.add, total, sums), made

    total, made = jax.lax.scan(add, zeros, parts)
    return *total, jax.tree.map(lambda array: jax.lax.collapse(array, 0, 2), made)


@dataclasses.dataclass(frozen=True)
class StepLoss:
    """Hold what defines the loss of a step, and how its gradient is computed.

    Gradients of kernels and tables are exchanged in gradient_dtype, by default the matmul dtype.
    """

    model: Model
    objective: Objective
    dropout: Dropout | None = None
    micro_batches: int = 1
    gradient_dtype: jnp.dtype | None = None
    teacher: Teacher | None = None


def compute_gradients(
    step_loss: StepLoss, params: Any, batch: Batch
) -> tuple[Any, dict[str, Term], dict[str, jax.Array]]:
    """Compute the gradient of the loss over the global batch: (gradients, terms, weights).

    Gradients are sharded like the parameters. Each device sums gradients over its micro-batches,
    and devices exchange them once, at the end.
    """
    compute = _add_no_rows(step_loss.objective.terms)
    grads, terms, weights, _ = _differentiate(step_loss, compute, params, {}, batch)
    return grads, terms, weights


def _add_no_rows(terms: Callable[..., dict[str, Term]]) -> Compute:
    return lambda bert, batch, dropout: (terms(bert, batch, dropout), {})


def _differentiate(
    step_loss: StepLoss, compute: Compute, params: Any, fixed: Any, batch: Batch
) -> tuple[Any, dict[str, Term], dict[str, jax.Array], Batch]:
    """Compute the gradient with respect to `params`; the other parameters are `fixed`.

    `compute` returns the terms of the loss, and rows sharded like the batch, which are returned
    last. All else is as in compute_gradients.
    """
    model, objective, teacher = step_loss.model, step_loss.objective, step_loss.teacher
    matrix_dtype = step_loss.gradient_dtype or model.dtype
    specs, fixed_specs = collectives.specs(params), collectives.specs(fixed)
    exchanged = jax.tree.map(
        lambda parameter: matrix_dtype if parameter.is_matrix else jnp.dtype(jnp.float32),
        {name: model.declared[name] for name in params},
    )

    def compute_on_device(
        params: Any, fixed: Any, batch: Batch, dropout: Dropout | None, *frozen: Any
    ) -> tuple[Any, dict[str, Term], dict[str, jax.Array], Batch]:
        counted = collectives.sum_over_batch(objective.weights(batch))
        weights = {name: jnp.maximum(sum, MIN_WEIGHT) for name, sum in counted.items()}
        others = collectives.gather_params(fixed, fixed_specs, model.dtype)

        def loss(params: Any, batch: Batch, dropout: Dropout | None) -> tuple[jax.Array, Any]:
            terms, rows = compute(model.bind(params | others), batch, dropout)
            return _mean_loss(terms, weights), (terms, rows)

        whole = collectives.gather_params(params, specs, model.dtype)
        teach = _make_teach(objective, teacher, frozen)

        def grad(params: Any, batch: Batch, dropout: Dropout | None) -> Any:
            tree, (terms, rows) = jax.grad(loss, has_aux=True)(params, teach(batch), dropout)
            return tree, terms, rows

        tree, terms, rows = _accumulate(grad, whole, batch, dropout, step_loss.micro_batches)
        tree = collectives.reduce_scatter_grads(tree, specs, exchanged)
        return tree, collectives.sum_over_batch(terms), weights, rows

    out_specs = specs, PartitionSpec(), PartitionSpec(), mesh.spec("batch")
    frozen = () if teacher is None else (teacher.params,)
    arguments = params, fixed, dict(batch), step_loss.dropout, *frozen
    return collectives.map_over_batch(compute_on_device, arguments, out_specs)


def _differentiate_in_turn(
    step_loss: StepLoss,
    ahead: Ahead,
    update: Callable[[Any], tuple[Any, Any]],
    params: Any,
    batch: Batch,
) -> tuple[Any, dict[str, Term], dict[str, jax.Array]]:
    """Compute the gradient of one part of the model, then of the others after the part's update.

    update(gradients) returns all updated parameters, of which only the part's are read, and the
    optimizer's state.
    """
    first = {ahead.part: params[ahead.part]}
    others = {name: tree for name, tree in params.items() if name != ahead.part}
    grads, terms, weights, rows = _differentiate(step_loss, ahead.terms, first, others, batch)
    updated, _ = update(jax.tree.map(jnp.zeros_like, others) | grads)
    moved = {ahead.part: updated[ahead.part]}
    compute = _add_no_rows(ahead.other_terms)
    batch = {**batch, **rows}
    other_grads, other_terms, _, _ = _differentiate(step_loss, compute, others, moved, batch)
    return other_grads | grads, terms | other_terms, weights


def _make_teach(
    objective: Objective, teacher: Teacher | None, frozen: tuple[Any, ...]
) -> Callable[[Batch], Batch]:
    """Return a function that adds the teacher's outputs to a batch, inside map_over_batch.

    `frozen` holds this device's shards of the teacher's parameters.
    """
    if teacher is None or objective.teach is None:
        return lambda batch: batch
    teach, (parts,) = objective.teach, frozen
    whole = collectives.gather_params(parts, collectives.specs(teacher.params), teacher.model.dtype)
    bert = teacher.model.bind(whole)

    def add_outputs(batch: Batch) -> Batch:
        with jax.named_scope(TEACHER_SCOPE):
            return {**batch, **teach(bert, batch)}

    return add_outputs


def make_train_step(
    model: Model,
    objective: Objective,
    tx: optax.GradientTransformationExtraArgs,
    config: RunConfig,
    phase: Phase,
    shardings: TrainState,
    teacher: Model | None = None,
) -> jax.stages.Wrapped:
    """Make the jitted step of a phase: (state, batch, pace) -> (next state, sums), state donated.

    With a teacher it takes (state, batch, pace, the teacher's parameters).

    The sums are float32 scalars on the device: {"terms": {name: Term}, "weights": {name: ...},
    "grad_norm", "learning_rate", "guard": Verdict}; train_step/metrics.py computes means of them. A
    bad step changes only the step number.
    """
    setting = config.mesh.gradient_dtype
    gradient_dtype = None if setting == "auto" else jnp.dtype(setting)

    def step(state: TrainState, batch: Batch, pace: Pace, *frozen: Any) -> tuple[TrainState, Sums]:
        dropout = Dropout(
            seed=jnp.uint32(config.seed),
            step=state.step.astype(jnp.uint32),
            rows_B=number_rows(phase.batch_size),
        )
        rates = schedule.scale_rates(config.optim, state.params, pace.rate, state.step)

        def update(grads: Any, is_bad: jax.Array | bool = False) -> tuple[Any, Any]:
            direction, opt_state = tx.update(grads, state.opt_state, state.params, is_bad=is_bad)
            updated = jax.tree.map(lambda p, rate, d: p - rate * d, state.params, rates, direction)
            return updated, opt_state

        placed = None if teacher is None else Teacher(teacher, *frozen)
        step_loss = StepLoss(model, objective, dropout, phase.micro_batches, gradient_dtype, placed)
        if objective.ahead is None:
            grads, terms, weights = compute_gradients(step_loss, state.params, batch)
        else:
            grads, terms, weights = _differentiate_in_turn(
                step_loss, objective.ahead, update, state.params, batch
            )
        sums = {"terms": terms, "weights": weights, "grad_norm": optax.tree.norm(grads)}
        loss = _mean_loss(terms, weights)
        verdict, window = guard.judge(
            config.guard,
            state.guard,
            pace.starts_phase,
            loss,
            sums["grad_norm"],
            ([(term.loss_sum, term.correct_sum) for term in terms.values()], weights),
        )
        is_bad = verdict.is_bad > 0.0
        params, opt_state = update(grads, is_bad)
        params |= {name: state.params[name] for name in objective.untrained if name in params}
        params = guard.keep_old_if(is_bad, params, state.params)
        sums |= {"learning_rate": pace.rate, "guard": verdict}
        return TrainState(state.step + 1, params, opt_state, window), sums

    options = collectives.compiler_options(shardings.step.mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        out_shardings=(shardings, None),
        compiler_options=options or None,
    )


def make_eval_step(
    model: Model, objective: Objective, teacher: Model | None = None
) -> jax.stages.Wrapped:
    """Make the jitted evaluation of one batch without dropout: (params, batch) -> sums.

    With a teacher it takes (params, batch, the teacher's parameters).
    If the objective has outputs, the sums include the outputs of every row of the batch.
    """

    def step(params: Any, batch: Batch, *frozen: Any) -> Sums:
        specs = collectives.specs(params)
        placed = None if teacher is None else Teacher(teacher, *frozen)

        def compute_on_device(params: Any, batch: Batch, *frozen: Any) -> Sums:
            whole = collectives.gather_params(params, specs, model.dtype)
            batch = _make_teach(objective, placed, frozen)(batch)
            bert = model.bind(whole)
            terms, weights = objective.terms(bert, batch, None), objective.weights(batch)
            sums = collectives.sum_over_batch({"terms": terms, "weights": weights})
            if objective.outputs is not None:
                sums["outputs"] = collectives.all_gather_rows(objective.outputs(bert, batch))
            return sums

        arguments = params, dict(batch), *frozen
        return collectives.map_over_batch(compute_on_device, arguments, PartitionSpec())

    return jax.jit(step)
