"""Define a layer of the Transformer encoder: self-attention, then the feed-forward part.

Dimensions: B batch, S sequence, D width, H heads, K head width.
Source: modeling.py@eedf5716ce transformer_model; Warner et al. 2024 (ModernBERT), section 2.1.
"""

import dataclasses
import typing

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import attention, ops
from bert_jax.model.attention import Visible, blocks, cudnn, flash, tpu_kernel
from bert_jax.model.dropout import ATTENTION_OUTPUT, ATTENTION_WEIGHTS, Dropout, drop_weights
from bert_jax.model.embeddings import Rotation, make_rotation, rotate
from bert_jax.model.layers import (
    Choices,
    FeedForward,
    LayerNumber,
    Linear,
    Residual,
    compute_residual_stddev,
)
from bert_jax.model.relative import (
    DistanceScores,
    Relations,
    RelativeAttention,
    Targets,
    make_relations,
)
from bert_jax.parallel import mesh


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerView:
    """Hold what the attention of a kind of layer reads in addition to its input."""

    visible: Visible
    rotation: Rotation | None = None
    relations: Relations | None = None  # set if positions are relative
    distances_RD: jax.Array | None = None  # set if they are disentangled


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Views:
    """Hold the views of layers that attend to the complete row, and of layers with a window."""

    complete: LayerView
    window: LayerView | None


def make_views(
    config: ModelConfig,
    visible: Visible,
    position_ids_BS: jax.Array | None,
    segment_ids_BS: jax.Array,
    distances_RD: jax.Array | None,
) -> Views:
    """Make what every layer of one kind shares: the visible keys, and how positions enter."""
    seq_len = segment_ids_BS.shape[1]
    if config.is_causal:
        visible = attention.hide_later(visible, seq_len)
    if config.position_embedding_type == "relative":
        relations = make_relations(segment_ids_BS, config.hidden_size)
        return Views(LayerView(visible, relations=relations), None)
    if distances_RD is not None:
        return Views(LayerView(visible, distances_RD=distances_RD), None)

    def view(visible: Visible, theta: float) -> LayerView:
        if config.position_embedding_type != "rotary":
            return LayerView(visible)
        head_width = config.hidden_size // config.num_attention_heads
        return LayerView(visible, make_rotation(position_ids_BS, seq_len, head_width, theta))

    complete = view(visible, config.global_rope_theta)
    if config.global_attn_every_n_layers == 1:
        return Views(complete, None)
    windowed = attention.hide_outside_window(visible, seq_len, config.local_attention)
    return Views(complete, view(windowed, config.local_rope_theta))


class Attention(Residual):
    """Compute multi-head self-attention and its output projection."""

    def __init__(self, config: ModelConfig, choices: Choices, number: int) -> None:
        is_normed = config.norm_position == "pre" and config.embedding_norm and number == 0
        super().__init__(config, choices, "attention", ATTENTION_OUTPUT, has_norm=not is_normed)
        heads = config.num_attention_heads
        is_disentangled = config.position_embedding_type == "disentangled"
        width, all_heads = (config.hidden_size, "embed"), (config.hidden_size, "heads")
        stddev, has_bias = config.initializer_range, config.linear_bias
        self.query = Linear(width, all_heads, stddev, has_bias)
        self.key = Linear(width, all_heads, stddev, has_bias)
        self.value = Linear(width, all_heads, stddev, has_bias)
        self.output = Linear(all_heads, width, compute_residual_stddev(config), has_bias)
        self.distances = DistanceScores(config) if is_disentangled else None
        self.heads = heads
        self.head_width = config.hidden_size // heads
        self.config = config
        self.weights_rate = config.attention_probs_dropout_prob
        self.setting = choices.attention
        self.has_window = number % config.global_attn_every_n_layers != 0

    def compute(
        self,
        x_BSD: jax.Array,
        views: Views,
        layer: LayerNumber,
        dropout: Dropout | None,
        targets: Targets | None = None,
    ) -> jax.Array:
        """Compute attention, before the output's dropout, residual and norm: float[B,S,D].

        With targets, the queries are their vectors, float[B,P,D]; only plain attention supports
        targets.
        """
        view = views.window if self.has_window and views.window is not None else views.complete
        has_dropout = dropout is not None and self.weights_rate > 0
        chosen = attention.choose_here(
            self.setting, view.visible, x_BSD.shape[1], self.config, x_BSD.dtype, has_dropout
        )
        if chosen in (attention.KERNEL, attention.FLASH, attention.CUDNN):
            return self._attend_by_kernel(chosen, x_BSD, view, layer, dropout)
        return self._attend_by_head(chosen, x_BSD, view, layer, dropout, targets)

    def _attend_by_head(
        self,
        chosen: str,
        x_BSD: jax.Array,
        view: LayerView,
        layer: LayerNumber,
        dropout: Dropout | None,
        targets: Targets | None,
    ) -> jax.Array:
        """Attend by an implementation that takes separate queries, keys and values."""
        by_head = mesh.spec("batch", None, "heads", None)

        def map_by_head(linear: Linear, x_BSD: jax.Array) -> jax.Array:
            apart = (*x_BSD.shape[:2], self.heads, self.head_width)
            return jnp.reshape(linear(x_BSD), apart, out_sharding=by_head)

        visible = view.visible
        queries = targets or Targets(x_BSD, None, visible.mask)
        q_BSHK = map_by_head(self.query, queries.vectors_BPD)
        k_BTHK, v_BTHK = (map_by_head(linear, x_BSD) for linear in (self.key, self.value))
        if view.rotation is not None:
            q_BSHK, k_BTHK = rotate(q_BSHK, view.rotation), rotate(k_BTHK, view.rotation)
        if chosen == attention.PLAIN or visible.ids_BS is None:
            terms: list[jax.Array] = []
            if self.distances is not None and view.distances_RD is not None:
                rows_RD = self.distances.drop(view.distances_RD, layer, dropout)
                maps = (self.query, self.key)
                terms = self.distances.score(q_BSHK, k_BTHK, rows_RD, *maps, queries.positions_BP)
            drop = drop_weights(dropout, self.weights_rate, layer)
            out_BSHK = attention.attend(q_BSHK, k_BTHK, v_BTHK, queries.mask, drop, terms)
        elif visible.width:
            out_BSHK = blocks.attend_window(
                q_BSHK, k_BTHK, v_BTHK, visible.ids_BS, visible.width, visible.is_causal
            )
        else:
            out_BSHK = blocks.attend_complete(
                q_BSHK, k_BTHK, v_BTHK, visible.ids_BS, visible.is_causal
            )
        together = mesh.spec("batch", None, "heads")
        return self.output(jnp.reshape(out_BSHK, queries.vectors_BPD.shape, out_sharding=together))

    def _attend_by_kernel(
        self,
        chosen: str,
        x_BSD: jax.Array,
        view: LayerView,
        layer: LayerNumber,
        dropout: Dropout | None,
    ) -> jax.Array:
        """Attend by a kernel: one matmul for queries, keys and values, side by side."""
        maps = (self.query, self.key, self.value)
        visible, ids_BS = view.visible, typing.cast(jax.Array, view.visible.ids_BS)
        kernel_DE = jax.tree.map(
            lambda *parts: jnp.concatenate(parts, axis=-1),
            *[linear.gather_kernel(x_BSD.dtype) for linear in maps],
        )
        bias_E = jnp.concatenate(
            [
                jnp.zeros(self.query.kernel.shape[1:]) if linear.bias is None else linear.bias[...]
                for linear in maps
            ]
        )
        qkv_BSE = ops.multiply(x_BSD, kernel_DE, None)
        if chosen == attention.KERNEL:
            # The kernel computes the bias gradient, so none flows through this addition.
            qkv_BSE = qkv_BSE + jax.lax.stop_gradient(bias_E).astype(x_BSD.dtype)
        elif self.query.bias is not None:
            qkv_BSE = qkv_BSE + bias_E.astype(x_BSD.dtype)
        if chosen == attention.FLASH:
            sees = (visible.width, visible.is_causal)
            return self.output(flash.attend(qkv_BSE, ids_BS, view.rotation, self.heads, *sees))
        if chosen == attention.CUDNN:
            by_head = (view.rotation, self.heads, visible.is_causal)
            return self.output(cudnn.attend(qkv_BSE, visible.mask, *by_head))
        if dropout is None:
            unread_B = jnp.zeros(len(x_BSD), jnp.uint32)
            rate, words = 0.0, (unread_B, unread_B)
        else:
            rate, words = self.weights_rate, dropout.words(layer, ATTENTION_WEIGHTS)
        sizes = (x_BSD.shape[1], self.heads, self.head_width)
        row = tpu_kernel.KernelRow(*sizes, rate, visible.is_causal)
        return self.output(tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, words, row))


class Layer(nnx.Module):
    """Compute one layer of the encoder: attention, then the feed-forward part."""

    def __init__(self, config: ModelConfig, choices: Choices, number: int) -> None:
        is_relative = config.position_embedding_type == "relative"
        self.attention: Attention | RelativeAttention = (
            RelativeAttention(config, choices)
            if is_relative
            else Attention(config, choices, number)
        )
        self.mlp = FeedForward(config, choices)

    def __call__(
        self, x_BSD: jax.Array, views: Views, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        def attend(x_BSD: jax.Array) -> jax.Array:
            return self.attention.compute(x_BSD, views, layer, dropout)

        x_BSD = self.attention.add(x_BSD, attend, layer, dropout)
        return self.mlp.add(x_BSD, self.mlp.compute, layer, dropout)

    def project(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Project float[B,S,D] to queries, keys and values of the same shape, heads side by side.

        Rotary positions are not applied.
        """
        attention = typing.cast(Attention, self.attention)
        x_BSD = attention.read(x_BSD)
        return attention.query(x_BSD), attention.key(x_BSD), attention.value(x_BSD)

    def predict(
        self,
        targets: Targets,
        x_BSD: jax.Array,
        views: Views,
        layer: LayerNumber,
        dropout: Dropout | None,
    ) -> Targets:
        """Apply the layer to the targets, with keys and values from x_BSD.

        This is XLNet's query stream, and a layer of DeBERTa's enhanced mask decoder.
        """

        def attend(vectors_BPD: jax.Array) -> jax.Array:
            queries = dataclasses.replace(targets, vectors_BPD=vectors_BPD)
            tokens_BSD = self.attention.read(x_BSD)
            return self.attention.compute(tokens_BSD, views, layer, dropout, queries)

        vectors_BPD = self.attention.add(targets.vectors_BPD, attend, layer, dropout)
        vectors_BPD = self.mlp.add(vectors_BPD, self.mlp.compute, layer, dropout)
        return dataclasses.replace(targets, vectors_BPD=vectors_BPD)
