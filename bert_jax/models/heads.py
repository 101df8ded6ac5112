"""The masked language model head.

Dimensions: B batch, S sequence, P predictions, D width, V vocabulary (padded).
Source: run_pretraining.py@eedf5716ce get_masked_lm_output.
"""

import jax
from flax import nnx

from bert_jax import ops
from bert_jax.config import ModelConfig
from bert_jax.cross_entropy import Losses, word_cross_entropy, word_logits
from bert_jax.models.choices import Choices
from bert_jax.models.layers import Initial, LayerNorm, Linear, declare


class MaskedLmHead(nnx.Module):
    """Vectors -> logits over the vocabulary, or their loss; the decoder is the word table itself.

    Both take float[B,P,D] and the word table, float[V,D]; rows past the vocabulary get no weight.
    """

    def __init__(self, config: ModelConfig, padded_vocab_size: int, choices: Choices) -> None:
        width = config.hidden_size
        self.transform = Linear((width, "embed"), (width, None), config.initializer_range)
        self.layer_norm = LayerNorm(width, config.layer_norm_eps, choices)
        self.output_bias = declare((padded_vocab_size,), ("vocab",), Initial())
        self.hidden_act = config.hidden_act
        self.vocab_size = config.vocab_size
        self.choices = choices

    def _transformed(self, x_BPD: jax.Array) -> jax.Array:
        saves = self.choices.gelu_saves_derivative
        return self.layer_norm(ops.gelu(self.transform(x_BPD), self.hidden_act, saves))

    def logits(self, x_BPD: jax.Array, word_table_VD: jax.Array) -> jax.Array:
        """float32[B,P,V]."""
        table_VD = ops.weight(word_table_VD, x_BPD.dtype)
        return word_logits(
            self._transformed(x_BPD), table_VD, self.output_bias[...], self.vocab_size
        )

    def cross_entropy(
        self, x_BPD: jax.Array, word_table_VD: jax.Array, labels_BP: jax.Array
    ) -> Losses:
        """Nats of each label, int32[B,P], and whether it is the likeliest: float32[B,P] twice."""
        return word_cross_entropy(
            self._transformed(x_BPD),
            ops.weight(word_table_VD, x_BPD.dtype),
            self.output_bias[...],
            labels_BP,
            self.vocab_size,
            self.choices.mlm_logits_dtype,
        )
