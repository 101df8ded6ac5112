"""Define the head of the masked language model.

Dimensions: B batch, S sequence, P predictions, D width, V vocabulary (padded).
Source: run_pretraining.py@eedf5716ce get_masked_lm_output.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.layers import Choices, Initial, Linear, Norm, declare
from bert_jax.model.losses import Losses, word_cross_entropy, word_logits
from bert_jax.parallel import mesh

PART_POSITIONS = 128  # of a row whose tokens are all predicted


class MaskedLmHead(nnx.Module):
    """Compute logits over the vocabulary, or their loss; the decoder is the word table itself.

    Both take float[B,P,D] and the word table, float[V,D]; rows past the vocabulary get no weight.
    """

    def __init__(self, config: ModelConfig, padded_vocab_size: int, choices: Choices) -> None:
        width = config.embedding_size or config.hidden_size
        has_transform = config.mlm_transform
        inputs, outputs = (config.hidden_size, "embed"), (width, None)
        self.transform = (
            Linear(inputs, outputs, config.initializer_range, config.linear_bias)
            if has_transform
            else None
        )
        self.layer_norm = Norm(config, width, choices) if has_transform else None
        self.output_bias = declare((padded_vocab_size,), ("vocab",), Initial())
        self.hidden_act = config.hidden_act
        self.vocab_size = config.vocab_size
        self.choices = choices

    def transform_vectors(self, x: jax.Array) -> jax.Array:
        """Compute what the decoder reads: float[...,D] -> float[...,E]."""
        if self.transform is None or self.layer_norm is None:
            return x
        saves = self.choices.gelu_saves_derivative
        return self.layer_norm(ops.activate(self.transform(x), self.hidden_act, saves))

    def compute_logits(self, x_BPD: jax.Array, word_table_VD: jax.Array) -> jax.Array:
        """Compute the logits: float32[B,P,V]."""
        table_VD = ops.gather_weight(word_table_VD, x_BPD.dtype)
        return word_logits(
            self.transform_vectors(x_BPD), table_VD, self.output_bias[...], self.vocab_size
        )

    def compute_losses_in_parts(
        self, x_BSD: jax.Array, word_table_VD: jax.Array, labels_BS: jax.Array
    ) -> Losses:
        """Compute compute_losses for every position of a row, PART_POSITIONS of them at a time.

        The logits of a part are computed again in the backward pass: those of a complete row take
        the memory of several times the masked ones.
        """
        seq_len = labels_BS.shape[1]
        parts = -(-seq_len // PART_POSITIONS)
        if parts == 1:
            return self.compute_losses(x_BSD, word_table_VD, labels_BS)

        def cut(row: jax.Array) -> jax.Array:
            batch, _, *rest = row.shape
            padding = [(0, 0), (0, parts * PART_POSITIONS - seq_len), *[(0, 0)] * len(rest)]
            spec = mesh.spec("batch", None, None, *(None,) * len(rest))
            dims = (batch, parts, PART_POSITIONS, *rest)
            return jnp.swapaxes(jnp.reshape(jnp.pad(row, padding), dims, out_sharding=spec), 0, 1)

        def compute(part: tuple[jax.Array, jax.Array]) -> Losses:
            return self.compute_losses(part[0], word_table_VD, part[1])

        losses = jax.lax.map(
            jax.checkpoint(compute, prevent_cse=False), (cut(x_BSD), cut(labels_BS))
        )

        def join(part_CBK: jax.Array) -> jax.Array:
            dims = (len(labels_BS), parts * PART_POSITIONS)
            row_BCK = jnp.swapaxes(part_CBK, 0, 1)
            return jnp.reshape(row_BCK, dims, out_sharding=mesh.spec("batch", None))[:, :seq_len]

        nll_BS, right_BS = (join(part_CBK) for part_CBK in losses)
        return nll_BS, right_BS

    def compute_losses(
        self, x_BPD: jax.Array, word_table_VD: jax.Array, labels_BP: jax.Array
    ) -> Losses:
        """Compute nats of labels, int32[B,P], and which are likeliest: float32[B,P] twice."""
        return word_cross_entropy(
            self.transform_vectors(x_BPD),
            ops.gather_weight(word_table_VD, x_BPD.dtype),
            self.output_bias[...],
            labels_BP,
            self.vocab_size,
            self.choices.mlm_logits_dtype,
        )
