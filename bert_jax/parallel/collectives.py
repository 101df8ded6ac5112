"""Exchange weights, sums and gradients between the devices of the batch axes, once a step.

In between each device computes on its own rows with unsharded weights, inside one shard_map that is
manual over the batch axes: nothing else of the model crosses devices along them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.parallel import mesh, processes

Tree = Any


def manual_axes() -> frozenset[str]:
    """Return the batch axes, and the model axis where it has one device.

    A kernel requires every axis to be manual; weights sharded along a longer model axis keep it in
    their types.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    return frozenset(mesh.BATCH_AXES) | {name for name, size in sizes.items() if size == 1}


def specs(tree: Tree) -> Tree:
    """Return the PartitionSpec of each array, from its type."""
    return jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, tree)


def map_over_batch(function: Callable[..., Any], args: tuple[Any, ...], out_specs: Any) -> Any:
    """Call function on each device's shard of args.

    out_specs is a prefix of the result's tree: PartitionSpec() where all devices return
    the same value.
    """
    axes = manual_axes()
    in_specs = jax.tree.map(lambda spec: mesh.restrict_spec(spec, axes), specs(args))
    out_specs = jax.tree.map(lambda spec: mesh.restrict_spec(spec, axes), out_specs)
    # Without vma checks a gradient is this device's own: shard_map reduces nothing by itself.
    return jax.shard_map(
        function, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes), check_vma=False
    )(*args)


def _exchanging() -> tuple[str, ...]:
    """Return the batch axes with more than one device; a psum over one would copy on XLA:CPU."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return tuple(axis for axis in mesh.BATCH_AXES if sizes[axis] > 1)


def sum_over_batch(tree: Tree) -> Tree:
    """Sum over all devices of the batch axes."""
    axes = _exchanging()
    return jax.lax.psum(tree, axes) if axes else tree


def all_gather_rows(tree: Tree) -> Tree:
    """Gather the rows of all devices of the batch axes, in the order of the batch."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, mesh.BATCH_AXES, tiled=True), tree)


def _cuts(spec: PartitionSpec) -> list[tuple[int, str]]:
    """Return (dimension, batch axis) for each dimension that is sharded along a batch axis."""
    axes = _exchanging()
    return [(dim, axis) for dim, axis in enumerate(spec) if axis in axes]


def gather_params(params: Tree, specs: Tree, dtype: jnp.dtype) -> Tree:
    """Gather unsharded float32 weights from the shards of all devices.

    They are sent in `dtype`, that of the matmuls, which use no more precision. specs are those of
    the global arrays.
    """

    def whole(part: jax.Array, spec: PartitionSpec) -> jax.Array:
        cuts = _cuts(spec)
        sent = part.astype(dtype) if cuts else part
        for dim, axis in cuts:
            sent = jax.lax.all_gather(sent, axis, axis=dim, tiled=True)
        return sent.astype(part.dtype)

    return jax.tree.map(whole, params, specs)


def reduce_scatter(part: jax.Array, axis: str, dim: int) -> jax.Array:
    """Sum over an axis; device i keeps the i-th piece along dim.

    In two rounds, among devices a stride apart and then among neighbours: columns and rows of a TPU
    slice. For a sum over a complete slice of v5e XLA makes the unsharded result on every chip and
    discards most of it; over a row or a column it does not (decision 23). Two rounds send as many
    bytes as one. Between CPU processes it is a sum of which each keeps its piece (decision 23).
    """
    size = jax.sharding.get_abstract_mesh().shape[axis]
    if jax.default_backend() == "cpu" and processes.are_joined():
        piece = part.shape[dim] // size
        start = jax.lax.axis_index(axis) * piece
        return jax.lax.dynamic_slice_in_dim(jax.lax.psum(part, axis), start, piece, dim)
    near = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)
    apart = [[far * near + i for far in range(size // near)] for i in range(near)]
    together = [[far * near + i for i in range(near)] for far in range(size // near)]
    for groups in (apart, together):
        if len(groups[0]) > 1:
            part = jax.lax.psum_scatter(
                part, axis, scatter_dimension=dim, axis_index_groups=groups, tiled=True
            )
    return part


def reduce_scatter_grads(grads: Tree, specs: Tree, dtypes: Tree) -> Tree:
    """Sum gradients over the batch axes, each in its dtype; return float32 shards by specs."""

    def total(grad: jax.Array, spec: PartitionSpec, dtype: jnp.dtype) -> jax.Array:
        cuts = _cuts(spec)
        part = grad.astype(dtype)
        for dim, axis in cuts:
            part = reduce_scatter(part, axis, dim)
        cut_along = [axis for _, axis in cuts]
        left = tuple(axis for axis in _exchanging() if axis not in cut_along)
        return (jax.lax.psum(part, left) if left else part).astype(grad.dtype)

    def total_of_each(grads: Tree) -> Tree:
        return jax.tree.map(total, grads, specs, dtypes)

    # jax 0.10 cannot lower psum_scatter of an array whose type names an axis: none may be left.
    left = set(mesh.AXES) - manual_axes()
    lies = jax.tree.map(lambda spec: mesh.restrict_spec(spec, left), specs)
    return (
        jax.shard_map(
            total_of_each, in_specs=(lies,), out_specs=lies, axis_names=left, check_vma=False
        )(grads)
        if left
        else total_of_each(grads)
    )
