"""Convert a state between memory and checkpoint: drop padding, name arrays, fingerprint them.

A fingerprint has 64 bits and is the same on every mesh. Every element is hashed with its position
in the complete array, and the hashes are summed as integers: the sum depends neither on its order
nor on how the array is sharded.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import PartitionSpec

from bert_jax.model.layers import Declared
from data_pipeline.io import Refused

FINGERPRINTS = 1  # incremented by any change to the resulting fingerprints
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # keys: bytes of an element

Dims = tuple[int, ...]


def get_unpadded_spec(declared: Declared) -> PartitionSpec:
    """Return the sharding of a leaf without its padding rows: padded dimensions are unsharded."""
    return PartitionSpec(
        *(
            None if dim != size else axis
            for dim, size, axis in zip(
                declared.dims, declared.logical_dims, declared.spec, strict=True
            )
        )
    )


def remove_padding(leaf: jax.Array, declared: Declared) -> jax.Array:
    """Remove the padding rows of a leaf, as checkpoints store it."""
    if declared.dims == declared.logical_dims:
        return leaf
    unsharded = jax.sharding.reshard(leaf, get_unpadded_spec(declared))
    return unsharded[tuple(slice(0, size) for size in declared.logical_dims)]


def add_padding(leaf: jax.Array, declared: Declared) -> jax.Array:
    """Pad a leaf from a checkpoint with rows of zeros to its size in memory."""
    if declared.dims == declared.logical_dims:
        return leaf
    return jnp.pad(
        leaf,
        [(0, dim - size) for dim, size in zip(declared.dims, declared.logical_dims, strict=True)],
    )


def describe_unpadded(leaf: Any, declared: Declared) -> jax.ShapeDtypeStruct:
    """Return sizes, dtype and sharding of a leaf in a checkpoint; padded dimensions unsharded."""
    is_padded = declared.dims != declared.logical_dims
    spec = get_unpadded_spec(declared) if is_padded else leaf.sharding.spec
    sharding = jax.NamedSharding(leaf.sharding.mesh, spec)
    dims = declared.logical_dims if is_padded else leaf.shape  # a phase may have other sizes
    return jax.ShapeDtypeStruct(dims, leaf.dtype, sharding=sharding)


def name_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by path, such as layers/00/mlp/output/kernel."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def describe_kinds(unpadded: Any) -> dict[str, str]:
    """Return the dtype and sizes of each leaf by path, such as float32[211,32]."""
    return {
        name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in name_leaves(unpadded).items()
    }


def _mix(x: jax.Array) -> jax.Array:
    """Hash 32-bit words bijectively (C. Wellons' lowbias32): input bits affect all output bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _bits(x: jax.Array) -> jax.Array:
    """Return the bits of each element: uint32, shaped as x."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


def _sum_part(x: jax.Array, firsts: Sequence[jax.Array | int], dims: Dims) -> jax.Array:
    """Sum the hashes of a part of an array, uint32[2]; `firsts` are the part's start indices.

    For an element with bits b at row-major position p in dims, let w = mix(p + 0x9E3779B9) and
    a = mix(b ^ w). The two sums add a and mix(a + w), modulo 2**32. Both are bijections of b, so
    changing a single element always changes both sums.
    """
    place, is_padding = jnp.uint32(0), jnp.bool_(False)
    for dim, size in enumerate(dims):
        along = jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
        along = along + jnp.asarray(firsts[dim], jnp.uint32)
        place = place + along * jnp.uint32(math.prod(dims[dim + 1 :]) % 2**32)
        is_padding = is_padding | (along >= jnp.uint32(size))
    word = _mix(place + jnp.uint32(0x9E3779B9))
    first = _mix(_bits(x) ^ word)
    second = _mix(first + word)
    return jnp.stack(
        [
            jnp.sum(jnp.where(is_padding, jnp.uint32(0), hashes), dtype=jnp.uint32)
            for hashes in (first, second)
        ]
    )


@functools.partial(jax.jit, static_argnums=1)
def _sum_by_device(x: jax.Array, dims: Dims) -> jax.Array:
    """Return each device's contribution to an array's sums: uint32[one axis per mesh axis, 2].

    Among devices that hold the same part, only the first contributes.
    """
    sharding = jax.typeof(x).sharding
    axes = sharding.mesh.axis_names
    sharded = set(jax.tree.leaves(tuple(sharding.spec)))  # a dimension has an axis, several or none

    def sum_shard(part: jax.Array) -> jax.Array:
        spec = (*sharding.spec, *(None,) * (part.ndim - len(sharding.spec)))
        firsts = [
            0 if entry is None else jax.lax.axis_index(entry) * size
            for entry, size in zip(spec, part.shape, strict=True)
        ]
        is_counted = jnp.bool_(True)
        for name in axes:
            if name not in sharded:
                is_counted = is_counted & (jax.lax.axis_index(name) == 0)
        sums = _sum_part(part, firsts, dims)
        return jnp.where(is_counted, sums, jnp.uint32(0)).reshape((1,) * len(axes) + (2,))

    return jax.shard_map(
        sum_shard,
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=PartitionSpec(*axes),
        check_vma=False,
    )(x)


@jax.jit
def _sum_devices(by_device: list[jax.Array]) -> jax.Array:
    stacked = jnp.stack(by_device)
    return jnp.sum(stacked, axis=tuple(range(1, stacked.ndim - 1)), dtype=jnp.uint32)


def compute_fingerprints(tree: Any, unpadded: Any) -> jax.Array:
    """Return the fingerprints of a tree of arrays on a mesh: uint32[leaves,2], on every device.

    `unpadded` has the sizes of each array without padding. The call does not block. Each shape and
    sharding has its own program, as a single program for all arrays takes minutes to compile. These
    programs use no collectives, because hundreds of programs with collectives stall CPU devices.
    """
    dims = [leaf.shape for leaf in jax.tree.leaves(unpadded)]
    leaves = jax.tree.leaves(tree)
    return _sum_devices([_sum_by_device(x, sizes) for x, sizes in zip(leaves, dims, strict=True)])


def to_hex(prints_L2: Any) -> list[str]:
    """Format each fingerprint as 16 hexadecimal digits."""
    return [f"{int(first):08x}{int(second):08x}" for first, second in prints_L2]


def check_arrays(checkpoint: epath.Path, receipt: Mapping[str, Any], unpadded: Any) -> None:
    """Check that the arrays of a checkpoint have the names, dtypes and sizes of `unpadded`.

    Raises:
      Refused: an array differs (the first is named), or the fingerprints have another version.
    """
    # Names with dtype and sizes, as in float32[211,32]; in the receipt a fingerprint follows.
    saved = {name: text.partition(" ")[0] for name, text in receipt["leaves"].items()}
    expected = describe_kinds(unpadded)
    differing = (name for name in [*expected, *saved] if saved.get(name) != expected.get(name))
    problem = ""
    if name := next(differing, ""):
        ours = "which this bert_jax does not have"
        if name in expected:
            ours = f"but this bert_jax has it as {expected[name]}"
        problem = f"holds {name} as {saved.get(name, 'nothing')}, {ours}"
    if receipt["fingerprints"] != FINGERPRINTS:
        problem = f"has fingerprints of version {receipt['fingerprints']}, not {FINGERPRINTS}"
    if problem:
        raise Refused(
            f"{checkpoint} {problem}; use the version that wrote it, or train in a new --workdir"
        )


def describe_damage(
    checkpoint: epath.Path, restored: Any, unpadded: Any, leaves: Mapping[str, str]
) -> str:
    """Describe the restored arrays whose fingerprints differ from the saved ones; "" if none."""
    digests = to_hex(np.asarray(compute_fingerprints(restored, unpadded)))
    differing = [
        name
        for name, digest in zip(name_leaves(unpadded), digests, strict=True)
        if leaves[name].partition(" ")[2] != digest
    ]
    if not differing:
        return ""
    more = f" and {len(differing) - 1} more arrays are" if len(differing) > 1 else " is"
    return f"{checkpoint}: {differing[0]}{more} not what was saved"
