"""Compute attention on NVIDIA GPUs block by block, with dropout, packed rows, windows and rotation.

A program of the kernel has a block of queries of a head, and loops over the blocks of keys that it
may see, with a running maximum and sum. No array of the size of the scores is written to memory;
the backward pass recomputes scores and dropout masks. Pallas lowers the kernel to Triton.

Dimensions: B rows of one device, S sequence, D width, E = 3 D: queries, keys and values side by
side, H heads, K head width, P = 3 H, Q queries of a block, T keys of a block, N blocks of queries,
M blocks of keys.
Source: Dao 2023 (FlashAttention-2), section 3.1.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from bert_jax.model import dropout
from bert_jax.model.positions import Rotation, rotate

try:
    from jax.experimental.pallas import triton
except ImportError:  # deprecated since jax 0.11, and to be removed (decision 74)
    HAS_TRITON = False
else:
    HAS_TRITON = True

# Names of NVIDIA's cards before compute capability 8.0, whose matrix units have no bfloat16.
_OLDER_CARDS = re.compile(r"TESLA|QUADRO|TITAN|GTX|XAVIER|RTX 20[5-8]0|\b(?:MX|[PTV])\d+", re.I)
HEAD_WIDTHS = (32, 64, 128)
BLOCK = 64  # keys of a block; queries too, in the backward pass
STAGES = 2  # blocks that are loaded ahead
_HIDDEN_SCORE = -1e30  # exp of it minus any real score is 0

Ref = Any  # an array in the GPU's memory, read and written by index
Shape = jax.ShapeDtypeStruct


def explain_refusal(
    device: str, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain in a sentence why the kernel does not support this attention; None if it does.

    device is JAX's name of the device (`device.device_kind`); dtype is that of the matmuls.
    """
    if not is_gpu(device):
        return f"the GPU kernel is for NVIDIA GPUs, not for {device}"
    if not HAS_TRITON:
        return f"the GPU kernel requires Pallas's Triton backend, which jax {jax.__version__} lacks"
    if _OLDER_CARDS.search(device):
        return f"the GPU kernel requires compute capability 8.0 (Ampere) or later, unlike {device}"
    if dtype != jnp.bfloat16:
        return f"the GPU kernel computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if head_width not in HEAD_WIDTHS:
        widths = ", ".join(map(str, HEAD_WIDTHS))
        return f"the GPU kernel takes heads of width {widths}, not {head_width}"
    if seq_len % BLOCK:
        return f"the GPU kernel takes rows of a multiple of {BLOCK} tokens, not {seq_len}"
    return None


def is_gpu(device: str) -> bool:
    """Return whether JAX's name of a device is that of an NVIDIA GPU."""
    return device.upper().startswith(("NVIDIA", "TESLA", "QUADRO"))


@dataclasses.dataclass(frozen=True)
class Row:
    """Hold the sizes of a row, its dropout rate, and what a query sees before and after itself."""

    seq_len: int
    heads: int
    head_width: int
    rate: float
    before: int
    after: int

    @property
    def has_band(self) -> bool:
        """Return whether the distance of a key can hide it."""
        return min(self.before, self.after) < self.seq_len

    @property
    def scale(self) -> float:
        """Return the factor that makes the product of a query and a key a score for exp2."""
        return self.head_width**-0.5 * math.log2(math.e)

    @property
    def kept_share(self) -> float:
        """Return 1 - the dropout rate as it is applied, which is a multiple of 2**-32."""
        return 1.0 - dropout.threshold(self.rate) / 2**32

    @property
    def queries(self) -> int:
        """Return the queries of a block of the forward pass."""
        return 2 * BLOCK if self.seq_len % (2 * BLOCK) == 0 and self.head_width <= 64 else BLOCK

    @property
    def warps(self) -> int:
        """Return the warps of a program: as few as keep its numbers in registers."""
        return 4 if self.head_width <= 64 else 8


def attend(
    qkv_BSE: jax.Array,
    ids_BS: jax.Array,
    low_B: jax.Array,
    high_B: jax.Array,
    rotation: Rotation | None,
    heads: int,
    rate: float,
    width: int = 0,
    is_causal: bool = False,
) -> jax.Array:
    """Compute the self-attention of each row, inside a shard_map that is manual over the batch.

    Shapes: bfloat16[B,S,E], int32[B,S], uint32[B] twice -> bfloat16[B,S,D].
    A query sees the keys with its own id: those at most `width // 2` positions away (0 is no
    window), and if causal no later key. A block of keys is skipped if its range of ids does not
    meet that of the queries; if ids grow along a row, these are the blocks without a key of the
    queries' examples. Queries and keys are rotated if a rotation is given. low and high are the
    words of the dropout masks (bert_jax/model/dropout.py, Dropout.words); the masks equal those of
    the plain implementation bit for bit. Softmax in float32; weights are rounded to bfloat16 for
    their matmul, before they are divided by their sum. Without a GPU to compile for, the kernel is
    interpreted.
    """
    batch, seq_len, all_width = qkv_BSE.shape
    head_width = all_width // 3 // heads
    qkv_BSPK = jnp.reshape(qkv_BSE, (batch, seq_len, 3 * heads, head_width))
    if rotation is not None:
        turned_BSPK = rotate(qkv_BSPK[:, :, : 2 * heads], rotation)
        qkv_BSPK = jnp.concatenate([turned_BSPK, qkv_BSPK[:, :, 2 * heads :]], axis=2)
    before = width // 2 if width else seq_len
    row = Row(seq_len, heads, head_width, rate, before, 0 if is_causal else before)
    bounds = (
        find_bounds(ids_BS, row.queries, row.before, row.after),
        find_bounds(ids_BS, BLOCK, row.before, row.after),
        find_bounds(ids_BS, BLOCK, row.after, row.before),
    )
    out_BSHK = _attend(qkv_BSPK, ids_BS, low_B, high_B, bounds, row)
    return jnp.reshape(out_BSHK, (batch, seq_len, all_width // 3))


def find_bounds(ids_BS: jax.Array, block: int, before: int, after: int) -> jax.Array:
    """Find the range of blocks of keys that each block of queries may see.

    Shapes: int32[B,S] -> int32[B,N,2]: the number of the first block, and that of the last one + 1.
    A block has `block` queries or BLOCK keys. A query sees keys from `before` positions before it
    to `after` positions after it. A block of keys may be seen if its range of ids meets that of the
    queries; id 0 counts as the largest, as padding comes last.
    """
    batch, seq_len = ids_BS.shape
    order_BS = (ids_BS - 1).astype(jnp.uint32)

    def find_ranges(size: int) -> tuple[jax.Array, jax.Array]:
        by_block = jnp.reshape(order_BS, (batch, seq_len // size, size))
        return jnp.min(by_block, axis=2), jnp.max(by_block, axis=2)

    (least_BN, most_BN), (least_BM, most_BM) = find_ranges(block), find_ranges(BLOCK)
    meets_BNM = least_BN[:, :, None] <= most_BM[:, None, :]
    meets_BNM &= least_BM[:, None, :] <= most_BN[:, :, None]
    first_N1 = np.arange(0, seq_len, block)[:, None]
    first_M = np.arange(0, seq_len, BLOCK)
    is_near_NM = first_M + BLOCK - 1 >= first_N1 - before
    is_near_NM &= first_M <= first_N1 + block - 1 + after
    numbers_M = np.arange(len(first_M), dtype=np.int32)
    meets_BNM &= is_near_NM
    first_BN = jnp.min(jnp.where(meets_BNM, numbers_M, len(first_M)), axis=2)
    end_BN = jnp.max(jnp.where(meets_BNM, numbers_M + 1, 0), axis=2)
    return jnp.stack([first_BN, end_BN], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    qkv_BSPK: jax.Array,
    ids_BS: jax.Array,
    low_B: jax.Array,
    high_B: jax.Array,
    bounds: tuple[jax.Array, ...],
    row: Row,
) -> jax.Array:
    return _attend_forward(qkv_BSPK, ids_BS, low_B, high_B, bounds, row)[0]


def _run_on_blocks(
    kernel: Callable[..., None],
    row: Row,
    block: int,
    inputs: Sequence[jax.Array],
    outputs: Sequence[Shape],
) -> Any:
    """Run a kernel for each block of each head of each row.

    A call of the kernel gets its row of each input, but of bounds, int32[B,N,2], only those of its
    block; it writes its block of each output.
    """
    batch, seq_len = inputs[0].shape[:2]

    def make_input_spec(array: jax.Array) -> pl.BlockSpec:
        if array.ndim == 1:
            return pl.BlockSpec((1,), lambda i, h, b: (b,))
        if array.ndim == 3 and array.shape[2] == 2:
            return pl.BlockSpec((None, None, 2), lambda i, h, b: (b, i, 0))
        zeros = (0,) * (array.ndim - 1)
        return pl.BlockSpec((None, *array.shape[1:]), lambda i, h, b: (b, *zeros))

    def make_output_spec(array: Shape) -> pl.BlockSpec:
        if array.ndim == 4:
            return pl.BlockSpec((None, block, *array.shape[2:]), lambda i, h, b: (b, i, 0, 0))
        return pl.BlockSpec((None, None, block), lambda i, h, b: (b, h, i))

    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    is_interpreted = platform not in ("gpu", "cuda")
    options = None
    if not is_interpreted:
        options = triton.CompilerParams(num_warps=row.warps, num_stages=STAGES)
    return pl.pallas_call(
        functools.partial(kernel, row=row),
        grid=(seq_len // block, row.heads, batch),
        in_specs=[*map(make_input_spec, inputs)],
        out_specs=[*map(make_output_spec, outputs)],
        out_shape=outputs,
        compiler_params=options,
        interpret=is_interpreted,
        name=f"gpu_attention_{kernel.__name__}",
    )(*inputs)


def _attend_forward(
    qkv_BSPK: jax.Array,
    ids_BS: jax.Array,
    low_B: jax.Array,
    high_B: jax.Array,
    bounds: tuple[jax.Array, ...],
    row: Row,
) -> tuple[jax.Array, tuple[Any, ...]]:
    batch, seq_len, _, head_width = qkv_BSPK.shape
    out_BSHK, norms_BHS = _run_on_blocks(
        forward,
        row,
        row.queries,
        (qkv_BSPK, ids_BS, low_B, high_B, bounds[0]),
        (
            Shape((batch, seq_len, row.heads, head_width), jnp.bfloat16),
            Shape((batch, row.heads, seq_len), jnp.float32),
        ),
    )
    return out_BSHK, (qkv_BSPK, ids_BS, low_B, high_B, bounds, norms_BHS, out_BSHK)


def _attend_backward(row: Row, saved: tuple[Any, ...], dout_BSHK: jax.Array) -> tuple[Any, ...]:
    qkv_BSPK, ids_BS, low_B, high_B, bounds, norms_BHS, out_BSHK = saved
    product_BSH = jnp.sum(dout_BSHK.astype(jnp.float32) * out_BSHK.astype(jnp.float32), axis=3)
    deltas_BHS = jnp.swapaxes(product_BSH * row.kept_share, 1, 2)
    words = (ids_BS, low_B, high_B)
    (dqkv_BSPK,) = _run_on_blocks(
        backward,
        row,
        BLOCK,
        (qkv_BSPK, *words, *bounds[1:], dout_BSHK, norms_BHS, deltas_BHS),
        (Shape(qkv_BSPK.shape, jnp.bfloat16),),
    )
    nothing = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (*words, bounds))
    return dqkv_BSPK, *nothing


_attend.defvjp(_attend_forward, _attend_backward)


def forward(
    qkv: Ref, ids: Ref, low: Ref, high: Ref, bounds: Ref, out: Ref, norms: Ref, *, row: Row
) -> None:
    """Compute attention of a block of queries of a head.

    Shapes: bfloat16[S,P,K], int32[S], uint32[1] twice, int32[2] -> bfloat16[Q,H,K] of which a head
    is written, float32[Q]: the logarithms, of base 2, of the sums of exp(score).
    """
    head, first = pl.program_id(1), pl.program_id(0) * row.queries
    rows = pl.ds(first, row.queries)
    q_QK, query_ids_Q = qkv[rows, head, :], ids[rows]
    places_Q = first + jnp.arange(row.queries, dtype=jnp.int32)
    keep = _make_keep(low[0], high[0], head, row)

    def add_keys(number: Any, done: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest_Q, sum_Q, out_QK = done
        keys = pl.ds(number * BLOCK, BLOCK)
        places_T = number * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        k_TK, v_TK = (qkv[keys, part * row.heads + head, :] for part in (1, 2))
        visible_QT = _see(query_ids_Q[:, None], places_Q[:, None], ids[keys], places_T, row)
        scores_QT = jnp.where(visible_QT, _dot(q_QK, k_TK, 1, 1) * row.scale, _HIDDEN_SCORE)
        higher_Q = jnp.maximum(highest_Q, jnp.max(scores_QT, axis=1))
        weights_QT = jnp.exp2(scores_QT - higher_Q[:, None])
        shrink_Q = jnp.exp2(highest_Q - higher_Q)
        sum_Q = sum_Q * shrink_Q + jnp.sum(weights_QT, axis=1)
        if row.rate:
            weights_QT = jnp.where(keep(places_Q[:, None], places_T[None, :]), weights_QT, 0.0)
        values_QK = _dot(weights_QT.astype(jnp.bfloat16), v_TK, 1, 0)
        return higher_Q, sum_Q, out_QK * shrink_Q[:, None] + values_QK

    start = (
        jnp.full((row.queries,), _HIDDEN_SCORE, jnp.float32),
        jnp.zeros((row.queries,), jnp.float32),
        jnp.zeros((row.queries, row.head_width), jnp.float32),
    )
    highest_Q, sum_Q, out_QK = jax.lax.fori_loop(bounds[0], bounds[1], add_keys, start)
    factor_Q = 1.0 / (sum_Q * row.kept_share)
    out[:, head, :] = (out_QK * factor_Q[:, None]).astype(jnp.bfloat16)
    norms[...] = highest_Q + jnp.log2(sum_Q)


def backward(
    qkv: Ref,
    ids: Ref,
    low: Ref,
    high: Ref,
    key_bounds: Ref,
    query_bounds: Ref,
    dout: Ref,
    norms: Ref,
    deltas: Ref,
    dqkv: Ref,
    *,
    row: Row,
) -> None:
    """Compute the gradients of a block of queries, keys and values of a head.

    Shapes: bfloat16[S,P,K], int32[S], uint32[1] twice, int32[2] twice, bfloat16[S,H,K],
    float32[H,S] twice -> bfloat16[BLOCK,P,K] of which a head's queries, keys and values are
    written. deltas are the sums over keys of p dp, times the share of weights that are kept.
    """
    head, first = pl.program_id(1), pl.program_id(0) * BLOCK
    own = pl.ds(first, BLOCK)
    own_ids = ids[own]
    own_places = first + jnp.arange(BLOCK, dtype=jnp.int32)
    keep = _make_keep(low[0], high[0], head, row)
    nothing = jnp.zeros((BLOCK, row.head_width), jnp.float32)

    def read(part: int, rows: Any) -> jax.Array:
        return qkv[rows, part * row.heads + head, :]

    k_TK, v_TK = read(1, own), read(2, own)

    def add_queries(number: Any, done: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        dk_TK, dv_TK = done
        rows = pl.ds(number * BLOCK, BLOCK)
        places_Q = number * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        q_QK, do_QK = read(0, rows), dout[rows, head, :]
        visible_TQ = _see(ids[rows], places_Q, own_ids[:, None], own_places[:, None], row)
        scores_TQ = _dot(k_TK, q_QK, 1, 1) * row.scale
        p_TQ = jnp.where(visible_TQ, jnp.exp2(scores_TQ - norms[head, rows][None, :]), 0.0)
        dp_TQ, dropped_p_TQ = _dot(v_TK, do_QK, 1, 1), p_TQ
        if row.rate:
            keep_TQ = keep(places_Q[None, :], own_places[:, None])
            dp_TQ, dropped_p_TQ = (jnp.where(keep_TQ, x, 0.0) for x in (dp_TQ, p_TQ))
        dv_TK += _dot(dropped_p_TQ.astype(jnp.bfloat16), do_QK, 1, 0)
        ds_TQ = (p_TQ * (dp_TQ - deltas[head, rows][None, :])).astype(jnp.bfloat16)
        return dk_TK + _dot(ds_TQ, q_QK, 1, 0), dv_TK

    dk_TK, dv_TK = jax.lax.fori_loop(
        query_bounds[0], query_bounds[1], add_queries, (nothing, nothing)
    )
    factor = 1.0 / row.kept_share
    dscale = factor * row.head_width**-0.5
    dqkv[:, row.heads + head, :] = (dk_TK * dscale).astype(jnp.bfloat16)
    dqkv[:, 2 * row.heads + head, :] = (dv_TK * factor).astype(jnp.bfloat16)

    q_QK, do_QK = read(0, own), dout[own, head, :]
    norms_Q1, deltas_Q1 = norms[head, own][:, None], deltas[head, own][:, None]

    def add_keys(number: Any, dq_QK: jax.Array) -> jax.Array:
        keys = pl.ds(number * BLOCK, BLOCK)
        places_T = number * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        k_TK, v_TK = read(1, keys), read(2, keys)
        visible_QT = _see(own_ids[:, None], own_places[:, None], ids[keys], places_T, row)
        scores_QT = _dot(q_QK, k_TK, 1, 1) * row.scale
        p_QT = jnp.where(visible_QT, jnp.exp2(scores_QT - norms_Q1), 0.0)
        dp_QT = _dot(do_QK, v_TK, 1, 1)
        if row.rate:
            dp_QT = jnp.where(keep(own_places[:, None], places_T[None, :]), dp_QT, 0.0)
        ds_QT = (p_QT * (dp_QT - deltas_Q1)).astype(jnp.bfloat16)
        return dq_QK + _dot(ds_QT, k_TK, 1, 0)

    dq_QK = jax.lax.fori_loop(key_bounds[0], key_bounds[1], add_keys, nothing)
    dqkv[:, head, :] = (dq_QK * dscale).astype(jnp.bfloat16)


def _see(
    query_ids: jax.Array,
    query_places: jax.Array,
    key_ids: jax.Array,
    key_places: jax.Array,
    row: Row,
) -> jax.Array:
    """Compute which keys a query sees; queries and keys are broadcast against each other."""
    is_visible = query_ids == key_ids
    if row.has_band:
        distance = key_places - query_places
        is_visible &= (distance >= -row.before) & (distance <= row.after)
    return is_visible


def _make_keep(
    low: jax.Array, high: jax.Array, head: Any, row: Row
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Make the function that computes dropout.keep_mask at given places of queries and keys."""
    cells = row.seq_len // 4
    first_place = (head * (row.seq_len * cells)).astype(jnp.uint32)

    def keep(query_places: jax.Array, key_places: jax.Array) -> jax.Array:
        query_places, key_places = (x.astype(jnp.uint32) for x in (query_places, key_places))
        quarter, cell = key_places // jnp.uint32(cells), key_places % jnp.uint32(cells)
        start = first_place + query_places * jnp.uint32(cells)
        if cells & (cells - 1) == 0:
            # start and cell share no bits, so each is folded alone: once a query and once a key.
            fold = dropout.folded(start ^ low) ^ dropout.folded(cell)
        else:
            fold = dropout.folded((start + cell) ^ low)
        return dropout.survives(dropout.hashed_folds(fold, high), quarter, row.rate)

    return keep


def _dot(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int) -> jax.Array:
    """Compute the float32 product of two matrices over one dimension of each."""
    dims = (((x_dim,), (y_dim,)), ((), ()))
    return jax.lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)
