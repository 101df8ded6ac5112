"""Apply dropout by a counter hash: masks are the same on every mesh and in the attention kernel.

Only plain attention and the TPU kernel drop attention weights; the kernel makes the same masks in
`_keep_masks` of attention/tpu_kernel.py. In training with a nonzero rate of attention dropout,
dispatch.py chooses no other implementation (_explain_plain_only).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.parallel import mesh

HASH_VERSION = 2  # version of the masks; incremented by any change to their bits
# Sites of dropout in a layer. The embeddings, the input of a task's layer, and the noise by which a
# generator samples tokens take the number after the last layer's.
ATTENTION_WEIGHTS, ATTENTION_OUTPUT, MLP_OUTPUT, CLASSIFIER_INPUT, SAMPLED_TOKENS = range(5)
DISTANCES = 5  # the table of disentangled attention, in every layer
# The axes along which elements share a hash: of hidden vectors [B,S,D] and of weights [B,H,S,T].
POSITIONS, KEYS = 1, 3
Words = tuple[jax.Array, jax.Array]  # uint32[B] each: a mask is hashed from them and the place


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Hold the inputs of the mask hash: (seed, step) and each row's number in the global batch.

    A mask depends only on (seed, step, layer, site, row, position in the row), so it is the same on
    every mesh and backend, and for any number of micro-batches.
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

    def for_generator(self) -> "Dropout":
        """Return the dropout of a second model of the same step, with masks of its own."""
        return dataclasses.replace(self, seed=_mix(self.seed ^ jnp.uint32(0x9E3779B9)))

    def words(self, layer: int | jax.Array, site: int) -> Words:
        """Return the two words from which the masks of one layer and site are hashed."""
        key = _mix(_mix(_mix(self.seed) ^ self.step) ^ jnp.uint32(layer * 64 + site))
        low_B = _mix(key ^ self.rows_B * jnp.uint32(0x9E3779B9))
        return low_B, _mix(low_B + jnp.uint32(0x85EBCA6B))


def drop_weights(
    dropout: Dropout | None, rate: float, layer: int | jax.Array
) -> Callable[[jax.Array], jax.Array]:
    """Return the dropout of a layer's attention weights[B,H,S,T], the identity for None."""
    if dropout is None:
        return lambda weights_BHST: weights_BHST
    return functools.partial(
        dropout.apply, rate=rate, layer=layer, site=ATTENTION_WEIGHTS, shared_axis=KEYS
    )


def number_rows(batch_size: int) -> jax.Array:
    """Return the row numbers of the global batch, from 0: uint32[B], sharded as the batch."""
    return jax.lax.broadcasted_iota(jnp.uint32, (batch_size,), 0, out_sharding=mesh.spec("batch"))


def _mix(x: jax.Array) -> jax.Array:
    """Mix 32 bits (C. Wellons' lowbias32): every input bit reaches every output bit."""
    return hash_folds(fold(x.astype(jnp.uint32)), jnp.uint32(0))


def threshold(rate: float) -> int:
    """Return the value below which hashes are dropped: the nearest 32-bit share to the rate."""
    return round(rate * 2**32)


def hash_places(place: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Hash each place in a row, uint32 -> uint32, with the row's two words broadcast against it.

    One word enters before and one after the first multiplication; one word alone would make every
    row a window into the same sequence. Two multiplications mix imperfectly: at a rate of 0.1, over
    2 ** 16 places, masks at places that differ by the bits 0x8800 correlate by -0.011, masks 30,720
    places apart by -0.007, and at 99.9% of all distances by less than 0.002 (decision 17).
    """
    return hash_folds(fold(place ^ low), high)


def fold(x: jax.Array) -> jax.Array:
    """Compute the first, linear step of hash_places: the fold of an xor is the xor of the folds."""
    return x ^ (x >> 16)


def hash_folds(x: jax.Array, high: jax.Array) -> jax.Array:
    """Compute the other steps of hash_places."""
    x = x * jnp.uint32(0x7FEB352D)
    x = ((x ^ (x >> 15)) + high) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def survives(word: jax.Array, quarter: jax.Array, rate: float) -> jax.Array:
    """Return whether elements with these hashes and quarters (uint32, 0 to 3) are kept.

    An element's value is the hash rotated by 8 bits per quarter. The second and third quarter use a
    shift, which is one instruction where a rotation is three; this rounds their drop rates up to 24
    and 16 bits.
    """
    from_right = jnp.where(quarter == 3, word >> 8, jnp.uint32(0))
    return are_kept((word << (8 * quarter)) | from_right, rate)


def are_kept(values: jax.Array, rate: float) -> jax.Array:
    """Return which elements are kept, from their values, uint32.

    They are compared as signed integers, for which a TPU has an instruction.
    """
    signed = jax.lax.bitcast_convert_type(values, jnp.int32)
    return signed >= jnp.int32(threshold(rate) - 2**31)


def keep_mask(
    x: jax.Array, low_B: jax.Array, high_B: jax.Array, rate: float, shared_axis: int
) -> jax.Array:
    """Make a bool array, shaped and sharded as x[B,...]: True for elements that are kept.

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
    return survives(hash_places(place, low, high), quarter, rate)


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
    return _dropped(dy, *words, rate, shared_axis), None, None


_dropped.defvjp(_dropped_forward, _dropped_backward)
