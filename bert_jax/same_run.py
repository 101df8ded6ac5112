"""Whether two workdirs hold the same run: lines of metrics, bad steps, summary, last checkpoint."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import bad_steps, checkpoint_reading, log
from bert_jax.metrics import TIMINGS
from bert_jax.receipt import CHECKPOINTS
from bert_jax.record_files import read_lines, read_metrics
from data_pipeline import small_files


@dataclasses.dataclass(frozen=True)
class Compared:
    """What was compared, and what differs: a sentence each, none where all is the same."""

    arrays: int
    numbers: int  # in those arrays
    lines: int
    step: int | None
    differences: tuple[str, ...]


def compare(one: pathlib.Path, other: pathlib.Path) -> Compared:
    """Compare two finished runs of the same command, timings aside."""
    lines = [read_metrics(folder / log.METRICS) for folder in (one, other)]
    found = _of_lines("metrics", *lines)
    found += _of_lines("bad steps", *[read_lines(at / bad_steps.FILE) for at in (one, other)])
    found += _of_lines("the summary", *[[_summary(folder)] for folder in (one, other)])
    steps = [checkpoint_reading.newest_step(folder / CHECKPOINTS) for folder in (one, other)]
    if None in steps or steps[0] != steps[1]:
        found.append(f"the newest checkpoints are of steps {steps[0]} and {steps[1]}")
        return Compared(0, 0, len(lines[0]), steps[0], tuple(found))
    arrays = [
        checkpoint_reading.read_arrays(folder / CHECKPOINTS, step)
        for folder, step in zip((one, other), steps, strict=True)
        if step is not None
    ]
    found += _of_arrays(*arrays)
    numbers = sum(array.size for array in arrays[0].values())
    return Compared(len(arrays[0]), numbers, len(lines[0]), steps[0], tuple(found))


def _summary(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / log.SUMMARY
    return small_files.read_object(path, folder) if path.exists() else {}


def _of_lines(
    what: str, one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The first difference between two files of lines, and their lengths."""
    if len(one) != len(other):
        return [f"{what}: {len(one)} lines and {len(other)}"]
    for number, (a, b) in enumerate(zip(one, other, strict=True), 1):
        for key in sorted((a.keys() | b.keys()) - set(TIMINGS)):
            # repr, so that nan is nan.
            if repr(a.get(key)) != repr(b.get(key)):
                at = f", step {a['step']}" if "step" in a else ""
                return [f"{what}, line {number}{at}: {key} is {a.get(key)} and {b.get(key)}"]
    return []


def _of_arrays(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """A sentence for each array that is not the same bit for bit."""
    found = [f"{name} is in one checkpoint only" for name in sorted(one.keys() ^ other.keys())]
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name], other[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            found.append(f"{name} is {a.dtype}{a.shape} and {b.dtype}{b.shape}")
        elif a.tobytes() != b.tobytes():
            bits = [np.frombuffer(x.tobytes(), np.uint8).reshape(x.size, -1) for x in (a, b)]
            differing = int(np.any(bits[0] != bits[1], axis=1).sum())
            found.append(f"{name}: {differing:,} of {a.size:,} numbers differ")
    return found
