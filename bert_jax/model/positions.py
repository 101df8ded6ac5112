"""Rotate queries and keys by their positions (rotary position embedding).

Dimensions: B batch, S sequence, H heads, K head width.
Source: Su et al. 2021 (RoFormer), section 3.2.2; halves are paired as in Hugging Face's ModernBERT.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.parallel import mesh


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rotation:
    """Hold cosine and sine of each position's angles, for both halves: float32[B or 1, S, 1, K]."""

    cos: jax.Array
    sin: jax.Array


def make_rotation(
    position_ids_BS: jax.Array | None, seq_len: int, head_width: int, theta: float
) -> Rotation:
    """Compute the angles position / theta ** (2 i / K); positions count from 0 unless given."""
    if position_ids_BS is None:
        position_ids_BS = jnp.arange(seq_len, dtype=jnp.int32)[None]
    exponents = jnp.tile(jnp.arange(0, head_width, 2, dtype=jnp.float32), 2) / head_width
    angles = position_ids_BS[..., None, None].astype(jnp.float32) * theta**-exponents
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x_BSHK: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate each pair (x[i], x[i + K / 2]) by its angle, in float32; shape and dtype of x.

    The pairs are exchanged by a product with a matrix of 0, 1 and -1, which is exact. Halves of a
    head that are cut off and put back took a TPU's compiler as long as the projections.
    """
    half = x_BSHK.shape[-1] // 2
    turn = np.kron([[0, 1], [-1, 0]], np.eye(half))  # (first, second) -> (-second, first)
    turned_BSHK = jnp.einsum(
        "bshk,kl->bshl",
        x_BSHK,
        jnp.asarray(turn, x_BSHK.dtype),
        precision=jax.lax.Precision.HIGHEST if x_BSHK.dtype == jnp.float32 else None,
        out_sharding=mesh.spec("batch", None, "heads", None),
    )
    rotated = (
        x_BSHK.astype(jnp.float32) * rotation.cos + turned_BSHK.astype(jnp.float32) * rotation.sin
    )
    return rotated.astype(x_BSHK.dtype)
