"""Dropout by a counter hash: masks that are the same on every mesh and in the attention kernel."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import mesh

HASH_VERSION = 2  # of the masks in Dropout; raised with any change to their bits
Words = tuple[jax.Array, jax.Array]  # uint32[B] each: a mask is hashed from them and the place


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """What dropout masks are made from: (seed, step) and the number of each row in the whole batch.

    A mask is a hash of (seed, step, layer, site, row, place in the row) and of nothing else, so it
    is the same on every mesh and backend, and for every number of micro-batches.
    """

    seed: jax.Array  # uint32 []
    step: jax.Array  # uint32 []
    rows_B: jax.Array  # uint32 [B]

    def apply(
        self, x: jax.Array, rate: float, layer: int | jax.Array, site: int, shared_axis: int
    ) -> jax.Array:
        """Zero a share `rate` of x[B,...] and scale up the rest; layer and site pick the mask.

        Four elements along shared_axis, a quarter of its length apart, share one hash (keep_mask).
        """
        if rate == 0.0:
            return x
        return _dropped(x, *self.words(layer, site), rate, shared_axis)

    def words(self, layer: int | jax.Array, site: int) -> Words:
        """The two words from which the masks of one layer and site are hashed."""
        key = _mix(_mix(_mix(self.seed) ^ self.step) ^ jnp.uint32(layer * 64 + site))
        low_B = _mix(key ^ self.rows_B * jnp.uint32(0x9E3779B9))
        return low_B, _mix(low_B + jnp.uint32(0x85EBCA6B))


def row_numbers(batch_size: int) -> jax.Array:
    """uint32[B]: the number of each row of the global batch, laid out as the batch is."""
    return jax.lax.broadcasted_iota(jnp.uint32, (batch_size,), 0, out_sharding=mesh.spec("batch"))


def _mix(x: jax.Array) -> jax.Array:
    """A 32-bit finaliser (C. Wellons' lowbias32): every input bit reaches every output bit."""
    x = x.astype(jnp.uint32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def threshold(rate: float) -> int:
    """Values below it are dropped: the nearest 32-bit share to the rate."""
    return round(rate * 2**32)


def hashed_places(place: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """uint32 hash of each place in a row, uint32, with the row's two words broadcast against it.

    One word enters before and one after the first multiplication; one word alone would make every
    row a window into the same sequence. Two multiplications leave traces: at a rate of 0.1, over
    2 ** 16 places, masks at places that differ by the bits 0x8800 correlate by -0.011, those 30,720
    places apart by -0.007, and at 99.9% of all distances by less than 0.002 (docs/decisions/0017).
    """
    return hashed_folds(folded(place ^ low), high)


def folded(x: jax.Array) -> jax.Array:
    """The first step of hashed_places; that of x ^ y is that of x ^ that of y."""
    return x ^ (x >> 16)


def hashed_folds(x: jax.Array, high: jax.Array) -> jax.Array:
    """The other steps."""
    x = x * jnp.uint32(0x7FEB352D)
    x = ((x ^ (x >> 15)) + high) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def survives(word: jax.Array, quarter: jax.Array, rate: float) -> jax.Array:
    """bool: whether elements of these hashes and quarters (uint32, 0 to 3) are kept.

    An element's value is the hash rotated by 8 bits a quarter, for the second and third without the
    bits that come in from the right: a shift is one instruction and a rotation three. The shares
    that these two drop are so rounded up to 24 and 16 bits. Values are compared as signed numbers,
    for which a TPU has an instruction.
    """
    from_right = jnp.where(quarter == 3, word >> 8, jnp.uint32(0))
    value = jax.lax.bitcast_convert_type((word << (8 * quarter)) | from_right, jnp.int32)
    return value >= jnp.int32(threshold(rate) - 2**31)


def keep_mask(
    x: jax.Array, low_B: jax.Array, high_B: jax.Array, rate: float, shared_axis: int
) -> jax.Array:
    """bool, shaped and laid out as x[B,...]: which elements survive.

    shared_axis, of length n, is read as four quarters of ceil(n / 4) cells. The elements of a cell
    share its hash (see survives); two of them correlate by less than 0.002 at a rate of 0.1.
    A cell's place is its row-major index in x[0] with shared_axis cut to ceil(n / 4).
    """
    shape, spec = x.shape, jax.typeof(x).sharding.spec
    shared = shared_axis % len(shape)
    cells = -(-shape[shared] // 4)
    place = jnp.zeros(shape, jnp.uint32, out_sharding=spec)
    stride = 1
    for dim in range(len(shape) - 1, 0, -1):
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, dim, out_sharding=spec)
        if dim == shared:
            quarter, along = along // jnp.uint32(cells), along % jnp.uint32(cells)
        place = place + along * jnp.uint32(stride)
        stride *= cells if dim == shared else shape[dim]
    low, high = (jnp.expand_dims(word, range(1, len(shape))) for word in (low_B, high_B))
    return survives(hashed_places(place, low, high), quarter, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _dropped(
    x: jax.Array, low_B: jax.Array, high_B: jax.Array, rate: float, shared_axis: int
) -> jax.Array:
    scale = 1.0 / (1.0 - threshold(rate) / 2**32)
    keep = keep_mask(x, low_B, high_B, rate, shared_axis)
    # Scaled in float32: 1 / 0.9 in bfloat16 is 0.16% short.
    return jnp.where(keep, x.astype(jnp.float32) * scale, 0.0).astype(x.dtype)


def _dropped_forward(
    x: jax.Array, low_B: jax.Array, high_B: jax.Array, rate: float, shared_axis: int
) -> tuple[jax.Array, Words]:
    return _dropped(x, low_B, high_B, rate, shared_axis), (low_B, high_B)


def _dropped_backward(
    rate: float, shared_axis: int, words: Words, dy: jax.Array
) -> tuple[Any, ...]:
    nothing = [np.zeros(word.shape, jax.dtypes.float0) for word in words]
    return _dropped(dy, *words, rate, shared_axis), *nothing


_dropped.defvjp(_dropped_forward, _dropped_backward)
