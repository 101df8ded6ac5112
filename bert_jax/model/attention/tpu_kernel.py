"""Compute attention of short rows in a TPU kernel, with dropout of the weights.

A grid step computes a row of the batch (model/attention/tpu_kernel_body.py). No array of the size
of the scores leaves VMEM; the backward pass recomputes scores and dropout masks.

Dimensions: B rows of one device, S sequence, D width, E = 3 D: queries, keys and values side by
side, G groups of heads, J the queries of a group.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model.attention import tpu_kernel_body
from bert_jax.model.attention.tpu_kernel_body import KernelRow
from bert_jax.parallel import chips

# The compiler of kernels has no bfloat16 matmul on v2 and v3.
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
SEQ_LENS = (128, 256, 384, 512)
MAX_ON_V4 = 256
VMEM_LIMIT_BYTES = 96 * 2**20  # a row of 512 with its scores takes a fifth of it

Shape = jax.ShapeDtypeStruct


def explain_refusal(
    device: str, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain in a sentence why the kernel does not support this attention; None if it does.

    device is a chip ("v5e") or JAX's name of the device (`device.device_kind`); dtype is that of
    the matmuls; heads are those of a single device.
    """
    chip = chips.find_tpu(device) or chips.find_chip(device)
    if chip is None or chip.name not in CHIPS:
        return f"the attention kernel is for TPU {', '.join(CHIPS)}, not for {device}"
    if dtype != jnp.bfloat16:
        return f"the attention kernel computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if head_width not in (64, 128):
        return f"the attention kernel takes heads of width 64 or 128, not {head_width}"
    if heads * head_width % tpu_kernel_body.LANES:
        return f"the attention kernel takes heads of width {head_width} in pairs, not {heads}"
    if seq_len not in SEQ_LENS:
        lengths = ", ".join(map(str, SEQ_LENS))
        return f"the attention kernel takes rows of {lengths} tokens, not {seq_len}"
    if chip.name == "v4" and seq_len > MAX_ON_V4:
        return (
            f"the attention kernel takes rows of up to {MAX_ON_V4} tokens on v4, "
            f"whose VMEM is 16 MiB, not {seq_len}"
        )
    return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def attend(
    qkv_BSE: jax.Array,
    bias_E: jax.Array,
    ids_BS: jax.Array,
    low_B: jax.Array,
    high_B: jax.Array,
    heads: int,
    rate: float,
    is_causal: bool = False,
) -> jax.Array:
    """Compute the self-attention of each row, inside a shard_map that is manual over the batch.

    Shapes: bfloat16[B,S,E], float[E], int32[B,S], uint32[B] twice -> bfloat16[B,S,D].
    The biases are already added to qkv; bias_E is an argument so that it gets a gradient, which
    the kernel sums in float32. A query sees the keys with its own id, and if causal no later key.
    low and high are the words of the dropout masks (bert_jax/model/dropout.py, Dropout.words); the
    masks equal those of the plain implementation bit for bit. Softmax in float32; weights are
    rounded to bfloat16 for their matmul, before they are divided by their sum. Without a TPU to
    compile for, the kernel is interpreted.

    Source: Vaswani et al. 2017, section 3.2.1; the backward, without its tiles, Dao et al. 2022,
    appendix B.
    """
    return _attend_forward(qkv_BSE, bias_E, ids_BS, low_B, high_B, heads, rate, is_causal)[0]


def _each_row(
    kernel: Callable[..., None],
    name: str,
    row: KernelRow,
    words: Sequence[jax.Array],
    inputs: Sequence[jax.Array],
    outputs: Sequence[Shape],
) -> Any:
    """Run a kernel on every row; words are in scalar memory, other inputs are cut into rows."""

    def spec_row(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((1, *array.shape[1:]), lambda b: (b, 0, 0))

    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return pl.pallas_call(
        functools.partial(kernel, row=row),
        grid=(inputs[0].shape[0],),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(words) + [*map(spec_row, inputs)],
        out_specs=[*map(spec_row, outputs)],
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
        interpret=platform != "tpu",
        name=name,
    )(*words, *inputs)


def _attend_forward(
    qkv_BSE: jax.Array,
    bias_E: jax.Array,
    ids_BS: jax.Array,
    low_B: jax.Array,
    high_B: jax.Array,
    heads: int,
    rate: float,
    is_causal: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    batch, seq_len, width = qkv_BSE.shape
    row = KernelRow(seq_len, heads, width // 3 // heads, rate, is_causal)
    out_BSD, norms_BGJ = _each_row(
        tpu_kernel_body.forward,
        "attention_forward",
        row,
        (low_B, high_B),
        (ids_BS[:, None, :], qkv_BSE),
        (
            Shape((batch, row.seq_len, row.width), jnp.bfloat16),
            Shape((batch, row.groups, row.group_queries), jnp.float32),
        ),
    )
    return out_BSD, (qkv_BSE, bias_E, ids_BS, low_B, high_B, norms_BGJ, out_BSD)


def _attend_backward(
    heads: int,
    rate: float,
    is_causal: bool,
    saved: tuple[jax.Array, ...],
    dout_BSD: jax.Array,
) -> tuple[Any, ...]:
    qkv_BSE, bias_E, ids_BS, low_B, high_B, norms_BGJ, out_BSD = saved
    batch, seq_len, width = qkv_BSE.shape
    row = KernelRow(seq_len, heads, width // 3 // heads, rate, is_causal)
    inputs = (ids_BS[:, None, :], qkv_BSE, norms_BGJ, dout_BSD)
    dqkv_BSE, dbias_B1E = _each_row(
        tpu_kernel_body.backward,
        "attention_backward",
        row,
        (low_B, high_B),
        inputs if row.is_short else (*inputs, out_BSD),
        (Shape(qkv_BSE.shape, jnp.bfloat16), Shape((batch, 1, width), jnp.float32)),
    )
    nothing = [np.zeros(array.shape, jax.dtypes.float0) for array in (ids_BS, low_B, high_B)]
    return dqkv_BSE, jnp.sum(dbias_B1E, axis=(0, 1)).astype(bias_E.dtype), *nothing


attend.defvjp(_attend_forward, _attend_backward)
