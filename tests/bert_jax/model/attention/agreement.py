"""Draw queries, keys and values, and compare attention computed in two ways."""

import jax.numpy as jnp
import numpy as np


def draw(rows, seq_len, width):
    """Return bfloat16 arrays: queries, keys and values side by side; the output's gradient."""
    rng = np.random.default_rng(seq_len)
    return [jnp.asarray(rng.normal(size=(rows, seq_len, n * width)), jnp.bfloat16) for n in (3, 1)]


def assert_close(got, expected):
    """Assert agreement to bfloat16: mean error 1 unit of the spread, maximum 2 of the largest."""
    for g, e in zip(got, expected, strict=True):
        g, e = np.asarray(g, np.float32), np.asarray(e, np.float32)
        assert np.abs(g - e).mean() < 2**-8 * e.std()
        assert np.abs(g - e).max() < 2**-7 * np.abs(e).max()
