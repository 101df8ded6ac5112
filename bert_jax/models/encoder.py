"""The Transformer encoder of BERT: embeddings and post-layer-norm layers.

Dimensions: B batch, S sequence, D width, H heads, K head width, F feed-forward units.
Source: modeling.py@eedf5716ce embedding_postprocessor, transformer_model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import attention, mesh, ops
from bert_jax.attention import Visible, tpu_kernel
from bert_jax.config import ModelConfig
from bert_jax.dropout import Dropout
from bert_jax.models.choices import Choices
from bert_jax.models.layers import LayerNorm, Linear, Table

LayerNumber = int | jax.Array  # an array, uint32 [], where the loop over layers is rolled

# Where dropout is applied in a layer; the masks of the embeddings and of what a task's layer reads
# count as one more layer's.
ATTENTION_WEIGHTS, ATTENTION_OUTPUT, MLP_OUTPUT, CLASSIFIER_INPUT = range(4)
# The axes along which elements share a hash: of hidden vectors [B,S,D] and of weights [B,H,S,T].
POSITIONS, KEYS = 1, 3


class Embeddings(nnx.Module):
    """Sum of word, position and segment vectors, normalised, then dropout."""

    def __init__(self, config: ModelConfig, padded_vocab_size: int, choices: Choices) -> None:
        width, stddev = config.hidden_size, config.initializer_range
        self.word = Table(padded_vocab_size, width, "vocab", stddev)
        self.position = Table(config.max_position_embeddings, width, None, stddev)
        self.segment = Table(config.type_vocab_size, width, None, stddev)
        self.layer_norm = LayerNorm(width, config.layer_norm_eps, choices)
        self.dropout_rate = config.hidden_dropout_prob
        self.dropout_layer = config.num_hidden_layers

    def __call__(
        self,
        input_ids_BS: jax.Array,
        segment_ids_BS: jax.Array,
        position_ids_BS: jax.Array | None,
        dtype: jnp.dtype,
        dropout: Dropout | None,
    ) -> jax.Array:
        if position_ids_BS is None:
            positions_BSD = self.position.in_order(input_ids_BS, dtype)
        else:
            positions_BSD = self.position(position_ids_BS, dtype)
        segments_BSD = self.segment.among_few(segment_ids_BS, dtype)
        x_BSD = self.layer_norm(self.word(input_ids_BS, dtype) + positions_BSD + segments_BSD)
        if dropout is None:
            return x_BSD
        return dropout.apply(x_BSD, self.dropout_rate, self.dropout_layer, MLP_OUTPUT, POSITIONS)


class Attention(nnx.Module):
    """Multi-head attention of a sequence over itself, with its output map and norm."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        heads = config.num_attention_heads
        width, all_heads = (config.hidden_size, "embed"), (config.hidden_size, "heads")
        stddev = config.initializer_range
        self.query = Linear(width, all_heads, stddev)
        self.key = Linear(width, all_heads, stddev)
        self.value = Linear(width, all_heads, stddev)
        self.output = Linear(all_heads, width, stddev)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps, choices)
        self.heads = heads
        self.head_width = config.hidden_size // heads
        self.weights_rate = config.attention_probs_dropout_prob
        self.output_rate = config.hidden_dropout_prob
        self.setting = choices.attention

    def __call__(
        self, x_BSD: jax.Array, visible: Visible, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        if attention.takes_kernel(
            self.setting, visible, x_BSD.shape[1], self.heads, self.head_width, x_BSD.dtype
        ):
            y_BSD = self._by_kernel(x_BSD, visible, layer, dropout)
        else:
            y_BSD = self._plain(x_BSD, visible, layer, dropout)
        if dropout is not None:
            y_BSD = dropout.apply(y_BSD, self.output_rate, layer, ATTENTION_OUTPUT, POSITIONS)
        return self.layer_norm(x_BSD + y_BSD)

    def _plain(
        self, x_BSD: jax.Array, visible: Visible, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        def drop(weights_BHST: jax.Array) -> jax.Array:
            if dropout is None:
                return weights_BHST
            return dropout.apply(weights_BHST, self.weights_rate, layer, ATTENTION_WEIGHTS, KEYS)

        batch, seq_len, width = x_BSD.shape
        by_head = mesh.spec("batch", None, "heads", None)

        def heads_of(y_BSE: jax.Array) -> jax.Array:
            apart = (batch, seq_len, self.heads, self.head_width)
            return jnp.reshape(y_BSE, apart, out_sharding=by_head)

        q_BSHK, k_BTHK, v_BTHK = (heads_of(of(x_BSD)) for of in (self.query, self.key, self.value))
        out_BSHK = attention.attend(q_BSHK, k_BTHK, v_BTHK, visible.mask, drop)
        together = mesh.spec("batch", None, "heads")
        return self.output(jnp.reshape(out_BSHK, (batch, seq_len, width), out_sharding=together))

    def _by_kernel(
        self, x_BSD: jax.Array, visible: Visible, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        """One matmul for queries, keys and values, which the kernel takes side by side."""
        maps = (self.query, self.key, self.value)
        kernel_DE = jnp.concatenate(
            [ops.weight(of.kernel[...], x_BSD.dtype) for of in maps], axis=1
        )
        bias_E = jnp.concatenate([of.bias[...] for of in maps])
        qkv_BSE = ops.einsum("bsd,de->bse", x_BSD, kernel_DE, ("batch", None, None))
        # The kernel adds up the gradient of the bias: what is added here has none.
        qkv_BSE = qkv_BSE + jax.lax.stop_gradient(bias_E).astype(x_BSD.dtype)
        out_BSD = tpu_kernel.attend(
            qkv_BSE,
            bias_E,
            visible.ids_BS,
            *self._words(layer, dropout, len(x_BSD)),
            self.heads,
            0.0 if dropout is None else self.weights_rate,
        )
        return self.output(out_BSD)

    def _words(
        self, layer: LayerNumber, dropout: Dropout | None, batch_size: int
    ) -> tuple[jax.Array, jax.Array]:
        if dropout is not None:
            return dropout.words(layer, ATTENTION_WEIGHTS)
        unread_B = jnp.zeros(batch_size, jnp.uint32)
        return unread_B, unread_B


class FeedForward(nnx.Module):
    """Two linear maps with a gelu between them, and the norm after the residual."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        width, units = (config.hidden_size, "embed"), (config.intermediate_size, "mlp")
        self.intermediate = Linear(width, units, config.initializer_range)
        self.output = Linear(units, width, config.initializer_range)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps, choices)
        self.hidden_act = config.hidden_act
        self.saves_derivative = choices.gelu_saves_derivative
        self.output_rate = config.hidden_dropout_prob

    def __call__(self, x_BSD: jax.Array, layer: LayerNumber, dropout: Dropout | None) -> jax.Array:
        units_BSF = ops.gelu(self.intermediate(x_BSD), self.hidden_act, self.saves_derivative)
        y_BSD = self.output(units_BSF)
        if dropout is not None:
            y_BSD = dropout.apply(y_BSD, self.output_rate, layer, MLP_OUTPUT, POSITIONS)
        return self.layer_norm(x_BSD + y_BSD)


class Layer(nnx.Module):
    """One layer of the encoder."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        self.attention = Attention(config, choices)
        self.mlp = FeedForward(config, choices)

    def __call__(
        self, x_BSD: jax.Array, visible: Visible, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        return self.mlp(self.attention(x_BSD, visible, layer, dropout), layer, dropout)
