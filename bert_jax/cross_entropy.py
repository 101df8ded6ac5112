"""Cross entropy in nats: of given logits, and of the word table's, which are kept in few bits.

Dimensions: B batch, P predictions, D width, V vocabulary (padded), C classes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import ops

PADDING_LOGIT = -1e9  # of vocabulary rows that exist in memory only: probability 0 in float32
Losses = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> Losses:
    """Negative log-likelihood of each label in nats, and whether it is the likeliest class.

    Shapes: float32[...,C], int32[...] -> float32[...], float32[...]. Classes may be sharded. A tie
    for the likeliest counts as right.
    """
    return _cross_entropy_forward(logits, labels)[0]


def _is_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
    classes = jax.lax.broadcasted_iota(
        labels.dtype, logits.shape, logits.ndim - 1, out_sharding=jax.typeof(logits).sharding.spec
    )
    return classes == labels[..., None]


def _cross_entropy_forward(logits: jax.Array, labels: jax.Array) -> tuple[Losses, ops.Saved]:
    logits32 = logits.astype(jnp.float32)
    highest = jnp.max(logits32, axis=-1)
    log_norm = highest + jnp.log(jnp.sum(jnp.exp(logits32 - highest[..., None]), axis=-1))
    label_logit = jnp.sum(jnp.where(_is_label(logits, labels), logits32, 0.0), axis=-1)
    right = (label_logit >= highest).astype(jnp.float32)
    return (log_norm - label_logit, right), (logits, labels, log_norm)


def _dlogits(saved: ops.Saved, dnll: jax.Array) -> jax.Array:
    """The gradient of the logits in float32: probability less one for the label."""
    logits, labels, log_norm = saved
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_norm[..., None])
    return (probabilities - _is_label(logits, labels)) * dnll[..., None]


def _no_gradient(labels: jax.Array) -> np.ndarray:
    return np.zeros(labels.shape, jax.dtypes.float0)


def _cross_entropy_backward(saved: ops.Saved, cotangents: Losses) -> tuple[jax.Array, np.ndarray]:
    return _dlogits(saved, cotangents[0]), _no_gradient(saved[1])


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def word_logits(
    h_BPD: jax.Array, table_VD: jax.Array, bias_V: jax.Array, vocab_size: int
) -> jax.Array:
    """float32[B,P,V]: products with the word table, plus its bias; no weight past vocab_size.

    Shapes: float[B,P,D], float[V,D] of the same dtype, float[V].
    """
    logits_BPV = ops.einsum("bpd,vd->bpv", h_BPD, table_VD, ("batch", None, "vocab"), jnp.float32)
    ids_V = jax.lax.broadcasted_iota(
        jnp.int32, bias_V.shape, 0, out_sharding=jax.typeof(bias_V).sharding.spec
    )
    return logits_BPV + jnp.where(ids_V < vocab_size, bias_V.astype(jnp.float32), PADDING_LOGIT)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def word_cross_entropy(
    h_BPD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_BP: jax.Array,
    vocab_size: int,
    logits_dtype: jnp.dtype,
) -> Losses:
    """cross_entropy of word_logits; what is kept for the backward are logits in logits_dtype.

    Shapes: as word_logits, int32[B,P] -> float32[B,P] twice. Where a gradient is taken, the loss is
    that of the kept logits, so that its probabilities add up to one; sums over them are float32.
    """
    del logits_dtype  # without a gradient nothing is kept
    return cross_entropy(word_logits(h_BPD, table_VD, bias_V, vocab_size), labels_BP)


def _word_forward(
    h_BPD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_BP: jax.Array,
    vocab_size: int,
    logits_dtype: jnp.dtype,
) -> tuple[Losses, Any]:
    kept_BPV = word_logits(h_BPD, table_VD, bias_V, vocab_size).astype(logits_dtype)
    losses, saved = _cross_entropy_forward(kept_BPV, labels_BP)
    return losses, (h_BPD, table_VD, bias_V, saved)


def _word_backward(
    vocab_size: int, logits_dtype: jnp.dtype, kept: Any, cotangents: Losses
) -> tuple[Any, ...]:
    h_BPD, table_VD, bias_V, saved = kept
    dlogits32_BPV = _dlogits(saved, cotangents[0])
    dlogits_BPV = dlogits32_BPV.astype(h_BPD.dtype)
    dh_BPD = ops.einsum("bpv,vd->bpd", dlogits_BPV, table_VD, ("batch", None, None))
    dtable_VD = ops.einsum("bpv,bpd->vd", dlogits_BPV, h_BPD, ("vocab", None))
    dbias_V = jnp.sum(dlogits32_BPV, axis=(0, 1)).astype(bias_V.dtype)
    return dh_BPD, dtable_VD, dbias_V, _no_gradient(saved[1])


word_cross_entropy.defvjp(_word_forward, _word_backward)
