"""Compute attention of a row in a TPU kernel; the complete row is in VMEM.

Scores are transposed, [keys, queries]: the softmax sums along sublanes, and the gradients of keys
and values are plain matmuls. A tile of 128 lanes has two heads of width 64: a matmul runs over the
whole tile with the other head's lanes set to zero, so no lanes are ever shifted. A group is the
heads whose scores are computed at once: both of a tile in short rows; one in long rows, where two
would not fit into registers.

Dimensions: S queries, T keys, L lanes of a tile, K head width, G groups, J the queries of a
group's heads, one head after the other, C cells (a quarter of the keys), D width, E = 3 D: queries,
keys and values side by side.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from bert_jax.model import dropout

LANES = 128
_HIDDEN_SCORE = -1e30  # exp of it minus any real score is 0

Ref = Any  # an array in the chip's memory, read and written by index


@dataclasses.dataclass(frozen=True)
class KernelRow:
    """Hold the sizes of a row and its dropout rate."""

    seq_len: int
    heads: int
    head_width: int
    rate: float
    is_causal: bool = False

    @property
    def is_short(self) -> bool:
        """Return whether both heads of a tile are a single group."""
        return self.seq_len <= 128

    @property
    def width(self) -> int:
        """Return the lanes of the queries, of the keys, and of the values."""
        return self.heads * self.head_width

    @property
    def heads_in_tile(self) -> int:
        """Return 1 or 2."""
        return LANES // self.head_width

    @property
    def heads_in_group(self) -> int:
        """Return 1 or 2."""
        return self.heads_in_tile if self.is_short else 1

    @property
    def groups(self) -> int:
        """Count the groups of all heads."""
        return self.heads // self.heads_in_group

    @property
    def groups_in_tile(self) -> int:
        """Return 1 or 2."""
        return self.heads_in_tile // self.heads_in_group

    @property
    def group_queries(self) -> int:
        """Return the columns of a group's scores."""
        return self.heads_in_group * self.seq_len

    @property
    def scale(self) -> float:
        """Return the queries' scale, rounded as in the reference; exact for a width of 64."""
        return float(np.asarray(self.head_width**-0.5, jnp.bfloat16))

    @property
    def kept_share(self) -> float:
        """Return 1 - the dropout rate as it is applied, which is a multiple of 2**-32."""
        return 1.0 - dropout.threshold(self.rate) / 2**32

    def lanes(self, part: int, tile: int) -> slice:
        """Return the lanes of a tile of the queries (part 0), keys (1) or values (2)."""
        first = part * self.width + tile * LANES
        return slice(first, first + LANES)


def forward(
    low: Ref, high: Ref, ids: Ref, qkv: Ref, out: Ref, norms: Ref, *, row: KernelRow
) -> None:
    """Compute attention of one row.

    Shapes: uint32[B] twice, int32[1,1,S], bfloat16[1,S,E] -> bfloat16[1,S,D], float32[1,G,J]. norms
    are the logarithms of the sums of exp(score).
    """
    same_TJ = _find_visible(ids[0], row)
    keep = _keep_masks(low, high, row)

    def scores_TJ(group: int) -> jax.Array:
        tile, number = divmod(group, row.groups_in_tile)
        q_SL, k_TL = (qkv[0, :, row.lanes(part, tile)] for part in range(2))
        q_JL = _split_groups(q_SL * jnp.bfloat16(row.scale), row)[number]
        return jnp.where(same_TJ, _dot(k_TL, q_JL, 1, 1), _HIDDEN_SCORE)

    following = [scores_TJ(0)]
    heads_KS: list[jax.Array] = []
    for group in range(row.groups):
        scores = following.pop()
        if group + 1 < row.groups:
            # Started here, so that matrix units work during the softmax below.
            following.append(scores_TJ(group + 1))
        highest_1J = jnp.max(scores, axis=0, keepdims=True)
        weights_TJ = jnp.exp(scores - highest_1J)
        sum_1J = jnp.sum(weights_TJ, axis=0, keepdims=True)
        norms[0, group : group + 1, :] = highest_1J + jnp.log(sum_1J)
        if row.rate:
            weights_TJ = jnp.where(keep(group), weights_TJ, 0.0)
        tile = group // row.groups_in_tile
        v_LT = qkv[0, :, row.lanes(2, tile)].T
        values = _sum_over_keys(v_LT, weights_TJ.astype(jnp.bfloat16), len(heads_KS), row)
        # Divided after the sum over keys, where there are the fewest numbers.
        factors = jnp.split(1.0 / (sum_1J * row.kept_share), row.heads_in_group, axis=1)
        heads_KS += [v_KS * f_1S for v_KS, f_1S in zip(values, factors, strict=True)]
        if len(heads_KS) == row.heads_in_tile:
            out[0, :, row.lanes(0, tile)] = jnp.concatenate(heads_KS, axis=0).T.astype(jnp.bfloat16)
            heads_KS = []


def backward(
    low: Ref, high: Ref, ids: Ref, qkv: Ref, norms: Ref, dout: Ref, *others: Ref, row: KernelRow
) -> None:
    """Compute the gradients of one row.

    Shapes: uint32[B] twice, int32[1,1,S], bfloat16[1,S,E], float32[1,G,J], bfloat16[1,S,D], and for
    long rows the output -> bfloat16[1,S,E], and its sums over positions before rounding,
    float32[1,1,E].
    """
    *out, dqkv, dbias = others
    same_TJ = _find_visible(ids[0], row)
    keep = _keep_masks(low, high, row)
    for tile in range(row.width // LANES):
        q_SL, k_TL, v_TL = (qkv[0, :, row.lanes(part, tile)] for part in range(3))
        do_SL = dout[0, :, row.lanes(0, tile)]
        q_SL = q_SL * jnp.bfloat16(row.scale)
        q_LS, k_LT, do_LS = q_SL.T, k_TL.T, do_SL.T
        deltas = _deltas(do_SL, out[0][0, :, row.lanes(0, tile)], row) if out else None
        dq_KS: list[jax.Array] = []
        dk: list[jax.Array] = []
        dv: list[jax.Array] = []
        for q_JL, do_JL in zip(_split_groups(q_SL, row), _split_groups(do_SL, row), strict=True):
            head = len(dq_KS)
            group = (tile * row.heads_in_tile + head) // row.heads_in_group
            scores_TJ = jnp.where(same_TJ, _dot(k_TL, q_JL, 1, 1), _HIDDEN_SCORE)
            p_TJ = jnp.exp(scores_TJ - norms[0, group : group + 1, :])
            dp_TJ, dropped_p_TJ = _dot(v_TL, do_JL, 1, 1), p_TJ
            if row.rate:
                keep_TJ = keep(group)
                dp_TJ, dropped_p_TJ = (jnp.where(keep_TJ, x, 0.0) for x in (dp_TJ, p_TJ))
            if deltas is None:
                delta_1J = jnp.sum(p_TJ * dp_TJ, axis=0, keepdims=True)
            else:
                delta_1J = deltas[head : head + 1]
            ds_TJ = (p_TJ * (dp_TJ - delta_1J)).astype(jnp.bfloat16)
            dv.append(_sum_over_queries(dropped_p_TJ.astype(jnp.bfloat16), do_JL, do_LS, head, row))
            dk.append(_sum_over_queries(ds_TJ, q_JL, q_LS, head, row))
            dq_KS += _sum_over_keys(k_LT, ds_TJ, head, row)
        factor = 1.0 / row.kept_share  # of dropout, for all three gradients
        gradients = (
            jnp.concatenate(dq_KS, axis=0).T * row.scale,
            _join_groups(dk, row),
            _join_groups(dv, row),
        )
        for part, gradient in enumerate(gradients):
            dqkv[0, :, row.lanes(part, tile)] = (gradient * factor).astype(jnp.bfloat16)
            dbias[0, :, row.lanes(part, tile)] = jnp.sum(gradient * factor, axis=0, keepdims=True)


def _dot(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int) -> jax.Array:
    """Compute the float32 product of two matrices over one dimension of each."""
    dims = (((x_dim,), (y_dim,)), ((), ()))
    return jax.lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)


def _find_visible(ids_1S: jax.Array, row: KernelRow) -> jax.Array:
    """Compute which keys a query sees: same id, and if causal no later key: bool[T,J]."""
    keys_T1 = jnp.broadcast_to(ids_1S, (LANES, row.seq_len)).T[:, :1]
    same_TJ = keys_T1 == jnp.concatenate([ids_1S] * row.heads_in_group, axis=1)
    if not row.is_causal:
        return same_TJ
    key_TS, query_TS = (
        jax.lax.broadcasted_iota(jnp.int32, (row.seq_len, row.seq_len), axis) for axis in range(2)
    )
    query_TJ, key_TJ = (
        jnp.concatenate([place_TS] * row.heads_in_group, axis=1) for place_TS in (query_TS, key_TS)
    )
    return same_TJ & (key_TJ <= query_TJ)


def _split_groups(x_SL: jax.Array, row: KernelRow) -> list[jax.Array]:
    """Split a tile into [J,L] for each group; the lanes of other heads are zero."""
    if row.heads_in_tile == 1:
        return [x_SL]
    in_first_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) < row.head_width
    zero = jnp.zeros((), x_SL.dtype)
    heads = [jnp.where(in_first_1L, x_SL, zero), jnp.where(in_first_1L, zero, x_SL)]
    return [jnp.concatenate(heads, axis=0)] if row.is_short else heads


def _sum_over_keys(
    x_LT: jax.Array, y_TJ: jax.Array, first_head: int, row: KernelRow
) -> list[jax.Array]:
    """Sum x y over keys for each head of a group, [K,S]; first_head counts in its tile."""
    return [
        _dot(x_LT[head * row.head_width : (head + 1) * row.head_width], y_TS, 1, 0)
        for head, y_TS in enumerate(jnp.split(y_TJ, row.heads_in_group, axis=1), first_head)
    ]


def _sum_over_queries(
    y_TJ: jax.Array, x_JL: jax.Array, x_LS: jax.Array, head: int, row: KernelRow
) -> jax.Array:
    """Sum y x over a group's queries: [T,L] of both heads, or [K,T] of one.

    The second form transposes more and takes half of the matmul: matrix units hold y, not x with
    half its lanes zero.
    """
    if row.is_short:
        return _dot(y_TJ, x_JL, 1, 0)
    return _dot(x_LS[head * row.head_width : (head + 1) * row.head_width], y_TJ, 1, 1)


def _join_groups(groups: list[jax.Array], row: KernelRow) -> jax.Array:
    """Combine the results of _sum_over_queries for the groups of a tile: [T,L]."""
    if row.is_short:
        return groups[0]
    return jnp.concatenate(groups, axis=0).T


def _deltas(do_SL: jax.Array, o_SL: jax.Array, row: KernelRow) -> jax.Array:
    """Compute the sum over keys of p dp from output and gradient of a tile: float32[8,S].

    A sublane for each head. A matmul sums over lanes, because its result has the layout of columns
    of scores; it takes two bfloat16 parts that hold 16 bits together.
    """
    sublane = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 0)
    lane = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 1)
    head = jnp.where(lane < row.head_width, 0, 1)
    picks = jnp.where(head == sublane, 1.0, 0.0).astype(jnp.bfloat16)
    product_SL = do_SL.astype(jnp.float32) * o_SL.astype(jnp.float32)
    upper_SL = product_SL.astype(jnp.bfloat16)
    lower_SL = (product_SL - upper_SL.astype(jnp.float32)).astype(jnp.bfloat16)
    return row.kept_share * (_dot(picks, upper_SL, 1, 1) + _dot(picks, lower_SL, 1, 1))


def _keep_masks(low: Ref, high: Ref, row: KernelRow) -> Callable[[int], jax.Array]:
    """Make the function group -> bool[T,J]: dropout.keep_mask of the group's weights, transposed.

    The four quarters of the keys are whole registers, so concatenating them is free.
    """
    batch_row = pl.program_id(0)
    cells = row.seq_len // 4
    dims_CJ = (cells, row.group_queries)
    place_CJ = jax.lax.broadcasted_iota(jnp.uint32, dims_CJ, 1) * jnp.uint32(cells)
    place_CJ += jax.lax.broadcasted_iota(jnp.uint32, dims_CJ, 0)
    places = cells * row.group_queries
    # If a group has a power of two places, its first place and the places within it share no bits.
    # Both are then folded separately: the second once, the first in scalar arithmetic.
    folds_apart = places & (places - 1) == 0
    place_CJ = dropout.folded(place_CJ) if folds_apart else place_CJ
    threshold = jnp.int32(dropout.threshold(row.rate) - 2**31)

    def keep(group: int) -> jax.Array:
        first = jnp.uint32(group * places)
        if folds_apart:
            fold_CJ = place_CJ ^ dropout.folded(first ^ low[batch_row])
        else:
            fold_CJ = dropout.folded((place_CJ + first) ^ low[batch_row])
        word_CJ = dropout.hashed_folds(fold_CJ, high[batch_row])
        values = (word_CJ, word_CJ << 8, word_CJ << 16, (word_CJ << 24) | (word_CJ >> 8))
        quarters = [jax.lax.bitcast_convert_type(value, jnp.int32) for value in values]
        return jnp.concatenate([quarter >= threshold for quarter in quarters], axis=0)

    return keep
