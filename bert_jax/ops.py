"""Array functions without parameters, each with its layout named: the only einsum and lookup here.

Dimensions: B batch, S and T sequence, P predictions, D width, V vocabulary.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from bert_jax import mesh

DROPOUT_HASH_VERSION = 2  # of the masks in Dropout; raised with any change to their bits
Saved = tuple[jax.Array, ...]  # what a forward pass keeps for its backward pass


def weight(w: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """A weight ready for use: cast first, then gathered along fsdp, so that the gather is small."""
    cast = w.astype(dtype)
    in_use = mesh.gathered(jax.typeof(w).sharding.spec)
    return jax.sharding.reshard(cast, in_use)


def einsum(
    subscripts: str,
    x: jax.Array,
    y: jax.Array,
    out_axes: tuple[str | None, ...],
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """jnp.einsum of two arrays whose result lies as out_axes say; dtype is the result's."""
    return jnp.einsum(
        subscripts, x, y, out_sharding=mesh.spec(*out_axes), preferred_element_type=dtype
    )


def lookup(table_VD: jax.Array, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows of a table.

    Shapes: float32[V,D], int32[B,S] -> dtype[B,S,D]. The table is gathered whole first
    (docs/decisions/0006) and cast after the lookup: the gradients of a row that occurs thousands
    of times in a batch are then added up in float32.
    """
    whole = jax.sharding.reshard(table_VD, PartitionSpec(None, None))
    return whole.at[ids_BS].get(out_sharding=mesh.spec("batch", None, None)).astype(dtype)


def select_rows(table_VD: jax.Array, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """lookup for a table of very few rows; its gradient is a sum for each and no scatter."""
    rows = jax.sharding.reshard(table_VD, PartitionSpec(None, None))
    x_BSD = first_rows(rows[:1], (ids_BS.shape[0], 1), jnp.float32)
    for number in range(1, len(rows)):
        x_BSD = jnp.where((ids_BS == number)[..., None], rows[number], x_BSD)
    return x_BSD.astype(dtype)


def first_rows(table_VD: jax.Array, dims: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    """lookup of the ids 0, 1, 2, ... in each row of int32[B,S]; dims are (B, S)."""
    batch_size, seq_len = dims
    rows_SD = jax.sharding.reshard(table_VD, PartitionSpec(None, None))[:seq_len]
    shape = (batch_size, *rows_SD.shape)
    spread = jnp.broadcast_to(rows_SD, shape, out_sharding=mesh.spec("batch", None, None))
    return spread.astype(dtype)


def gather_positions(x_BSD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Pick the hidden vectors at some positions of each row, such as the masked ones.

    Shapes: float[B,S,D], int32[B,P] -> float[B,P,D]; dtype and batch sharding of x_BSD.
    Positions count from 0, the row's first [CLS]. Unused slots hold 0 and are cancelled by weights.

    Source: Devlin et al. 2019, section 3.1, task 1.
    """
    return jax.vmap(lambda x_SD, positions_P: x_SD[positions_P])(x_BSD, positions_BP)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(
    x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, eps: float, single_pass: bool = False
) -> jax.Array:
    """Layer normalisation over the last dimension, in float32; saves its input alone.

    Shapes: float[...,D], float[D], float[D] -> float[...,D] in the dtype of x. single_pass takes
    the variance as mean(x^2) - mean(x)^2, at least 0, which reads x once; its rounding is
    float32's times mean^2 / variance.
    Source: Ba et al. 2016; modeling.py@eedf5716ce layer_norm, eps 1e-12.
    """
    normalised = _normalised(x, eps, single_pass)[0]
    return (normalised * scale_D.astype(jnp.float32) + bias_D.astype(jnp.float32)).astype(x.dtype)


def _normalised(x: jax.Array, eps: float, single_pass: bool) -> tuple[jax.Array, jax.Array]:
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis=-1, keepdims=True)
    centred = x32 - mean
    if single_pass:
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        variance = jnp.maximum(mean_square - mean * mean, 0.0)
    else:
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    inverse_std = jax.lax.rsqrt(variance + eps)
    return centred * inverse_std, inverse_std


def _layer_norm_forward(
    x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, eps: float, single_pass: bool
) -> tuple[jax.Array, Saved]:
    return layer_norm(x, scale_D, bias_D, eps, single_pass), (x, scale_D, bias_D)


def _layer_norm_backward(eps: float, single_pass: bool, saved: Saved, dy: jax.Array) -> Saved:
    x, scale_D, bias_D = saved
    normalised, inverse_std = _normalised(x, eps, single_pass)
    dy32 = dy.astype(jnp.float32)
    dn = dy32 * scale_D.astype(jnp.float32)
    dx = inverse_std * (
        dn
        - jnp.mean(dn, axis=-1, keepdims=True)
        - normalised * jnp.mean(dn * normalised, axis=-1, keepdims=True)
    )
    rows = tuple(range(x.ndim - 1))
    dscale_D = jnp.sum(dy32 * normalised, axis=rows).astype(scale_D.dtype)
    return dx.astype(x.dtype), dscale_D, jnp.sum(dy32, axis=rows).astype(bias_D.dtype)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def gelu(x: jax.Array, hidden_act: str, saves_derivative: bool = False) -> jax.Array:
    """Gaussian error linear unit: "gelu_tanh" is Google BERT's approximation, "gelu_erf" exact.

    saves_derivative: the forward keeps dy/dx in the dtype of x and not x, so that the backward is
    one product instead of the function again.

    Source: Hendrycks and Gimpel 2016; modeling.py@eedf5716ce gelu.
    """
    if saves_derivative:
        return _gelu_saving(x, hidden_act)
    return jax.nn.gelu(x, approximate=hidden_act == "gelu_tanh")


def _gelu_and_derivative(x: jax.Array, hidden_act: str) -> Saved:
    x32 = x.astype(jnp.float32)
    if hidden_act == "gelu_tanh":
        slope = math.sqrt(2.0 / math.pi)
        tanh = jnp.tanh(slope * (x32 + 0.044715 * x32 * x32 * x32))
        share = 0.5 * (1.0 + tanh)
        dshare = 0.5 * (1.0 - tanh * tanh) * slope * (1.0 + 3.0 * 0.044715 * x32 * x32)
    else:
        share = 0.5 * (1.0 + jax.lax.erf(x32 * math.sqrt(0.5)))
        dshare = jnp.exp(-0.5 * x32 * x32) / math.sqrt(2.0 * math.pi)
    return (x32 * share).astype(x.dtype), (share + x32 * dshare).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gelu_saving(x: jax.Array, hidden_act: str) -> jax.Array:
    return _gelu_and_derivative(x, hidden_act)[0]


def _gelu_saving_forward(x: jax.Array, hidden_act: str) -> tuple[jax.Array, Saved]:
    y, derivative = _gelu_and_derivative(x, hidden_act)
    return y, (derivative,)


def _gelu_saving_backward(hidden_act: str, saved: Saved, dy: jax.Array) -> Saved:
    del hidden_act
    return (dy * saved[0],)


_gelu_saving.defvjp(_gelu_saving_forward, _gelu_saving_backward)


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

    def words(self, layer: int | jax.Array, site: int) -> tuple[jax.Array, jax.Array]:
        """The two words, uint32[B] each, from which the masks of one layer and site are hashed."""
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


def dropout_threshold(rate: float) -> int:
    """Values below it are dropped: the nearest 32-bit share to the rate."""
    return round(rate * 2**32)


def hashed_places(place: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """uint32 hash of each place in a row, uint32, with the row's two words broadcast against it.

    One word enters before and one after the first multiplication, which makes rows independent
    sequences; one word alone would make every row a window into the same sequence.
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
    return value >= jnp.int32(dropout_threshold(rate) - 2**31)


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
    scale = 1.0 / (1.0 - dropout_threshold(rate) / 2**32)
    keep = keep_mask(x, low_B, high_B, rate, shared_axis)
    # Scaled in float32: 1 / 0.9 in bfloat16 is 0.16% short.
    return jnp.where(keep, x.astype(jnp.float32) * scale, 0.0).astype(x.dtype)


def _dropped_forward(
    x: jax.Array, low_B: jax.Array, high_B: jax.Array, rate: float, shared_axis: int
) -> tuple[jax.Array, Saved]:
    return _dropped(x, low_B, high_B, rate, shared_axis), (low_B, high_B)


def _dropped_backward(
    rate: float, shared_axis: int, saved: Saved, dy: jax.Array
) -> tuple[Any, ...]:
    nothing = [np.zeros(word.shape, jax.dtypes.float0) for word in saved]
    return _dropped(dy, *saved, rate, shared_axis), *nothing


_dropped.defvjp(_dropped_forward, _dropped_backward)
