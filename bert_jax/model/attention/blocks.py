"""Compute exact attention in plain JAX on any platform: a row at once, or in blocks.

`attend` is the reference, and materializes all scores of a row. Blocks never do: a layer with a
window compares a block of queries with the keys around the block; a layer without one loops over
all pairs of blocks, with a running maximum and sum. Blocks have no dropout of the weights.

Dimensions: B batch, S sequence or queries, T keys, N blocks, W positions of a block, C keys around
a block, H heads, K head width.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model import ops
from bert_jax.parallel import mesh

BLOCK = 512  # queries and keys of a block without a window
MIN_WINDOW_BLOCK = 128
# Added to the scores of hidden keys, so that exp gives 0 (modeling.py@eedf5716ce).
HIDDEN_BIAS = -10_000.0
HIDDEN_SCORE = -1e30  # score of a hidden key: exp(HIDDEN_SCORE - any real score) is 0
_SCORES = ("batch", "heads", None, None)


def attend(
    q_BSHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    mask: jax.Array,
    drop: Callable[[jax.Array], jax.Array],
    terms: Sequence[jax.Array] = (),
) -> jax.Array:
    """Compute softmax(q k / sqrt(K)) v, with the softmax in float32 and dropout on the weights.

    Shapes: float[B,S,H,K], float[B,T,H,K] twice, bool[B or 1, 1, S or 1, T] -> float[B,S,H,K].
    mask is True where a query may attend to a key; drop is applied to the weights[B,H,S,T].
    terms are N further scores to add, float32[B,H,S,T] each; the sum of all N + 1 is divided by
    sqrt((N + 1) K).

    Source: Vaswani et al. 2017, section 3.2.1; modeling.py@eedf5716ce attention_layer;
    He et al. 2021 (DeBERTa), equation 4.
    """
    scale = (q_BSHK.shape[-1] * (1 + len(terms))) ** -0.5
    q_BSHK = q_BSHK * jnp.asarray(scale, q_BSHK.dtype)
    scores_BHST = ops.einsum("bshk,bthk->bhst", q_BSHK, k_BTHK, _SCORES, jnp.float32)
    for term_BHST in terms:
        scores_BHST = scores_BHST + term_BHST * scale
    return weigh_values(scores_BHST, v_BTHK, mask, drop)


def weigh_values(
    scores_BHST: jax.Array,
    v_BTHK: jax.Array,
    mask: jax.Array,
    drop: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Average the values, weighted by the softmax of float32 scores: float[B,S,H,K]."""
    scores_BHST = scores_BHST + jnp.where(mask, 0.0, HIDDEN_BIAS)
    weights_BHST = drop(jax.nn.softmax(scores_BHST, axis=-1).astype(v_BTHK.dtype))
    return ops.einsum("bhst,bthk->bshk", weights_BHST, v_BTHK, ("batch", None, "heads", None))


def choose_window_block(width: int) -> int:
    """Return the block size for a window of this width."""
    return max(width // 2, MIN_WINDOW_BLOCK)


def attend_window(
    q_BSHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHK: jax.Array,
    ids_BS: jax.Array,
    width: int,
    is_causal: bool = False,
) -> jax.Array:
    """Compute attention to keys at most `width // 2` positions away: float[B,S,H,K].

    Shapes: float[B,S,H,K] three times, int32[B,S]. A query sees the keys with its own id, and if
    causal no later key. A block of queries is compared with its own keys and half a window on both
    sides; the backward pass recomputes the scores.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """
    batch, seq_len = ids_BS.shape
    block, reach = choose_window_block(width), width // 2
    blocks = -(-seq_len // block)
    around = block + 2 * reach
    # Positions of each block's queries and keys in the row; some lie outside of it.
    first_N1 = np.arange(blocks)[:, None] * block
    query_NW, key_NC = first_N1 + np.arange(block), first_N1 + np.arange(around) - reach
    is_near_NWC = np.abs(query_NW[:, :, None] - key_NC[:, None, :]) <= reach
    is_near_NWC &= ((key_NC >= 0) & (key_NC < seq_len))[:, None, :]
    if is_causal:
        is_near_NWC &= key_NC[:, None, :] <= query_NW[:, :, None]

    def join_neighbors(x_BNW: jax.Array) -> jax.Array:
        """Concatenate each block with the adjacent ends of its neighbors; zeros outside the row."""
        ends = [(0, 0)] * (x_BNW.ndim - 2)
        before = jnp.pad(x_BNW[:, :-1, block - reach :], [(0, 0), (1, 0), *ends])
        after = jnp.pad(x_BNW[:, 1:, :reach], [(0, 0), (0, 1), *ends])
        return jnp.concatenate([before, x_BNW, after], axis=2)

    @jax.checkpoint
    def attend_blocks(
        q_BSHK: jax.Array, k_BSHK: jax.Array, v_BSHK: jax.Array, ids_BS: jax.Array
    ) -> jax.Array:
        q, k, v, ids = (_cut(x, blocks, block) for x in (q_BSHK, k_BSHK, v_BSHK, ids_BS))
        is_same = ids[:, :, :, None] == join_neighbors(ids)[:, :, None, :]
        mask = jnp.expand_dims(is_same & is_near_NWC, 2)
        out = attend(
            _as_rows(q),
            _as_rows(join_neighbors(k)),
            _as_rows(join_neighbors(v)),
            _as_rows(mask),
            lambda weights: weights,
        )
        sizes = (batch, blocks * block, *q_BSHK.shape[2:])
        return jnp.reshape(out, sizes, out_sharding=_spec(out.ndim, 2))[:, :seq_len]

    return attend_blocks(q_BSHK, k_BSHK, v_BSHK, ids_BS)


def _spec(ndim: int, heads_axis: int) -> Any:
    """Return the sharding of an array over batch and, if it has that axis, heads."""
    axes: list[str | None] = ["batch", *[None] * (ndim - 1)]
    if ndim > heads_axis:
        axes[heads_axis] = "heads"
    return mesh.spec(*axes)


def _cut(x_BS: jax.Array, blocks: int, block: int) -> jax.Array:
    """Cut rows into blocks, the last one padded with zeros: [B,S,...] -> [B,N,W,...]."""
    batch, seq_len, *others = x_BS.shape
    padded = jnp.pad(x_BS, [(0, 0), (0, blocks * block - seq_len), *[(0, 0)] * len(others)])
    return jnp.reshape(
        padded, (batch, blocks, block, *others), out_sharding=_spec(x_BS.ndim + 1, 3)
    )


def _as_rows(x_BNW: jax.Array) -> jax.Array:
    """Turn blocks into rows: [B,N,...] -> [BN,...]."""
    batch, blocks, *others = x_BNW.shape
    axes: list[str | None] = ["batch", *[None] * len(others)]
    if len(others) == 3 and others[0] != 1:  # not a mask, which has a single head
        axes[2] = "heads"
    return jnp.reshape(x_BNW, (batch * blocks, *others), out_sharding=mesh.spec(*axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend_complete(
    q_BSHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHK: jax.Array,
    ids_BS: jax.Array,
    is_causal: bool = False,
) -> jax.Array:
    """Compute attention to the complete row: float[B,S,H,K].

    Shapes: float[B,S,H,K] three times, int32[B,S]. A query sees the keys with its own id, and if
    causal no later key. Weights are rounded to the dtype of the values, and normalized only after
    the weighted values are summed.

    Source: Rabe and Staats 2021, section 3; the backward, Dao et al. 2022, appendix B.
    """
    return _attend_forward(q_BSHK, k_BSHK, v_BSHK, ids_BS, is_causal)[0]


def _stack(x_BS: jax.Array) -> jax.Array:
    """Cut rows into blocks for a loop: [B,S,...] -> [N,B,W,...]."""
    x_BNW = _cut(x_BS, -(-x_BS.shape[1] // BLOCK), BLOCK)
    return jnp.moveaxis(x_BNW, 0, 1)


def _unstack(x_NBW: jax.Array, seq_len: int) -> jax.Array:
    """Concatenate blocks to rows again: [N,B,W,H,K] -> [B,S,H,K]."""
    blocks, batch, block, *others = x_NBW.shape
    x_BNW = jnp.moveaxis(x_NBW, 0, 1)
    sizes = (batch, blocks * block, *others)
    return jnp.reshape(x_BNW, sizes, out_sharding=_spec(len(sizes), 2))[:, :seq_len]


def _places(blocks: int) -> jax.Array:
    """Return the positions of the blocks in the row: int32[N,W]."""
    return jnp.asarray(np.arange(blocks * BLOCK, dtype=np.int32).reshape(blocks, BLOCK))


def _last_keys(blocks: int, seq_len: int, is_causal: bool) -> jax.Array:
    """Return the last key that each query of the blocks may see: int32[N,W]."""
    places_NW = _places(blocks)
    return places_NW if is_causal else jnp.full_like(places_NW, seq_len - 1)


def _zeros(like: Sequence[int], axes: Sequence[str | None]) -> jax.Array:
    return jnp.zeros(like, jnp.float32, out_sharding=mesh.spec(*axes))


def _mask(
    query_ids_BW: jax.Array, last_key_W: jax.Array, key_ids_BC: jax.Array, key_C: jax.Array
) -> jax.Array:
    is_same_B1WC = query_ids_BW[:, None, :, None] == key_ids_BC[:, None, None, :]
    return is_same_B1WC & (key_C <= last_key_W[:, None])


def _scale(q_BSHK: jax.Array) -> jax.Array:
    return q_BSHK * jnp.asarray(q_BSHK.shape[-1] ** -0.5, q_BSHK.dtype)


def _attend_forward(
    q_BSHK: jax.Array, k_BSHK: jax.Array, v_BSHK: jax.Array, ids_BS: jax.Array, is_causal: bool
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    dtype, seq_len = q_BSHK.dtype, ids_BS.shape[1]
    q, k, v, ids = map(_stack, (_scale(q_BSHK), k_BSHK, v_BSHK, ids_BS))
    keys = (k, v, ids, _places(len(ids)))

    def attend_block(query: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q_BWHK, ids_BW, last_key_W = query
        batch, block, heads, head_width = q_BWHK.shape

        def add_keys(done: tuple[jax.Array, ...], key: tuple[jax.Array, ...]) -> Any:
            highest, total, out = done
            k_BCHK, v_BCHK, key_ids_BC, key_C = key
            scores = ops.einsum("bshk,bthk->bhst", q_BWHK, k_BCHK, _SCORES, jnp.float32)
            is_visible = _mask(ids_BW, last_key_W, key_ids_BC, key_C)
            scores = jnp.where(is_visible, scores, HIDDEN_SCORE)
            higher = jnp.maximum(highest, jnp.max(scores, axis=-1))
            weights = jnp.exp(scores - higher[..., None])
            shrink = jnp.exp(highest - higher)
            values = ops.einsum(
                "bhst,bthk->bhsk", weights.astype(dtype), v_BCHK, _SCORES, jnp.float32
            )
            total = total * shrink + jnp.sum(weights, axis=-1)
            return (higher, total, out * shrink[..., None] + values), None

        nothing = _zeros((batch, heads, block), _SCORES[:3])
        out = _zeros((batch, heads, block, head_width), _SCORES)
        start = (nothing + HIDDEN_SCORE, nothing, out)
        (highest, total, out), _ = jax.lax.scan(add_keys, start, keys)
        out_BWHK = jnp.swapaxes(out / total[..., None], 1, 2).astype(dtype)
        return out_BWHK, highest + jnp.log(total)

    out, norms = jax.lax.map(attend_block, (q, ids, _last_keys(len(ids), seq_len, is_causal)))
    out_BSHK = _unstack(out, seq_len)
    return out_BSHK, (q_BSHK, k_BSHK, v_BSHK, ids_BS, out_BSHK, norms)


def _attend_backward(
    is_causal: bool, saved: tuple[jax.Array, ...], dout_BSHK: jax.Array
) -> tuple[jax.Array | None, ...]:
    q_BSHK, k_BSHK, v_BSHK, ids_BS, out_BSHK, norms = saved
    dtype, seq_len = q_BSHK.dtype, ids_BS.shape[1]
    product_BSH = jnp.sum(dout_BSHK.astype(jnp.float32) * out_BSHK.astype(jnp.float32), axis=-1)
    q, k, v, ids, dout, delta = map(
        _stack, (_scale(q_BSHK), k_BSHK, v_BSHK, ids_BS, dout_BSHK, product_BSH)
    )
    last_keys = _last_keys(len(ids), seq_len, is_causal)
    queries = (q, dout, ids, last_keys, norms, jnp.swapaxes(delta, 2, 3))
    dot = functools.partial(ops.einsum, out_axes=("batch", None, "heads", None), dtype=jnp.float32)

    def add_keys(dq_NBWHK: jax.Array, key: tuple[jax.Array, ...]) -> Any:
        k_BCHK, v_BCHK, key_ids_BC, key_C = key

        def add_queries(done: tuple[jax.Array, jax.Array], query: tuple[jax.Array, ...]) -> Any:
            q_BWHK, dout_BWHK, ids_BW, last_key_W, norms_BHW, delta_BHW = query
            scores = ops.einsum("bshk,bthk->bhst", q_BWHK, k_BCHK, _SCORES, jnp.float32)
            is_visible = _mask(ids_BW, last_key_W, key_ids_BC, key_C)
            weights = jnp.where(is_visible, jnp.exp(scores - norms_BHW[..., None]), 0.0)
            dweights = ops.einsum("bshk,bthk->bhst", dout_BWHK, v_BCHK, _SCORES, jnp.float32)
            dscores = (weights * (dweights - delta_BHW[..., None])).astype(dtype)
            dk = done[0] + dot("bhst,bshk->bthk", dscores, q_BWHK)
            dv = done[1] + dot("bhst,bshk->bthk", weights.astype(dtype), dout_BWHK)
            return (dk, dv), dot("bhst,bthk->bshk", dscores, k_BCHK)

        nothing = _zeros(k_BCHK.shape, ("batch", None, "heads", None))
        (dk, dv), dq = jax.lax.scan(add_queries, (nothing, nothing), queries)
        return dq_NBWHK + dq, (dk.astype(dtype), dv.astype(dtype))

    nothing = _zeros(q.shape, (None, "batch", None, "heads", None))
    keys = (k, v, ids, _places(len(ids)))
    dq, (dk, dv) = jax.lax.scan(add_keys, nothing, keys)
    dq_BSHK, dk_BSHK, dv_BSHK = (_unstack(x, seq_len) for x in (dq, dk, dv))
    return _scale(dq_BSHK).astype(dtype), dk_BSHK, dv_BSHK, None


attend_complete.defvjp(_attend_forward, _attend_backward)
