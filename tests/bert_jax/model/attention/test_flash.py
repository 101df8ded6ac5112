"""The TPU kernel for long rows, interpreted on two CPU devices, against all scores in float32."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.config import MeshConfig
from bert_jax.model import attention
from bert_jax.model.attention import flash, flash_body, tpu_kernel
from bert_jax.model.embeddings import make_rotation, rotate
from bert_jax.parallel import mesh
from tests.bert_jax.model.attention.agreement import assert_close, draw

ROWS = 2


@pytest.fixture(autouse=True)
def two_devices():
    jax.set_mesh(mesh.make_mesh(MeshConfig(preset="dp"), jax.devices()[:ROWS]))


def examples(seq_len):
    """Two rows of four examples, the last of which is padding: numbers and places in each."""
    rng = np.random.default_rng(seq_len)
    ids, places = np.zeros((2, ROWS, seq_len), np.int32)
    for row in range(ROWS):
        ends = [0, *np.sort(rng.choice(np.arange(1, seq_len), 3, replace=False)), seq_len]
        for number, (start, end) in enumerate(itertools.pairwise(ends)):
            ids[row, start:end] = 2**31 - 1 - number
            places[row, start:end] = np.arange(end - start)
    return ids, places


def by_kernel(qkv_BSE, ids_BS, rotation, heads, width, is_causal):
    def local(qkv_BSE, ids_BS, rotation):
        return flash.attend(qkv_BSE, ids_BS, rotation, heads, width, is_causal)

    rows = PartitionSpec(mesh.BATCH_AXES)
    return jax.shard_map(local, in_specs=(rows, rows, rows), out_specs=rows, check_vma=False)(
        qkv_BSE, ids_BS, rotation
    )


def by_scores(qkv_BSE, ids_BS, rotation, heads, width, is_causal):
    rows, seq_len, _ = qkv_BSE.shape
    q, k, v = (jnp.reshape(x, (rows, seq_len, heads, -1)) for x in jnp.split(qkv_BSE, 3, axis=-1))
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    visible = attention.hide_other_examples(ids_BS)
    if width:
        visible = attention.hide_outside_window(visible, seq_len, width)
    if is_causal:
        visible = attention.hide_later(visible, seq_len)
    out_BSHK = attention.attend(q, k, v, visible.mask, lambda weights: weights)
    return jnp.reshape(out_BSHK, (rows, seq_len, -1), out_sharding=jax.typeof(qkv_BSE).sharding)


def both_ways(attend, ids, places, theta, heads, width, is_causal):
    """Compile a function (qkv, gradient of the output) -> output and gradient of qkv in NumPy."""

    @jax.jit
    def run(qkv_BSE, dout_BSD, ids_BS, places_BS):
        _, seq_len, hidden = dout_BSD.shape
        rotation = make_rotation(places_BS, seq_len, hidden // heads, theta) if theta else None
        out_BSD, backward = jax.vjp(
            lambda qkv_BSE: attend(qkv_BSE, ids_BS, rotation, heads, width, is_causal), qkv_BSE
        )
        return out_BSD, *backward(dout_BSD)

    def on_rows(*arrays):
        placed = [jax.device_put(x, mesh.spec("batch", None, None)) for x in arrays]
        numbers = [jax.device_put(x, mesh.spec("batch", None)) for x in (ids, places)]
        return [np.asarray(x, np.float32) for x in run(*placed, *numbers)]

    return on_rows


CASES = [
    # seq_len, heads, head_width, window, is_causal, theta
    pytest.param(512, 4, 64, 128, False, 10_000.0, id="four blocks in turn with keys around them"),
    pytest.param(384, 2, 64, 70, True, 10_000.0, id="half a window of no whole tile, causal"),
    pytest.param(768, 2, 64, 0, False, 10_000.0, id="chunks begin inside of one another"),
    pytest.param(640, 2, 64, 0, True, 0.0, id="later keys hidden, not rotated"),
    pytest.param(256, 2, 128, 0, False, 10_000.0, id="one head a tile"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seq_len", "heads", "head_width", "width", "is_causal", "theta"), CASES)
def test_flash_attention_is_the_plain_one(
    monkeypatch, seq_len, heads, head_width, width, is_causal, theta
):
    if head_width == 128:
        # CPUs have no bfloat16 matmul of these shapes.
        dot = flash_body.dot
        wide = lambda x, y, *dims: dot(x.astype(jnp.float32), y.astype(jnp.float32), *dims)  # noqa: E731
        monkeypatch.setattr(flash_body, "dot", wide)
    drawn = draw(ROWS, seq_len, heads * head_width)
    settings = (*examples(seq_len), theta, heads, width, is_causal)
    wide = [x.astype(jnp.float32) for x in drawn]
    assert_close(both_ways(by_kernel, *settings)(*drawn), both_ways(by_scores, *settings)(*wide))


@pytest.mark.long
@pytest.mark.parametrize(
    ("seq_len", "is_causal"),
    [(768, False), (1024, True), (8192, False)],
)
def test_chunks_hold_the_keys_that_are_seen_and_are_as_few_as_can_be(seq_len, is_causal):
    """Of rows with 1 to 12 examples, the last of which may be padding."""
    tile = flash_body.Tile(seq_len, 64, seq_len, 0 if is_causal else seq_len, is_rotated=False)
    rng, rows = np.random.default_rng(seq_len), 12
    ids = np.zeros((rows, seq_len), np.int32)
    for row in range(rows):
        ends = rng.choice(np.arange(1, seq_len), row, replace=False)
        ids[row] = np.searchsorted(np.sort(ends), np.arange(seq_len), "right")
    find = jax.jit(flash._find_chunks, static_argnums=1)
    bounds = np.reshape(find(ids, tile), (rows, -1, 2))
    for row, block in np.ndindex(rows, seq_len // tile.block):
        queries = np.arange(block * tile.block, (block + 1) * tile.block)
        seen = np.isin(ids[row], ids[row][queries])
        if is_causal:
            seen[queries[-1] + 1 :] = False
        keys = np.flatnonzero(seen)
        first, count = bounds[row, block]
        assert first % 128 == 0
        assert 0 <= first <= keys[0]
        assert keys[-1] < first + count * tile.chunk <= seq_len
        tiles = keys[-1] // 128 - keys[0] // 128 + 1
        assert count == -(-tiles * 128 // tile.chunk)


@pytest.mark.long
def test_chunks_of_other_examples_are_not_read():
    """Scores of keys that are not numbers would spoil the sums of queries, hidden or not."""
    seq_len = 384
    qkv_BSE, dout_BSD = draw(ROWS, seq_len, 128)
    ids = np.repeat(np.arange(3, dtype=np.int32), 128)[None].repeat(ROWS, 0)
    places = np.tile(np.arange(128, dtype=np.int32), (ROWS, 3))
    run = both_ways(by_kernel, ids, places, 10_000.0, 2, 0, False)
    got = run(qkv_BSE.at[:, 128:256].set(jnp.nan), dout_BSD)
    for g, e in zip(got, run(qkv_BSE, dout_BSD), strict=True):
        np.testing.assert_array_equal(np.isnan(g).all(axis=(0, 2)), ids[0] == 1)
        np.testing.assert_array_equal(g[:, ids[0] != 1], e[:, ids[0] != 1])


TAKEN = {"device": "TPU v5 lite", "heads": 12, "head_width": 64, "dtype": jnp.dtype(jnp.bfloat16)}
SEQ_LEN = {tpu_kernel: 128, flash: 8192}


@pytest.mark.parametrize(
    ("kernel", "change", "reason"),
    [
        *(
            (kernel, change, reason)
            for kernel in (tpu_kernel, flash)
            for change, reason in (
                ({"device": "TPU v3"}, "for TPU v4, v5e, v5p, v6e, tpu7x, not for TPU v3"),
                ({"device": "cpu"}, "not for cpu"),
                ({"heads": 3}, "in pairs, not 3"),
                ({"head_width": 80}, "width 64 or 128, not 80"),
                ({"dtype": jnp.dtype(jnp.float32)}, "in bfloat16, not in float32"),
                ({"heads": 3, "head_width": 128}, None),
                ({}, None),
            )
        ),
        (tpu_kernel, {"seq_len": 320}, "128, 256, 384, 512 tokens, not 320"),
        (tpu_kernel, {"device": "TPU v4", "seq_len": 384}, "up to 256 tokens on v4"),
        (tpu_kernel, {"device": "v4"}, None),
        (tpu_kernel, {"seq_len": 512}, None),
        (flash, {"seq_len": 1000}, "of a multiple of 128 tokens, not 1000"),
        (flash, {"seq_len": 16384}, "up to 8192 tokens on v5e, not 16384"),
        (flash, {"device": "v4", "seq_len": 2048}, "up to 1024 tokens on v4"),
        (flash, {"device": "v5p", "seq_len": 4096}, None),
    ],
)
def test_each_kernel_says_why_it_does_not_fit(kernel, change, reason):
    refusal = kernel.explain_refusal(**(TAKEN | {"seq_len": SEQ_LEN[kernel]} | change))
    assert refusal is None if reason is None else reason in refusal
