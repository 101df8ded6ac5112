"""Define the heads of the masked language model and of replaced-token detection, LSTMs, losses.

Losses are in nats, from given logits or from the word table with low-bit logits.

Dimensions: B batch, S sequence, N examples in a packed row, or B * P in a loss, P predictions,
D width, V vocabulary (padded), C classes, U cells.
Source: run_pretraining.py@eedf5716ce get_masked_lm_output.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.layers import Choices, Initial, Linear, Norm, declare
from bert_jax.parallel import mesh

PADDING_LOGIT = -1e9  # logit of rows that pad the vocabulary: probability 0 in float32
Losses = tuple[jax.Array, jax.Array]
# Added to the gates i, f, g, o: Jozefowicz et al. 2015, section 2.2.
_FORGET_BIAS = np.array([0, 1, 0, 0], np.float32)
_BILSTM_LAYERS = 2  # Devlin et al. 2019, section 5.3; their section 5.1 gives no number


class MaskedLmHead(nnx.Module):
    """Compute logits over the vocabulary, or their loss; the decoder is the word table itself.

    Both take float[B,P,D] and the word table, float[V,D]; rows that pad it get probability 0.
    """

    def __init__(self, config: ModelConfig, padded_vocab_size: int, choices: Choices) -> None:
        width = config.embedding_width
        has_transform = config.mlm_transform
        inputs, outputs = (config.hidden_size, "embed"), (width, None)
        self.transform = (
            Linear(inputs, outputs, config.initializer_range, config.linear_bias)
            if has_transform
            else None
        )
        self.layer_norm = Norm(config, width, choices) if has_transform else None
        self.output_bias = declare((padded_vocab_size,), ("vocab",), Initial())
        self.act = config.mlm_act
        self.vocab_size = config.vocab_size
        self.choices = choices

    def transform_vectors(self, x: jax.Array) -> jax.Array:
        """Compute what the decoder reads: float[...,D] -> float[...,E]."""
        if self.transform is None or self.layer_norm is None:
            return x
        saves = self.choices.gelu_saves_derivative
        return self.layer_norm(ops.activate(self.transform(x), self.act, saves))

    def compute_logits(self, x_BPD: jax.Array, word_table_VD: jax.Array) -> jax.Array:
        """Compute the logits: float32[B,P,V]."""
        table_VD = ops.gather_weight(word_table_VD, x_BPD.dtype)
        return compute_word_logits(
            self.transform_vectors(x_BPD), table_VD, self.output_bias[...], self.vocab_size
        )

    def compute_losses(
        self, x_BPD: jax.Array, word_table_VD: jax.Array, labels_BP: jax.Array
    ) -> Losses:
        """Compute each label's loss (nats), and whether it is likeliest: float32[B,P] twice."""
        return word_cross_entropy(
            self.transform_vectors(x_BPD),
            ops.gather_weight(word_table_VD, x_BPD.dtype),
            self.output_bias[...],
            labels_BP,
            self.vocab_size,
            self.choices.mlm_logits_dtype,
        )


class ReplacedTokenHead(nnx.Module):
    """Compute the logit that a token was replaced: a dense layer, an activation, a linear map.

    With config.model.detects_by_cls the input is a token's vector plus [CLS]'s, normalized.

    Source: google-research/electra run_pretraining.py _get_discriminator_output; microsoft/DeBERTa
    replaced_token_detection_model.py LMMaskPredictionHead.
    """

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        width, stddev = config.hidden_size, config.initializer_range
        self.transform = Linear((width, "embed"), (width, None), stddev)
        self.output = Linear((width, None), (1, None), stddev)
        self.layer_norm = Norm(config, width, choices) if config.detects_by_cls else None
        self.hidden_act = config.hidden_act
        self.saves_derivative = choices.gelu_saves_derivative

    def __call__(
        self,
        x_BSD: jax.Array,
        cls_positions_BN: jax.Array | None = None,
        example_ids_BS: jax.Array | None = None,
    ) -> jax.Array:
        """Compute float[B,S,D] -> float32[B,S].

        Packed rows need the positions of [CLS], int32[B,N], and example ids, int32[B,S].
        """
        if self.layer_norm is not None:
            cls_BSD = x_BSD[:, :1]
            if cls_positions_BN is not None and example_ids_BS is not None:
                numbers_N = np.arange(1, cls_positions_BN.shape[1] + 1, dtype=np.int32)
                is_of_BSN = (example_ids_BS[:, :, None] == numbers_N).astype(x_BSD.dtype)
                cls_BND = ops.gather_positions(x_BSD, cls_positions_BN)
                cls_BSD = ops.einsum("bsn,bnd->bsd", is_of_BSN, cls_BND, ("batch", None, None))
            x_BSD = self.layer_norm(x_BSD + cls_BSD)
        x_BSD = ops.activate(self.transform(x_BSD), self.hidden_act, self.saves_derivative)
        return self.output(x_BSD)[:, :, 0].astype(jnp.float32)


class Lstm(nnx.Module):
    """Run an LSTM over rows in one direction; initial gate inputs have a variance of about 1.

    As in TensorFlow's LSTMCell, the bias excludes the constant 1 added to the forget gate.
    """

    def __init__(self, width: int, units: int) -> None:
        gates = 4 * units
        self.input = declare((width, gates), ("embed", None), Initial(stddev=width**-0.5))
        self.recurrent = declare((units, gates), ("embed", None), Initial(stddev=units**-0.5))
        self.bias = declare((gates,), (None,), Initial())
        self.units = units

    def __call__(self, x_BSD: jax.Array, example_ids_BS: jax.Array, is_reversed: bool) -> jax.Array:
        """Compute float[B,S,D] -> float[B,S,U], each example of a row separately."""
        params: dict[str, jax.Array] = {
            "input": ops.gather_weight(self.input[...], x_BSD.dtype),
            "recurrent": ops.gather_weight(self.recurrent[...], x_BSD.dtype),
            "bias": self.bias[...] + np.repeat(_FORGET_BIAS, self.units),
        }
        return ops.run_lstm(params, x_BSD, example_ids_BS, is_reversed)


class BiLstm(nnx.Module):
    """Read rows by an LSTM from the left and by one from the right."""

    def __init__(self, width: int, units: int) -> None:
        self.forward, self.backward = Lstm(width, units), Lstm(width, units)

    def __call__(self, x_BSD: jax.Array, example_ids_BS: jax.Array) -> jax.Array:
        """Compute float[B,S,D] -> float[B,S,2U], left-to-right outputs first."""
        outputs = (
            self.forward(x_BSD, example_ids_BS, is_reversed=False),
            self.backward(x_BSD, example_ids_BS, is_reversed=True),
        )
        return jnp.concatenate(outputs, axis=-1)


def stack_lstms(width: int, units: int) -> nnx.Dict[BiLstm]:
    """Declare stacked bidirectional LSTMs; the first reads vectors of this width."""
    widths = (width, *[2 * units] * (_BILSTM_LAYERS - 1))
    return nnx.Dict({f"{i:02d}": BiLstm(width, units) for i, width in enumerate(widths)})


def run_lstms(layers: nnx.Dict[BiLstm], x_BSD: jax.Array, example_ids_BS: jax.Array) -> jax.Array:
    """Compute the outputs of the last LSTMs: float[B,S,D] -> float[B,S,2U]."""
    for layer in layers.values():
        x_BSD = layer(x_BSD, example_ids_BS)
    return x_BSD


def pool_lstms(
    layers: nnx.Dict[BiLstm],
    x_BSD: jax.Array,
    example_ids_BS: jax.Array,
    examples: int,
    averages: bool,
) -> jax.Array:
    """Pool each example's outputs of the last LSTMs: float[B,N,2U].

    Take the final output of each direction (forward at the last token, backward at the first), or
    the mean over all tokens if `averages`.
    """
    read_BSD = run_lstms(layers, x_BSD, example_ids_BS)
    if averages:
        return ops.average_examples(read_BSD, example_ids_BS, examples)
    sides = jnp.split(read_BSD, 2, axis=-1)
    # An average over one token picks that token.
    ends = (ops.keep_ends(example_ids_BS, is_first) for is_first in (False, True))
    pooled = [
        ops.average_examples(side, end, examples) for side, end in zip(sides, ends, strict=True)
    ]
    return jnp.concatenate(pooled, axis=-1)


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
    """Compute the gradient of the logits in float32: the probabilities, minus 1 at the label."""
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
    """Compute cross_entropy of word logits, kept for the backward pass in logits_dtype.

    Shapes: as compute_word_logits, int32[B,P] -> float32[B,P] twice. Where a gradient is taken, the
    loss is computed from the kept logits, so that its probabilities add up to one.
    """
    losses_N = _word_cross_entropy(
        _flat(h_BPD), table_VD, bias_V, _flat(labels_BP), vocab_size, logits_dtype
    )
    spec = mesh.spec("batch", None)
    nll_BP, right_BP = (jnp.reshape(x, labels_BP.shape, out_sharding=spec) for x in losses_N)
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
    # Summing by a matmul with ones costs a sixth of a pass that recomputes the gradient.
    ones_NK = jnp.ones((h_ND.shape[0], 8), h_ND.dtype, out_sharding=jax.typeof(h_ND).sharding.spec)
    dbias_KV = ops.einsum("nk,nv->kv", ones_NK, dlogits_NV, (None, "vocab"), jnp.float32)
    return dh_ND, dtable_VD, dbias_KV[0].astype(bias_V.dtype), None


_word_cross_entropy.defvjp(_word_forward, _word_backward)
