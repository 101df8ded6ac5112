"""Names, sizes and links of TPU slices."""

import importlib.util

import pytest

from bert_jax.planning import slices


@pytest.mark.parametrize(
    ("gcloud", "topology", "chips", "devices"),
    [
        # Accelerator types and topologies side by side in Google's pages.
        ("v2-32", "v2:4x4", 16, 32),
        ("v3-32", "v3:4x4", 16, 32),
        ("v3-128", "v3:8x8", 64, 128),
        ("v4-32", "v4:2x2x4", 16, 16),
        ("v4-384", "v4:4x4x12", 192, 192),
        ("v4-512", "v4:4x8x8", 256, 256),  # 4x4x16 has as many chips
        ("v5litepod-16", "v5e:4x4", 16, 16),
        ("v5litepod-64", "v5e:8x8", 64, 64),
        ("v5p-32", "v5p:2x2x4", 16, 16),
        ("v6e-16", "v6e:4x4", 16, 16),
        ("tpu7x-32", "tpu7x:2x2x4", 16, 32),
    ],
)
def test_a_slice_has_two_names(gcloud, topology, chips, devices):
    found = slices.find_slice(gcloud)
    assert found == slices.find_slice(topology)
    assert (found.name, found.accelerator_type) == (topology, gcloud)
    assert (found.chips, found.devices) == (chips, devices)


@pytest.mark.parametrize(
    ("name", "num_slices", "words"),
    [
        ("v5e:5x5", 1, r"there is no such TPU slice.*v5e:8x8 \(v5litepod-64\)"),
        ("v5litepod-17", 1, r"there is no such TPU slice.*v5e:8x8 \(v5litepod-64\)"),
        ("v4-33", 1, r"there is no such TPU slice.*v4:2x2x4 \(v4-32\)"),
        ("v9:2x2", 1, "'v9' is not a known TPU version; known are v2, .*, v6e, tpu7x, as in "),
        ("", 1, "'' is not a known TPU version"),
        ("v3:4x4", 2, "slices of v3 cannot be joined"),
    ],
)
def test_slices_that_do_not_exist_are_refused_with_those_that_do(name, num_slices, words):
    with pytest.raises(ValueError, match=words):
        slices.find_slice(name, num_slices)


def test_other_sizes_of_the_same_version():
    several = slices.find_slice("v5e:4x4", num_slices=3)
    assert (several.chips, several.devices, several.name) == (48, 48, "v5e:4x4")
    assert slices.resize_slice(slices.find_slice("v5e:4x4"), 256).name == "v5e:16x16"
    for like, name in (("v4:4x4x16", "v4:4x4x16"), ("v4:4x4x4", "v4:4x8x8")):
        assert slices.resize_slice(slices.find_slice(like), 256).name == name
    with pytest.raises(ValueError, match=r"no v5e slice of 48 chips.*32, 64"):
        slices.resize_slice(slices.find_slice("v5e:4x4"), 48)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("v5e:4x4", 2),  # a corner of a sheet
        ("v5e:8x16", 3),  # an edge of 16 closes
        ("v5e:16x16", 4),
        ("v4:2x2x4", 3),  # a corner of a box
        ("v4:4x4x4", 6),  # blocks of 4 close on all sides
        ("v3:8x8", 2),
        ("v3:32x32", 4),
        ("v5e:1x1", 0),
    ],
)
def test_links_of_the_chip_that_has_fewest(name, links):
    assert slices.find_slice(name).links == links


def test_a_row_of_chips_has_the_links_along_it():
    found = slices.find_slice("v5e:4x4")
    row = [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert found.ring(row) == (4, 50e9)
    every_fourth = [(0, 0), (1, 3), (2, 2), (3, 1)]  # four such groups fill the sheet
    assert found.ring(every_fourth) == (4, 2 * 50e9 / 4)
    both_cores = [(0, 0), (0, 0), (0, 1), (0, 1)]
    assert slices.find_slice("v3:4x4").ring(both_cores) == (2, 82e9)


def test_pairs_share_the_link_that_most_of_them_cross():
    found = slices.find_slice("v5e:4x4")
    row = [(0, y) for y in range(4)]
    around = list(zip(row, row[1:] + row[:1], strict=True))
    assert found.hop(around) == 50e9  # the last goes back on links that nobody else uses
    two_on = list(zip(row, row[2:], strict=False))
    assert found.hop(two_on) == 25e9  # 1 to 2 is crossed twice
    assert found.hop([((0, 0), (0, 0))]) == 50e9  # from core to core of a chip
    closed = slices.find_slice("v5e:16x16")
    assert closed.hop([((0, 0), (0, 15)), ((0, 1), (0, 15))]) == 25e9  # both from 0 to 15


def test_without_libtpu_the_way_to_it_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .*\[plan\]'"):
        slices.open_devices(slices.find_slice("v5e:4x4"))
