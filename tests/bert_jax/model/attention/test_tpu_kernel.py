"""The TPU attention kernel, interpreted on eight CPU devices, against the plain implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.config import MeshConfig
from bert_jax.model import attention
from bert_jax.model.attention import tpu_kernel
from bert_jax.model.dropout import Dropout, keep_mask, number_rows
from bert_jax.parallel import mesh
from tests.bert_jax.model.attention.agreement import assert_close, draw

BATCH = 8


@pytest.fixture(autouse=True)
def eight_devices():
    jax.set_mesh(mesh.make_mesh(MeshConfig()))


def padded_ids(seq_len):
    """1 for tokens and 0 for padding, of rows that are full, half full, and nearly empty."""
    lengths = np.resize([seq_len, seq_len // 2 + 3, 7], BATCH)
    return (np.arange(seq_len) < lengths[:, None]).astype(np.int32)


def packed_ids(seq_len):
    """Three examples a row and padding; numbers that neither float32 nor 16 bits tell apart."""
    ends = [seq_len // 5, seq_len // 2, seq_len - 9]
    example = np.searchsorted(ends, np.arange(seq_len), "right")
    return np.tile(np.array([2**24, 2**24 + 1, 2**31 - 1, -5], np.int32)[example], (BATCH, 1))


def dropout_words():
    return Dropout(jnp.uint32(3), jnp.uint32(8), number_rows(BATCH)).words(5, 0)


def on_rows(of):
    """Cut over the batch, as arrays of a step are."""
    return jax.device_put(of, mesh.batch_sharding(jax.sharding.get_mesh(), of.ndim))


@functools.cache
def kernel_both_ways(heads, rate, is_causal=False):
    """The kernel as a step calls it, on each device's rows: output, gradients of qkv and bias."""

    def local(qkv_BSE, bias_E, dout_BSD, ids_BS, low_B, high_B):
        def attend(qkv_BSE, bias_E):
            _, seq_len, width = qkv_BSE.shape
            row = tpu_kernel.KernelRow(seq_len, heads, width // 3 // heads, rate, is_causal)
            return tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, (low_B, high_B), row)

        out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
        dqkv_BSE, dbias_E = backward(dout_BSD)
        return out_BSD, dqkv_BSE, jax.lax.psum(dbias_E, mesh.BATCH_AXES)

    rows, whole = PartitionSpec(mesh.BATCH_AXES), PartitionSpec()
    in_specs, out_specs = (rows, whole, rows, rows, rows, rows), (rows, rows, whole)
    return jax.jit(jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False))


@functools.cache
def arrays_both_ways(heads, rate, is_causal=False):
    """The plain implementation, likewise."""

    def run(qkv_BSE, bias_E, dout_BSD, ids_BS, low_B, high_B):
        def drop(weights_BHST):
            keep = keep_mask(weights_BHST, low_B, high_B, rate, -1)
            return jnp.where(keep, weights_BHST / (1 - rate), 0.0)

        def attend(qkv_BSE, bias_E):
            parts = jnp.split(qkv_BSE + bias_E, 3, axis=-1)
            q, k, v = (part.reshape(*part.shape[:2], heads, -1) for part in parts)
            visible = attention.hide_other_examples(ids_BS)
            if is_causal:
                visible = attention.hide_later(visible, ids_BS.shape[1])
            out = attention.attend(q, k, v, visible.mask, drop)
            return out.reshape(*out.shape[:2], -1)

        out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
        return out_BSD, *backward(jax.sharding.reshard(dout_BSD, jax.typeof(out_BSD).sharding))

    return jax.jit(run)


CASES = [
    # seq_len, heads, head_width, ids, rate, is_causal
    pytest.param(512, 2, 64, packed_ids, 0.1, False, marks=pytest.mark.long),
    # A head's places are no power of two: hashed otherwise.
    pytest.param(384, 2, 64, padded_ids, 0.1, False, marks=pytest.mark.long),
    (128, 2, 128, packed_ids, 0.0, False),
    (128, 4, 64, packed_ids, 0.1, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seq_len", "heads", "head_width", "ids", "rate", "is_causal"), CASES)
def test_the_kernel_is_the_plain_implementation(seq_len, heads, head_width, ids, rate, is_causal):
    width = heads * head_width
    qkv_BSE, dout_BSD = map(on_rows, draw(BATCH, seq_len, width))
    bias_E = jnp.zeros(3 * width, jnp.float32)
    others = (on_rows(ids(seq_len)), *dropout_words())
    got = kernel_both_ways(heads, rate, is_causal)(qkv_BSE, bias_E, dout_BSD, *others)
    wide = (x.astype(jnp.float32) for x in (qkv_BSE, dout_BSD))
    expected = arrays_both_ways(heads, rate, is_causal)(next(wide), bias_E, next(wide), *others)
    assert_close(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seq_len", "heads"), [(128, 4), pytest.param(512, 2, marks=pytest.mark.long)]
)
def test_the_mask_is_that_of_the_plain_implementation_in_both_directions(seq_len, heads):
    """All weights are equal and each value is one key's, so that the output spells the mask.

    Rows share their words: each shows the mask of 64 keys, or 64 queries in the backward.
    """
    rate, windows = 0.1, seq_len // 64
    window = np.arange(BATCH) % windows
    one_hot = np.zeros((BATCH, seq_len, heads * 64), np.float32)
    for row, head, lane in np.ndindex(BATCH, heads, 64):
        one_hot[row, window[row] * 64 + lane, head * 64 + lane] = 1
    nothing = np.zeros((BATCH, seq_len, 2 * heads * 64))
    qkv_BSE = on_rows(jnp.asarray(np.concatenate([nothing, one_hot], -1), jnp.bfloat16))
    words = [on_rows(jnp.full(BATCH, word, jnp.uint32)) for word in (0x12345678, 0x9ABCDEF0)]
    out, dqkv, _ = kernel_both_ways(heads, rate)(
        qkv_BSE,
        jnp.zeros(3 * heads * 64, jnp.float32),
        on_rows(jnp.asarray(one_hot, jnp.bfloat16)),
        on_rows(np.ones((BATCH, seq_len), np.int32)),
        *words,
    )
    weights = on_rows(jnp.zeros((BATCH, heads, seq_len, seq_len), jnp.float32))
    keep_HST = np.asarray(keep_mask(weights, *words, rate, -1))[0]
    by_window = keep_HST.reshape(heads, seq_len, windows, 64)[:, :, window]
    np.testing.assert_array_equal(
        np.asarray(out, np.float32).reshape(BATCH, seq_len, heads, 64) > 0,
        by_window.transpose(2, 1, 0, 3),
    )
    by_window = keep_HST.reshape(heads, windows, 64, seq_len)[:, window]
    np.testing.assert_array_equal(
        np.asarray(dqkv, np.float32)[..., 2 * heads * 64 :].reshape(BATCH, seq_len, heads, 64) > 0,
        by_window.transpose(1, 3, 0, 2),
    )
