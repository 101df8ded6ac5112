"""Dropout against its hash in plain Python integers, and the statistics of its masks."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import MeshConfig
from bert_jax.model.dropout import Dropout, hash_places, number_rows, survives
from bert_jax.parallel import mesh


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


@functools.partial(jax.jit, static_argnames=("dims", "rate", "shared_axis"))
def compiled_masks(seed, step, layer, site, dims, rate, shared_axis):
    dropout = Dropout(seed, step, number_rows(dims[0]))
    return dropout.apply(jnp.ones(dims, jnp.float32), rate, layer, site, shared_axis)


def masks(seed=1, step=2, rows=4, dims=(3, 5), layer=0, site=0, rate=0.1, shared_axis=-1):
    words = jnp.uint32(seed), jnp.uint32(step)
    return np.asarray(compiled_masks(*words, layer, site, (rows, *dims), rate, shared_axis))


def test_dropout_is_the_hash_of_its_counters_along_the_last_axis():
    dropped = masks(seed=9, step=1234, rows=3, dims=(5, 7), layer=11, site=2, rate=0.3)
    for (row, a, b), value in np.ndenumerate(dropped):
        assert (value > 0) == kept_python(9, 1234, 11, 2, row, a * 2 + b % 2, b // 2, 0.3)


def test_dropout_is_the_hash_of_its_counters_along_another_axis():
    dropped = masks(seed=4, step=7, rows=3, dims=(12, 5), layer=1, rate=0.3, shared_axis=1)
    for (row, a, b), value in np.ndenumerate(dropped):
        assert (value > 0) == kept_python(4, 7, 1, 0, row, a % 3 * 5 + b, a // 3, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["dp", "tp"])  # the batch cut over devices, and the heads
def test_dropout_is_the_same_on_eight_devices(preset):
    whole = masks(rows=8, dims=(8, 5, 7))
    jax.set_mesh(mesh.make_mesh(MeshConfig(preset=preset, model_size=8)))
    ones = jax.device_put(np.ones(whole.shape, np.float32), mesh.spec("batch", "heads", None, None))

    def drop(x):
        return Dropout(jnp.uint32(1), jnp.uint32(2), number_rows(8)).apply(x, 0.1, 0, 0, -1)

    cut = jax.jit(drop)(ones)
    assert cut.addressable_shards[0].data.size == whole.size // 8
    np.testing.assert_array_equal(cut, whole)


def test_dropout_keeps_the_mean_and_zeroes_the_rate():
    for rate in (0.05, 0.5):
        dropped = masks(rows=64, dims=(128, 64), rate=rate)
        count = dropped.size
        deviation = math.sqrt(rate * (1 - rate) / count)
        assert abs((dropped == 0).mean() - rate) < 4 * deviation
        assert np.unique(dropped).tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_each_quarter_drops_the_rate_to_sixteen_bits(quarter):
    """Counted over all values of the sixteen bits that decide first."""
    k = np.arange(2**16, dtype=np.uint32)
    words = (k << 16, k << 8, k, k >> 8 | k << 24)[quarter]
    kept = survives(jnp.asarray(words), jnp.uint32(quarter), 0.1)
    assert (~kept).sum() == math.ceil(0.1 * 2**16)


def correlation_sigmas(a, b):
    a, b = (x.ravel() - x.mean() for x in (a.astype(np.float64), b.astype(np.float64)))
    return (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()) * math.sqrt(a.size)


def test_dropout_masks_are_uncorrelated():
    """Across neighbors, lags, rows, steps, seeds, layers and sites: below 4.5 deviations each."""
    base = masks(rows=32, dims=(64, 128)) > 0
    flat = base.reshape(32, -1)
    pairs = [(flat[:, lag:], flat[:, :-lag]) for lag in (1, 2, 3, 4, 8, 64, 127, 128, 129, 4096)]
    pairs += [(flat[lag:], flat[:-lag]) for lag in (1, 2, 7, 16)]
    quarters = base.reshape(32, 64, 4, 32)
    pairs += [(quarters[:, :, i], quarters[:, :, j]) for i in range(4) for j in range(i)]
    for change in ({"seed": 2}, {"step": 3}, {"layer": 1}, {"site": 1}, {"step": 2**16 + 2}):
        pairs.append((base, masks(rows=32, dims=(64, 128), **change) > 0))
    assert max(abs(correlation_sigmas(a, b)) for a, b in pairs) < 4.5


def walsh_hadamard(values_RN):
    rows, places = values_RN.shape
    width = 1
    while width < places:
        pairs = values_RN.reshape(rows, -1, 2, width)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        values_RN = np.stack([low + high, low - high], 2).reshape(rows, places)
        width *= 2
    return values_RN


@pytest.mark.slow
def test_the_spectrum_of_the_hash_is_as_documented():
    """Correlations of masks over all distances of 65,536 places: sums and differing bits.

    The bounds are those of decision 17; means of 64 rows are known to 0.0005.
    """
    rows, places, rate = 64, 2**16, 0.1
    words = np.random.default_rng(5).integers(0, 2**32, (2, rows, 1), dtype=np.uint32)
    place = jnp.arange(places, dtype=jnp.uint32)[None]

    @jax.jit
    def keep(low, high):
        return survives(hash_places(place, low, high), jnp.uint32(0), rate)

    is_dropped = ~np.asarray(keep(*words))
    centered = is_dropped.astype(np.float32) - rate
    variance = rate * (1 - rate)
    spectrum = np.abs(np.fft.rfft(centered, 2 * places, axis=1)) ** 2
    apart = np.arange(places // 2)
    by_distance = np.fft.irfft(spectrum.mean(0))[: places // 2] / (places - apart) / variance
    by_bits = (
        walsh_hadamard((walsh_hadamard(centered) ** 2).mean(0)[None])[0] / places**2 / variance
    )
    assert by_distance[0] == pytest.approx(1, abs=0.01) and by_bits[0] == pytest.approx(1, abs=0.01)
    assert np.abs(by_distance[1:]).max() < 0.009 and np.abs(by_bits[1:]).max() < 0.0135
    assert by_bits[0x8800] == pytest.approx(-0.011, abs=0.002)
    assert by_distance[30_720] == pytest.approx(-0.0066, abs=0.002)
    deviations = by_distance[1:] * np.sqrt(rows * (places - apart[1:]))
    assert deviations.std() < 1.1


def test_the_gradient_of_dropout_uses_the_same_mask():
    @jax.jit
    def both_ways(x):
        dropout = Dropout(jnp.uint32(1), jnp.uint32(2), number_rows(4))
        y, backward = jax.vjp(lambda x: dropout.apply(x, 0.4, 0, 1, 1), x)
        return y, backward(jnp.full_like(y, 2.0))[0]

    x = mesh.place_batch({"x": np.ones((4, 3, 5), np.float32)}, jax.sharding.get_mesh())["x"]
    y, gradient = both_ways(x)
    assert 0 < (y > 0).sum() < y.size
    np.testing.assert_array_equal(gradient, 2.0 * y)


def test_no_dropout_at_rate_zero():
    x = jnp.arange(12.0)
    assert Dropout(jnp.uint32(1), jnp.uint32(2), x).apply(x, 0.0, 0, 0, 1) is x
