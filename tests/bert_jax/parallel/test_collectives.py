"""What devices exchange: sums in two rounds against sums in NumPy."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.config import MeshConfig
from bert_jax.parallel import collectives, mesh, processes


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("devices", "dim"), [(8, 0), (8, 1), (6, 0), (4, 1), (2, 0), (3, 0)])
def test_each_device_gets_its_piece_of_the_sum(devices, dim, joined, monkeypatch):
    monkeypatch.setattr(processes, "are_joined", lambda: joined)
    of = mesh.make_mesh(MeshConfig(), jax.devices()[:devices])
    rng = np.random.default_rng(devices)
    parts = rng.integers(-99, 99, (devices, 24, 48)).astype(np.float32)
    kept = PartitionSpec("data", None) if dim == 0 else PartitionSpec(None, "data")

    def on_a_device(part):
        return collectives.reduce_scatter(part[0], "data", dim)

    with jax.set_mesh(of):
        scatter = jax.shard_map(
            on_a_device, in_specs=PartitionSpec("data"), out_specs=kept, check_vma=False
        )
        compiled = jax.jit(scatter).lower(jax.device_put(parts, PartitionSpec("data"))).compile()
        got = compiled(jax.device_put(parts, PartitionSpec("data")))
    # Gloo gives up on a reduce-scatter after 30 s, whatever its time limit.
    assert ("reduce-scatter" in compiled.as_text()) is not joined
    np.testing.assert_array_equal(got, parts.sum(0))
