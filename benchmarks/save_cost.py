"""What a save costs the loop: the fingerprints, the call that begins it, and until it is committed.

python -m benchmarks.save_cost [--config=configs/base.py] on what is there; the folder is removed.
"""

import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time

import jax

from bert_jax.checkpoint import arrays
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, Config, MeshConfig, StoreFacts, resolve
from bert_jax.model import bert
from bert_jax.parallel import mesh
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from bert_jax.train_step import optimizers, state
from data_pipeline.cli.flags import Command

SAVES = 4  # the first one compiles


@dataclasses.dataclass(frozen=True)
class SaveCostFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag(is_required=False)


EXAMPLE = "python -m benchmarks.save_cost --config=configs/base.py"
COMMAND = Command("benchmarks.save_cost", __doc__, SaveCostFlags, EXAMPLE)


def main() -> None:
    """Save a fresh state several times and print seconds."""
    flags = COMMAND.read(sys.argv[1:])
    config = resolve(flags.config.load("configs/base.py"), store=StoreFacts(30522))
    devices = mesh.make_mesh(MeshConfig())
    jax.set_mesh(devices)
    model = bert.build(config.model, jax.default_backend())
    tx = optimizers.make_optimizer(config.optim)
    layout = state.make_shardings(model, tx, devices, MeshConfig())
    train_state = jax.block_until_ready(state.init_state(model, tx, layout, seed=0))
    logical = state.map_like_params(arrays.describe_unpadded, train_state, model.declared)
    prints, calls, commits = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(pathlib.Path(folder), CheckpointConfig(), model)
        for step in range(SAVES):
            begun = time.perf_counter()
            jax.block_until_ready(arrays.compute_fingerprints(train_state, logical))
            printed = time.perf_counter()
            checkpoints.save(step, train_state, {})
            called = time.perf_counter()
            checkpoints.wait()
            prints.append(printed - begun)
            calls.append(called - printed)
            commits.append(time.perf_counter() - called)
        checkpoints.close()
    print(f"{sum(leaf.nbytes for leaf in jax.tree.leaves(train_state)) / 1e6:,.0f} MB of state")
    for name, secs in (
        ("fingerprints", prints),
        ("the call", calls),
        ("then until committed", commits),
    ):
        print(f"{name}: first {secs[0]:.3f} s, then median {statistics.median(secs[1:]):.3f} s")


if __name__ == "__main__":
    main()
