"""Array functions against NumPy written from their definitions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import ops


def numeric_gradient(function, x, dy, step=1e-4):
    """Central differences of sum(function(x) * dy), in float64."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        gradient[place] = ((function(up) - function(down)) * dy).sum() / (2 * step)
    return gradient


def norm_numpy(x, scale, bias, eps=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + bias


@pytest.mark.parametrize("single_pass", [False, True])
def test_layer_norm_and_its_gradients(single_pass):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(2.0, 3.0, (3, 5, 7)), rng.normal(size=(3, 5, 7))
    scale, bias = rng.normal(size=7), rng.normal(size=7)

    @jax.jit
    def run(x, scale, bias, dy):
        y, backward = jax.vjp(
            lambda *arrays: ops.layer_norm(*arrays, 1e-12, single_pass), x, scale, bias
        )
        return y, *backward(dy)

    y, *gradients = run(*(jnp.asarray(a, jnp.float32) for a in (x, scale, bias, dy)))
    np.testing.assert_allclose(y, norm_numpy(x, scale, bias), atol=2e-6)
    expected = (
        numeric_gradient(lambda v: norm_numpy(v, scale, bias), x, dy),
        numeric_gradient(lambda v: norm_numpy(x, v, bias), scale, dy),
        numeric_gradient(lambda v: norm_numpy(x, scale, v), bias, dy),
    )
    for got, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_a_single_pass_never_takes_the_root_of_less_than_nothing():
    """Of equal values mean(x^2) - mean(x)^2 may round to less than zero."""
    x = jnp.full((1, 384), 1.1, jnp.float32) * jnp.arange(1.0, 200.0)[:, None]
    norm = jax.jit(ops.layer_norm, static_argnums=(3, 4))
    assert np.isfinite(norm(x, jnp.ones(384), jnp.zeros(384), 1e-12, True)).all()


@functools.partial(jax.jit, static_argnames=("name", "saves_derivative"))
def gelu_and_slope(x, name, saves_derivative):
    """The values, the slope, and what is kept for it."""
    y, backward = jax.vjp(lambda x: ops.gelu(x, name, saves_derivative=saves_derivative), x)
    return y, backward(jnp.ones_like(y))[0], jax.tree.leaves(backward)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function"),
    [
        (
            "gelu_tanh",
            lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("gelu_erf", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
    ],
)
def test_gelu(name, function):
    x = np.linspace(-6, 6, 101)
    expected = np.array([function(value) for value in x])
    x32 = jnp.asarray(x, jnp.float32)
    expected_slope = [(function(value + 1e-5) - function(value - 1e-5)) / 2e-5 for value in x]
    for saves_derivative in (False, True):
        y, slope, _ = gelu_and_slope(x32, name, saves_derivative)
        np.testing.assert_allclose(y, expected, atol=1e-6)
        np.testing.assert_allclose(slope, expected_slope, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("relu", lambda x: np.where(x > 0, x, 0)),
        ("quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
    ],
)
def test_activation_functions_that_are_no_gelu(name, function):
    x = np.linspace(-6, 6, 101)
    for saves_derivative in (False, True):
        got = jax.jit(ops.activate, static_argnums=(1, 2))(jnp.float32(x), name, saves_derivative)
        np.testing.assert_allclose(got, function(x), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_what_a_gelu_saves_is_its_derivative_in_the_dtype_of_its_input(name):
    x = jnp.linspace(-4, 4, 101).astype(jnp.bfloat16)
    y, slope, kept = gelu_and_slope(x, name, saves_derivative=True)
    exact, exact_slope, _ = gelu_and_slope(x.astype(jnp.float32), name, saves_derivative=False)
    np.testing.assert_allclose(np.float32(y), exact, rtol=2**-8, atol=1e-6)
    np.testing.assert_allclose(np.float32(slope), exact_slope, rtol=2**-8, atol=1e-5)
    assert {leaf.dtype for leaf in kept} == {jnp.dtype("bfloat16")}


def test_gather_positions():
    x = np.random.default_rng(2).normal(size=(3, 7, 5)).astype(np.float32)
    positions = np.array([[0, 6], [3, 3], [5, 1]], np.int32)
    got = jax.jit(ops.gather_positions)(x, positions)
    expected = [[x[b, p] for p in row] for b, row in enumerate(positions)]
    np.testing.assert_array_equal(got, expected)
