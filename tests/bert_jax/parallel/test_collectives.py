"""What devices exchange: sums of pieces against sums in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.config import MeshConfig
from bert_jax.parallel import collectives, mesh, processes


def scatter(parts, devices, dim):
    """The sum of one array of each device, put together from the pieces, and the program."""
    kept = PartitionSpec("data", None) if dim == 0 else PartitionSpec(None, "data")

    def on_a_device(part):
        return collectives.reduce_scatter(part[0], "data", dim)

    with jax.set_mesh(mesh.make_mesh(MeshConfig(), jax.devices()[:devices])):
        summed = jax.shard_map(
            on_a_device, in_specs=PartitionSpec("data"), out_specs=kept, check_vma=False
        )
        placed = jax.device_put(parts, PartitionSpec("data"))
        compiled = jax.jit(summed).lower(placed).compile()
        return compiled(placed), compiled.as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "dim", "joined"),
    [(8, 0, False), (4, 1, False), (3, 0, False), (6, 0, True), (2, 1, True)],
)
def test_each_device_gets_its_piece_of_the_sum(devices, dim, joined, monkeypatch):
    monkeypatch.setattr(processes, "are_joined", lambda: joined)
    rng = np.random.default_rng(devices)
    parts = rng.integers(-99, 99, (devices, 24, 48)).astype(np.float32)
    got, program = scatter(parts, devices, dim)
    # Gloo gives up on a reduce-scatter after 30 s, whatever its time limit.
    assert ("all-to-all" in program) is not joined
    np.testing.assert_array_equal(got, parts.sum(0))


@pytest.mark.parametrize(
    ("devices", "dim", "kind"),
    [(8, 1, ""), (6, 0, ""), (3, 0, ""), (8, 1, collectives.V5E), (3, 0, collectives.V5E)],
)
def test_a_long_axis_takes_rounds_of_reduce_scatters_or_on_v5e_an_all_reduce(
    devices, dim, kind, monkeypatch
):
    monkeypatch.setitem(collectives.ALL_TO_ALL_CHIPS, kind, 2)
    monkeypatch.setattr(mesh, "device_kind", lambda _: kind)
    parts = np.random.default_rng(1).integers(-99, 99, (devices, 24, 48)).astype(np.float32)
    got, program = scatter(parts, devices, dim)
    assert ("reduce-scatter" in program) is (kind == "")
    assert ("all-reduce" in program) is (kind == collectives.V5E)
    assert "all-to-all" not in program
    np.testing.assert_array_equal(got, parts.sum(0))


@pytest.mark.slow
def test_pieces_in_bfloat16_are_added_up_in_float32():
    parts = jnp.ones((8, 8, 8), jnp.bfloat16).at[0].set(256.0)  # 256 + 1 is 256 in bfloat16
    got, _ = scatter(parts, 8, 0)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, np.full((8, 8), 263.0))
