"""Remove the neurons that matter least from every feed-forward part, between two phases of a run.

A neuron is one of the F units of a feed-forward part: its columns of the maps to the units, the
gate's too, and its row of the map back. A neuron's importance is the square of the change of the
loss, to first order, if its output were 0, averaged over batches.

Source: Molchanov et al. 2019 (Importance Estimation for Neural Network Pruning), section 3: for a
group of weights that leave together, the sum of w dL/dw squared.

Dimensions: F neurons, D width.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bert_jax.finetuning.feed import TaskFeed
from bert_jax.model.bert import Model, Params
from bert_jax.model.layers import Declared
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step.objectives import Batch, Objective
from bert_jax.train_step.state import TrainState, map_like_params
from bert_jax.train_step.step import StepLoss, compute_gradients
from bert_jax.trainer.compile import StepParts

MAX_BATCHES = 32  # last batches before the removal, over which importance is averaged


def score_neurons(
    model: Model, objective: Objective, params: Params, batches: Iterable[Batch], parts: int = 1
) -> dict[str, np.ndarray]:
    """Return the importance of the neurons of each layer, by its name: float32[F].

    There is no dropout. `parts` is the number of micro-batches.
    """
    step_loss = StepLoss(model, objective, micro_batches=parts)

    @jax.jit
    def score(params: Params, batch: Batch) -> dict[str, jax.Array]:
        grads, _, _ = compute_gradients(step_loss, params, batch)

        def square(layer: Params, layer_grads: Params) -> jax.Array:
            w_FD, dw_FD = (each["mlp"]["output"]["kernel"] for each in (layer, layer_grads))
            return jax.sharding.reshard(jnp.square(jnp.sum(w_FD * dw_FD, axis=1)), PartitionSpec())

        layers = grads["layers"]
        return {name: square(layer, layers[name]) for name, layer in params["layers"].items()}

    scores = [jax.device_get(score(params, batch)) for batch in batches]
    return {name: np.mean([each[name] for each in scores], axis=0) for name in scores[0]}


def keep_neurons(
    state: TrainState, declared: Params, kept: Mapping[str, np.ndarray], shardings: TrainState
) -> TrainState:
    """Return the state, parameters and moments, with only the `kept` neurons of each layer.

    `declared` describes the parameters; `shardings` is the result's tree of shardings.
    """

    def make_cut(path: tuple[Any, ...], parameter: Declared) -> Callable[[jax.Array], jax.Array]:
        if "mlp" not in parameter.logical_axes:
            return lambda leaf: leaf
        axis, neurons = parameter.logical_axes.index("mlp"), kept[path[1].key]

        def cut(leaf: jax.Array) -> jax.Array:
            whole = jax.sharding.reshard(leaf, PartitionSpec(*[None] * leaf.ndim))
            return jnp.take(whole, neurons, axis=axis)

        return cut

    cuts = jax.tree_util.tree_map_with_path(make_cut, declared)
    shrink = jax.jit(
        lambda state: map_like_params(lambda leaf, cut: cut(leaf), state, cuts),
        out_shardings=shardings,
    )
    smaller: TrainState = shrink(state)
    return smaller


def make_resize(parts: StepParts, feed: TaskFeed) -> Callable[[TrainState, int], TrainState]:
    """Return Setup.resize: (state, index of a phase) -> the state with the phase's neurons.

    The neurons depend on the state and the examples alone, so a resumed run removes the same ones.
    """
    sizes = [model.config.intermediate_size for model in parts.models]

    def resize(state: TrainState, index: int) -> TrainState:
        first_layer = next(iter(state.params["layers"].values()))
        before = sizes.index(len(first_layer["mlp"]["output"]["kernel"]))
        if sizes[before] == sizes[index]:
            return state
        model, phase = parts.models[before], feed.config.phases[before]
        rows = mesh_lib.process_rows(phase.batch_size, parts.mesh)
        source = feed.train_batches(before, max(phase.steps - MAX_BATCHES, 0), rows)
        batches = (
            mesh_lib.place_batch_rows(batch, parts.mesh, phase.batch_size, rows)
            for batch in itertools.islice(source, MAX_BATCHES)
        )
        objective, micro_batches = parts.objectives[before], phase.micro_batches
        scores = score_neurons(model, objective, state.params, batches, micro_batches)
        kept = {name: choose_neurons(score_F, sizes[index]) for name, score_F in scores.items()}
        return keep_neurons(state, model.declared, kept, parts.shard_phase(index))

    return resize


def choose_neurons(score_F: np.ndarray, count: int) -> np.ndarray:
    """Return the numbers of the most important neurons, ascending; among equals, the first."""
    return np.sort(np.argsort(-score_F, kind="stable")[:count])
