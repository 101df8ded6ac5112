"""Compute a fingerprint of each array of a state: 64 bits, the same on every mesh.

Every element is hashed with its position in the complete array, and the hashes are summed as
integers. The sum depends neither on its order nor on how the array is sharded.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

VERSION = 1  # incremented by any change to the resulting fingerprints
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # keys: bytes of an element

Dims = tuple[int, ...]


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


def compute(leaves: Sequence[jax.Array], dims: Sequence[Dims]) -> jax.Array:
    """Return the fingerprints of arrays on a mesh: uint32[leaves,2], replicated on every device.

    `dims` are the sizes of each array without padding rows. The call does not block. Each shape and
    sharding has its own program, as a single program for all arrays takes minutes to compile. These
    programs use no collectives, because hundreds of programs with collectives stall CPU devices.
    """
    return _sum_devices(
        [_sum_by_device(leaf, tuple(sizes)) for leaf, sizes in zip(leaves, dims, strict=True)]
    )


def to_hex(prints_L2: Any) -> list[str]:
    """Format each fingerprint as 16 hexadecimal digits."""
    return [f"{int(first):08x}{int(second):08x}" for first, second in prints_L2]
