"""Attention of long rows, block by block, against all scores at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import MeshConfig
from bert_jax.model import attention
from bert_jax.model.attention import blocks
from bert_jax.model.embeddings import make_rotation, rotate
from bert_jax.parallel import mesh

HEADS, HEAD_WIDTH = 2, 4


def examples(rng, rows, seq_len):
    """Rows of one to four examples and padding; numbers that float32 does not tell apart."""
    ids = np.zeros((rows, seq_len), np.int32)
    for row in ids:
        ends = np.sort(rng.choice(np.arange(1, seq_len), rng.integers(1, 5), replace=False))
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            row[start:end] = 2**24 + number
    return ids


def both_ways(attend, q, k, v, sees, dout):
    """Compute the output and the gradients of queries, keys and values."""
    out, backward = jax.vjp(lambda q, k, v: attend(q, k, v, sees), q, k, v)
    return out, *backward(dout)


def place(*arrays_BSHK):
    return [jax.device_put(x, mesh.spec("batch", None, "heads", None)) for x in arrays_BSHK]


def attend_plain(q, k, v, mask):
    return attention.attend(q, k, v, mask, lambda weights: weights)


compiled_plain = jax.jit(functools.partial(both_ways, attend_plain))


def mask_in_numpy(ids_BS, width, is_causal):
    apart = np.arange(ids_BS.shape[1])[:, None] - np.arange(ids_BS.shape[1])
    mask = (ids_BS[:, :, None] == ids_BS[:, None, :]) & ((apart >= 0) | (not is_causal))
    return (mask & ((np.abs(apart) <= width // 2) | (not width)))[:, None]


def plain(q_BSHK, k_BSHK, v_BSHK, ids_BS, dout_BSHK, width, is_causal=False):
    mask = mask_in_numpy(ids_BS, width, is_causal)
    mask_B1SS = jax.device_put(mask, mesh.spec("batch", None, None, None))
    q, k, v, dout = place(q_BSHK, k_BSHK, v_BSHK, dout_BSHK)
    return compiled_plain(q, k, v, mask_B1SS, dout)


def choose_blocks(width, is_causal=False):
    if width:
        return functools.partial(blocks.attend_window, width=width, is_causal=is_causal)
    return lambda *arrays: blocks.attend_complete(*arrays, is_causal)


def by_blocks(q_BSHK, k_BSHK, v_BSHK, ids_BS, dout_BSHK, width, is_causal=False):
    run = jax.jit(functools.partial(both_ways, choose_blocks(width, is_causal)))
    q, k, v, dout = place(q_BSHK, k_BSHK, v_BSHK, dout_BSHK)
    return run(q, k, v, jax.device_put(ids_BS, mesh.spec("batch", None)), dout)


def draw(seed, rows, seq_len, heads=HEADS, head_width=HEAD_WIDTH):
    rng = np.random.default_rng(seed)
    arrays = (rng.normal(size=(4, rows, seq_len, heads, head_width)) * 2).astype(np.float32)
    return (*arrays[:3], examples(rng, rows, seq_len), arrays[3])


def assert_close(got, expected):
    """To float32's rounding of sums: relative to the largest number of each array."""
    for g, e in zip(map(np.asarray, got), map(np.asarray, expected), strict=True):
        assert g.shape == e.shape
        assert np.abs(g - e).max() <= 3e-6 * np.abs(e).max()


def set_mesh(devices, preset="dp"):
    jax.set_mesh(mesh.make_mesh(MeshConfig(preset=preset), jax.devices()[:devices]))


@pytest.mark.parametrize(("width", "is_causal"), [(0, False), (7, False), (6, True)])
def test_masks_hide_other_examples_what_is_outside_of_the_window_and_what_is_later(
    width, is_causal
):
    @jax.jit
    def hide(ids):
        visible = attention.hide_other_examples(ids)
        if width:
            visible = attention.hide_outside_window(visible, ids.shape[1], width)
        return (attention.hide_later(visible, ids.shape[1]) if is_causal else visible).mask

    ids = examples(np.random.default_rng(1), 3, 19)
    np.testing.assert_array_equal(hide(ids), mask_in_numpy(ids, width, is_causal))


CASES = [
    # seq_len, window, block, is_causal
    (41, 0, 8, False),  # a part of the last block
    pytest.param(40, 0, 8, False, marks=pytest.mark.long),
    pytest.param(5, 0, 8, False, marks=pytest.mark.long),  # the row is shorter than a block
    (41, 6, 4, False),
    pytest.param(
        41, 7, 4, False, marks=pytest.mark.long
    ),  # sees as many keys as the even one below
    (40, 16, 4, False),  # a block is half a window
    (5, 40, 4, False),  # the window is longer than the row
    pytest.param(41, 1, 4, False, marks=pytest.mark.long),  # itself alone
    (41, 0, 8, True),
    (41, 6, 4, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seq_len", "width", "block", "is_causal"), CASES)
def test_blocks_are_the_plain_attention_with_its_gradients(
    monkeypatch, seq_len, width, block, is_causal
):
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "MIN_WINDOW_BLOCK", block)
    set_mesh(1)
    drawn = draw(seq_len + width, 3, seq_len)
    assert_close(by_blocks(*drawn, width, is_causal), plain(*drawn, width, is_causal))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_random_sizes_are_the_plain_attention(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(blocks, "BLOCK", int(rng.integers(2, 20)))
    monkeypatch.setattr(blocks, "MIN_WINDOW_BLOCK", int(rng.integers(1, 20)))
    set_mesh(1)
    drawn = draw(seed, int(rng.integers(1, 4)), int(rng.integers(6, 90)))
    for width in (0, int(rng.integers(1, 30))):
        assert_close(by_blocks(*drawn, width), plain(*drawn, width))


@pytest.mark.long
@pytest.mark.parametrize("width", [0, 6])
def test_eight_devices_compute_the_blocks_of_one(monkeypatch, width):
    """Rows are on four devices, heads on two."""
    monkeypatch.setattr(blocks, "BLOCK", 8)
    monkeypatch.setattr(blocks, "MIN_WINDOW_BLOCK", 8)
    drawn = draw(width, 8, 19)
    set_mesh(1)
    expected = plain(*drawn, width)
    set_mesh(8, "tp")
    assert_close(by_blocks(*drawn, width), expected)


@pytest.mark.long
@pytest.mark.parametrize("width", [0, 128])
def test_memory_grows_as_the_row_and_not_as_its_square(width):
    """Forward and backward, by the compiler's account."""
    set_mesh(1)

    def count_bytes(attend, seq_len, sees):
        of_rows = jax.ShapeDtypeStruct((1, seq_len, HEADS, HEAD_WIDTH), jnp.float32)
        lowered = jax.jit(functools.partial(both_ways, attend)).lower(*[of_rows] * 3, sees, of_rows)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    def of_plain(seq_len):
        mask = jax.ShapeDtypeStruct((1, 1, seq_len, seq_len), jnp.bool_)
        return count_bytes(attend_plain, seq_len, mask)

    def of_blocks(seq_len):
        ids = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
        return count_bytes(choose_blocks(width), seq_len, ids)

    assert of_plain(4096) > 3.9 * of_plain(2048)
    assert of_blocks(4096) < 2.1 * of_blocks(2048)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theta"), [(0, 160_000.0), (128, 10_000.0)])
def test_4096_rotary_positions_are_the_formula_in_float64(width, theta):
    """The formula: pairs as complex numbers, turned by position / theta ** (2 i / K)."""
    set_mesh(1)
    seq_len, queries = 4096, [0, 63, 64, 511, 512, 2047, 4095]
    q, k, v, _, _ = draw(5, 1, seq_len)

    def attend(q, k, v, ids):
        rotation = make_rotation(None, seq_len, HEAD_WIDTH, theta)
        return choose_blocks(width)(rotate(q, rotation), rotate(k, rotation), v, ids)

    got = np.asarray(jax.jit(attend)(q, k, v, np.ones((1, seq_len), np.int32)))

    def turn(x_SHK):
        pairs = x_SHK[..., : HEAD_WIDTH // 2] + 1j * x_SHK[..., HEAD_WIDTH // 2 :]
        exponents = np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH
        angles = np.arange(seq_len)[:, None, None] / np.float64(theta) ** exponents
        return pairs * np.exp(1j * angles)

    turned_q, turned_k = turn(q[0].astype(np.float64)), turn(k[0].astype(np.float64))
    scores = np.real(np.einsum("shk,thk->hst", turned_q[queries], turned_k.conj()))
    weights = np.exp(scores / np.sqrt(HEAD_WIDTH))
    if width:
        weights *= np.abs(np.array(queries)[:, None] - np.arange(seq_len)) <= width // 2
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("hst,thk->shk", weights, v[0])
    # An angle of up to 4,096 has a rounding of 2.4e-4 in float32.
    np.testing.assert_allclose(got[0, queries], expected, atol=2e-3)
