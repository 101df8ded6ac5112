"""Make the state of training and its shardings: step, parameters, moments, the guard's window."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.config import MeshConfig
from bert_jax.model.bert import Model
from bert_jax.model.layers import Declared
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step import guard

Tree = Any
_MIN_DIM = 8  # smallest dimension of a matrix that ZeRO-1 partitions: the rows of a TPU register


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Hold the training state; `step` counts finished optimizer steps over all phases."""

    step: Any  # int32 []
    params: Tree
    opt_state: Tree
    guard: Any  # guard.RecentSteps


def map_like_params(function: Callable[..., Any], tree: Tree, like: Tree) -> Tree:
    """Apply function(leaf, leaf of `like`) in every subtree of a state that is built like `like`.

    With parameters as `like`, these subtrees are the parameters and the optimizer's moments.
    Counters are unchanged, as are masked leaves of an optimizer that updates some parameters only.
    """
    structure: Any = jax.tree.structure(like)

    def has_structure(part: Any) -> bool:
        return bool(structure == jax.tree.structure(part, is_leaf=_is_masked))

    def apply(leaf: Any, like_leaf: Any) -> Any:
        return leaf if _is_masked(leaf) else function(leaf, like_leaf)

    return jax.tree.map(
        lambda part: (
            jax.tree.map(apply, part, like, is_leaf=_is_masked) if has_structure(part) else part
        ),
        tree,
        is_leaf=has_structure,
    )


def _is_masked(leaf: Any) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def make_shardings(
    model: Model, tx: optax.GradientTransformation, mesh: Mesh, config: MeshConfig
) -> TrainState:
    """Make a NamedSharding for each array of the state; moments are sharded like parameters.

    Presets with zero1 also partition kernels, tables and their moments over the data axis: each
    device updates its part, and a step gathers complete weights. Biases, norms and small matrices
    stay replicated, as gathering would cost more than updating them.
    """
    params = shard_params(model, mesh, config)
    whole = NamedSharding(mesh, PartitionSpec())
    shapes = _make_shapes(model, tx)
    opt_state = map_like_params(lambda _, sharding: sharding, shapes.opt_state, params)
    opt_state, window = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, NamedSharding) else whole, (opt_state, shapes.guard)
    )
    return TrainState(whole, params, opt_state, window)


def shard_params(model: Model, mesh: Mesh, config: MeshConfig) -> Tree:
    """Make a NamedSharding for each parameter of a model, as make_shardings does."""
    cut_over_data = "zero1" in mesh_lib.parse_preset(config)

    def shard(parameter: Declared) -> NamedSharding:
        is_cut = cut_over_data and parameter.is_matrix and min(parameter.dims) >= _MIN_DIM
        dims, spec = parameter.dims, parameter.spec
        spec = mesh_lib.shard_over_data(spec, dims, mesh.shape) if is_cut else spec
        return NamedSharding(mesh, spec)

    return jax.tree.map(shard, model.declared)


def _make_shapes(model: Model, tx: optax.GradientTransformation) -> TrainState:
    params = model.abstract_params
    return TrainState(
        jax.ShapeDtypeStruct((), jnp.int32),
        params,
        jax.eval_shape(tx.init, params),
        jax.eval_shape(guard.make_recent_steps),
    )


def init_state(
    model: Model, tx: optax.GradientTransformation, shardings: TrainState, seed: int
) -> TrainState:
    """Initialize the state before the first step, on the current mesh, from a seed."""
    return make_state(model.init(jax.random.key(seed)), tx, shardings)


def make_state(params: Tree, tx: optax.GradientTransformation, shardings: TrainState) -> TrainState:
    """Make the state before the first step from these parameters."""
    params = jax.device_put(params, shardings.params)
    opt_state = jax.jit(tx.init, out_shardings=shardings.opt_state)(params)
    step = jax.device_put(jnp.int32(0), shardings.step)
    return TrainState(
        step, params, opt_state, jax.device_put(guard.make_recent_steps(), shardings.guard)
    )


def make_abstract_state(
    model: Model, tx: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
    """Describe the state as jax.ShapeDtypeStructs with shardings, to restore or compile for."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        _make_shapes(model, tx),
        shardings,
    )
