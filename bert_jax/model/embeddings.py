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

    def __init__(
        self,
        config: ModelConfig,
        padded_vocab_size: int,
        choices: Choices,
        shared: "Embeddings | None" = None,
        are_differences: bool = False,
    ) -> None:
        """Declare tables and norm, or take those of `shared`.

        are_differences: the tables begin at zero and are added to those of other embeddings.
        """
        width, stddev = config.embedding_width, config.initializer_range
        self.word: Table
        self.position: Table | None
        self.segment: Table | None
        self.layer_norm: Norm | None
        if shared is not None:
            self.word, self.position, self.segment = shared.word, shared.position, shared.segment
            self.layer_norm = shared.layer_norm
        else:
            of_tables = 0.0 if are_differences else stddev
            self.word = Table(padded_vocab_size, width, "vocab", of_tables)
            positions, segments = config.max_position_embeddings, config.type_vocab_size
            is_learned = config.position_embedding_type == "learned"
            self.position = Table(positions, width, None, of_tables) if is_learned else None
            self.segment = Table(segments, width, None, of_tables) if segments else None
            self.layer_norm = Norm(config, width, choices) if config.embedding_norm else None
        # What XLNet's targets are instead of their word; its dims are those of Hugging Face.
        is_relative = config.position_embedding_type == "relative"
        drawn = Initial(stddev=stddev)
        self.target = declare((1, 1, width), (None, None, "embed"), drawn) if is_relative else None
        self.projection = (
            Linear((width, None), (config.hidden_size, "embed"), stddev)
            if config.maps_embeddings
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
        base: "Embeddings | None" = None,
    ) -> jax.Array:
        """Embed int32[B,S] -> dtype[B,S,D]; positions count from 0 unless given.

        With a base the tables hold the differences to the base's, which get no gradient.
        Source: He et al. 2023 (DeBERTaV3), section 3.2, gradient-disentangled sharing.
        """
        x_BSE = ops.lookup(
            _sum_tables(self.word, None if base is None else base.word), input_ids_BS, dtype
        )
        if self.position is not None:
            table_PE = _sum_tables(self.position, None if base is None else base.position)
            if position_ids_BS is None:
                positions_BSE = ops.take_first_rows(table_PE, input_ids_BS.shape, dtype)
            else:
                positions_BSE = ops.lookup(table_PE, position_ids_BS, dtype)
            x_BSE = x_BSE + positions_BSE
        if self.segment is not None:
            table_TE = _sum_tables(self.segment, None if base is None else base.segment)
            x_BSE = x_BSE + ops.select_rows(table_TE, segment_ids_BS, dtype)
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


def _sum_tables(table: Table, base: Table | None) -> jax.Array:
    """Return the rows of a table, float32, or of its sum with a base that gets no gradient."""
    if base is None:
        return table.embedding[...]
    return jax.lax.stop_gradient(base.embedding[...]) + table.embedding[...]
