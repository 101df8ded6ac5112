"""A fingerprint of each array of a state: 64 bits that change with any bit, and with no mesh.

Every element is hashed with its place in the whole array, and the hashes are summed as integers: a
sum that does not depend on its order, so neither on how the array is cut over devices.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

VERSION = 1  # raised with any change to the numbers that come out
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by bytes of an element

Dims = tuple[int, ...]


def _mix(x: jax.Array) -> jax.Array:
    """A permutation of the 32-bit words (C. Wellons' lowbias32): each bit in moves each bit out."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _bits(x: jax.Array) -> jax.Array:
    """uint32, shaped as x: the bits of each element."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


def _of_part(x: jax.Array, firsts: Sequence[jax.Array | int], dims: Dims) -> jax.Array:
    """uint32[2]: what the part of an array that begins at these indices adds to its sums.

    With p the row-major place of an element in dims, b its bits and w = mix(p + 0x9E3779B9), it
    adds a = mix(b ^ w) and mix(a + w), modulo 2**32: permutations of b, so the change of a single
    element always changes both.
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
def _by_device(x: jax.Array, dims: Dims) -> jax.Array:
    """uint32[one axis for each of the mesh's, 2]: what each device's part of an array adds.

    Of devices that hold the same part the first one counts.
    """
    of = jax.typeof(x).sharding
    axes = of.mesh.axis_names
    cut = [entry for entry in of.spec if entry is not None]
    named = {name for entry in cut for name in ((entry,) if isinstance(entry, str) else entry)}

    def on_a_device(part: jax.Array) -> jax.Array:
        spec = (*of.spec, *(None,) * (part.ndim - len(of.spec)))
        firsts = [
            0 if entry is None else jax.lax.axis_index(entry) * size
            for entry, size in zip(spec, part.shape, strict=True)
        ]
        counts = jnp.bool_(True)
        for name in axes:
            if name not in named:
                counts = counts & (jax.lax.axis_index(name) == 0)
        sums = _of_part(part, firsts, dims)
        return jnp.where(counts, sums, jnp.uint32(0)).reshape((1,) * len(axes) + (2,))

    return jax.shard_map(
        on_a_device, mesh=of.mesh, in_specs=of.spec, out_specs=PartitionSpec(*axes), check_vma=False
    )(x)


@jax.jit
def _added(by_device: list[jax.Array]) -> jax.Array:
    stacked = jnp.stack(by_device)
    return jnp.sum(stacked, axis=tuple(range(1, stacked.ndim - 1)), dtype=jnp.uint32)


def of_leaves(leaves: Sequence[jax.Array], dims: Sequence[Dims]) -> jax.Array:
    """uint32[leaves,2]: the fingerprints of arrays on one mesh, whole on every device.

    dims are the sizes of each array without the rows that pad it. Only gives work to the devices;
    nothing waits for it. One program for each shape and layout: one for all arrays takes minutes to
    compile. They exchange nothing: CPU devices stand still where hundreds of programs do.
    """
    return _added([_by_device(leaf, tuple(of)) for leaf, of in zip(leaves, dims, strict=True)])


def in_words(prints_L2: Any) -> list[str]:
    """Each fingerprint as 16 hexadecimal digits."""
    return [f"{int(first):08x}{int(second):08x}" for first, second in prints_L2]
