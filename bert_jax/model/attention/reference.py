"""Compute attention with all scores of a row at once: the reference implementation, on any device.

Dimensions: B batch, S queries, T keys, H heads, K head width.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.model import ops

# Added to the scores of hidden keys, so that exp gives 0 (modeling.py@eedf5716ce).
HIDDEN_SCORE = -10_000.0


def attend(
    q_BSHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    mask: jax.Array,
    drop: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Compute softmax(q k / sqrt(K)) v, with the softmax in float32 and dropout on the weights.

    Shapes: float[B,S,H,K], float[B,T,H,K] twice, bool[B or 1, 1, S or 1, T] -> float[B,S,H,K].
    mask is True where a query may attend to a key; drop is applied to the weights[B,H,S,T].

    Source: Vaswani et al. 2017, section 3.2.1; modeling.py@eedf5716ce attention_layer.
    """
    dtype = q_BSHK.dtype
    scale = jnp.asarray(q_BSHK.shape[-1] ** -0.5, dtype)
    scores_BHST = ops.einsum(
        "bshk,bthk->bhst", q_BSHK * scale, k_BTHK, ("batch", "heads", None, None), jnp.float32
    )
    scores_BHST = scores_BHST + jnp.where(mask, 0.0, HIDDEN_SCORE)
    weights_BHST = drop(jax.nn.softmax(scores_BHST, axis=-1).astype(dtype))
    return ops.einsum("bhst,bthk->bshk", weights_BHST, v_BTHK, ("batch", None, "heads", None))
