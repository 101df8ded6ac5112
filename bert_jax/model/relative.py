"""Attend by relative positions, as XLNet and DeBERTa do.

XLNet's attention adds scores of distance and segment, in one stream or two. DeBERTa's adds scores
of content to position and of position to content.

Dimensions: B batch, S sequence, T keys, P predictions, D width, H heads, K head width, M = 2 S - 1
distances: from S - 1 to 1 - S in XLNet's scores. R rows of DeBERTa's table that a row of S tokens
reads.
Source: Dai et al. 2019 (Transformer-XL), section 3.3; Yang et al. 2019 (XLNet), sections 2.3, 2.5;
He et al. 2021 (DeBERTa), section 3.1; 2023 (DeBERTaV3); disentangled_attention.py and da_utils.py
of microsoft/DeBERTa.
"""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.attention import blocks
from bert_jax.model.dropout import ATTENTION_OUTPUT, DISTANCES, POSITIONS, Dropout, drop_weights
from bert_jax.model.layers import (
    Choices,
    Initial,
    LayerNumber,
    Linear,
    Norm,
    Residual,
    Table,
    declare,
)
from bert_jax.parallel import mesh

if TYPE_CHECKING:
    from bert_jax.model.encoder import Views


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Relations:
    """Hold what relates every query of a row to every key; layers share it."""

    distances_MD: jax.Array  # float32: sines and cosines of the distance from a query to a key
    segment_ids_BS: jax.Array  # int32


def make_relations(segment_ids_BS: jax.Array, width: int) -> Relations:
    """Encode each distance as Vaswani et al. 2017 encode positions, sines before cosines."""
    seq_len = segment_ids_BS.shape[1]
    distances_M = jnp.arange(seq_len - 1, -seq_len, -1, dtype=jnp.float32)
    frequencies = 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = distances_M[:, None] * frequencies
    encoded_MD = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return Relations(encoded_MD, segment_ids_BS)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Targets:
    """Hold the P target positions of each row, with their query vectors and mask."""

    vectors_BPD: jax.Array
    positions_BP: jax.Array | None  # int32; None for all places in order
    mask: jax.Array  # bool[B or 1, 1, P or 1, S]: True where a target may attend to a token


class RelativeAttention(Residual):
    """Compute self-attention whose scores add content, distance and segment; maps have no bias."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        super().__init__(config, choices, "attention", ATTENTION_OUTPUT)
        heads = config.num_attention_heads
        width = config.hidden_size // heads
        drawn = Initial(stddev=config.initializer_range)

        def declare_map() -> nnx.Param[Any]:
            axes = ("embed", "heads", None)
            return declare((config.hidden_size, heads, width), axes, drawn)

        def declare_vector() -> nnx.Param[Any]:
            return declare((heads, width), ("heads", None), drawn)

        self.query, self.key, self.value = declare_map(), declare_map(), declare_map()
        self.output, self.position = declare_map(), declare_map()
        self.content_bias, self.position_bias = declare_vector(), declare_vector()
        self.segment_bias = declare_vector()
        self.segment = declare((2, heads, width), (None, "heads", None), drawn)
        self.weights_rate = config.attention_probs_dropout_prob

    def compute(
        self,
        x_BTD: jax.Array,
        views: "Views",
        layer: LayerNumber,
        dropout: Dropout | None,
        targets: Targets | None = None,
    ) -> jax.Array:
        """Compute attention, before the output's dropout, residual and norm: float[B,S,D].

        With targets, the queries are their vectors, float[B,P,D].
        """
        relations = typing.cast(Relations, views.complete.relations)
        queries = targets or Targets(x_BTD, None, views.complete.visible.mask)
        dtype, by_head = x_BTD.dtype, ("batch", "heads", None, None)
        q_BSHK, k_BTHK, v_BTHK = (
            ops.einsum(
                "bsd,dhk->bshk",
                x,
                ops.gather_weight(weight[...], dtype),
                ("batch", None, "heads", None),
            )
            for x, weight in (
                (queries.vectors_BPD, self.query),
                (x_BTD, self.key),
                (x_BTD, self.value),
            )
        )
        distances_MHK = ops.einsum(
            "md,dhk->mhk",
            relations.distances_MD.astype(dtype),
            ops.gather_weight(self.position[...], dtype),
            (None, "heads", None),
        )
        segments_EHK = ops.gather_weight(self.segment[...], dtype)

        def score(bias_HK: nnx.Param[Any], pattern: str, keys: jax.Array) -> jax.Array:
            query_BSHK = q_BSHK + bias_HK[...].astype(dtype)
            return ops.einsum(pattern, query_BSHK, keys, by_head, jnp.float32)

        content_BHST = score(self.content_bias, "bshk,bthk->bhst", k_BTHK)
        position_BHSM = score(self.position_bias, "bshk,mhk->bhsm", distances_MHK)
        segment_BHSE = score(self.segment_bias, "bshk,ehk->bhse", segments_EHK)
        keys_BT = queries_BS = relations.segment_ids_BS
        position_BHST = align_distances(position_BHSM, queries.positions_BP)
        if queries.positions_BP is not None:
            queries_BS = ops.gather_positions(keys_BT, queries.positions_BP)
        is_other = queries_BS[:, None, :, None] != keys_BT[:, None, None, :]
        segment_BHST = jnp.where(is_other, segment_BHSE[..., 1:], segment_BHSE[..., :1])
        scores_BHST = (content_BHST + position_BHST + segment_BHST) * q_BSHK.shape[-1] ** -0.5
        drop = drop_weights(dropout, self.weights_rate, layer)
        out_BSHK = blocks.weigh_values(scores_BHST, v_BTHK, queries.mask, drop)
        output_DHK = ops.gather_weight(self.output[...], dtype)
        return ops.einsum("bshk,dhk->bsd", out_BSHK, output_DHK, ("batch", None, None))


def align_distances(scores_BHSM: jax.Array, positions_BS: jax.Array | None) -> jax.Array:
    """Return the score of each key, [B,H,S,T], from the scores of each distance to a query.

    Query i meets key j in column S - 1 - i + j. If rows are padded by one column, the entry lies
    (2 S - 1) i + j places after the first key of query 0. Queries are at positions_BS, or at all
    positions in order for None.
    """
    if positions_BS is not None:
        return _shift(scores_BHSM, positions_BS)
    *batch, seq_len, distances = scores_BHSM.shape
    spec = jax.typeof(scores_BHSM).sharding.spec
    wider = jnp.pad(scores_BHSM, [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    flat_BHN = jnp.reshape(
        wider, (*batch, seq_len * (distances + 1)), out_sharding=PartitionSpec(*spec[:3])
    )
    first = seq_len - 1
    shifted = flat_BHN[..., first : first + seq_len * distances]
    aligned = jnp.reshape(shifted, scores_BHSM.shape, out_sharding=spec)
    return aligned[..., :seq_len]


def _shift(scores_BHSM: jax.Array, positions_BS: jax.Array) -> jax.Array:
    """Align distances for queries at any positions, by shifts of powers of two: [B,H,S,T]."""
    seq_len = (scores_BHSM.shape[-1] + 1) // 2
    shift_BS = seq_len - 1 - positions_BS
    aligned = scores_BHSM
    for bit in range((seq_len - 1).bit_length()):
        moved = jnp.pad(aligned[..., 1 << bit :], [(0, 0)] * 3 + [(0, 1 << bit)])
        is_moved_BS = (shift_BS >> bit) & 1 == 1
        aligned = jnp.where(is_moved_BS[:, None, :, None], moved, aligned)
    return aligned[..., :seq_len]


def number_distances(config: ModelConfig, seq_len: int) -> np.ndarray:
    """Return the row in the table of each distance from 1 - S to S - 1, ascending: int[M].

    Distances up to half the number of buckets have a row each; beyond, rows stand for ever more
    distances. Computed in float32, as the published models were trained.
    """
    distances_M = np.arange(1 - seq_len, seq_len)
    span, last = _find_span(config), config.max_relative_positions - 1
    near = config.position_buckets // 2
    if 0 < near < last:
        ratios = np.maximum(np.abs(distances_M), near).astype(np.float32) / np.float32(near)
        shares = np.log(ratios) / np.log(np.float32(last / near))
        buckets = np.sign(distances_M) * (np.ceil(shares * np.float32(near - 1)) + near)
        distances_M = np.where(ratios > 1, buckets, distances_M).astype(np.int64)
    return np.clip(distances_M + span, 0, 2 * span - 1)


def _find_span(config: ModelConfig) -> int:
    return config.position_buckets or config.max_relative_positions


class DistanceTable(nnx.Module):
    """Hold a vector for each distance, or bucket of distances, which all layers read."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        rows, width = 2 * _find_span(config), config.hidden_size
        self.table = Table(rows, width, None, config.initializer_range)
        self.layer_norm = Norm(config, width, choices) if config.norm_rel_ebd else None
        self.config = config

    def __call__(self, seq_len: int, dtype: jnp.dtype) -> jax.Array:
        """Return the rows that S tokens read, from the first to the last: dtype[R,D]."""
        rows_M = number_distances(self.config, seq_len)
        table = jax.sharding.reshard(self.table.embedding[...], PartitionSpec(None, None))
        rows_RD = table[rows_M[0] : rows_M[-1] + 1].astype(dtype)
        return rows_RD if self.layer_norm is None else self.layer_norm(rows_RD)


class DistanceScores(nnx.Module):
    """Compute the terms of attention's scores that depend on distances."""

    def __init__(self, config: ModelConfig) -> None:
        width, all_heads = (config.hidden_size, "embed"), (config.hidden_size, "heads")

        def declare_map(term: str) -> Linear | None:
            is_own = term in config.pos_att_type and not config.share_att_key
            return Linear(width, all_heads, config.initializer_range) if is_own else None

        self.key, self.query = declare_map("c2p"), declare_map("p2c")
        self.config = config

    def drop(
        self, distances_RD: jax.Array, layer: LayerNumber, dropout: Dropout | None
    ) -> jax.Array:
        """Apply dropout to the rows of the table, with one mask for the batch: float[R,D]."""
        if dropout is None:
            return distances_RD
        alone = dataclasses.replace(dropout, rows_B=jnp.zeros((1,), jnp.uint32))
        rate = self.config.dropout_rate("distances")
        return alone.apply(distances_RD[None], rate, layer, DISTANCES, POSITIONS)[0]

    def score(
        self,
        q_BSHK: jax.Array,
        k_BSHK: jax.Array,
        distances_RD: jax.Array,
        query: Linear,
        key: Linear,
        positions_BP: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Compute the configured terms, each float32[B,H,S,S]; query and key are content's maps.

        Table rows are repeated until there is one per distance, so that a column of scores is a
        distance, and a shift by the query's position makes it a key (decision 91). Queries are at
        positions_BP, by default at all positions in order.
        """
        rows_M = number_distances(self.config, k_BSHK.shape[1])

        def score_keys(
            x_BSHK: jax.Array,
            linear: Linear,
            rows_M: np.ndarray,
            positions_BS: jax.Array | None = None,
        ) -> jax.Array:
            mapped_RHK = self._map_by_head(linear, distances_RD)
            by_distance_MHK = mapped_RHK.at[rows_M - rows_M.min()].get(
                out_sharding=mesh.spec(None, "heads", None)
            )
            by_head = ("batch", "heads", None, None)
            return align_distances(
                ops.einsum("bshk,mhk->bhsm", x_BSHK, by_distance_MHK, by_head, jnp.float32),
                positions_BS,
            )

        terms = []
        if "c2p" in self.config.pos_att_type:
            # The first column of query S - 1 is the key S - 1 places before.
            terms.append(score_keys(q_BSHK, self.key or key, rows_M[::-1], positions_BP))
        if "p2c" in self.config.pos_att_type:
            by_query = jnp.swapaxes(score_keys(k_BSHK, self.query or query, rows_M), 2, 3)
            if positions_BP is not None:
                by_query = jax.vmap(lambda scores_HST, at_P: scores_HST[:, at_P])(
                    by_query, positions_BP
                )
            terms.append(by_query)
        return terms

    def _map_by_head(self, linear: Linear, distances_RD: jax.Array) -> jax.Array:
        """Map rows of the table as queries or keys: float[R,D] -> float[R,H,K]."""
        dtype = distances_RD.dtype
        kernel_DE = ops.gather_weight(linear.kernel[...], dtype)
        y_RE = ops.einsum("rd,de->re", distances_RD, kernel_DE, (None, "heads"))
        if linear.bias is not None:
            y_RE = y_RE + linear.bias[...].astype(dtype)
        apart = (len(y_RE), self.config.num_attention_heads, -1)
        return jnp.reshape(y_RE, apart, out_sharding=mesh.spec(None, "heads", None))
