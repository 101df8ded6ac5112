"""Fingerprints: the same on every mesh and with any padding, another after any change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.checkpoint.arrays import compute_fingerprints, to_hex
from bert_jax.config import MeshConfig
from bert_jax.parallel import mesh

MASK = 0xFFFFFFFF


def mixed(x):
    """lowbias32 in Python's own integers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def expected(array):
    """The fingerprint of an array, one element after another."""
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").ravel().tolist()
    sums = [0, 0]
    for place, of in enumerate(bits):
        word = mixed((place + 0x9E3779B9) & MASK)
        first = mixed(of ^ word)
        sums[0] += first
        sums[1] += mixed((first + word) & MASK)
    return f"{sums[0] & MASK:08x}{sums[1] & MASK:08x}"


def on_mesh(preset, devices, model_size=2):
    of = mesh.make_mesh(MeshConfig(preset=preset, model_size=model_size), jax.devices()[:devices])
    jax.set_mesh(of)
    return of


def fingerprints(arrays, specs, of, dims=None):
    placed = [
        jax.device_put(array, jax.NamedSharding(of, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]
    sizes = dims or [array.shape for array in arrays]
    unpadded = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]
    return to_hex(np.asarray(compute_fingerprints(placed, unpadded)))


def arrays():
    rng = np.random.default_rng(5)
    return [
        rng.normal(size=(24, 16)).astype(np.float32),
        np.asarray(jnp.asarray(rng.normal(size=(8, 3)), jnp.bfloat16)),
        np.int32(-7),
        rng.normal(size=5).astype(np.float32),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "devices", "specs"),
    [
        ("dp", 1, [(), (), (), ()]),
        ("tp", 2, [(None, "model"), (), (), ()]),
        ("zero1+tp", 8, [("model", "data"), ("data",), (), ()]),
        ("fsdp", 8, [(("data", "fsdp"), None), ("fsdp",), (), ()]),
    ],
)
def test_they_are_those_of_the_formula_however_arrays_are_cut(preset, devices, specs):
    of = on_mesh(preset, devices)
    found = fingerprints(arrays(), [PartitionSpec(*spec) for spec in specs], of)
    assert found == [expected(np.asarray(array)) for array in arrays()]


def test_padding_does_not_count_whatever_it_holds():
    table = arrays()[0]
    of = on_mesh("tp", 2)
    padded = np.pad(table, [(0, 8), (0, 0)], constant_values=3.0)
    (found,) = fingerprints([padded], [PartitionSpec("model")], of, [table.shape])
    assert found == expected(table)


def test_a_change_of_one_bit_or_of_the_order_shows():
    table = arrays()[0]
    of = on_mesh("dp", 1)
    whole = [PartitionSpec()]
    seen = set(fingerprints([table], whole, of))
    for bit in (0, 13, 31):
        changed = table.copy()
        changed.view(np.uint32)[7, 3] ^= np.uint32(1 << bit)
        seen |= set(fingerprints([changed], whole, of))
    signs = table.copy()  # a sum of products with odd numbers would not see two of these
    signs[:2, 0] *= -1
    for changed in (signs, table[::-1].copy(), np.zeros_like(table), table.T.reshape(24, 16)):
        seen |= set(fingerprints([changed], whole, of))
    assert len(seen) == 8
