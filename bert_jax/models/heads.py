"""The masked language model head.

Dimensions: B batch, S sequence, P predictions, D width, V vocabulary (padded).
Source: run_pretraining.py@eedf5716ce get_masked_lm_output.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import ops
from bert_jax.config import ModelConfig
from bert_jax.models.layers import Initial, LayerNorm, Linear, declare

PADDING_LOGIT = -1e9  # of vocabulary rows that exist in memory only: probability 0 in float32


class MaskedLmHead(nnx.Module):
    """Vectors -> float32 logits over the vocabulary; the decoder is the word table itself."""

    def __init__(self, config: ModelConfig, padded_vocab_size: int) -> None:
        width = config.hidden_size
        self.transform = Linear(
            {"d": (width, "embed")}, {"e": (width, None)}, config.initializer_range
        )
        self.layer_norm = LayerNorm(width, config.layer_norm_eps)
        self.output_bias = declare((padded_vocab_size,), ("vocab",), Initial())
        self.hidden_act = config.hidden_act
        self.vocab_size = config.vocab_size

    def __call__(self, x_BPD: jax.Array, word_table_VD: jax.Array) -> jax.Array:
        """float[B,P,D], float32[V,D] -> float32[B,P,V]; rows past the vocabulary get no weight."""
        h_BPD = self.layer_norm(ops.gelu(self.transform(x_BPD), self.hidden_act))
        logits_BPV = ops.einsum(
            "bpd,vd->bpv",
            h_BPD,
            ops.weight(word_table_VD, h_BPD.dtype),
            ("batch", None, "vocab"),
            jnp.float32,
        )
        bias_V = self.output_bias[...]
        ids_V = jax.lax.broadcasted_iota(
            jnp.int32, bias_V.shape, 0, out_sharding=jax.typeof(bias_V).sharding.spec
        )
        return logits_BPV + jnp.where(ids_V < self.vocab_size, bias_V, PADDING_LOGIT)
