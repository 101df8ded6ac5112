"""Compute cross entropy in nats, from given logits or from the word table with low-bit logits.

Dimensions: B batch, P predictions, N = B * P, D width, V vocabulary (padded), C classes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import ops
from bert_jax.parallel import mesh

PADDING_LOGIT = -1e9  # logit of rows that pad the vocabulary: probability 0 in float32
Losses = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> Losses:
    """Compute the negative log-likelihood of labels in nats, and whether each is likeliest.

    Shapes: float32[...,C], int32[...] -> float32[...], float32[...]. Classes may be sharded. A tie
    for the likeliest counts as wrong: in bfloat16 logits it is common, and means nothing.
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
    is_label = _is_label(logits, labels)
    label_logit = jnp.sum(jnp.where(is_label, logits32, 0.0), axis=-1)
    highest_other = jnp.max(jnp.where(is_label, -jnp.inf, logits32), axis=-1)
    right = (label_logit > highest_other).astype(jnp.float32)
    return (log_norm - label_logit, right), (logits, labels, log_norm)


def _dlogits(saved: ops.Saved, dnll: jax.Array) -> jax.Array:
    """Compute the gradient of the logits in float32: probability less one for the label."""
    logits, labels, log_norm = saved
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_norm[..., None])
    return (probabilities - _is_label(logits, labels)) * dnll[..., None]


def _cross_entropy_backward(saved: ops.Saved, cotangents: Losses) -> tuple[jax.Array, None]:
    return _dlogits(saved, cotangents[0]), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def compute_word_logits(
    h_BPD: jax.Array, table_VD: jax.Array, bias_V: jax.Array, vocab_size: int
) -> jax.Array:
    """Compute logits by the word table and bias, float32[B,P,V]; PADDING_LOGIT past vocab_size.

    Shapes: float[B,P,D], float[V,D] of the same dtype, float[V].
    """
    return jnp.reshape(
        _word_logits(_flat(h_BPD), table_VD, bias_V, vocab_size),
        (*h_BPD.shape[:2], bias_V.shape[0]),
        out_sharding=mesh.spec("batch", None, "vocab"),
    )


def _flat(x: jax.Array) -> jax.Array:
    """Reshape [B,P,...] to [N,...]: a TPU pads the next-to-last dimension to whole tiles."""
    batch, predictions, *rest = x.shape
    spec = mesh.spec("batch", *(None,) * len(rest))
    return jnp.reshape(x, (batch * predictions, *rest), out_sharding=spec)


def _word_logits(
    h_ND: jax.Array, table_VD: jax.Array, bias_V: jax.Array, vocab_size: int
) -> jax.Array:
    logits_NV = ops.einsum("nd,vd->nv", h_ND, table_VD, ("batch", "vocab"), jnp.float32)
    ids_V = jax.lax.broadcasted_iota(
        jnp.int32, bias_V.shape, 0, out_sharding=jax.typeof(bias_V).sharding.spec
    )
    return logits_NV + jnp.where(ids_V < vocab_size, bias_V.astype(jnp.float32), PADDING_LOGIT)


def word_cross_entropy(
    h_BPD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_BP: jax.Array,
    vocab_size: int,
    logits_dtype: jnp.dtype,
) -> Losses:
    """Compute cross_entropy of word logits, which are kept for the backward in logits_dtype.

    Shapes: as compute_word_logits, int32[B,P] -> float32[B,P] twice. Where a gradient is taken, the
    loss is computed from the kept logits, so that its probabilities add up to one.
    """
    losses_N = _word_cross_entropy(
        _flat(h_BPD), table_VD, bias_V, _flat(labels_BP), vocab_size, logits_dtype
    )
    lies = mesh.spec("batch", None)
    nll_BP, right_BP = (jnp.reshape(x, labels_BP.shape, out_sharding=lies) for x in losses_N)
    return nll_BP, right_BP


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _word_cross_entropy(
    h_ND: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_N: jax.Array,
    vocab_size: int,
    logits_dtype: jnp.dtype,
) -> Losses:
    del logits_dtype  # nothing is kept where there is no gradient
    return cross_entropy(_word_logits(h_ND, table_VD, bias_V, vocab_size), labels_N)


def _word_forward(
    h_ND: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_N: jax.Array,
    vocab_size: int,
    logits_dtype: jnp.dtype,
) -> tuple[Losses, Any]:
    kept_NV = _word_logits(h_ND, table_VD, bias_V, vocab_size).astype(logits_dtype)
    losses, saved = _cross_entropy_forward(kept_NV, labels_N)
    return losses, (h_ND, table_VD, bias_V, saved)


def _word_backward(
    vocab_size: int, logits_dtype: jnp.dtype, kept: Any, cotangents: Losses
) -> tuple[Any, ...]:
    h_ND, table_VD, bias_V, saved = kept
    dlogits_NV = _dlogits(saved, cotangents[0]).astype(h_ND.dtype)
    dh_ND = ops.einsum("nv,vd->nd", dlogits_NV, table_VD, ("batch", None))
    dtable_VD = ops.einsum("nv,nd->vd", dlogits_NV, h_ND, ("vocab", None))
    # A matmul with ones costs a sixth of a pass that computes the gradient again for a sum.
    ones_NK = jnp.ones((h_ND.shape[0], 8), h_ND.dtype, out_sharding=jax.typeof(h_ND).sharding.spec)
    dbias_KV = ops.einsum("nk,nv->kv", ones_NK, dlogits_NV, (None, "vocab"), jnp.float32)
    return dh_ND, dtable_VD, dbias_KV[0].astype(bias_V.dtype), None


_word_cross_entropy.defvjp(_word_forward, _word_backward)
