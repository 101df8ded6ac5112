"""Embed tokens: word, position and segment vectors, their norm, a map to another width; rotations.

Rotary positions add no vectors: they rotate queries and keys by angles.

Dimensions: B batch, S sequence, H heads, K head width, E width of the embeddings, D width
of the encoder.
Source: modeling.py@eedf5716ce embedding_postprocessor; Lan et al. 2020 (ALBERT), section 3.1;
Su et al. 2021 (RoFormer), section 3.2.2; halves are paired as in Hugging Face's ModernBERT.
"""

import dataclasses
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.dropout import MLP_OUTPUT, POSITIONS, Dropout
from bert_jax.model.layers import Choices, Initial, Linear, Norm, Table, declare
from bert_jax.parallel import mesh


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
        """Declare tables and norm, or take the ones in `shared`.

        are_differences: the tables begin at zero and are added to the tables of other embeddings.
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
            table_stddev = 0.0 if are_differences else stddev
            self.word = Table(padded_vocab_size, width, "vocab", table_stddev)
            positions, segments = config.max_position_embeddings, config.type_vocab_size
            has_table = config.has_position_table
            self.position = Table(positions, width, None, table_stddev) if has_table else None
            self.segment = Table(segments, width, None, table_stddev) if segments else None
            self.layer_norm = Norm(config, width, choices) if config.embedding_norm else None
        # The vector that stands for the word of XLNet's targets; dims as in Hugging Face.
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

        With a base the tables hold differences to the base's tables, which get no gradient.
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rotation:
    """Hold cosine and sine of each position's angles, for both halves: float32[B or 1, S, 1, K]."""

    cos: jax.Array
    sin: jax.Array


def make_rotation(
    position_ids_BS: jax.Array | None, seq_len: int, head_width: int, theta: float
) -> Rotation:
    """Compute the angles position / theta ** (2 i / K); positions count from 0 unless given."""
    if position_ids_BS is None:
        position_ids_BS = jnp.arange(seq_len, dtype=jnp.int32)[None]
    exponents = jnp.tile(jnp.arange(0, head_width, 2, dtype=jnp.float32), 2) / head_width
    angles = position_ids_BS[..., None, None].astype(jnp.float32) * theta**-exponents
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x_BSHK: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotate each pair (x[i], x[i + K / 2]) by its angle, in float32; shape and dtype of x.

    The pairs are exchanged by a product with a matrix of 0, 1 and -1, which is exact. On a TPU,
    slicing and joining the halves would take as long as the projections (compiler's estimate).
    """
    half = x_BSHK.shape[-1] // 2
    turn = np.kron([[0, 1], [-1, 0]], np.eye(half))  # (first, second) -> (-second, first)
    turned_BSHK = jnp.einsum(
        "bshk,kl->bshl",
        x_BSHK,
        jnp.asarray(turn, x_BSHK.dtype),
        precision=jax.lax.Precision.HIGHEST if x_BSHK.dtype == jnp.float32 else None,
        out_sharding=mesh.spec("batch", None, "heads", None),
    )
    rotated = (
        x_BSHK.astype(jnp.float32) * rotation.cos + turned_BSHK.astype(jnp.float32) * rotation.sin
    )
    return rotated.astype(x_BSHK.dtype)
