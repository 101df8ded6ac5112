"""Compute attention of long rows in a TPU kernel, with windows, causal masks and rotary positions.

The kernel is in model/attention/flash_body.py. No array of the size of the scores leaves VMEM, and
chunks of keys that no query of a block sees are skipped. There is no dropout of the weights.

Dimensions: B rows of one device, S sequence, D width, E = 3 D: queries, keys and values side by
side, H heads, K head width, L lanes of a tile, T tiles, N blocks of queries.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model.attention import flash_body
from bert_jax.model.attention.flash_body import Tile
from bert_jax.model.attention.tpu_kernel import LANES, Shape, refuse_tiles
from bert_jax.model.embeddings import Rotation
from bert_jax.parallel import chips, mesh

# Tokens whose tile fits into VMEM.
MAX_ROW_TOKENS = {"v4": 1024, "v5e": 8192, "v5p": 4096, "v6e": 8192, "tpu7x": 4096}
VMEM_LIMIT_BYTES = {"v4": 16 * 2**20, "v5p": 64 * 2**20}
SCOPE_OF_WINDOWS = "flash_window"


def explain_refusal(
    device: str, seq_len: int, heads: int, head_width: int, dtype: jnp.dtype
) -> str | None:
    """Explain in a sentence why the kernel does not support this attention; None if it does.

    device is a chip ("v5e") or JAX's name of the device; dtype is the dtype of matmuls; heads
    counts the heads on one device.
    """
    if refusal := refuse_tiles("flash attention", device, heads, head_width, dtype):
        return refusal
    if seq_len % LANES:
        return f"flash attention takes rows of a multiple of {LANES} tokens, not {seq_len}"
    chip = chips.find_chip(device)
    longest = MAX_ROW_TOKENS[chip.name] if chip else 0
    if chip and seq_len > longest:
        return f"flash attention takes rows of up to {longest} tokens on {chip.name}, not {seq_len}"
    return None


def attend(
    qkv_BSE: jax.Array,
    ids_BS: jax.Array,
    rotation: Rotation | None,
    heads: int,
    width: int = 0,
    is_causal: bool = False,
) -> jax.Array:
    """Compute the self-attention of each row, inside a shard_map that is manual over the batch.

    Shapes: bfloat16[B,S,E], int32[B,S] -> bfloat16[B,S,D]. A query sees the keys with its own id,
    which must be contiguous: those at most `width // 2` positions away (0 is no window), and if
    causal no later key. Queries and keys are rotated if a rotation is given. Softmax in float32;
    weights are rounded to bfloat16 for their matmul, before they are divided by their sum. Without
    a TPU to compile for, the kernel is interpreted.
    """
    _, seq_len, all_width = qkv_BSE.shape
    reach = width // 2 if width else seq_len
    head_width = all_width // 3 // heads
    after = 0 if is_causal else reach
    tile = Tile(seq_len, head_width, reach, after, rotation is not None)
    angles = () if rotation is None else _tile_angles(rotation)
    # bert_jax/planning/chip_prices.py tells layers with a window from the others by this name.
    with jax.named_scope(SCOPE_OF_WINDOWS if width else "complete"):
        return _attend(
            qkv_BSE, _find_chunks(ids_BS, tile), _number_positions(ids_BS, tile), angles, tile
        )


def _tile_angles(rotation: Rotation) -> tuple[jax.Array, jax.Array]:
    """Fill a tile's lanes with cosines and sines; sines are negated in each head's first half."""
    cos, sin = (angle[:, :, 0, :] for angle in (rotation.cos, rotation.sin))
    half = cos.shape[-1] // 2
    sign = np.repeat(np.array([-1, 1], np.float32), half)
    copies = (1, 1, LANES // (2 * half))
    return jnp.tile(cos, copies), jnp.tile(sin * sign, copies)


def _mark_starts(ids_BS: jax.Array) -> jax.Array:
    """Mark the first position of each example: bool[B,S]."""
    changes = ids_BS[:, 1:] != ids_BS[:, :-1]
    return jnp.pad(changes, [(0, 0), (1, 0)], constant_values=True)


def _number_positions(ids_BS: jax.Array, tile: Tile) -> jax.Array:
    """Assign numbers to positions, four row lengths apart between examples: int32[B,1,S]."""
    examples_BS = jnp.cumsum(_mark_starts(ids_BS), axis=1, dtype=jnp.int32)
    places_S = jnp.arange(tile.seq_len, dtype=jnp.int32)
    return (examples_BS * (4 * tile.seq_len) + places_S)[:, None, :]


def _find_chunks(ids_BS: jax.Array, tile: Tile) -> jax.Array:
    """Find the chunks of keys that each block of queries sees: first key, and count: int32[B,2N].

    The first chunk begins with the tile of LANES keys that holds the first key seen, or earlier
    where the last chunk would end past the row.
    """
    is_first_BS = _mark_starts(ids_BS)
    is_last_BS = jnp.roll(is_first_BS, -1, axis=1)
    places_S = jnp.arange(tile.seq_len, dtype=jnp.int32)
    first_BS = jax.lax.cummax(jnp.where(is_first_BS, places_S, 0), axis=1)
    last_BS = jnp.where(is_last_BS, places_S, tile.seq_len - 1)
    last_BS = jax.lax.cummin(last_BS, axis=1, reverse=True)
    first_BN = jnp.maximum(first_BS, places_S - tile.before)[:, :: tile.block]
    last_BN = jnp.minimum(last_BS, places_S + tile.after)[:, tile.block - 1 :: tile.block]
    first_BN -= first_BN % LANES
    count_BN = (last_BN - first_BN) // tile.chunk + 1
    first_BN = jnp.minimum(first_BN, tile.seq_len - count_BN * tile.chunk)
    return jnp.reshape(jnp.stack([first_BN, count_BN], axis=-1), (len(ids_BS), -1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(
    qkv_BSE: jax.Array,
    bounds_BN: jax.Array,
    codes_B1S: jax.Array,
    angles: tuple[jax.Array, ...],
    tile: Tile,
) -> jax.Array:
    return _attend_forward(qkv_BSE, bounds_BN, codes_B1S, angles, tile)[0]


def _each_tile(
    kernel: Callable[..., None],
    tile: Tile,
    whole: Sequence[jax.Array],
    qkv_BSE: jax.Array,
    by_tile: Sequence[jax.Array],
    outputs: Sequence[Shape],
    scratch: Sequence[Any],
) -> Any:
    """Run a kernel on every tile of every row.

    whole      inputs that all tiles of a row share; the first, bounds, is in scalar memory
    by_tile    other inputs that are cut into tiles
    outputs    cut into tiles too; one as wide as qkv stays in HBM
    """
    bounds_BN, *by_row = whole
    tiles = qkv_BSE.shape[-1] // 3 // LANES

    def spec_row(array: Any) -> pl.BlockSpec:
        is_per_row = len(array) > 1 or len(bounds_BN) == 1
        return pl.BlockSpec(
            (1, *array.shape[1:]),
            (lambda b, t, *_: (b, 0, 0)) if is_per_row else lambda *_: (0, 0, 0),
        )

    def spec_tile(array: Any, part: int = 0) -> pl.BlockSpec:
        if array.ndim == 4:
            return pl.BlockSpec((1, 1, *array.shape[2:]), lambda b, t, *_: (b, t, 0, 0))
        return pl.BlockSpec((1, tile.seq_len, LANES), lambda b, t, *_: (b, 0, part * tiles + t))

    chosen_mesh = jax.sharding.get_abstract_mesh()
    chip = chips.find_chip(mesh.device_kind(chosen_mesh))
    limit = VMEM_LIMIT_BYTES.get(chip.name if chip else "", 120 * 2**20)
    return pl.pallas_call(
        functools.partial(kernel, tile=tile),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(bounds_BN), tiles),
            in_specs=[
                *map(spec_row, by_row),
                *(spec_tile(qkv_BSE, part) for part in range(3)),
                *map(spec_tile, by_tile),
            ],
            out_specs=[
                pl.BlockSpec(memory_space=pl.ANY) if out.shape == qkv_BSE.shape else spec_tile(out)
                for out in outputs
            ],
            scratch_shapes=scratch,
        ),
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=limit
        ),
        interpret=mesh.platform(chosen_mesh) != "tpu",
        name=f"flash_{kernel.__name__}",
    )(bounds_BN, *by_row, qkv_BSE, qkv_BSE, qkv_BSE, *by_tile)


def _list_scratch(tile: Tile) -> list[Any]:
    """List the scratch buffers: queries, keys, values, codes, and transposed keys or values."""
    seq_len, padded, bfloat16 = tile.seq_len, tile.padded, jnp.bfloat16
    return [
        pltpu.VMEM((seq_len, LANES), bfloat16),
        *[pltpu.VMEM((padded, LANES), bfloat16)] * 2,
        pltpu.VMEM((padded, LANES), jnp.int32),
        pltpu.VMEM((LANES, padded), bfloat16),
    ]


def _attend_forward(
    qkv_BSE: jax.Array,
    bounds_BN: jax.Array,
    codes_B1S: jax.Array,
    angles: tuple[jax.Array, ...],
    tile: Tile,
) -> tuple[jax.Array, tuple[Any, ...]]:
    batch, seq_len, width = qkv_BSE.shape
    out_BSD, norms_BTHS = _each_tile(
        flash_body.forward,
        tile,
        (bounds_BN, codes_B1S, *angles),
        qkv_BSE,
        (),
        (
            Shape((batch, seq_len, width // 3), jnp.bfloat16),
            Shape((batch, width // 3 // LANES, tile.heads, seq_len), jnp.float32),
        ),
        _list_scratch(tile),
    )
    return out_BSD, (qkv_BSE, bounds_BN, codes_B1S, angles, norms_BTHS, out_BSD)


def _attend_backward(tile: Tile, saved: tuple[Any, ...], dout_BSD: jax.Array) -> tuple[Any, ...]:
    qkv_BSE, bounds_BN, codes_B1S, angles, norms_BTHS, out_BSD = saved
    sums = (tile.padded, LANES) if tile.has_band else (LANES, tile.padded)
    parts = pltpu.VMEM((3, tile.seq_len, LANES), jnp.bfloat16)
    scratch = [parts, pltpu.SemaphoreType.DMA((3,)), *_list_scratch(tile)]
    scratch += [pltpu.VMEM(sums, jnp.float32)] * 2
    if not tile.has_band:
        scratch += [pltpu.VMEM((LANES, tile.seq_len), jnp.bfloat16)] * 2
    (dqkv_BSE,) = _each_tile(
        flash_body.backward,
        tile,
        (bounds_BN, codes_B1S, *angles),
        qkv_BSE,
        (norms_BTHS, dout_BSD, out_BSD),
        (Shape(qkv_BSE.shape, jnp.bfloat16),),
        scratch,
    )
    return dqkv_BSE, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)
