"""Add scores of distances to attention: content to position, and position to content.

Dimensions: B batch, S sequence, D width, H heads, K head width, R rows of the table that a row of
S tokens reads, M = 2 S - 1 distances.
Source: He et al. 2021 (DeBERTa), section 3.1; 2023 (DeBERTaV3); disentangled_attention.py and
da_utils.py of microsoft/DeBERTa.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.dropout import DISTANCES, POSITIONS, Dropout
from bert_jax.model.layers import Choices, LayerNumber, Linear, Norm, Table
from bert_jax.model.relative import align_distances
from bert_jax.parallel import mesh


def number_distances(config: ModelConfig, seq_len: int) -> np.ndarray:
    """Return the row in the table of each distance from 1 - S to S - 1, ascending: int[M].

    Up to half the buckets a distance has a row of its own; beyond, rows have ever more distances.
    In float32, as the published models were trained.
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
        """Return the rows that S tokens read, between the first and the last: dtype[R,D]."""
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
