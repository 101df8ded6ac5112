"""Which devices are neighbors on a mesh over several slices, and which rows its processes read."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.config import MeshConfig
from bert_jax.parallel import mesh


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a device of a TPU slice tells of its place."""

    id: int
    slice_index: int | None
    platform: str = "tpu"


def chips(*slice_of_each):
    return [Chip(number, of) for number, of in enumerate(slice_of_each)]


def ids(devices):
    return [device.id for device in devices]


def test_devices_are_told_apart_by_their_slice_in_its_order():
    first, second = mesh.group_by_slice(chips(1, 0, 0, 1, 1, 0), 2)
    assert ids(first) == [1, 2, 5]
    assert ids(second) == [0, 3, 4]


def test_one_slice_is_all_devices_whether_or_not_they_tell():
    for devices in (chips(0, 0, 0), chips(None, None, None), jax.devices()):
        assert mesh.group_by_slice(devices, 1) == [devices]


@pytest.mark.parametrize(
    ("devices", "num_slices", "words"),
    [
        (chips(0, 0, 1, 1), 3, "num_slices is 3, but the 4 devices form 2 slices; set it to 2"),
        (chips(0, 0, 1, 1), 1, "num_slices is 1, but the 4 devices form 2 slices; set it to 2"),
        (chips(0, 0, 0, 1), 2, "num_slices is 2, but these hold 3, 1 devices; join slices of one"),
        (chips(None, None), 2, "tpu devices have no slice_index"),
        (None, 2, "but cpu devices have no slice_index"),
    ],
)
def test_devices_that_lie_otherwise_are_refused(devices, num_slices, words):
    with pytest.raises(ValueError, match=words):
        mesh.group_by_slice(jax.devices() if devices is None else devices, num_slices)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(preset="zero1", num_slices=2), (2, 4, 1, 1)),
        (MeshConfig(preset="fsdp", num_slices=2), (2, 1, 4, 1)),
        (MeshConfig(preset="fsdp", fsdp_size=2, num_slices=2), (2, 2, 2, 1)),
        (MeshConfig(preset="fsdp+tp", num_slices=2), (2, 1, 2, 2)),
    ],
)
def test_only_the_slice_axis_spans_slices(config, sizes):
    assert mesh.mesh_shape(config, 8) == sizes
    devices = jax.devices()
    grid = mesh.arrange_devices(sizes, [devices[1::2], devices[::2]])
    assert grid.shape == sizes
    assert {device.id % 2 for device in grid[0].flat} == {1}
    assert {device.id % 2 for device in grid[1].flat} == {0}
    assert len(set(grid.flat)) == 8


def test_rows_of_a_batch_follow_the_slices():
    """Each device gets its rows though its number is no neighbor of the one before it."""
    devices = jax.devices()
    grid = mesh.arrange_devices((2, 2, 2, 1), [devices[1::2], devices[::2]])
    of = jax.sharding.Mesh(grid, mesh.AXES, axis_types=(jax.sharding.AxisType.Explicit,) * 4)
    np.testing.assert_array_equal(mesh.process_rows(16, of), np.arange(16))
    placed = mesh.place_batch({"input_ids": np.arange(16 * 3).reshape(16, 3)}, of)["input_ids"]
    held = {
        shard.device.id: np.asarray(shard.data)[:, 0] // 3 for shard in placed.addressable_shards
    }
    for number, device in enumerate(grid.flat):
        assert held[device.id].tolist() == [2 * number, 2 * number + 1]
    assert [device.id for device in grid.flat] == [1, 3, 5, 7, 0, 2, 4, 6]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A TPU device that tells where its chip is."""

    coords: tuple[int, int, int]
    core_on_chip: int
    platform: str = "tpu"


def test_chips_stand_row_by_row_where_data_is_the_only_axis():
    rows = [Placed((x, y, 0), core) for x in range(2) for y in range(3) for core in range(2)]
    shuffled = [rows[number * 5 % 12] for number in range(12)]
    assert list(mesh.arrange_devices((1, 12, 1, 1), [shuffled]).flat) == rows
    two = mesh.arrange_devices((2, 6, 1, 1), [shuffled[:6], shuffled[6:]])
    assert set(two.flat[:6]) == set(shuffled[:6])


def test_a_device_gets_its_rows_of_those_that_its_process_has(monkeypatch):
    """Process rows 1, 4, 5 and 7 of 8: the device of rows 4 and 5 gets the second and third."""
    asked = []

    def note(dims, sharding, part):
        asked.append(dims)
        return [part((slice(first, last), slice(None))) for first, last in ((4, 6), (7, 8), (1, 2))]

    monkeypatch.setattr(jax, "make_array_from_callback", note)
    one = mesh.make_mesh(MeshConfig(), jax.devices()[:1])
    array = np.array([[10], [40], [50], [70]])
    placed = mesh.place_batch_rows({"ids": array}, one, 8, np.array([1, 4, 5, 7]))["ids"]
    assert [part.ravel().tolist() for part in placed] == [[40, 50], [70], [10]]
    assert asked == [(8, 1)]


def test_the_vocabulary_is_padded_to_whole_tiles_on_each_device_of_the_model_axis():
    sizes = [(30_522, 1), (30_522, 4), (30_720, 4), (1, 1)]
    assert [mesh.padded_vocab_size(*size) for size in sizes] == [30_592, 30_720, 30_720, 128]
