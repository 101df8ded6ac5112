"""Compute array functions without parameters, with named layouts: every einsum and lookup is here.

Dimensions: B batch, S and T sequence, P predictions, D and E width, V vocabulary, U cells of an
LSTM.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from bert_jax.parallel import mesh

Saved = tuple[jax.Array, ...]  # what a forward pass keeps for its backward pass
_MAX_INT8 = 127  # -128 is not used, so that the range is symmetric
_MIN_SCALE = float(np.finfo(np.float32).tiny)  # scale of a vector of zeros


def gather_weight(w: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Cast a weight before gathering it along fsdp, so that devices send the smaller dtype."""
    axes = (None if axis == "fsdp" else axis for axis in jax.typeof(w).sharding.spec)
    return jax.sharding.reshard(w.astype(dtype), PartitionSpec(*axes))


def einsum(
    subscripts: str,
    x: jax.Array,
    y: jax.Array,
    out_axes: tuple[str | None, ...],
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Compute jnp.einsum of two arrays with a result sharded by out_axes; dtype is the result's."""
    return jnp.einsum(
        subscripts, x, y, out_sharding=mesh.spec(*out_axes), preferred_element_type=dtype
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _multiply_float(x: jax.Array, kernel_DE: jax.Array, out_axis: str | None) -> jax.Array:
    """Multiply the last dimension of x by a matrix: float[B,D] or float[B,S,D] to [B,E], [B,S,E].

    In the kernel's gradient the narrower array is the first operand, which a CPU transposes. jax's
    own rule puts dy first, so that the computation of dy runs in the transposed order too.
    """
    rows = "bs"[: x.ndim - 1]
    out_axes = (*("batch", None)[: len(rows)], out_axis)
    return einsum(f"{rows}d,de->{rows}e", x, kernel_DE, out_axes)


def _multiply_forward(
    x: jax.Array, kernel_DE: jax.Array, out_axis: str | None
) -> tuple[jax.Array, Saved]:
    return _multiply_float(x, kernel_DE, out_axis), (x, kernel_DE)


def _multiply_backward(_: str | None, saved: Saved, dy: jax.Array) -> Saved:
    x, kernel_DE = saved
    rows = "bs"[: x.ndim - 1]
    dx = jnp.einsum(f"{rows}e,de->{rows}d", dy, kernel_DE, out_sharding=jax.typeof(x).sharding)
    in_axis, out_axis = jax.typeof(kernel_DE).sharding.spec
    if x.shape[-1] <= dy.shape[-1]:
        sharding = PartitionSpec(in_axis, out_axis)
        return dx, jnp.einsum(f"{rows}d,{rows}e->de", x, dy, out_sharding=sharding)
    sharding = PartitionSpec(out_axis, in_axis)
    return dx, jnp.einsum(f"{rows}e,{rows}d->ed", dy, x, out_sharding=sharding).T


_multiply_float.defvjp(_multiply_forward, _multiply_backward)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Kernel:
    """Hold a kernel as int8 numbers from -127 to 127, with the scale of each output channel."""

    numbers_DE: jax.Array  # int8
    scale_E: jax.Array  # float32

    def __getitem__(self, key: Any) -> jax.Array:
        """Return the selected weights in float32, for code without an int8 path."""
        return (self.numbers_DE.astype(jnp.float32) * self.scale_E)[key]


Kernel = jax.Array | Int8Kernel


def quantize(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Return int8 numbers and their scale along an axis: x is about numbers * scale.

    Source: Dettmers et al. 2022 (LLM.int8()), section 2.1, absmax quantization, by rows of
    activations and columns of weights as in section 3.1; without outliers in 16 bits.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    scale = jnp.maximum(largest, _MIN_SCALE * _MAX_INT8) / _MAX_INT8
    return jnp.round(x / scale).astype(jnp.int8), scale


def multiply(x: jax.Array, kernel: Kernel, out_axis: str | None) -> jax.Array:
    """Compute x @ kernel, float[B,D] or float[B,S,D] -> float[B,E] or [B,S,E], in the dtype of x.

    With an Int8Kernel the vector of each token becomes int8 numbers too, and sums are int32.
    """
    if not isinstance(kernel, Int8Kernel):
        return _multiply_float(x, kernel, out_axis)
    rows = "bs"[: x.ndim - 1]
    out_axes = (*("batch", None)[: len(rows)], out_axis)
    numbers, scale = quantize(x, axis=-1)
    sums = einsum(f"{rows}d,de->{rows}e", numbers, kernel.numbers_DE, out_axes, jnp.int32)
    return (sums.astype(jnp.float32) * scale * kernel.scale_E).astype(x.dtype)


def lookup(table_VD: jax.Array, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up rows of a table.

    Shapes: float32[V,D], int32[B,S] -> dtype[B,S,D]. The complete table is gathered first
    (decision 6) and cast after the lookup: the gradients of a row that occurs thousands
    of times in a batch are then added up in float32.
    """
    whole = _fence_gradient(jax.sharding.reshard(table_VD, PartitionSpec(None, None)))
    return whole.at[ids_BS].get(out_sharding=mesh.spec("batch", None, None)).astype(dtype)


@jax.custom_vjp
def _fence_gradient(x: jax.Array) -> jax.Array:
    """Return x; XLA fuses nothing across its gradient."""
    return x


_fence_gradient.defvjp(
    lambda x: (x, None), lambda _, gradient: (jax.lax.optimization_barrier(gradient),)
)


def select_rows(table_VD: jax.Array, ids_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up rows of a very small table; the gradient is a sum per row, not a scatter."""
    rows = jax.sharding.reshard(table_VD, PartitionSpec(None, None))
    x_BSD = take_first_rows(rows[:1], (ids_BS.shape[0], 1), jnp.float32)
    for number in range(1, len(rows)):
        x_BSD = jnp.where((ids_BS == number)[..., None], rows[number], x_BSD)
    return x_BSD.astype(dtype)


def take_first_rows(table_VD: jax.Array, dims: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Look up the ids 0, 1, 2, ... for each row of a batch; dims are (B, S)."""
    batch_size, seq_len = dims
    rows_SD = jax.sharding.reshard(table_VD, PartitionSpec(None, None))[:seq_len]
    shape = (batch_size, *rows_SD.shape)
    spread = jnp.broadcast_to(rows_SD, shape, out_sharding=mesh.spec("batch", None, None))
    return spread.astype(dtype)


def average_examples(x_BSD: jax.Array, example_ids_BS: jax.Array, examples: int) -> jax.Array:
    """Average the vectors of each example of a row; zeros where a row has no such example.

    Shapes: float[B,S,D], int32[B,S] -> float[B,N,D]; dtype and batch sharding of x_BSD. Examples
    are numbered from 1 to N, and padding has 0. The sums are in float32.
    """
    numbers_1N1 = np.arange(1, examples + 1, dtype=np.int32)[None, :, None]
    is_of_BNS = (example_ids_BS[:, None, :] == numbers_1N1).astype(jnp.float32)
    axes = ("batch", None, None)
    sums_BND = einsum("bns,bsd->bnd", is_of_BNS, x_BSD.astype(jnp.float32), axes)
    tokens_BN1 = jnp.sum(is_of_BNS, axis=2, keepdims=True)
    return (sums_BND / jnp.maximum(tokens_BN1, 1.0)).astype(x_BSD.dtype)


def read_positions(x_BSD: jax.Array, positions_B: jax.Array | None) -> jax.Array:
    """Read one vector of each row, the first unless positions are given: float[B,D]."""
    if positions_B is None:
        return x_BSD[:, 0]
    return gather_positions(x_BSD, positions_B[:, None])[:, 0]


def gather_positions(x_BSD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Pick the hidden vectors at some positions of each row, such as the masked ones.

    Shapes: float[B,S,D], int32[B,P] -> float[B,P,D]; dtype and batch sharding of x_BSD.
    Positions count from 0, the row's first [CLS]. Unused slots hold 0 and are canceled by weights.

    Source: Devlin et al. 2019, section 3.1, task 1.
    """
    return jax.vmap(lambda x_SD, positions_P: x_SD[positions_P])(x_BSD, positions_BP)


def run_lstm(
    params: Mapping[str, jax.Array],
    x_BSD: jax.Array,
    example_ids_BS: jax.Array | None = None,
    is_reversed: bool = False,
    clip: float = math.inf,
) -> jax.Array:
    """Run an LSTM from the first position on, or from the last one back.

    params are "input" [D,4U], "recurrent" [U,4U] and "bias" [4U]; gates are in the order i, f, g,
    o. A "projection" [U,P] among them projects all outputs, also for the next position's input.
    Cells and projections are clipped to -clip..clip. Where the example id changes along a row, also
    at padding, the state is reset.

    Shapes: float[B,S,D], int32[B,S] -> float[B,S,U], or float[B,S,P]; cells are float32.
    Source: Gers et al. 2000, without peepholes, as in torch.nn.LSTM; projections: Sak et al. 2014;
    clips: LSTMCell of TensorFlow, which bilm-tf uses.
    """
    dtype = x_BSD.dtype
    recurrent, bias = params["recurrent"], params["bias"].astype(jnp.float32)
    width, units = recurrent.shape[0], recurrent.shape[1] // 4
    entering_BSG = jnp.matmul(x_BSD, params["input"], preferred_element_type=jnp.float32) + bias
    entering_SBG = jnp.swapaxes(entering_BSG, 0, 1)
    begins_SB1 = None
    if example_ids_BS is not None:
        begins_SB1 = jnp.swapaxes(_find_begins(example_ids_BS, is_reversed), 0, 1)[:, :, None]

    def step(
        carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array | None]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h_BP, c_BU = carry
        entering_BG, begins_B1 = inputs
        if begins_B1 is not None:
            h_BP, c_BU = (jnp.where(begins_B1, jnp.zeros_like(x), x) for x in carry)
        read_BG = jnp.matmul(h_BP, recurrent, preferred_element_type=jnp.float32)
        h_BP, c_BU = update_cell(entering_BG + read_BG, c_BU, clip)
        h_BP = h_BP.astype(dtype)
        if "projection" in params:
            h_BP = _clip(h_BP @ params["projection"], clip)
        return (h_BP, c_BU), h_BP

    # Zeros with the batch's layout.
    start = (
        jnp.zeros_like(entering_SBG[0, :, :width], dtype),
        jnp.zeros_like(entering_SBG[0, :, :units]),
    )
    inputs = entering_SBG, begins_SB1
    _, h_SBP = jax.lax.scan(step, start, inputs, reverse=is_reversed)
    return jnp.swapaxes(h_SBP, 0, 1)


def update_cell(
    gates_BG: jax.Array, c_BU: jax.Array, clip: float = math.inf
) -> tuple[jax.Array, jax.Array]:
    """Compute the output and the new cell of an LSTM from the sums i, f, g, o of its gates.

    Shapes: float32[B,4U], float32[B,U] -> float32[B,U] twice.
    """
    i, f, g, o = jnp.split(gates_BG, 4, axis=-1)
    c_BU = _clip(jax.nn.sigmoid(f) * c_BU + jax.nn.sigmoid(i) * jnp.tanh(g), clip)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BU), c_BU


def keep_ends(example_ids_BS: jax.Array, is_first: bool) -> jax.Array:
    """Keep example ids only at the first, or else last, token of each example; else 0: int[B,S]."""
    return jnp.where(_find_begins(example_ids_BS, not is_first), example_ids_BS, 0)


def _find_begins(example_ids_BS: jax.Array, is_reversed: bool) -> jax.Array:
    """Find where examples, and padding, begin in the direction of reading: bool[B,S]."""
    nothing = jnp.full_like(example_ids_BS[:, :1], -1)
    before = [example_ids_BS[:, 1:], nothing] if is_reversed else [nothing, example_ids_BS[:, :-1]]
    return jnp.concatenate(before, axis=1) != example_ids_BS


def _clip(x: jax.Array, clip: float) -> jax.Array:
    return x if math.isinf(clip) else jnp.clip(x, -clip, clip)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(
    x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, eps: float, single_pass: bool = False
) -> jax.Array:
    """Normalize over the last dimension in float32; saves only its input for the backward.

    Shapes: float[...,D], float[D], float[D] -> float[...,D] in the dtype of x. single_pass takes
    the variance as mean(x^2) - mean(x)^2, at least 0, which reads x once; its rounding error is
    float32's times mean^2 / variance.
    Source: Ba et al. 2016; modeling.py@eedf5716ce layer_norm, eps 1e-12.
    """
    normalized = _normalize(x, eps, single_pass)[0]
    return (normalized * scale_D.astype(jnp.float32) + bias_D.astype(jnp.float32)).astype(x.dtype)


def _normalize(x: jax.Array, eps: float, single_pass: bool) -> tuple[jax.Array, jax.Array]:
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis=-1, keepdims=True)
    centered = x32 - mean
    if single_pass:
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        variance = jnp.maximum(mean_square - mean * mean, 0.0)
    else:
        variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    inverse_std = jax.lax.rsqrt(variance + eps)
    return centered * inverse_std, inverse_std


def _layer_norm_forward(
    x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, eps: float, single_pass: bool
) -> tuple[jax.Array, Saved]:
    return layer_norm(x, scale_D, bias_D, eps, single_pass), (x, scale_D, bias_D)


def _layer_norm_backward(eps: float, single_pass: bool, saved: Saved, dy: jax.Array) -> Saved:
    x, scale_D, bias_D = saved
    normalized, inverse_std = _normalize(x, eps, single_pass)
    dy32 = dy.astype(jnp.float32)
    dn = dy32 * scale_D.astype(jnp.float32)
    dx = inverse_std * (
        dn
        - jnp.mean(dn, axis=-1, keepdims=True)
        - normalized * jnp.mean(dn * normalized, axis=-1, keepdims=True)
    )
    rows = tuple(range(x.ndim - 1))
    dscale_D = jnp.sum(dy32 * normalized, axis=rows).astype(scale_D.dtype)
    return dx.astype(x.dtype), dscale_D, jnp.sum(dy32, axis=rows).astype(bias_D.dtype)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def rms_norm(x: jax.Array, scale_D: jax.Array, eps: float) -> jax.Array:
    """Divide by the root of the mean square over the last dimension, in float32; then scale.

    Source: Zhang and Sennrich 2019, equation 4.
    """
    x32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse_rms * scale_D).astype(x.dtype)


_ACTS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # Hendrycks and Gimpel 2016, section 2
}


def activate(x: jax.Array, hidden_act: str, saves_derivative: bool) -> jax.Array:
    """Apply the activation function of config.model.hidden_act."""
    act = _ACTS.get(hidden_act)
    return act(x) if act else gelu(x, hidden_act, saves_derivative)


def gelu(x: jax.Array, hidden_act: str, saves_derivative: bool = False) -> jax.Array:
    """Compute gelu: "gelu_tanh" is Google BERT's approximation, "gelu_erf" is exact.

    saves_derivative: the forward pass keeps dy/dx, in the dtype of x, instead of x, so that the
    backward pass is one product and does not compute the function again.

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
