"""What the devices of the batch axes exchange: weights gathered, sums and gradients reduced, once.

Between the two each device computes on its own rows with whole weights, inside one shard_map that
is manual over the batch axes: nothing else of the model crosses devices along them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax import mesh

Tree = Any


def manual_axes() -> frozenset[str]:
    """The batch axes, and the model axis where it has one device.

    A kernel wants every axis to be manual; weights cut along a longer model axis stay in the types.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    return frozenset(mesh.BATCH_AXES) | {name for name, size in sizes.items() if size == 1}


def specs_of(tree: Tree) -> Tree:
    """Where each array lies, as its type says."""
    return jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, tree)


def over_batch(function: Callable[..., Any], args: tuple[Any, ...], out_specs: Any) -> Any:
    """Call function on each device's part of args; parts are as the arrays lie.

    out_specs is a prefix of the result's tree: PartitionSpec() says that all devices have the same.
    """
    axes = manual_axes()
    in_specs = jax.tree.map(lambda spec: mesh.only(spec, axes), specs_of(args))
    out_specs = jax.tree.map(lambda spec: mesh.only(spec, axes), out_specs)
    # Without vma checks a gradient is this device's own: nothing is reduced behind our back.
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes), check_vma=False
    )(*args)


def _exchanging() -> tuple[str, ...]:
    """The batch axes of several devices. Along another XLA for CPUs would copy what is summed."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return tuple(axis for axis in mesh.BATCH_AXES if sizes[axis] > 1)


def sums(tree: Tree) -> Tree:
    """Add up over all devices of the batch axes."""
    axes = _exchanging()
    return jax.lax.psum(tree, axes) if axes else tree


def rows_of_all(tree: Tree) -> Tree:
    """Put the rows of all devices of the batch axes together, in the batch's order."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, mesh.BATCH_AXES, tiled=True), tree)


def _cuts(spec: PartitionSpec) -> list[tuple[int, str]]:
    """(dimension, batch axis) of each cut along a batch axis."""
    axes = _exchanging()
    return [(dim, axis) for dim, axis in enumerate(spec) if axis in axes]


def gathered(params: Tree, specs: Tree, dtype: jnp.dtype) -> Tree:
    """Whole float32 weights from each device's part of those that are cut.

    They are sent in this dtype, that of the matmuls, which is all that is read of them; specs are
    those of the global arrays.
    """

    def whole(part: jax.Array, spec: PartitionSpec) -> jax.Array:
        cuts = _cuts(spec)
        sent = part.astype(dtype) if cuts else part
        for dim, axis in cuts:
            sent = jax.lax.all_gather(sent, axis, axis=dim, tiled=True)
        return sent.astype(part.dtype)

    return jax.tree.map(whole, params, specs)


def scattered(part: jax.Array, axis: str, dim: int) -> jax.Array:
    """The sum over an axis, of which device i keeps the i-th piece along dim.

    In two rounds, among devices that lie a stride apart and then among neighbours: columns and rows
    of a TPU slice. XLA makes a sum over a whole slice of v5e whole on every chip and throws most of
    it away, one over a row or a column not (docs/decisions/0023). Both send as much as one would.
    """
    size = jax.sharding.get_abstract_mesh().shape[axis]
    near = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    apart = [[far * near + i for far in range(size // near)] for i in range(near)]
    together = [[far * near + i for i in range(near)] for far in range(size // near)]
    for groups in (apart, together):
        if len(groups[0]) > 1:
            part = jax.lax.psum_scatter(
                part, axis, scatter_dimension=dim, axis_index_groups=groups, tiled=True
            )
    return part


def reduced(grads: Tree, specs: Tree, dtypes: Tree) -> Tree:
    """Gradients added up over the batch axes, each in its dtype; cut as specs say, in float32."""

    def total(grad: jax.Array, spec: PartitionSpec, dtype: jnp.dtype) -> jax.Array:
        cuts = _cuts(spec)
        part = grad.astype(dtype)
        for dim, axis in cuts:
            part = scattered(part, axis, dim)
        cut_along = [axis for _, axis in cuts]
        left = tuple(axis for axis in _exchanging() if axis not in cut_along)
        return (jax.lax.psum(part, left) if left else part).astype(grad.dtype)

    def total_of_each(grads: Tree) -> Tree:
        return jax.tree.map(total, grads, specs, dtypes)

    # jax 0.10 cannot lower psum_scatter of an array whose type names an axis: none may be left.
    left = set(mesh.AXES) - manual_axes()
    lies = jax.tree.map(lambda spec: mesh.only(spec, left), specs)
    return (
        jax.shard_map(
            total_of_each, in_specs=(lies,), out_specs=lies, axis_names=left, check_vma=False
        )(grads)
        if left
        else total_of_each(grads)
    )
