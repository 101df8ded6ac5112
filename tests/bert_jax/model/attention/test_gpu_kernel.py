"""The GPU attention kernel, interpreted on a CPU device, against all scores in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, PartitionSpec

from bert_jax.model import attention
from bert_jax.model.attention import gpu_kernel
from bert_jax.model.dropout import Dropout, keep_mask, number_rows
from bert_jax.model.positions import make_rotation, rotate
from bert_jax.parallel import mesh
from tests.bert_jax.model.attention.agreement import assert_close, draw

ROWS = 2
NO_DROPOUT = {"rate": 0.0}


def padded_ids(seq_len):
    """1 for tokens and 0 for padding, of rows that are full and a third full."""
    return (np.arange(seq_len) < [[seq_len], [seq_len // 3 + 1]]).astype(np.int32)


def packed_ids(seq_len):
    """Three examples a row and padding."""
    ends = [seq_len // 5, seq_len // 2, seq_len - 9]
    example = np.searchsorted(ends, np.arange(seq_len), "right")
    return np.tile(np.array([1, 2, 3, 0], np.int32)[example], (ROWS, 1))


def any_ids(seq_len):
    """Numbers in no order, that neither float32 nor 16 bits tell apart."""
    numbers = np.array([2**24, 2**24 + 1, 2**31 - 1, -5, 0], np.int32)
    return np.random.default_rng(5).choice(numbers, (ROWS, seq_len))


def dropout_words():
    return Dropout(jnp.uint32(3), jnp.uint32(8), number_rows(ROWS)).words(5, 0)


def on_rows(array):
    """Sharded over the batch, as arrays of a step are."""
    return jax.device_put(array, mesh.batch_sharding(jax.sharding.get_mesh(), np.ndim(array)))


def by_kernel(qkv_BSE, ids_BS, low_B, high_B, rotation, heads, **settings):
    def local(*arrays):
        return gpu_kernel.attend(*arrays, heads, **settings)

    rows = PartitionSpec(mesh.BATCH_AXES)
    arrays = (qkv_BSE, ids_BS, low_B, high_B, rotation)
    in_specs = (rows,) * 4 + (jax.tree.map(lambda _: PartitionSpec(), rotation),)
    return jax.shard_map(local, in_specs=in_specs, out_specs=rows, check_vma=False)(*arrays)


def by_scores(qkv_BSE, ids_BS, low_B, high_B, rotation, heads, rate=0.0, width=0, is_causal=False):
    batch, seq_len, _ = qkv_BSE.shape
    parts = jnp.split(qkv_BSE, 3, axis=-1)
    q, k, v = (jnp.reshape(part, (batch, seq_len, heads, -1)) for part in parts)
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    visible = attention.hide_other_examples(ids_BS)
    if width:
        visible = attention.hide_outside_window(visible, seq_len, width)
    if is_causal:
        visible = attention.hide_later(visible, seq_len)

    def drop(weights_BHST):
        keep = keep_mask(weights_BHST, low_B, high_B, rate, -1)
        return jnp.where(keep, weights_BHST / (1 - rate), 0.0)

    out_BSHK = attention.attend(q, k, v, visible.mask, drop)
    return jnp.reshape(out_BSHK, (batch, seq_len, -1))


def both_ways(attend, qkv_BSE, dout_BSD, ids_BS, words, heads, theta=0.0, **settings):
    """Return the output and the gradient of queries, keys and values, as NumPy arrays."""
    seq_len, head_width = ids_BS.shape[1], dout_BSD.shape[-1] // heads
    rotation = make_rotation(None, seq_len, head_width, theta) if theta else None

    @jax.jit
    def run(qkv_BSE, dout_BSD, ids_BS, low_B, high_B):
        others = (ids_BS, low_B, high_B, rotation, heads)
        each = lambda qkv_BSE: attend(qkv_BSE, *others, **settings)  # noqa: E731
        out_BSD, backward = jax.vjp(each, qkv_BSE)
        return out_BSD, *backward(jax.sharding.reshard(dout_BSD, jax.typeof(out_BSD).sharding))

    arrays = map(on_rows, (qkv_BSE, dout_BSD, ids_BS, *words))
    return [np.asarray(x, np.float32) for x in run(*arrays)]


CASES = [
    # seq_len, heads, head_width, ids, settings
    pytest.param(128, 2, 64, padded_ids, {"rate": 0.1}, id="padded, with dropout"),
    pytest.param(192, 2, 32, packed_ids, {"rate": 0.1}, id="packed; no power of two, narrow heads"),
    pytest.param(
        128, 1, 64, any_ids, NO_DROPOUT, id="examples in no order", marks=pytest.mark.slow
    ),
    pytest.param(
        128,
        1,
        128,
        packed_ids,
        {"rate": 0.1, "is_causal": True},
        id="causal, wide",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        256,
        1,
        64,
        packed_ids,
        {"rate": 0.1, "width": 70, "theta": 10_000.0},
        id="a window and rotary positions",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        320,
        1,
        64,
        packed_ids,
        NO_DROPOUT | {"width": 130, "is_causal": True},
        id="causal window",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("seq_len", "heads", "head_width", "ids", "settings"), CASES)
def test_the_kernel_is_the_plain_implementation(seq_len, heads, head_width, ids, settings):
    qkv_BSE, dout_BSD = draw(ROWS, seq_len, heads * head_width)
    others = (ids(seq_len), dropout_words(), heads)
    got = both_ways(by_kernel, qkv_BSE, dout_BSD, *others, **settings)
    wide = [x.astype(jnp.float32) for x in (qkv_BSE, dout_BSD)]
    assert_close(got, both_ways(by_scores, *wide, *others, **settings))


@pytest.mark.parametrize("seq_len", [128, pytest.param(192, marks=pytest.mark.slow)])
def test_the_mask_is_that_of_the_plain_implementation_in_both_directions(seq_len):
    """All weights are equal and each value is one key's, so that the output spells the mask.

    Rows share their words: each shows the mask of 64 keys, or 64 queries in the backward.
    """
    heads, rate, windows = 2, 0.1, seq_len // 64
    one_hot = np.zeros((windows, seq_len, heads * 64), np.float32)
    for row, head, lane in np.ndindex(windows, heads, 64):
        one_hot[row, row * 64 + lane, head * 64 + lane] = 1
    nothing = np.zeros((windows, seq_len, 2 * heads * 64))
    words = [jnp.full(windows, word, jnp.uint32) for word in (0x12345678, 0x9ABCDEF0)]
    out, dqkv = both_ways(
        by_kernel,
        jnp.asarray(np.concatenate([nothing, one_hot], -1), jnp.bfloat16),
        jnp.asarray(one_hot, jnp.bfloat16),
        np.ones((windows, seq_len), np.int32),
        words,
        heads,
        rate=rate,
    )
    weights = jnp.zeros((windows, heads, seq_len, seq_len), jnp.float32)
    keep_HST = np.asarray(keep_mask(weights, *words, rate, -1))[0]
    by_window = keep_HST.reshape(heads, seq_len, windows, 64)
    np.testing.assert_array_equal(
        out.reshape(windows, seq_len, heads, 64) > 0, by_window.transpose(2, 1, 0, 3)
    )
    by_window = keep_HST.reshape(heads, windows, 64, seq_len)
    dv = dqkv[..., 2 * heads * 64 :].reshape(windows, seq_len, heads, 64)
    np.testing.assert_array_equal(dv > 0, by_window.transpose(1, 3, 0, 2))


def test_blocks_of_other_examples_are_not_read():
    """Scores of keys that are not numbers would spoil the sums of queries, hidden or not."""
    seq_len = 192
    qkv_BSE, dout_BSD = draw(ROWS, seq_len, 64)
    ids = np.repeat(np.array([1, 2, 0], np.int32), 64)[None].repeat(ROWS, 0)
    run = functools.partial(both_ways, by_kernel)
    settings = {"ids_BS": ids, "words": dropout_words(), "heads": 1, "rate": 0.1}
    got = run(qkv_BSE.at[:, 64:128].set(jnp.nan), dout_BSD, **settings)
    expected = run(qkv_BSE, dout_BSD, **settings)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(g).all(axis=(0, 2)), ids[0] == 2)
        np.testing.assert_array_equal(g[:, ids[0] != 2], e[:, ids[0] != 2])


@pytest.mark.parametrize("ids", [padded_ids, packed_ids, any_ids])
@pytest.mark.parametrize(("before", "after"), [(640, 640), (640, 0), (40, 40), (0, 100)])
@pytest.mark.parametrize("block", [64, 128])
def test_bounds_hold_every_block_that_is_seen(ids, before, after, block):
    """And no other, where ids are in order and only they hide keys."""
    seq_len = 640
    got_BN2 = np.asarray(gpu_kernel.find_bounds(jnp.asarray(ids(seq_len)), block, before, after))
    distance_ST = np.arange(seq_len)[None, :] - np.arange(seq_len)[:, None]
    is_near_ST = (distance_ST >= -before) & (distance_ST <= after)
    for row, ids_S in enumerate(ids(seq_len)):
        sees_ST = (ids_S[:, None] == ids_S[None, :]) & is_near_ST
        sees_NM = sees_ST.reshape(seq_len // block, block, -1, 64).any(axis=(1, 3))
        for (first, end), sees_M in zip(got_BN2[row], sees_NM, strict=True):
            (seen,) = np.nonzero(sees_M)
            assert first <= seen[0] and seen[-1] < end
            if before == after == 640 and ids is not any_ids:
                assert (first, end) == (seen[0], seen[-1] + 1)


@pytest.mark.parametrize(
    ("seq_len", "head_width", "settings"),
    [
        (128, 64, {"rate": 0.1}),
        (192, 32, {"rate": 0.1}),
        (512, 128, {"rate": 0.1}),
        (2048, 64, {"rate": 0.0, "width": 128, "is_causal": True}),
    ],
)
def test_it_lowers_for_cuda_forward_and_backward(seq_len, head_width, settings):
    """To Triton's intermediate language, without a card; nothing compiles it here."""

    def run(qkv_BSE, dout_BSD, ids_BS, low_B, high_B):
        others = (ids_BS, low_B, high_B, None, 2)
        each = lambda qkv_BSE: gpu_kernel.attend(qkv_BSE, *others, **settings)  # noqa: E731
        out_BSD, backward = jax.vjp(each, qkv_BSE)
        return out_BSD, *backward(dout_BSD)

    width = 2 * head_width
    shapes = [((3, seq_len, n * width), jnp.bfloat16) for n in (3, 1)]
    shapes += [((3, seq_len), jnp.int32), ((3,), jnp.uint32), ((3,), jnp.uint32)]
    card = AbstractMesh(
        (1,), ("data",), abstract_device=AbstractDevice("NVIDIA A100-SXM4-40GB", 108, "gpu")
    )
    with jax.sharding.use_abstract_mesh(card):
        traced = jax.jit(run).trace(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 2
    for name in ("gpu_attention_forward", "gpu_attention_backward"):
        assert f'name = "{name}"' in text
    assert f"3x2x{seq_len}x{seq_len}x" not in text  # scores


TAKEN = {
    "device": "NVIDIA GeForce RTX 3090",
    "seq_len": 128,
    "heads": 12,
    "head_width": 64,
    "dtype": jnp.dtype(jnp.bfloat16),
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu"}, "for NVIDIA GPUs, not for cpu"),
        ({"device": "TPU v5 lite"}, "not for TPU v5 lite"),
        ({"device": "Tesla T4"}, "compute capability 8.0 (Ampere) or later, unlike Tesla T4"),
        ({"device": "Tesla V100-SXM2-16GB"}, "unlike Tesla V100"),
        ({"device": "NVIDIA GeForce RTX 2080 Ti"}, "unlike NVIDIA GeForce RTX 2080"),
        ({"device": "NVIDIA TITAN RTX"}, "unlike NVIDIA TITAN RTX"),
        ({"seq_len": 100}, "a multiple of 64 tokens, not 100"),
        ({"head_width": 80}, "width 32, 64, 128, not 80"),
        ({"dtype": jnp.dtype(jnp.float32)}, "in bfloat16, not in float32"),
        ({"dtype": jnp.dtype(jnp.float16)}, "in bfloat16, not in float16"),
    ],
)
def test_it_explains_what_it_does_not_take(change, reason):
    assert reason in gpu_kernel.explain_refusal(**(TAKEN | change))


def test_a_jax_without_its_compiler_is_a_reason_too(monkeypatch):
    monkeypatch.setattr(gpu_kernel, "HAS_TRITON", False)
    assert "Triton backend, which jax" in gpu_kernel.explain_refusal(**TAKEN)


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A10G",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX A6000",
        "NVIDIA RTX 2000 Ada Generation",
        "NVIDIA GeForce RTX 5070 Ti",
    ],
)
def test_it_takes_cards_from_ampere_on(device):
    for change in ({}, {"seq_len": 8192}, {"heads": 3, "head_width": 32}):
        assert gpu_kernel.explain_refusal(**(TAKEN | {"device": device} | change)) is None
