"""The LSTM against NumPy written from its equations, and rows that padding does not reach."""

import jax
import numpy as np
import pytest
from scipy.special import expit as sigmoid

from bert_jax.lab.baselines import bilstm


def by_hand(direction, x_SD):
    """Gates i, f, o and candidate g of one row, a position at a time."""
    W, R, b = (np.asarray(direction[name]) for name in ("input", "recurrent", "bias"))
    units = len(R)
    h, c, found = np.zeros(units), np.zeros(units), []
    for x in x_SD:
        z = x @ W + h @ R + b
        i, f = sigmoid(z[:units]), sigmoid(z[units : 2 * units])
        g, o = np.tanh(z[2 * units : 3 * units]), sigmoid(z[3 * units :])
        c = f * c + i * g
        h = o * np.tanh(c)
        found.append(h)
    return np.array(found)


def draw(init, deviation=0.4):
    """Numbers by NumPy in the place of those that a function draws, which takes seconds."""
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda leaf: rng.normal(0, deviation, leaf.shape).astype(np.float32), jax.eval_shape(init)
    )


@pytest.fixture(scope="module")
def tagger():
    key = jax.random.key(3)
    params = draw(lambda: bilstm.init_params(key, layers=3, inputs=5, units=7, classes=4))
    params["mix"]["weights"] = np.array([0.3, -1.0, 0.5], np.float32)
    params["mix"]["scale"] = np.float32(1.7)
    vectors_BSKD = np.random.default_rng(1).normal(size=(2, 6, 3, 5)).astype(np.float32)
    return params, vectors_BSKD, np.array([6, 4])


@pytest.mark.slow
def test_logits_are_those_of_the_equations(tagger):
    params, vectors_BSKD, lengths_B = tagger
    got = jax.jit(bilstm.compute_logits)(params, vectors_BSKD, lengths_B)
    weights = np.exp(params["mix"]["weights"])
    weights *= params["mix"]["scale"] / weights.sum()
    for row, length in enumerate(lengths_B):
        x = sum(w * vectors_BSKD[row, :length, k] for k, w in enumerate(weights))
        for layer in (0, 1):
            forward = by_hand(params[f"{layer}_forward"], x)
            backward = by_hand(params[f"{layer}_backward"], x[::-1])[::-1]
            x = np.concatenate([forward, backward], axis=1)
        wanted = x @ params["classifier"]["kernel"] + params["classifier"]["bias"]
        np.testing.assert_allclose(got[row, :length], wanted, atol=1e-5)


def test_padding_reaches_neither_direction(tagger):
    params, vectors_BSKD, lengths_B = tagger
    filled = vectors_BSKD.copy()
    filled[1, 4:] = 1e3
    before = jax.jit(bilstm.compute_logits)(params, vectors_BSKD, lengths_B)
    after = jax.jit(bilstm.compute_logits)(params, filled, lengths_B)
    np.testing.assert_array_equal(before[1, :4], after[1, :4])
    assert not np.array_equal(before[1, 4:], after[1, 4:])
