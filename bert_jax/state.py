"""The state of training: step, parameters and optimiser state, and where each array lies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax import mesh as mesh_lib
from bert_jax.models.bert import Model

Tree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes. `step` counts finished optimiser steps over all phases."""

    step: Any  # int32 []
    params: Tree
    opt_state: Tree


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the state lies: trees of NamedSharding, structured as the state."""

    state: TrainState
    moments: Tree  # as the parameters: where gradients, moments and updates lie


def map_like_params(function: Callable[..., Any], tree: Tree, like: Tree) -> Tree:
    """Apply function(leaf, leaf of like) to every part of a state that is built as the parameters.

    Parameters and the moments of an optimiser are; counters are left as they are.
    """
    structure: Any = jax.tree.structure(like)

    def built_as_params(part: Any) -> bool:
        return bool(structure == jax.tree.structure(part))

    return jax.tree.map(
        lambda part: jax.tree.map(function, part, like) if built_as_params(part) else part,
        tree,
        is_leaf=built_as_params,
    )


def layout(
    model: Model, tx: optax.GradientTransformation, mesh: Mesh, cut_over_data: bool
) -> Layout:
    """Lay parameters out by their logical axes, and optimiser state as they are.

    cut_over_data (ZeRO-1) cuts moments over the data axis as well: gradients are then reduced to
    parts, each device updates its part, and the parts are gathered into whole parameters.
    """
    data_size = mesh.shape["data"]
    params = jax.tree.map(lambda spec: NamedSharding(mesh, spec), model.specs)
    moments = params
    if cut_over_data:
        moments = jax.tree.map(
            lambda leaf, of: NamedSharding(
                mesh, mesh_lib.over_data(of.spec, leaf.shape, data_size)
            ),
            model.abstract_params,
            params,
        )
    whole = NamedSharding(mesh, PartitionSpec())
    opt_state = map_like_params(
        lambda _, of: of, jax.eval_shape(tx.init, model.abstract_params), moments
    )
    opt_state = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, NamedSharding) else whole, opt_state
    )
    return Layout(state=TrainState(whole, params, opt_state), moments=moments)


def init(model: Model, tx: optax.GradientTransformation, where: Layout, seed: int) -> TrainState:
    """Make the state before the first step on the current mesh: a function of the seed."""
    params = model.init(jax.random.key(seed))
    opt_state = jax.jit(tx.init, out_shardings=where.state.opt_state)(params)
    step = jax.device_put(jnp.int32(0), where.state.step)
    return TrainState(step, params, opt_state)


def abstract(model: Model, tx: optax.GradientTransformation, where: Layout) -> TrainState:
    """The state as jax.ShapeDtypeStruct with shardings: to restore into, to compile for."""
    params = model.abstract_params
    shapes = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(tx.init, params)
    )
    return jax.tree.map(
        lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of),
        shapes,
        where.state,
    )
