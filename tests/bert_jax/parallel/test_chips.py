"""Peaks of chips: found by JAX's names, and consistent with what the chip is made of."""

import pytest

from bert_jax.parallel import chips


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("v5e", "v5e"),
        ("TPU v5", "v5p"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("cpu", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("TPU v9", None),
    ],
)
def test_a_device_is_known_by_the_name_that_jax_gives_it(device_kind, name):
    found = chips.find_chip(device_kind)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("name", "multipliers"),
    [
        ("v2", 2 * 128**2),
        ("v3", 2 * 2 * 128**2),
        ("v4", 2 * 4 * 128**2),
        ("v5e", 4 * 128**2),
        ("v5p", 2 * 4 * 128**2),
    ],
)
def test_the_peak_is_what_the_matrix_units_do_at_the_clock(name, multipliers):
    chip = chips.find_chip(name)
    assert chip.bf16_flops_per_sec == pytest.approx(2 * multipliers * chip.clock_hz, rel=0.02)
