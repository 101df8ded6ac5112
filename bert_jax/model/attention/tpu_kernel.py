"""Compute attention of short rows in a TPU kernel, with dropout of the weights.

A grid step computes a row of the batch, which is in VMEM as a whole. No array of the size of the
scores leaves VMEM; the backward pass recomputes scores and dropout masks.

Scores are transposed, [keys, queries]: the softmax sums along sublanes, and the gradients of keys
and values are plain matmuls. A tile of 128 lanes has two heads of width 64: a matmul runs over the
whole tile with the other head's lanes set to zero, so no lanes are ever shifted. A group is the
heads whose scores are computed at once: both of a tile in short rows; one in long rows, where two
would not fit into registers.

Dimensions: B rows of one device, S queries, T keys, L lanes of a tile, K head width, G groups, J
the queries of a group's heads, one head after the other, C cells (a quarter of the keys), D width,
E = 3 D: queries, keys and values side by side.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model import dropout
from bert_jax.model.attention.blocks import HIDDEN_SCORE
from bert_jax.parallel import chips, mesh

# The compiler of kernels has no bfloat16 matmul on v2 and v3.
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
SEQ_LENS = (128, 256, 384, 512)
MAX_ON_V4 = 256
VMEM_LIMIT_BYTES = 96 * 2**20  # a row of 512 with its scores takes a fifth of it
LANES = 128

Ref = Any  # an array in the chip's memory, read and written by index

Shape = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class KernelRow:
    """Hold the sizes of a row, its dropout rate, and whether a query sees no later key."""

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
        """Return the heads of a tile: 1 or 2."""
        return LANES // self.head_width

    @property
    def heads_in_group(self) -> int:
        """Return the heads of a group: 1 or 2."""
        return self.heads_in_tile if self.is_short else 1

    @property
    def groups(self) -> int:
        """Count the groups of all heads."""
        return self.heads // self.heads_in_group

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


def explain_refusal(
    device: str, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain in a sentence why the kernel does not support this attention; None if it does.

    device is a chip ("v5e") or JAX's name of the device (`device.device_kind`); dtype is the dtype
    of matmuls; heads counts the heads on one device.
    """
    name = "the attention kernel"
    if refusal := refuse_tiles(name, device, heads, head_width, dtype):
        return refusal
    if seq_len not in SEQ_LENS:
        lengths = ", ".join(map(str, SEQ_LENS))
        return f"{name} takes rows of {lengths} tokens, not {seq_len}"
    if chips.find_chip(device) == chips.find_chip("v4") and seq_len > MAX_ON_V4:
        return (
            f"{name} takes rows of up to {MAX_ON_V4} tokens on v4, whose VMEM is 16 MiB, not "
            f"{seq_len}"
        )
    return None


def refuse_tiles(
    name: str, device: str, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain why no kernel that works on tiles of 128 lanes takes these heads; None if one does.

    `name` begins the sentence; all else is as in explain_refusal.
    """
    chip = chips.find_chip(device)
    if chip is None or chip.name not in CHIPS:
        return f"{name} is for TPU {', '.join(CHIPS)}, not for {device}"
    if dtype != jnp.bfloat16:
        return f"{name} computes in bfloat16, not in {jnp.dtype(dtype).name}"
    if head_width not in (64, LANES):
        return f"{name} takes heads of width 64 or 128, not {head_width}"
    if heads * head_width % LANES:
        return f"{name} takes heads of width {head_width} in pairs, not {heads}"
    return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(
    qkv_BSE: jax.Array,
    bias_E: jax.Array,
    ids_BS: jax.Array,
    words: dropout.Words,
    row: KernelRow,
) -> jax.Array:
    """Compute the self-attention of each row, inside a shard_map that is manual over the batch.

    Shapes: bfloat16[B,S,E], float[E], int32[B,S], uint32[B] twice -> bfloat16[B,S,D].
    The biases are already added to qkv; bias_E is an argument so that it gets a gradient, which
    the kernel sums in float32. A query sees the keys with its own id, and if causal no later key.
    The dropout masks are made from words (bert_jax/model/dropout.py, Dropout.words), and equal the
    plain implementation's bit for bit. Softmax in float32; weights are rounded to bfloat16 for
    their matmul, before they are divided by their sum. Without a TPU to compile for, the kernel is
    interpreted.

    Source: Vaswani et al. 2017, section 3.2.1; the backward, without its tiles, Dao et al. 2022,
    appendix B.
    """
    return _attend_forward(qkv_BSE, bias_E, ids_BS, words, row)[0]


def _each_row(
    kernel: Callable[..., None],
    name: str,
    row: KernelRow,
    words: Sequence[jax.Array],
    inputs: Sequence[jax.Array],
    outputs: Sequence[Shape],
) -> Any:
    """Run a kernel on every row; words are in scalar memory, other inputs are cut into rows."""

    def spec_row(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((1, *array.shape[1:]), lambda b: (b, 0, 0))

    return pl.pallas_call(
        functools.partial(kernel, row=row),
        grid=(inputs[0].shape[0],),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] * len(words) + [*map(spec_row, inputs)],
        out_specs=[*map(spec_row, outputs)],
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_LIMIT_BYTES
        ),
        interpret=mesh.platform(jax.sharding.get_abstract_mesh()) != "tpu",
        name=name,
    )(*words, *inputs)


def _attend_forward(
    qkv_BSE: jax.Array, bias_E: jax.Array, ids_BS: jax.Array, words: dropout.Words, row: KernelRow
) -> tuple[jax.Array, tuple[Any, ...]]:
    batch = len(qkv_BSE)
    out_BSD, norms_BGJ = _each_row(
        forward,
        "attention_forward",
        row,
        words,
        (ids_BS[:, None, :], qkv_BSE),
        (
            Shape((batch, row.seq_len, row.width), jnp.bfloat16),
            Shape((batch, row.groups, row.group_queries), jnp.float32),
        ),
    )
    return out_BSD, (qkv_BSE, bias_E, ids_BS, words, norms_BGJ, out_BSD)


def _attend_backward(
    row: KernelRow, saved: tuple[Any, ...], dout_BSD: jax.Array
) -> tuple[Any, ...]:
    qkv_BSE, bias_E, ids_BS, words, norms_BGJ, out_BSD = saved
    batch, _, width = qkv_BSE.shape
    inputs = (ids_BS[:, None, :], qkv_BSE, norms_BGJ, dout_BSD)
    dqkv_BSE, dbias_B1E = _each_row(
        backward,
        "attention_backward",
        row,
        words,
        inputs if row.is_short else (*inputs, out_BSD),
        (Shape(qkv_BSE.shape, jnp.bfloat16), Shape((batch, 1, width), jnp.float32)),
    )
    return dqkv_BSE, jnp.sum(dbias_B1E, axis=(0, 1)).astype(bias_E.dtype), None, None


attend.defvjp(_attend_forward, _attend_backward)


def forward(
    low: Ref, high: Ref, ids: Ref, qkv: Ref, out: Ref, norms: Ref, *, row: KernelRow
) -> None:
    """Compute attention of one row.

    Shapes: uint32[B] twice, int32[1,1,S], bfloat16[1,S,E] -> bfloat16[1,S,D], float32[1,G,J]. norms
    are the logarithms of the sums of exp(score).
    """
    same_TJ = _find_visible(ids[0], row)
    keep = _keep_masks(low, high, row)
    groups_in_tile = row.heads_in_tile // row.heads_in_group  # 1 or 2

    def scores_TJ(group: int) -> jax.Array:
        tile, number = divmod(group, groups_in_tile)
        q_SL, k_TL = (qkv[0, :, row.lanes(part, tile)] for part in range(2))
        q_JL = _split_groups(q_SL * jnp.bfloat16(row.scale), row)[number]
        return jnp.where(same_TJ, dot(k_TL, q_JL, 1, 1), HIDDEN_SCORE)

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
        tile = group // groups_in_tile
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
        deltas = None
        if out:
            o_SL = out[0][0, :, row.lanes(0, tile)]
            deltas = row.kept_share * sum_heads(do_SL, o_SL, row.head_width)
        dq_KS: list[jax.Array] = []
        dk: list[jax.Array] = []
        dv: list[jax.Array] = []
        for q_JL, do_JL in zip(_split_groups(q_SL, row), _split_groups(do_SL, row), strict=True):
            head = len(dq_KS)
            group = (tile * row.heads_in_tile + head) // row.heads_in_group
            scores_TJ = jnp.where(same_TJ, dot(k_TL, q_JL, 1, 1), HIDDEN_SCORE)
            p_TJ = jnp.exp(scores_TJ - norms[0, group : group + 1, :])
            dp_TJ, dropped_p_TJ = dot(v_TL, do_JL, 1, 1), p_TJ
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
        factor = 1.0 / row.kept_share  # dropout's scale of all three gradients
        gradients = (
            jnp.concatenate(dq_KS, axis=0).T * row.scale,
            _join_groups(dk, row),
            _join_groups(dv, row),
        )
        for part, gradient in enumerate(gradients):
            dqkv[0, :, row.lanes(part, tile)] = (gradient * factor).astype(jnp.bfloat16)
            dbias[0, :, row.lanes(part, tile)] = jnp.sum(gradient * factor, axis=0, keepdims=True)


def dot(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int) -> jax.Array:
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
    """Sum x y over keys for each head of a group, [K,S]; first_head is its number in the tile."""
    return [
        dot(x_LT[head * row.head_width : (head + 1) * row.head_width], y_TS, 1, 0)
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
        return dot(y_TJ, x_JL, 1, 0)
    return dot(x_LS[head * row.head_width : (head + 1) * row.head_width], y_TJ, 1, 1)


def _join_groups(groups: list[jax.Array], row: KernelRow) -> jax.Array:
    """Combine the results of _sum_over_queries for the groups of a tile: [T,L]."""
    if row.is_short:
        return groups[0]
    return jnp.concatenate(groups, axis=0).T


def sum_heads(do_SL: jax.Array, o_SL: jax.Array, head_width: int) -> jax.Array:
    """Sum the product of an output and its gradient over each head of a tile: float32[8,S].

    The result equals the sum over keys of p dp, with a sublane per head. A matmul sums the lanes,
    since its result has the layout of columns of scores; the product is split into two bfloat16
    parts, which keep 16 bits together.
    """
    sublane = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 0)
    lane = jax.lax.broadcasted_iota(jnp.int32, (8, LANES), 1)
    head = jnp.where(lane < head_width, 0, 1)
    picks = jnp.where(head == sublane, 1.0, 0.0).astype(jnp.bfloat16)
    product_SL = do_SL.astype(jnp.float32) * o_SL.astype(jnp.float32)
    upper_SL = product_SL.astype(jnp.bfloat16)
    lower_SL = (product_SL - upper_SL.astype(jnp.float32)).astype(jnp.bfloat16)
    return dot(picks, upper_SL, 1, 1) + dot(picks, lower_SL, 1, 1)


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
    # If a group has 2**n places, its first place and the places within it share no bits.
    # Both are then folded separately: the second once, the first in scalar arithmetic.
    folds_apart = places & (places - 1) == 0
    place_CJ = dropout.fold(place_CJ) if folds_apart else place_CJ

    def keep(group: int) -> jax.Array:
        first = jnp.uint32(group * places)
        if folds_apart:
            fold_CJ = place_CJ ^ dropout.fold(first ^ low[batch_row])
        else:
            fold_CJ = dropout.fold((place_CJ + first) ^ low[batch_row])
        word_CJ = dropout.hash_folds(fold_CJ, high[batch_row])
        values = (word_CJ, word_CJ << 8, word_CJ << 16, (word_CJ << 24) | (word_CJ >> 8))
        return jnp.concatenate([dropout.are_kept(value, row.rate) for value in values], axis=0)

    return keep
