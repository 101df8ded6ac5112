"""Exchange weights, sums and gradients between the devices of the batch axes, once per step.

Between exchanges each device computes on its own rows with unsharded weights, inside one shard_map
that is manual over the batch axes: nothing else of the model crosses devices along these axes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax.parallel import mesh, processes

Tree = Any
Path = tuple[Any, ...]  # leads to an array in a tree

V5E = "TPU v5 lite"
ALL_TO_ALL_CHIPS = {V5E: 16, "": 64}  # the most chips of a slice, by kind of device
JOINED = ("query", "key", "value")  # computed by one matmul, in this order
FIRST_LAYERS = 3  # layers whose gradients are sent after the word table's
# Options of v5e's compiler that overlap all-reduces and gathers with work (decision 23). Sums of
# less than a MiB are joined; matrices are not, as a joined sum waits for its last gradient.
ASYNC_ALL_REDUCE: dict[str, bool | int] = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_jf_crs_combiner_threshold_in_bytes": 1 << 20,
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
}


def manual_axes() -> frozenset[str]:
    """Return the batch axes, and the model axis where it has one device.

    A kernel requires every axis to be manual. A model axis of several devices is left out, because
    weights that are sharded along it keep the axis in their types.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    return frozenset(mesh.BATCH_AXES) | {name for name, size in sizes.items() if size == 1}


def specs(tree: Tree) -> Tree:
    """Return the PartitionSpec of each array, from its type."""
    return jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, tree)


def compiler_options(devices: mesh.AnyMesh) -> dict[str, bool | int]:
    """Return the XLA options to compile a step on this mesh."""
    if mesh.platform(devices) != "tpu":
        return {}
    if sums_pieces(devices):
        return {"xla_tpu_enable_async_all_to_all": True}
    return ASYNC_ALL_REDUCE if sums_unsharded(devices) else {}


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


def _find_shared_axes() -> tuple[str, ...]:
    """Return the batch axes with several devices; on CPU a psum over one device would copy."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return tuple(axis for axis in mesh.BATCH_AXES if sizes[axis] > 1)


def sum_over_batch(tree: Tree) -> Tree:
    """Sum over all devices of the batch axes."""
    axes = _find_shared_axes()
    return jax.lax.psum(tree, axes) if axes else tree


def all_gather_rows(tree: Tree) -> Tree:
    """Gather the rows of all devices of the batch axes, in the order of the batch."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, mesh.BATCH_AXES, tiled=True), tree)


def _list_cuts(spec: PartitionSpec) -> list[tuple[int, str]]:
    """Return (dimension, batch axis) for each dimension that is sharded along a batch axis."""
    axes = _find_shared_axes()
    return [(dim, axis) for dim, axis in enumerate(spec) if axis in axes]


def gather_params(params: Tree, specs: Tree, dtype: jnp.dtype) -> Tree:
    """Gather unsharded float32 weights from the shards of all devices.

    Shards are sent in `dtype`, the dtype of the matmuls, which use no more precision.
    `specs` are the PartitionSpecs of the global arrays.
    """

    def whole(part: jax.Array, spec: PartitionSpec) -> jax.Array:
        cuts = _list_cuts(spec)
        sent = part.astype(dtype) if cuts else part
        for dim, axis in cuts:
            sent = jax.lax.all_gather(sent, axis, axis=dim, tiled=True)
        return sent.astype(part.dtype)

    return jax.tree.map(whole, params, specs)


def sums_pieces(devices: mesh.AnyMesh) -> bool:
    """Return whether gradients on this mesh are summed by an all-to-all of their pieces.

    The TPU's compiler overlaps an all-to-all with the backward pass, but not a reduce-scatter
    (decision 23). v5e slices of more than 16 chips have no such all-to-all, and over many chips it
    overloads the links in the middle of a slice.
    """
    chips = devices.size // devices.shape["slice"]
    return chips <= ALL_TO_ALL_CHIPS.get(mesh.device_kind(devices), ALL_TO_ALL_CHIPS[""])


def sums_unsharded(devices: mesh.AnyMesh) -> bool:
    """Return whether gradients are summed by all-reduce, after which a device keeps its piece.

    Only v5e's compiler overlaps all-reduces with the backward pass; used if sums_pieces is False.
    """
    return not sums_pieces(devices) and mesh.device_kind(devices) == V5E


def reduce_scatter(part: jax.Array, axis: str, dim: int) -> jax.Array:
    """Sum over an axis; device i keeps the i-th piece along dim.

    Between CPU processes, or if `sums_unsharded`, this is an all-reduce; on GPUs a reduce-scatter;
    if `sums_pieces`, an all-to-all and local sums in float32; else reduce-scatters in rounds.
    All but the local sums add in the dtype of `part` (decision 23).
    """
    devices = jax.sharding.get_abstract_mesh()
    size, platform = devices.shape[axis], mesh.platform(devices)
    is_between_cpus = platform == "cpu" and processes.are_joined()
    if is_between_cpus or sums_unsharded(devices):
        piece = part.shape[dim] // size
        start = jax.lax.axis_index(axis) * piece
        return jax.lax.dynamic_slice_in_dim(jax.lax.psum(part, axis), start, piece, dim)
    if platform == "gpu":
        return jax.lax.psum_scatter(part, axis, scatter_dimension=dim, tiled=True)
    if sums_pieces(devices):
        received = jax.lax.all_to_all(part, axis, dim, dim, tiled=True)
        # XLA fuses these additions; a sum over a new dimension would be a reduction with copies.
        pieces = (piece.astype(jnp.float32) for piece in jnp.split(received, size, dim))
        return functools.reduce(jnp.add, pieces)
    return _reduce_scatter_in_rounds(part, axis, dim)


def _reduce_scatter_in_rounds(part: jax.Array, axis: str, dim: int) -> jax.Array:
    """Sum among devices a stride apart, then among neighbors: columns and rows of a TPU slice.

    For a sum over a complete slice of v5e, XLA computes the unsharded result on every chip and
    discards most of it; over a row or a column it does not. Two rounds send as many bytes as one.
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


def reduce_scatter_grads(grads: Tree, specs: Tree, dtypes: Tree) -> Tree:
    """Sum gradients over the batch axes, each in its dtype; return float32 shards by specs.

    Gradients of a layer's query, key and value kernels come from one matmul and are sent together.
    The largest array, the word table, is sent before the matrices of the first layers: all of these
    are complete only at the end of the backward pass, and in this order the longest transfer still
    overlaps with computation.
    """

    def scatter(part: jax.Array, spec: PartitionSpec) -> jax.Array:
        dtype = part.dtype
        for dim, axis in _list_cuts(spec):
            part = reduce_scatter(part.astype(dtype), axis, dim)
        return part

    def finish(part: jax.Array, spec: PartitionSpec, dtype: jnp.dtype) -> jax.Array:
        cut_along = [axis for _, axis in _list_cuts(spec)]
        left = tuple(axis for axis in _find_shared_axes() if axis not in cut_along)
        return (jax.lax.psum(part.astype(dtype), left) if left else part).astype(jnp.float32)

    def reduce_each(grads: Tree) -> Tree:
        leaves, tree = jax.tree.flatten_with_path(grads)
        cut, sent_in = jax.tree.leaves(specs), jax.tree.leaves(dtypes)
        paths = [path for path, _ in leaves]
        parts = [grad.astype(dtype) for (_, grad), dtype in zip(leaves, sent_in, strict=True)]
        longest = max(range(len(parts)), key=lambda i: parts[i].size)
        parts[longest] = scatter(parts[longest], cut[longest])
        for members in _group_transfers(paths, parts, cut):
            first = members[0]
            if first == longest or not _list_cuts(cut[first]):
                continue
            sent = [parts[i] for i in members]
            if _is_of_first_layers(paths[first]):
                sent, _ = jax.lax.optimization_barrier((sent, parts[longest]))
            joined_dim = 1 - _list_cuts(cut[first])[0][0]
            joined = sent[0] if len(sent) == 1 else jnp.concatenate(sent, joined_dim)
            pieces = jnp.split(scatter(joined, cut[first]), len(sent), joined_dim)
            for i, piece in zip(members, pieces, strict=True):
                parts[i] = piece
        return jax.tree.unflatten(tree, list(map(finish, parts, cut, sent_in)))

    # jax 0.10 cannot lower a collective of an array whose type names an axis: none may be left.
    left = set(mesh.AXES) - manual_axes()
    left_specs = jax.tree.map(lambda spec: mesh.restrict_spec(spec, left), specs)
    return (
        jax.shard_map(
            reduce_each,
            in_specs=(left_specs,),
            out_specs=left_specs,
            axis_names=left,
            check_vma=False,
        )(grads)
        if left
        else reduce_each(grads)
    )


def _is_of_first_layers(path: Path) -> bool:
    names = [key.key for key in path]
    return "layers" in names and int(names[names.index("layers") + 1]) < FIRST_LAYERS


def _group_transfers(
    paths: list[Path], parts: list[jax.Array], specs: list[PartitionSpec]
) -> list[list[int]]:
    """Return the indices of the arrays that each transfer sends."""
    transfers: dict[Any, list[int]] = {}
    for i, (path, part, spec) in enumerate(zip(paths, parts, specs, strict=True)):
        name = path[-2].key if len(path) > 1 else ""
        is_joined = name in JOINED and part.ndim == 2 and len(_list_cuts(spec)) == 1
        key = (path[:-2], part.shape, tuple(spec)) if is_joined else i
        transfers.setdefault(key, []).append(i)
    for members in transfers.values():
        if len(members) > 1:
            members.sort(key=lambda i: JOINED.index(paths[i][-2].key))
    return list(transfers.values())
