"""Rotate queries and keys by their positions (rotary position embedding).

Dimensions: B batch, S sequence, H heads, K head width.
Source: Su et al. 2021 (RoFormer), section 3.2.2; halves are paired as in Hugging Face's ModernBERT.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.parallel import mesh


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rotation:
    """Hold the cosine and sine of each position's angles: float32[B or 1, S, 1, K / 2]."""

    cos: jax.Array
    sin: jax.Array


def make_rotation(
    position_ids_BS: jax.Array | None, seq_len: int, head_width: int, theta: float
) -> Rotation:
    """Compute the angles position / theta ** (2 i / K); positions count from 0 unless given."""
    if position_ids_BS is None:
        position_ids_BS = jnp.arange(seq_len, dtype=jnp.int32)[None]
    exponents = jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width
    angles = position_ids_BS[..., None, None].astype(jnp.float32) * theta**-exponents
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x_BSHK: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate each pair (x[i], x[i + K / 2]) by its angle, in float32; shape and dtype of x."""
    first, second = jnp.split(x_BSHK.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate(
        [
            first * rotation.cos - second * rotation.sin,
            second * rotation.cos + first * rotation.sin,
        ],
        axis=-1,
    )
    return jax.sharding.reshard(
        rotated.astype(x_BSHK.dtype), mesh.spec("batch", None, "heads", None)
    )
