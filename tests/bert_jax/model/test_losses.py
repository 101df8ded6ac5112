"""Losses against NumPy written from their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.heads import compute_word_logits, cross_entropy, word_cross_entropy
from bert_jax.parallel import mesh
from tests.bert_jax.model.test_ops import numeric_gradient

VOCAB, HELD = 101, 128  # rows of the table that are words; that are held in memory


def nll_numpy(logits, labels):
    norm = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return norm - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def test_cross_entropy_and_its_gradient():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(0, 4, (5, 3, 11)), rng.integers(0, 11, (5, 3))
    weights = rng.normal(size=(5, 3))
    ids = jnp.asarray(labels, jnp.int32)
    logits32 = jnp.asarray(logits, jnp.float32)

    @jax.jit
    def run(x):
        (nll, right), backward = jax.vjp(lambda x: cross_entropy(x, ids), x)
        return nll, right, backward((jnp.float32(weights), jnp.zeros_like(right)))[0]

    nll, right, gradient = run(logits32)
    np.testing.assert_allclose(nll, nll_numpy(logits, labels), rtol=1e-5)
    np.testing.assert_array_equal(right, logits.argmax(-1) == labels)
    expected = numeric_gradient(lambda x: nll_numpy(x, labels), logits, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_a_prediction_is_right_only_where_its_label_alone_is_the_likeliest():
    rows = [
        ([1.0, 3.0, 2.0], 1, 1.0),
        ([3.0, 1.0, 3.0], 0, 0.0),  # first of a tie
        ([3.0, 1.0, 3.0], 2, 0.0),  # last of a tie
        ([0.0, 0.0, 0.0], 0, 0.0),
        ([-1e9, -1e9, 2.0], 2, 1.0),  # ties far below the likeliest do not matter
    ]
    logits, labels, are_right = zip(*rows, strict=True)
    _, right = jax.jit(cross_entropy)(jnp.float32(logits), jnp.int32(labels))
    assert right.tolist() == [*are_right]


@pytest.mark.slow
def test_ties_that_few_bits_make_are_not_right(words):
    """Logits 4.01 and 4.0 are the same in bfloat16, and which is the likeliest is not known."""
    h, table, bias, labels, weights = (array.copy() for array in words)
    labels[...] = 5
    h[...], table[...], bias[...] = 0.0, 0.0, 0.0
    bias[5], bias[6] = 4.01, 4.0
    for kept, expected in (("float32", 1.0), ("bfloat16", 0.0)):
        (_, right), _ = losses_and_gradients((h, table, bias, labels, weights), jnp.float32, kept)
        assert np.unique(right).tolist() == [expected]


@pytest.fixture
def words():
    """Vectors, table, bias, labels and the weights of the losses; some labels are likeliest."""
    rng = np.random.default_rng(2)
    h, table, bias = rng.normal(size=(3, 5, 7)), rng.normal(size=(HELD, 7)), rng.normal(size=HELD)
    logits = (h @ table.T + bias)[..., :VOCAB]
    labels = np.where(rng.random((3, 5)) < 0.5, logits.argmax(-1), rng.integers(0, VOCAB, (3, 5)))
    return h, table, bias, labels, rng.normal(size=(3, 5))


def on_device(words, dtype):
    h, table, bias, labels, weights = words
    arrays = {"h": h.astype(dtype), "labels": labels.astype(np.int32)}
    rows = mesh.place_batch(arrays | {"weights": weights}, jax.sharding.get_mesh())
    table = jax.device_put(jnp.asarray(table, dtype), mesh.spec("vocab", None))
    bias = jax.device_put(jnp.asarray(bias, jnp.float32), mesh.spec("vocab"))
    return rows["h"], table, bias, rows["labels"], rows["weights"]


@functools.partial(jax.jit, static_argnames="kept")
def both_ways(h, table, bias, labels, weights, kept):
    def loss(h, table, bias):
        nll, right = word_cross_entropy(h, table, bias, labels, VOCAB, jnp.dtype(kept))
        return (nll * weights).sum(), (nll, right)

    grads, losses = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(h, table, bias)
    return losses, grads


def losses_and_gradients(words, dtype, kept):
    losses, grads = both_ways(*on_device(words, dtype), kept)
    assert [leaf.dtype for leaf in grads] == [dtype, dtype, jnp.float32]
    return losses, grads


def expected_numpy(words, logits):
    """Losses, and gradients by the rule: probability less one for the label."""
    h, table, _, labels, weights = words
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    d = (p - np.eye(VOCAB)[labels]) * weights[..., None]
    losses = nll_numpy(logits, labels), logits.argmax(-1) == labels
    padded = np.pad(d, ((0, 0), (0, 0), (0, HELD - VOCAB)))
    return losses, (padded @ table, np.einsum("bpv,bpd->vd", padded, h), padded.sum((0, 1)))


@pytest.mark.slow
def test_the_loss_of_words_and_its_gradients(words):
    h, table, bias, _, _ = words
    losses, grads = losses_and_gradients(words, jnp.float32, "float32")
    expected = expected_numpy(words, (h @ table.T + bias)[..., :VOCAB])
    np.testing.assert_allclose(losses[0], expected[0][0], rtol=2e-5)
    np.testing.assert_array_equal(losses[1], expected[0][1])
    assert 0 < losses[1].sum() < losses[1].size
    for got, want in zip(grads, expected[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert (np.asarray(grads[1])[VOCAB:] == 0).all() and (np.asarray(grads[2])[VOCAB:] == 0).all()


@pytest.mark.slow
def test_logits_kept_in_bfloat16_have_the_loss_and_gradients_of_what_is_kept(words):
    h, table, bias, labels, weights = words
    h, table = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (h, table))
    words = (h, table, bias, labels, weights)
    kept = jnp.asarray(h @ table.T + bias, jnp.float32).astype(jnp.bfloat16)
    losses, grads = losses_and_gradients(words, jnp.bfloat16, "bfloat16")
    expected = expected_numpy(words, np.asarray(kept, np.float64)[..., :VOCAB])
    np.testing.assert_allclose(losses[0], expected[0][0], rtol=1e-4)
    for got, want in zip(grads, expected[1], strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0.02, atol=0.02)
    *arrays, _ = on_device(words, jnp.bfloat16)
    without_gradient = jax.jit(word_cross_entropy, static_argnums=(4, 5))
    nll = without_gradient(*arrays, VOCAB, jnp.dtype("bfloat16"))[0]
    exact = nll_numpy((h @ table.T + bias)[..., :VOCAB], labels)
    np.testing.assert_allclose(nll, exact, rtol=1e-5)  # nothing is kept where no gradient is taken


def test_rows_past_the_vocabulary_have_no_weight(words):
    h, table, bias, _, _ = words
    of_words = jax.jit(compute_word_logits, static_argnums=3)
    logits = np.asarray(of_words(*on_device(words, jnp.float32)[:3], VOCAB))
    assert (np.exp(logits - logits.max(-1, keepdims=True))[..., VOCAB:] == 0).all()
    np.testing.assert_allclose(logits[..., :VOCAB], (h @ table.T + bias)[..., :VOCAB], atol=1e-5)
