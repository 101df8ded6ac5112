"""Embed tokens: word, position and segment vectors, their norm, and a map to another width.

Dimensions: B batch, S sequence, E width of the embeddings, D width of the encoder.
Source: modeling.py@eedf5716ce embedding_postprocessor; Lan et al. 2020 (ALBERT), section 3.1.
"""

import typing
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.dropout import MLP_OUTPUT, POSITIONS, Dropout
from bert_jax.model.layers import Choices, Initial, Linear, Norm, Table, declare


class Embeddings(nnx.Module):
    """Add word, position and segment vectors, normalize them, apply dropout, map to the width."""

    def __init__(self, config: ModelConfig, padded_vocab_size: int, choices: Choices) -> None:
        width, stddev = config.embedding_size or config.hidden_size, config.initializer_range
        self.word = Table(padded_vocab_size, width, "vocab", stddev)
        is_learned = config.position_embedding_type == "learned"
        self.position = (
            Table(config.max_position_embeddings, width, None, stddev) if is_learned else None
        )
        # What XLNet's targets are instead of their word; its dims are those of Hugging Face.
        is_relative = config.position_embedding_type == "relative"
        drawn = Initial(stddev=stddev)
        self.target = declare((1, 1, width), (None, None, "embed"), drawn) if is_relative else None
        segments = config.type_vocab_size
        self.segment = Table(segments, width, None, stddev) if segments else None
        self.layer_norm = Norm(config, width, choices) if config.embedding_norm else None
        self.projection = (
            Linear((width, None), (config.hidden_size, "embed"), stddev)
            if width != config.hidden_size
            else None
        )
        self.dropout_rate = config.dropout_rate("embeddings")
        self.dropout_layer = config.num_hidden_layers

    def __call__(
        self,
        input_ids_BS: jax.Array,
        segment_ids_BS: jax.Array,
        position_ids_BS: jax.Array | None,
        dtype: jnp.dtype,
        dropout: Dropout | None,
    ) -> jax.Array:
        """Embed int32[B,S] -> dtype[B,S,D]; positions count from 0 unless given."""
        x_BSE = self.word(input_ids_BS, dtype)
        if self.position is not None:
            if position_ids_BS is None:
                table_PE = self.position.embedding[...]
                positions_BSE = ops.take_first_rows(table_PE, input_ids_BS.shape, dtype)
            else:
                positions_BSE = self.position(position_ids_BS, dtype)
            x_BSE = x_BSE + positions_BSE
        if self.segment is not None:
            x_BSE = x_BSE + ops.select_rows(self.segment.embedding[...], segment_ids_BS, dtype)
        if self.layer_norm is not None:
            x_BSE = self.layer_norm(x_BSE)
        if dropout is not None:
            x_BSE = dropout.apply(
                x_BSE, self.dropout_rate, self.dropout_layer, MLP_OUTPUT, POSITIONS
            )
        return x_BSE if self.projection is None else self.projection(x_BSE)

    def embed_targets(self, dims: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        """Return the vector of a target for P places of B rows, dims (B, P): dtype[B,P,D]."""
        target_PD = jnp.repeat(typing.cast(nnx.Param[Any], self.target)[0], dims[1], axis=0)
        return ops.take_first_rows(target_PD, dims, dtype)
