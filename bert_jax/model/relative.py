"""Attend by relative positions and segments, in one stream or in XLNet's two.

Dimensions: B batch, S sequence, T keys, P predictions, D width, H heads, K head width,
M = 2 S - 1 distances from S - 1 to 1 - S.
Source: Dai et al. 2019 (Transformer-XL), section 3.3; Yang et al. 2019 (XLNet), sections 2.3, 2.5.
"""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.attention import blocks
from bert_jax.model.dropout import ATTENTION_OUTPUT, Dropout, drop_weights
from bert_jax.model.layers import Choices, Initial, LayerNumber, Residual, declare

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
        asking = targets or Targets(x_BTD, None, views.complete.visible.mask)
        dtype, by_head = x_BTD.dtype, ("batch", "heads", None, None)
        q_BSHK, k_BTHK, v_BTHK = (
            ops.einsum(
                "bsd,dhk->bshk",
                x,
                ops.gather_weight(weight[...], dtype),
                ("batch", None, "heads", None),
            )
            for x, weight in (
                (asking.vectors_BPD, self.query),
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
        position_BHST = align_distances(position_BHSM, asking.positions_BP)
        if asking.positions_BP is not None:
            queries_BS = ops.gather_positions(keys_BT, asking.positions_BP)
        is_other = queries_BS[:, None, :, None] != keys_BT[:, None, None, :]
        segment_BHST = jnp.where(is_other, segment_BHSE[..., 1:], segment_BHSE[..., :1])
        scores_BHST = (content_BHST + position_BHST + segment_BHST) * q_BSHK.shape[-1] ** -0.5
        drop = drop_weights(dropout, self.weights_rate, layer)
        out_BSHK = blocks.weigh_values(scores_BHST, v_BTHK, asking.mask, drop)
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
    lies = jax.typeof(scores_BHSM).sharding.spec
    wider = jnp.pad(scores_BHSM, [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    flat_BHN = jnp.reshape(
        wider, (*batch, seq_len * (distances + 1)), out_sharding=PartitionSpec(*lies[:3])
    )
    first = seq_len - 1
    shifted = flat_BHN[..., first : first + seq_len * distances]
    aligned = jnp.reshape(shifted, scores_BHSM.shape, out_sharding=lies)
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
