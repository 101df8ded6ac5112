"""The state of training: step, parameters, optimiser state, the guard's window; where each lies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax import guard
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig
from bert_jax.models.bert import Declared, Model

Tree = Any
_FEWEST_ROWS = 8  # of a matrix that ZeRO-1 cuts: those of a TPU's register


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes. `step` counts finished optimiser steps over all phases."""

    step: Any  # int32 []
    params: Tree
    opt_state: Tree
    guard: Any  # the window of the guard of bad numbers


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
    model: Model, tx: optax.GradientTransformation, mesh: Mesh, config: MeshConfig
) -> TrainState:
    """Where the state lies, as a tree of NamedSharding: by logical axes, moments as parameters.

    zero1 in the preset cuts kernels and tables over the data axis as well, with their moments: each
    device updates its part, and a step gathers the parts into whole weights. Biases, norms and
    matrices of a few rows or columns stay whole: a gather would cost more than their update.
    """
    cut_over_data = "zero1" in mesh_lib.presets(config)

    def lies(of: Declared) -> NamedSharding:
        cut = cut_over_data and of.is_matrix and min(of.dims) >= _FEWEST_ROWS
        spec = mesh_lib.over_data(of.spec, of.dims, mesh.shape) if cut else of.spec
        return NamedSharding(mesh, spec)

    params = jax.tree.map(lies, model.declared)
    whole = NamedSharding(mesh, PartitionSpec())
    opt_state = map_like_params(
        lambda _, of: of, jax.eval_shape(tx.init, model.abstract_params), params
    )
    opt_state = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, NamedSharding) else whole, opt_state
    )
    return TrainState(
        whole, params, opt_state, jax.tree.map(lambda _: whole, jax.eval_shape(guard.fresh))
    )


def init(
    model: Model, tx: optax.GradientTransformation, where: TrainState, seed: int
) -> TrainState:
    """Make the state before the first step on the current mesh: a function of the seed."""
    return fresh(model.init(jax.random.key(seed)), tx, where)


def fresh(params: Tree, tx: optax.GradientTransformation, where: TrainState) -> TrainState:
    """The state before the first step that begins with these parameters."""
    params = jax.device_put(params, where.params)
    opt_state = jax.jit(tx.init, out_shardings=where.opt_state)(params)
    step = jax.device_put(jnp.int32(0), where.step)
    return TrainState(step, params, opt_state, jax.device_put(guard.fresh(), where.guard))


def abstract(model: Model, tx: optax.GradientTransformation, where: TrainState) -> TrainState:
    """The state as jax.ShapeDtypeStruct with shardings: to restore into, to compile for."""
    params = model.abstract_params
    shapes = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32),
        params,
        jax.eval_shape(tx.init, params),
        jax.eval_shape(guard.fresh),
    )
    return jax.tree.map(
        lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of),
        shapes,
        where,
    )
