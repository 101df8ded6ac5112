"""What a save costs the loop: the fingerprints, the call that begins it, and until it is committed.

python -m benchmarks.save_cost [--config=configs/base.py] on what is there; the folder is removed.
"""

import pathlib
import statistics
import tempfile
import time

import jax
from absl import app

from bert_jax import checkpoint_arrays, command_line, mesh, optim, state
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig, MeshConfig, with_vocab_size
from bert_jax.models import bert

CONFIG = command_line.config_flag()
SAVES = 4  # the first one compiles


def main(_: list[str]) -> None:
    """Save a fresh state several times and print seconds."""
    config = with_vocab_size(command_line.resolved(CONFIG), 30522)
    devices = mesh.make(MeshConfig())
    jax.set_mesh(devices)
    model = bert.build(config.model, jax.default_backend())
    tx = optim.optimizer(config.optim)
    where = state.layout(model, tx, devices, MeshConfig())
    held = jax.block_until_ready(state.init(model, tx, where, seed=0))
    logical = state.map_like_params(checkpoint_arrays.logical, held, model.declared)
    prints, calls, commits = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(pathlib.Path(folder), CheckpointConfig(keep=1), model)
        for step in range(SAVES):
            begun = time.perf_counter()
            jax.block_until_ready(checkpoint_arrays.fingerprints(held, logical))
            printed = time.perf_counter()
            checkpoints.save(step, held, {})
            called = time.perf_counter()
            checkpoints.wait()
            prints.append(printed - begun)
            calls.append(called - printed)
            commits.append(time.perf_counter() - called)
        checkpoints.close()
    print(f"{sum(leaf.nbytes for leaf in jax.tree.leaves(held)) / 1e6:,.0f} MB of state")
    for what, secs in (
        ("fingerprints", prints),
        ("the call", calls),
        ("then until committed", commits),
    ):
        print(f"{what}: first {secs[0]:.3f} s, then median {statistics.median(secs[1:]):.3f} s")


if __name__ == "__main__":
    app.run(main)
