"""Train a recipe of the table step by step, record what the steps make, and compare two records.

The compiled steps and their batches are the trainer's; evaluations, records and saves are left out.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.checkpoint import arrays, directory, reader
from bert_jax.config import ResolvedRun
from bert_jax.parallel.mesh import place_batch
from bert_jax.runtime.run_record import CHECKPOINTS
from bert_jax.train_step import metrics, mup
from bert_jax.train_step.objectives import find_each
from bert_jax.train_step.schedule import make_pace_of
from bert_jax.train_step.state import TrainState, make_state, map_like_params
from bert_jax.trainer.compile import StepParts, build_parts, lower_step
from bert_jax.trainer.feed import StoreFeed, open_stores

FIRST_STEPS = 20  # their rows and losses are recorded
FINGERPRINT_STEPS = 100  # between fingerprints
MAX_LOSS_DIFFERENCE = 1e-4  # nats, between two machines


@dataclasses.dataclass(frozen=True)
class Trace:
    """Hold the rows, losses and fingerprints (16 hex digits, by steps taken) of a run."""

    rows: str  # SHA-256 of the batches of the first FIRST_STEPS steps
    losses: tuple[float, ...]  # nats, of the same steps
    weights: dict[str, str]
    optimizer: dict[str, str]


def list_fingerprint_steps(total: int) -> list[int]:
    """List the steps after which a run of `total` steps gets fingerprints."""
    return sorted({FIRST_STEPS, total, *range(0, total, FINGERPRINT_STEPS)})


def record_trace(config: ResolvedRun, last: int) -> Trace:
    """Train from step 0 to step `last`, at least FIRST_STEPS, on the first CPU device.

    Raises:
      Refused: the store cannot be read or does not suit the config.
    """
    parts = build_parts(config, find_each(config), devices=jax.devices("cpu")[:1], backend="cpu")
    marks = list_fingerprint_steps(config_lib.total_steps(config))
    rows, losses = hashlib.sha256(), list[float]()
    weights, optimizer = dict[str, str](), dict[str, str]()
    for step, state, batch, sums in itertools.islice(_take_steps(config, parts), last + 1):
        if 0 < step <= FIRST_STEPS:
            for name, array in sorted(batch.items()):
                rows.update(f"{name} {array.dtype} {array.shape}\n".encode())
                rows.update(np.ascontiguousarray(array).tobytes())
            means = metrics.compute_means(metrics.add_step({}, metrics.flatten(sums)))
            losses.append(float(means["loss"]))
        if step in marks:
            unpadded = map_like_params(arrays.describe_unpadded, state, parts.model.declared)
            prints = arrays.to_hex(np.asarray(arrays.compute_fingerprints(state, unpadded)))
            leaves = dict(zip(arrays.name_leaves(unpadded), prints, strict=True))
            weights[str(step)], optimizer[str(step)] = _join_fingerprints(leaves)
    return Trace(rows.hexdigest(), tuple(losses), weights, optimizer)


def _take_steps(
    config: ResolvedRun, parts: StepParts
) -> Iterator[tuple[int, TrainState, Mapping[str, np.ndarray], Any]]:
    """Yield the steps taken, the state, and batch and sums of the last step; first the initial."""
    feed = StoreFeed(open_stores(config.data), config)
    pace_of, step = make_pace_of(config), 0
    with jax.set_mesh(parts.mesh):
        params = mup.scale_initial(config, parts.model.init(jax.random.key(config.seed)))
        state = make_state(params, parts.tx, parts.shard_phase(0))
        yield step, state, {}, None
        for index, phase in enumerate(config.phases):
            (shape,) = feed.batch_shapes(index, 0)
            take_step = lower_step(parts, index, shape).compile()
            batches = feed.train_batches(index, 0, np.arange(phase.batch_size))
            with contextlib.closing(batches):
                for batch in batches:
                    state, sums = take_step(state, place_batch(batch, parts.mesh), pace_of(step))
                    step += 1
                    yield step, state, batch, jax.device_get(sums)


def _join_fingerprints(leaves: Mapping[str, str]) -> tuple[str, str]:
    """Join the fingerprints of a state's arrays: of the weights, and of all others."""
    hashes = hashlib.sha256(), hashlib.sha256()
    for name, digest in sorted(leaves.items()):
        hashes[not name.startswith("params/")].update(f"{name} {digest}\n".encode())
    return hashes[0].hexdigest()[:16], hashes[1].hexdigest()[:16]


def read_fingerprints(workdir: pathlib.Path) -> tuple[int | None, tuple[str, str]]:
    """Read the step of a run's newest checkpoint, and its weights' and optimizer's fingerprints.

    The step is None without a readable checkpoint.
    """
    folder = directory.make_absolute(workdir / CHECKPOINTS)
    if (step := reader.find_newest_step(folder)) is None:
        return None, ("", "")
    leaves = directory.read_receipt(folder / str(step))["leaves"]
    return step, _join_fingerprints({k: text.partition(" ")[2] for k, text in leaves.items()})


def find_differences(expected: Trace, found: Trace, first: int, is_same_machine: bool) -> list[str]:
    """Describe the differences between a replay and an entry's trace; [] if there are none.

    Fingerprints are compared from step `first` on, and only on the same kind of machine.
    """
    differences = []
    if found.rows != expected.rows:
        differences.append(f"rows have the digest {found.rows[:12]}, not {expected.rows[:12]}")
    for step, (ours, theirs) in enumerate(zip(found.losses, expected.losses, strict=True), 1):
        if not abs(ours - theirs) <= MAX_LOSS_DIFFERENCE:  # a NaN differs as well
            differences.append(
                f"the loss of step {step} is {ours:.6f}, not {theirs:.6f}: over "
                f"{MAX_LOSS_DIFFERENCE:g} nats apart"
            )
            break
    for kind in ("weights", "optimizer") * is_same_machine:
        ours_of, theirs_of = getattr(found, kind), getattr(expected, kind)
        for step, digest in ours_of.items():
            if int(step) >= first and digest != theirs_of.get(step):
                differences.append(f"{kind} have another fingerprint after step {step}")
                break
    return differences
