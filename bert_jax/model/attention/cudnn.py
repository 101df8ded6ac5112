"""Compute attention on NVIDIA GPUs with cuDNN, which stores no scores and cannot apply our dropout.

Dimensions: B rows of one device, S sequence, D width, E = 3 D: queries, keys and values side by
side, H heads, K head width.
"""

import re

import jax
import jax.numpy as jnp

from bert_jax.model.embeddings import Rotation, rotate
from bert_jax.parallel import mesh

# Names of NVIDIA's cards before compute capability 8.0, which cuDNN's attention requires.
_OLDER_CARDS = re.compile(r"TESLA|QUADRO|TITAN|GTX|XAVIER|RTX 20[5-8]0|\b(?:MX|[PTV])\d+", re.I)
MAX_WIDTH = 128  # widest head on all supported cards; cuDNN takes 256 from Hopper on


def explain_refusal(
    device: str, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain in a sentence why cuDNN does not take this attention; None if it does.

    device is JAX's name of the device (`device.device_kind`); dtype is the dtype of matmuls.
    """
    if not is_gpu(device):
        return f"cuDNN attention is for NVIDIA GPUs, not for {device}"
    if _OLDER_CARDS.search(device):
        return f"cuDNN attention requires compute capability 8.0 (Ampere) or later, unlike {device}"
    if dtype != jnp.bfloat16:
        return f"cuDNN attention computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if head_width % 8 or head_width > MAX_WIDTH:
        return f"cuDNN attention takes heads of a multiple of 8 up to {MAX_WIDTH}, not {head_width}"
    if seq_len % 2:
        return f"cuDNN attention takes rows of an even number of tokens, not {seq_len}"
    return None


def is_gpu(device: str) -> bool:
    """Return whether JAX's name of a device names an NVIDIA GPU."""
    return device.upper().startswith(("NVIDIA", "TESLA", "QUADRO"))


def attend(
    qkv_BSE: jax.Array, mask: jax.Array, rotation: Rotation | None, heads: int, is_causal: bool
) -> jax.Array:
    """Compute the self-attention of each row, inside a shard_map that is manual over the batch.

    Shapes: bfloat16[B,S,E], bool[B or 1, 1, S or 1, S] -> bfloat16[B,S,D]. mask is True where a
    query may attend to a key, causality included; is_causal lets cuDNN skip later keys. Queries
    and keys are rotated if a rotation is given. The mask becomes an array of biases [B,1,S,S].
    Without a GPU to compile for, XLA computes the same formula.
    """
    batch, seq_len, all_width = qkv_BSE.shape
    q_BSHK, k_BSHK, v_BSHK = (
        jnp.reshape(part, (batch, seq_len, heads, -1)) for part in jnp.split(qkv_BSE, 3, axis=-1)
    )
    if rotation is not None:
        q_BSHK, k_BSHK = rotate(q_BSHK, rotation), rotate(k_BSHK, rotation)
    platform = mesh.platform(jax.sharding.get_abstract_mesh())
    out_BSHK = jax.nn.dot_product_attention(
        q_BSHK,
        k_BSHK,
        v_BSHK,
        mask=jnp.broadcast_to(mask, (batch, 1, seq_len, seq_len)),
        is_causal=is_causal,
        implementation="cudnn" if platform in ("gpu", "cuda") else "xla",
    )
    return jnp.reshape(out_BSHK, (batch, seq_len, all_width // 3))
