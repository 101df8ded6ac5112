"""Compute attention of long rows by JAX's block-sparse TPU kernel; refuse what it does not support.

The kernel is `jax.experimental.pallas.ops.tpu.splash_attention`: it runs over blocks of queries and
keys, skips those that a window hides, and keeps no scores. It has no dropout of the weights.

Dimensions: B rows of one device, S sequence, H heads, K head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

from bert_jax.parallel import chips

CHIPS = ("v4", "v5e", "v5p", "v6e")  # the compiler of kernels has no bfloat16 matmul on v2 and v3
BLOCKS = (1024, 512, 256, 128)
# A window fills few of the pairs of large blocks, and small blocks fill the chip badly: by the
# compiler's schedule rows of one block cost least, and longer ones with blocks of 256.
WINDOW_BLOCK = 256
SCOPE_OF_WINDOWS = "splash_window"
COMPUTED_KEYS = 512  # of a block of keys, at a time


def explain_refusal(device: str, seq_len: int, head_width: int, dtype: jnp.dtype) -> str | None:
    """Explain in a sentence why the kernel does not support this attention; None if it does.

    device is a chip ("v5e") or what JAX calls the device; dtype is that of the matmuls.
    """
    chip = chips.find_tpu(device) or chips.find_chip(device)
    if chip is None or chip.name not in CHIPS:
        return f"splash attention is for TPU {', '.join(CHIPS)}, not for {device}"
    if dtype != jnp.bfloat16:
        return f"splash attention is taken in bfloat16, not in {jnp.dtype(dtype).name}"
    if head_width % 64:
        return f"splash attention takes heads of a multiple of 64, not of {head_width}"
    if seq_len % BLOCKS[-1]:
        return f"splash attention takes rows of a multiple of {BLOCKS[-1]} tokens, not {seq_len}"
    return None


def attend(
    q_BSHK: jax.Array, k_BSHK: jax.Array, v_BSHK: jax.Array, ids_BS: jax.Array, width: int
) -> jax.Array:
    """Compute the attention of each row, inside a shard_map that is manual over all axes.

    Shapes: float[B,S,H,K] three times, int32[B,S] -> float[B,S,H,K]. A query sees the keys with its
    own number in ids, at most `width // 2` positions away; width 0 has no such limit. Without a TPU
    to compile for, the kernel is interpreted.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    kernel = make_kernel(q_BSHK.shape[1], q_BSHK.shape[2], width, platform != "tpu")
    scale = jnp.asarray(q_BSHK.shape[-1] ** -0.5, q_BSHK.dtype)

    def attend_row(q_SHK: jax.Array, k_SHK: jax.Array, v_SHK: jax.Array, ids_S: jax.Array) -> Any:
        q_HSK, k_HSK, v_HSK = (jnp.swapaxes(x, 0, 1) for x in (q_SHK * scale, k_SHK, v_SHK))
        ids = splash_attention_kernel.SegmentIds(ids_S, ids_S)
        return jnp.swapaxes(kernel(q_HSK, k_HSK, v_HSK, segment_ids=ids), 0, 1)

    # The name tells prices of the two masks apart (bert_jax/perf/prices.py).
    with jax.named_scope(SCOPE_OF_WINDOWS if width else "complete"):
        return jax.vmap(attend_row)(q_BSHK, k_BSHK, v_BSHK, ids_BS)


def make_kernel(seq_len: int, heads: int, width: int, is_interpreted: bool = False) -> Any:
    """Make the kernel of rows of this length: its blocks and the mask that all heads have."""
    sizes = (seq_len, seq_len)
    if width:
        reach = width // 2
        mask: Any = splash_attention_mask.LocalMask(sizes, (reach, reach), 0)
    else:
        mask = splash_attention_mask.FullMask(sizes)
    block = next(size for size in BLOCKS if seq_len % size == 0)
    if width and seq_len > block:
        block = min(block, WINDOW_BLOCK)
    computed = min(block, COMPUTED_KEYS)
    # One kernel for all gradients writes those of queries for each block of keys, mostly of zeros
    # where a window has many blocks: there another kernel computes them.
    is_fused = not width or block == seq_len
    blocks = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=computed,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=computed,
        block_q_dq=None if is_fused else block,
        block_kv_dq=None if is_fused else block,
        use_fused_bwd_kernel=is_fused,
    )
    return splash_attention_kernel.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=blocks,
        interpret=is_interpreted,
    )
