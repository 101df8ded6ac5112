"""Array functions against NumPy written from their definitions."""

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


def layer_norm_numpy(x, scale, bias, eps=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + bias


@pytest.mark.parametrize("single_pass", [False, True])
def test_layer_norm_and_its_gradients(single_pass):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(2.0, 3.0, (3, 5, 7)), rng.normal(size=(3, 5, 7))
    scale, bias = rng.normal(size=7), rng.normal(size=7)

    def run(x, scale, bias):
        return ops.layer_norm(x, scale, bias, 1e-12, single_pass)

    f32 = [jnp.asarray(a, jnp.float32) for a in (x, scale, bias)]
    y, backward = jax.vjp(run, *f32)
    np.testing.assert_allclose(y, layer_norm_numpy(x, scale, bias), atol=2e-6)
    expected = (
        numeric_gradient(lambda v: layer_norm_numpy(v, scale, bias), x, dy),
        numeric_gradient(lambda v: layer_norm_numpy(x, v, bias), scale, dy),
        numeric_gradient(lambda v: layer_norm_numpy(x, scale, v), bias, dy),
    )
    for got, want in zip(backward(jnp.asarray(dy, jnp.float32)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_a_single_pass_never_takes_the_root_of_less_than_nothing():
    """Of equal values mean(x^2) - mean(x)^2 may round to less than zero."""
    x = jnp.full((1, 384), 1.1, jnp.float32) * jnp.arange(1.0, 200.0)[:, None]
    ones, zeros = jnp.ones(384), jnp.zeros(384)
    assert np.isfinite(ops.layer_norm(x, ones, zeros, 1e-12, True)).all()


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
    np.testing.assert_allclose(ops.gelu(x32, name), expected, atol=1e-6)
    y, backward = jax.vjp(lambda x: ops.gelu(x, name, saves_derivative=True), x32)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    slope = [(function(value + 1e-5) - function(value - 1e-5)) / 2e-5 for value in x]
    np.testing.assert_allclose(backward(jnp.full_like(y, 2.0))[0], 2.0 * np.array(slope), atol=1e-5)


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
        got = ops.activate(jnp.asarray(x, jnp.float32), name, saves_derivative)
        np.testing.assert_allclose(got, function(x), atol=1e-6)


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_what_a_gelu_saves_is_its_derivative_in_the_dtype_of_its_input(name):
    x = jnp.linspace(-4, 4, 101).astype(jnp.bfloat16)
    y, backward = jax.vjp(lambda x: ops.gelu(x, name, saves_derivative=True), x)
    exact, exact_backward = jax.vjp(lambda x: ops.gelu(x, name), x.astype(jnp.float32))
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-6)
    slope = exact_backward(jnp.ones_like(exact))[0]
    got = backward(jnp.ones_like(y))[0].astype(jnp.float32)
    np.testing.assert_allclose(got, slope, rtol=2**-8, atol=1e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves(backward)} == {jnp.dtype("bfloat16")}


def test_gather_positions():
    x = np.random.default_rng(2).normal(size=(3, 7, 5)).astype(np.float32)
    positions = np.array([[0, 6], [3, 3], [5, 1]], np.int32)
    got = ops.gather_positions(jnp.asarray(x), jnp.asarray(positions))
    expected = [[x[b, p] for p in row] for b, row in enumerate(positions)]
    np.testing.assert_array_equal(got, expected)
