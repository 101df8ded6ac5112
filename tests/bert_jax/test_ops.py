"""Array functions against NumPy written from their definitions, and dropout's statistics."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import mesh, ops
from bert_jax.config import MeshConfig


@pytest.fixture(autouse=True)
def one_device():
    jax.set_mesh(mesh.make(MeshConfig(), jax.devices()[:1]))


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


def test_the_two_gelus_differ():
    x = jnp.linspace(-3, 3, 101)
    assert 1e-5 < jnp.abs(ops.gelu(x, "gelu_tanh") - ops.gelu(x, "gelu_erf")).max() < 1e-3


def test_gather_positions():
    x = np.random.default_rng(2).normal(size=(3, 7, 5)).astype(np.float32)
    positions = np.array([[0, 6], [3, 3], [5, 1]], np.int32)
    got = ops.gather_positions(jnp.asarray(x), jnp.asarray(positions))
    expected = [[x[b, p] for p in row] for b, row in enumerate(positions)]
    np.testing.assert_array_equal(got, expected)


def mixed_python(x):
    """The published lowbias32 on Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def kept_python(seed, step, layer, site, row, place, quarter, rate):
    """One element's mask, from the definition in plain Python integers."""
    key = mixed_python(mixed_python(mixed_python(seed) ^ step) ^ (layer * 64 + site))
    low = mixed_python(key ^ (row * 0x9E3779B9 & 0xFFFFFFFF))
    high = mixed_python((low + 0x85EBCA6B) & 0xFFFFFFFF)
    x = place ^ low
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = ((x ^ x >> 15) + high & 0xFFFFFFFF) * 0x846CA68B & 0xFFFFFFFF
    x ^= x >> 16
    value = (x, x << 8, x << 16, x << 24 | x >> 8)[quarter] & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return signed >= round(rate * 2**32) - 2**31


def masks(seed=1, step=2, rows=4, dims=(3, 5), layer=0, site=0, rate=0.1, shared_axis=-1):
    dropout = ops.Dropout(jnp.uint32(seed), jnp.uint32(step), ops.row_numbers(rows))
    ones = jnp.ones((rows, *dims), jnp.float32)
    return np.asarray(dropout.apply(ones, rate, layer, site, shared_axis))


def test_dropout_is_the_hash_of_its_counters_along_the_last_axis():
    dropped = masks(seed=9, step=1234, rows=3, dims=(5, 7), layer=11, site=2, rate=0.3)
    for (row, a, b), value in np.ndenumerate(dropped):
        assert (value > 0) == kept_python(9, 1234, 11, 2, row, a * 2 + b % 2, b // 2, 0.3)


def test_dropout_is_the_hash_of_its_counters_along_another_axis():
    dropped = masks(seed=4, step=7, rows=3, dims=(12, 5), layer=1, rate=0.3, shared_axis=1)
    for (row, a, b), value in np.ndenumerate(dropped):
        assert (value > 0) == kept_python(4, 7, 1, 0, row, a % 3 * 5 + b, a // 3, 0.3)


@pytest.mark.parametrize("preset", ["dp", "tp"])  # the batch cut over devices, and the heads
def test_dropout_is_the_same_on_eight_devices(preset):
    whole = masks(rows=8, dims=(8, 5, 7))
    jax.set_mesh(mesh.make(MeshConfig(preset=preset, model_size=8)))
    ones = jax.device_put(np.ones(whole.shape, np.float32), mesh.spec("batch", "heads", None, None))
    dropout = ops.Dropout(jnp.uint32(1), jnp.uint32(2), ops.row_numbers(8))
    cut = jax.jit(lambda x: dropout.apply(x, 0.1, 0, 0, -1))(ones)
    assert cut.addressable_shards[0].data.size == whole.size // 8
    np.testing.assert_array_equal(cut, whole)


def test_dropout_keeps_the_mean_and_zeroes_the_rate():
    for rate in (0.05, 0.1, 0.5):
        dropped = masks(rows=64, dims=(128, 64), rate=rate)
        count = dropped.size
        deviation = math.sqrt(rate * (1 - rate) / count)
        assert abs((dropped == 0).mean() - rate) < 4 * deviation
        assert np.unique(dropped).tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-6)


@pytest.mark.parametrize("quarter", range(4))
def test_each_quarter_drops_the_rate_to_sixteen_bits(quarter):
    """Counted over all values of the sixteen bits that decide first."""
    k = np.arange(2**16, dtype=np.uint32)
    words = (k << 16, k << 8, k, k >> 8 | k << 24)[quarter]
    kept = ops.survives(jnp.asarray(words), jnp.uint32(quarter), 0.1)
    assert (~kept).sum() == math.ceil(0.1 * 2**16)


def correlation_sigmas(a, b):
    a, b = (x.ravel() - x.mean() for x in (a.astype(np.float64), b.astype(np.float64)))
    return (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()) * math.sqrt(a.size)


def test_dropout_masks_are_uncorrelated():
    """Across neighbours, lags, rows, steps, seeds, layers and sites: below 4.5 deviations each."""
    base = masks(rows=32, dims=(64, 128)) > 0
    flat = base.reshape(32, -1)
    pairs = [(flat[:, lag:], flat[:, :-lag]) for lag in (1, 2, 3, 4, 8, 64, 127, 128, 129, 4096)]
    pairs += [(flat[lag:], flat[:-lag]) for lag in (1, 2, 7, 16)]
    quarters = base.reshape(32, 64, 4, 32)
    pairs += [(quarters[:, :, i], quarters[:, :, j]) for i in range(4) for j in range(i)]
    for change in ({"seed": 2}, {"step": 3}, {"layer": 1}, {"site": 1}, {"step": 2**16 + 2}):
        pairs.append((base, masks(rows=32, dims=(64, 128), **change) > 0))
    assert max(abs(correlation_sigmas(a, b)) for a, b in pairs) < 4.5


def test_dropped_share_of_rows_and_columns_is_even():
    kept = masks(rows=64, dims=(64, 128)) > 0
    for axes in ((1, 2), (0, 1), (0, 2)):
        share = kept.mean(axes)
        per_group = kept.size / share.size
        deviation = math.sqrt(0.1 * 0.9 / per_group)
        assert np.abs(share - 0.9).max() < 5 * deviation
        assert 0.6 < share.std() / deviation < 1.5  # as spread as independent draws, not more even


def test_the_gradient_of_dropout_uses_the_same_mask():
    dropout = ops.Dropout(jnp.uint32(1), jnp.uint32(2), ops.row_numbers(4))
    x = mesh.place({"x": np.ones((4, 3, 5), np.float32)}, jax.sharding.get_mesh())["x"]
    y, backward = jax.vjp(lambda x: dropout.apply(x, 0.4, 0, 1, 1), x)
    np.testing.assert_array_equal(backward(jnp.full_like(y, 2.0))[0], 2.0 * y)


def test_no_dropout_at_rate_zero():
    dropout = ops.Dropout(jnp.uint32(1), jnp.uint32(2), ops.row_numbers(4))
    x = jnp.arange(12.0).reshape(4, 3)
    assert dropout.apply(x, 0.0, 0, 0, 1) is x
