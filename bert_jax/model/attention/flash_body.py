"""Compute attention of long rows in a TPU kernel, block by block.

A grid step works on the queries, keys and values of a tile of 128 lanes: a head of width 128, or
two of 64. It rotates them, and transposes what the matmuls read transposed. Then each block of
queries loops over the chunks of keys that it sees, with a running maximum and sum; the first begins
with the tile of its first key. In a layer with a narrow window a block has a single chunk, the band
of keys around it, for which arrays of keys are padded on both ends.

Scores are [keys, queries], as in tpu_kernel. A position's code is the number of its example
times a large number, plus its place in the row: a single comparison of codes decides whether a
query sees a key.

Dimensions: S positions, P padded positions, L lanes of a tile, K head width, W queries of a block,
C keys of a chunk, H heads of a tile, N blocks of queries, R rows of a loop.
Source: Dao et al. 2022 (FlashAttention), algorithm 1 and appendix B.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model.attention.blocks import HIDDEN_SCORE
from bert_jax.model.attention.tpu_kernel import LANES, Ref, dot, sum_heads

ROOM = 64  # the padding on each end, and a band's keys on each side, are a multiple of it
MAX_BAND = 256  # keys on each side of a band
_BLOCKS_TOGETHER = (4, 2, 1)  # bands computed together, to keep all units of the chip busy
_ROWS = 256  # rows rotated at a time
_NO_KEY = -(2**30)  # the code of padding


@dataclasses.dataclass(frozen=True)
class Tile:
    """Hold the sizes of a tile, and how many positions a query sees before and after itself."""

    seq_len: int
    head_width: int
    before: int
    after: int
    is_rotated: bool

    @property
    def heads(self) -> int:
        """Return the heads of a tile: 1 or 2."""
        return LANES // self.head_width

    @property
    def has_band(self) -> bool:
        """Return whether the keys that a block of queries sees are a band in a single chunk."""
        return max(self.before, self.after) <= MAX_BAND

    @property
    def room(self) -> int:
        """Return the padding on each end of the row."""
        return -(-max(self.before, self.after) // ROOM) * ROOM if self.has_band else 0

    @property
    def padded(self) -> int:
        """Return the positions of keys with the padding on both ends."""
        return self.seq_len + 2 * self.room

    @property
    def block(self) -> int:
        """Return the queries of a block."""
        return LANES if self.has_band or self.seq_len % 256 else 256

    @property
    def chunk(self) -> int:
        """Return the keys of a chunk."""
        if self.has_band:
            return self.block + 2 * self.room
        return next(size for size in (1024, 512, 256, LANES) if self.seq_len % size == 0)

    @property
    def scale(self) -> float:
        """Return the queries' scale, rounded as in the reference; exact for a width of 64."""
        return float(np.asarray(self.head_width**-0.5, jnp.bfloat16))


def forward(bounds: Ref, codes: Ref, *refs: Ref, tile: Tile) -> None:
    """Compute attention of one tile of a row.

    Shapes: int32[B,2N], first key and count of chunks of each block; int32[1,1,S], codes; if
    rotated float32[1,S,L] twice, cosines and sines with the sign that `_exchange` lacks;
    bfloat16[1,S,L] of queries, keys, values -> bfloat16[1,S,L], float32[1,1,H,S], logarithms of the
    sums of exp(score).
    """
    *angles, q, k, v, out, norms, queries, keys, values, key_codes, values_LP = refs
    row = pl.program_id(0)  # read here, because the interpreter cannot read it inside the loops
    _prepare(codes, angles, (q, k, v), (queries, keys, values, key_codes), tile)
    _transpose(values, values_LP)

    def scores_CW(visible_CW: jax.Array, first: Any, q_WL: jax.Array, head: int) -> jax.Array:
        q_WL = _only_head(q_WL, head, tile)
        return jnp.where(
            visible_CW, dot(keys[pl.ds(first, tile.chunk), :], q_WL, 1, 1), HIDDEN_SCORE
        )

    def weigh(p_CW: jax.Array, first: Any, head: int) -> jax.Array:
        v_KC = values_LP[_lanes_of(head, tile), pl.ds(first, tile.chunk)]
        return dot(v_KC, p_CW.astype(jnp.bfloat16), 1, 0)

    def write(rows: Any, heads: Sequence[tuple[jax.Array, ...]]) -> None:
        outs = []
        for head, (highest_1W, sum_1W, out_KW) in enumerate(heads):
            norms[0, 0, head : head + 1, rows] = highest_1W + jnp.log(sum_1W)
            outs.append(out_KW * (1.0 / sum_1W))
        out[0, rows, :] = jnp.concatenate(outs, axis=0).T.astype(jnp.bfloat16)

    def attend_bands(firsts: Sequence[Any]) -> None:
        visible = [_mask(key_codes, codes, first, first, tile) for first in firsts]
        places = [(n, head) for n in range(len(firsts)) for head in range(tile.heads)]

        def start(n: int, head: int) -> jax.Array:
            return scores_CW(visible[n], firsts[n], queries[pl.ds(firsts[n], tile.block), :], head)

        following, heads = start(*places[0]), []
        for number, (n, head) in enumerate(places):
            scores = following
            if number + 1 < len(places):
                # Started here, so that matrix units work during the softmax below.
                following = start(*places[number + 1])
            highest_1W = jnp.max(scores, axis=0, keepdims=True)
            p_CW = jnp.exp(scores - highest_1W)
            sum_1W = jnp.sum(p_CW, axis=0, keepdims=True)
            heads.append((highest_1W, sum_1W, weigh(p_CW, firsts[n], head)))
            if len(heads) == tile.heads:
                write(pl.ds(firsts[n], tile.block), heads)
                heads = []

    def attend_block(number: Any, first_query: Any) -> None:
        q_WL = queries[pl.ds(first_query, tile.block), :]

        def add_chunk(first: Any, heads: Any) -> Any:
            visible_CW = _mask(key_codes, codes, first, first_query, tile)
            following, added = scores_CW(visible_CW, first, q_WL, 0), []
            for head, (highest_1W, sum_1W, out_KW) in enumerate(heads):
                scores = following
                if head + 1 < tile.heads:
                    following = scores_CW(visible_CW, first, q_WL, head + 1)
                higher_1W = jnp.maximum(highest_1W, jnp.max(scores, axis=0, keepdims=True))
                p_CW, factor_1W = jnp.exp(scores - higher_1W), jnp.exp(highest_1W - higher_1W)
                sum_1W = sum_1W * factor_1W + jnp.sum(p_CW, axis=0, keepdims=True)
                out_KW = out_KW * factor_1W + weigh(p_CW, first, head)
                added.append((higher_1W, sum_1W, out_KW))
            return tuple(added)

        zero_1W = jnp.zeros((1, tile.block), jnp.float32)
        zero_KW = jnp.zeros((tile.head_width, tile.block), jnp.float32)
        heads = ((zero_1W + HIDDEN_SCORE, zero_1W, zero_KW),) * tile.heads
        heads = _loop_chunks(bounds, row, number, add_chunk, heads, tile)
        write(pl.ds(first_query, tile.block), heads)

    _loop_blocks(attend_bands, attend_block, tile)


def backward(bounds: Ref, codes: Ref, *refs: Ref, tile: Tile) -> None:
    """Compute the gradients of one tile of a row.

    Shapes: as forward, then norms, the output's gradient and the output -> bfloat16[B,S,E] in HBM,
    the gradients of queries, keys and values side by side. A grid step writes the three parts of
    its tile; the transfer overlaps with the preparation of the next tile.
    """
    angles, refs = refs[: 2 * tile.is_rotated], refs[2 * tile.is_rotated :]
    q, k, v, norms, dout, out, gradients, *scratch = refs
    dqkv, arrived, queries, keys, values, key_codes, keys_LP, *scratch = scratch
    dkeys, dvalues, *transposed = scratch
    row, this_tile = pl.program_id(0), pl.program_id(1)  # read here, as in forward
    tiles = gradients.shape[-1] // 3 // LANES

    def each_part(number: Any) -> list[Any]:
        """List the transfers of a tile's gradients: queries, keys, values."""
        firsts = (pl.multiple_of((part * tiles + number) * LANES, LANES) for part in range(3))
        places = (gradients.at[row, :, pl.ds(first, LANES)] for first in firsts)
        return [
            pltpu.make_async_copy(dqkv.at[part], place, arrived.at[part])
            for part, place in enumerate(places)
        ]

    def wait_for(number: Any) -> None:
        for transfer in each_part(number):
            transfer.wait()

    _prepare(codes, angles, (q, k, v), (queries, keys, values, key_codes), tile)
    _transpose(keys, keys_LP)
    dkeys[...], dvalues[...] = jnp.zeros_like(dkeys), jnp.zeros_like(dvalues)
    if transposed:
        queries_LS, dout_LS = transposed
        _transpose(queries, queries_LS)
        _transpose(dout.at[0], dout_LS)
    pl.when(this_tile > 0)(lambda: wait_for(this_tile - 1))

    def differentiate(first_query: Any) -> Callable[[Any, Any], tuple[jax.Array, ...]]:
        """Make the function that adds a chunk: (first key, sums of dq) -> sums of dq."""
        rows = pl.ds(first_query, tile.block)
        q_WL, dout_WL = queries[rows, :], dout[0, rows, :]
        deltas_HW = sum_heads(dout_WL, out[0, rows, :], tile.head_width)

        def add_chunk(first: Any, dq_KW: Sequence[Any]) -> tuple[jax.Array, ...]:
            places = pl.ds(first, tile.chunk)
            visible_CW = _mask(key_codes, codes, first, first_query, tile)
            added = []
            for head, before_KW in enumerate(dq_KW):
                lanes = _lanes_of(head, tile)
                one_q_WL, one_do_WL = (_only_head(x_WL, head, tile) for x_WL in (q_WL, dout_WL))
                scores_CW = dot(keys[places, :], one_q_WL, 1, 1)
                scores_CW = jnp.where(visible_CW, scores_CW, HIDDEN_SCORE)
                p_CW = jnp.exp(scores_CW - norms[0, 0, head : head + 1, rows])
                dp_CW = dot(values[places, :], one_do_WL, 1, 1)
                ds_CW = (p_CW * (dp_CW - deltas_HW[head : head + 1])).astype(jnp.bfloat16)
                p_CW = p_CW.astype(jnp.bfloat16)
                if transposed:
                    dvalues[lanes, places] += dot(dout_LS[lanes, rows], p_CW, 1, 1)
                    dkeys[lanes, places] += dot(queries_LS[lanes, rows], ds_CW, 1, 1)
                else:
                    dvalues[places, :] += dot(p_CW, one_do_WL, 1, 0)
                    dkeys[places, :] += dot(ds_CW, one_q_WL, 1, 0)
                added.append(before_KW + dot(keys_LP[lanes, places], ds_CW, 1, 0))
            return tuple(added)

        return add_chunk

    def write(rows: Any, dq_KW: Sequence[jax.Array]) -> None:
        dq_WL = jnp.concatenate(dq_KW, axis=0).T * tile.scale
        dqkv[0, rows, :] = _rotate_gradient(dq_WL, angles, rows, tile).astype(jnp.bfloat16)

    def attend_bands(firsts: Sequence[Any]) -> None:
        for first in firsts:
            dq_KW = differentiate(first)(first, (0.0,) * tile.heads)
            write(pl.ds(first, tile.block), dq_KW)

    def attend_block(number: Any, first_query: Any) -> None:
        add_chunk = differentiate(first_query)
        zero_KW = jnp.zeros((tile.head_width, tile.block), jnp.float32)
        dq_KW = _loop_chunks(bounds, row, number, add_chunk, (zero_KW,) * tile.heads, tile)
        write(pl.ds(first_query, tile.block), dq_KW)

    _loop_blocks(attend_bands, attend_block, tile)

    def write_keys(rows: Any, padded_rows: Any) -> None:
        dk_RL, dv_RL = (
            sums[:, padded_rows].T if transposed else sums[padded_rows, :]
            for sums in (dkeys, dvalues)
        )
        dqkv[1, rows, :] = _rotate_gradient(dk_RL, angles, rows, tile).astype(jnp.bfloat16)
        dqkv[2, rows, :] = dv_RL.astype(jnp.bfloat16)

    _loop_rows(write_keys, tile)
    for transfer in each_part(this_tile):
        transfer.start()
    pl.when(this_tile == tiles - 1)(lambda: wait_for(this_tile))


def _prepare(
    codes: Ref, angles: Sequence[Ref], qkv: Sequence[Ref], into: Sequence[Ref], tile: Tile
) -> None:
    """Rotate queries and keys, scale queries, and pad keys, values and codes.

    Fills `into`: queries bfloat16[S,L], keys and values bfloat16[P,L], codes int32[P,L], the same
    in all lanes. All tiles of a row share the codes: only the first one fills them.
    """
    q, k, v = qkv
    queries, keys, values, key_codes = into

    def fill_codes() -> None:
        def fill(number: Any, _: None) -> None:
            first = pl.multiple_of(number * LANES, LANES)
            codes_1L = codes[0, 0:1, pl.ds(first, LANES)]
            rows = pl.ds(pl.multiple_of(first + tile.room, ROOM), LANES)
            key_codes[rows, :] = jnp.broadcast_to(codes_1L, (LANES, LANES)).T

        jax.lax.fori_loop(0, tile.seq_len // LANES, fill, None)
        for end in _ends(tile):
            key_codes[end, :] = jnp.full((tile.room, LANES), _NO_KEY, jnp.int32)

    pl.when(pl.program_id(1) == 0)(fill_codes)
    for end in _ends(tile):
        keys[end, :] = values[end, :] = jnp.zeros((tile.room, LANES), jnp.bfloat16)

    def fill_rows(rows: Any, padded_rows: Any) -> None:
        q_RL, k_RL = (_rotate(x[0, rows, :], angles, rows, tile) for x in (q, k))
        queries[rows, :] = q_RL * jnp.bfloat16(tile.scale)
        keys[padded_rows, :] = k_RL
        values[padded_rows, :] = v[0, rows, :]

    _loop_rows(fill_rows, tile)


def _ends(tile: Tile) -> list[Any]:
    """List the padding of both ends."""
    firsts = (0, tile.room + tile.seq_len) if tile.room else ()
    return [pl.ds(first, tile.room) for first in firsts]


def _loop_rows(do: Callable[[Any, Any], None], tile: Tile) -> None:
    """Call `do` for all rows, some at a time: with their indices in [S,...] and in [P,...]."""
    count = _ROWS if tile.seq_len % _ROWS == 0 else LANES

    def do_one(number: Any, _: None) -> None:
        first = pl.multiple_of(number * count, count)
        padded = pl.multiple_of(first + tile.room, ROOM if tile.room else count)
        do(pl.ds(first, count), pl.ds(padded, count))

    jax.lax.fori_loop(0, tile.seq_len // count, do_one, None)


def _loop_blocks(
    attend_bands: Callable[[Sequence[Any]], None],
    attend_block: Callable[[Any, Any], None],
    tile: Tile,
) -> None:
    """Call attend_bands for groups of blocks if the tile has bands, else attend_block for each."""
    blocks = tile.seq_len // tile.block
    together = next(n for n in _BLOCKS_TOGETHER if blocks % n == 0)

    def place(number: Any) -> Any:
        return pl.multiple_of(number * tile.block, tile.block)

    if tile.has_band:

        def do_some(number: Any, _: None) -> None:
            attend_bands([place(number * together + n) for n in range(together)])

        jax.lax.fori_loop(0, blocks // together, do_some, None)
    else:

        def do_one(number: Any, _: None) -> None:
            attend_block(number, place(number))

        jax.lax.fori_loop(0, blocks, do_one, None)


def _loop_chunks(
    bounds: Ref, row: Any, block: Any, add: Callable[[Any, Any], Any], start: Any, tile: Tile
) -> Any:
    """Loop over the chunks of keys that a block of queries sees; add(first key, sums) -> sums."""
    first = bounds[row, 2 * block]

    def add_one(number: Any, sums: Any) -> Any:
        return add(pl.multiple_of(first + number * tile.chunk, LANES), sums)

    return jax.lax.fori_loop(0, bounds[row, 2 * block + 1], add_one, start)


def _transpose(x_PL: Ref, x_LP: Ref) -> None:
    def transpose(number: Any, _: None) -> None:
        places = pl.ds(pl.multiple_of(number * LANES, LANES), LANES)
        x_LP[:, places] = x_PL[places, :].T

    jax.lax.fori_loop(0, x_LP.shape[1] // LANES, transpose, None)


def _mask(key_codes: Ref, codes: Ref, first_key: Any, first_query: Any, tile: Tile) -> jax.Array:
    """Compute which keys of a chunk a block of queries sees: bool[C,W]."""
    keys_CL = key_codes[pl.ds(first_key, tile.chunk), :]
    keys_CW = jnp.concatenate([keys_CL] * (tile.block // LANES), axis=1)
    distance_CW = keys_CW - codes[0, 0:1, pl.ds(first_query, tile.block)]
    # -before <= distance <= after in a single comparison: below -before it wraps around.
    most = tile.before + tile.after - 2**31
    return distance_CW + jnp.int32(tile.before - 2**31) <= jnp.int32(most)


def _lanes_of(head: int, tile: Tile) -> slice:
    return slice(head * tile.head_width, (head + 1) * tile.head_width)


def _only_head(x_WL: jax.Array, head: int, tile: Tile) -> jax.Array:
    """Set the lanes of the other head to zero."""
    if tile.heads == 1:
        return x_WL
    lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    is_first_1L = lane_1L < tile.head_width
    zero = jnp.zeros((), x_WL.dtype)
    return jnp.where(is_first_1L, zero, x_WL) if head else jnp.where(is_first_1L, x_WL, zero)


def _exchange(x_RL: jax.Array, tile: Tile) -> jax.Array:
    """Exchange the halves of each head."""
    half = tile.head_width // 2
    lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    is_first_1L = lane_1L & half == 0
    return jnp.where(is_first_1L, pltpu.roll(x_RL, LANES - half, 1), pltpu.roll(x_RL, half, 1))


def _rotate(x_RL: jax.Array, angles: Sequence[Ref], rows: Any, tile: Tile) -> jax.Array:
    """Rotate the pairs of each head in float32, as bert_jax.model.embeddings.rotate does."""
    if not angles:
        return x_RL
    cos_RL, sin_RL = (angle[0, rows, :] for angle in angles)
    x32_RL = x_RL.astype(jnp.float32)
    return (x32_RL * cos_RL + _exchange(x32_RL, tile) * sin_RL).astype(x_RL.dtype)


def _rotate_gradient(dx_RL: jax.Array, angles: Sequence[Ref], rows: Any, tile: Tile) -> jax.Array:
    """Compute the gradient of the input of _rotate, in float32."""
    if not angles:
        return dx_RL
    cos_RL, sin_RL = (angle[0, rows, :] for angle in angles)
    return dx_RL * cos_RL + _exchange(dx_RL * sin_RL, tile)
