"""Time the training step fed by the pipeline, and the same step on prepared batches.

    python -m benchmarks.step_fed_by_pipeline --store=STORE --json_out=step_fed_by_pipeline.json

Both take turns of a few steps in one process, with one compiled step and one state, so that other
work on the machine slows both alike; a round's ratio is fed / ready. Ready batches are of the same
shapes and are placed on the device at each step, as fed ones are: what differs is who makes them.
"""

import itertools
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import rich.box
import rich.console
import rich.table
from absl import app, flags

from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.config import CheckpointConfig, Config, ModelConfig, Phase
from bert_jax.parallel import mesh
from bert_jax.train_step import schedule, state, step
from bert_jax.train_step.objectives import MLM_NSP
from bert_jax.trainer.setup import Setup, build_setup
from data_pipeline.spec.options import PretrainOptions

STORE = flags.DEFINE_string("store", None, "folder that data_pipeline.build wrote", required=True)
ROUNDS = flags.DEFINE_integer("rounds", 12, "turns of each side, at each size", lower_bound=1)
TURN_STEPS = flags.DEFINE_integer("turn_steps", 8, "steps of a turn", lower_bound=1)
JSON_OUT = flags.DEFINE_string("json_out", "", "file to write the measurement to")
RECORD = flags.DEFINE_string("record", "", HELP)

# Layers, width, heads, sequence length, rows, examples in a row.
SIZES = (
    (2, 128, 2, 128, 64, 1),
    (4, 256, 4, 128, 16, 1),
    (4, 256, 4, 512, 4, 1),
    (4, 256, 4, 512, 4, 8),
)
READY_BATCHES = 8

Batch = dict[str, np.ndarray]


def make_config(
    layers: int, width: int, heads: int, seq_len: int, rows: int, packed: int
) -> Config:
    """Make the config of a one-phase run; only some of its steps are taken."""
    return Config(
        model=ModelConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        ),
        data=PretrainOptions(store=STORE.value, packed_examples=packed),
        phases=(
            Phase(
                seq_len=seq_len,
                steps=10**9,
                batch_size=rows,
                max_predictions_per_seq=round(0.15 * seq_len),
            ),
        ),
        checkpoint=CheckpointConfig(every_steps=10**9),
    )


class Side:
    """Hold the compiled step of a run and its state, and time turns of steps."""

    def __init__(self, setup: Setup) -> None:
        self._setup, phase = setup, setup.config.phases[0]
        self._take = step.make_train_step(
            setup.parts.model, MLM_NSP, setup.parts.tx, setup.config, phase, setup.parts.shardings
        )
        self._state = state.init_state(
            setup.parts.model, setup.parts.tx, setup.parts.shardings, setup.config.seed
        )
        self._rows = np.arange(phase.batch_size)
        self._pace = schedule.make_pace_of(setup.config)(1)

    def run(self, batches: Iterator[Batch], steps: int) -> float:
        """Take steps; return the seconds until the last state is ready."""
        start = time.perf_counter()
        for batch in itertools.islice(batches, steps):
            placed = mesh.place_batch_rows(
                batch, self._setup.parts.mesh, len(self._rows), self._rows
            )
            self._state, _ = self._take(self._state, placed, self._pace)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


def measure(size: Sequence[int], workdir: pathlib.Path) -> dict[str, Any]:
    """Alternate turns of both sides at one size."""
    layers, width, heads, seq_len, rows, packed = size
    config = make_config(layers, width, heads, seq_len, rows, packed)
    setup = build_setup(config, workdir, jax.devices()[:1])
    side = Side(setup)
    fed = setup.feed.train_batches(0, 0, np.arange(rows))
    ready = itertools.cycle([next(fed) for _ in range(READY_BATCHES)])
    side.run(ready, 2), side.run(fed, 2)  # compile, and fill the prefetched batches
    secs: dict[str, list[float]] = {"ready": [], "fed": []}
    for number in range(ROUNDS.value):
        turns = [("ready", ready), ("fed", fed)]
        for name, batches in turns if number % 2 else reversed(turns):
            secs[name].append(side.run(batches, TURN_STEPS.value) / TURN_STEPS.value)
    fed.close()
    ratios = [f / r for f, r in zip(secs["fed"], secs["ready"], strict=True)]
    return {
        "layers": layers,
        "hidden_size": width,
        "seq_len": seq_len,
        "rows": rows,
        "packed_examples": packed,
        "ready_ms": statistics.median(secs["ready"]) * 1e3,
        "fed_ms": statistics.median(secs["fed"]) * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rows_per_sec": rows / statistics.median(secs["fed"]),
    }


def main(argv: Sequence[str]) -> None:
    """Measure each size and print a table."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1]!r} is not a flag")
    row = open_row(RECORD.value)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(SIZES):
            results.append(measure(size, pathlib.Path(folder) / str(number)))
    table = rich.table.Table(
        title=f"{ROUNDS.value} rounds, {os.cpu_count()} cores", box=rich.box.SIMPLE_HEAD
    )
    for name in ("model", "batch", "packed", "ready ms", "fed ms", "fed / ready", "range"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            f"{result['layers']} x {result['hidden_size']}",
            f"{result['rows']} x {result['seq_len']}",
            str(result["packed_examples"]),
            f"{result['ready_ms']:.1f}",
            f"{result['fed_ms']:.1f}",
            f"{result['ratio']:.3f}",
            f"{result['ratio_min']:.3f} - {result['ratio_max']:.3f}",
        )
    rich.console.Console().print(table)
    if JSON_OUT.value:
        record = {"devices": [str(jax.devices()[0])], "jax": jax.__version__, "sizes": results}
        pathlib.Path(JSON_OUT.value).write_text(json.dumps(record, indent=2) + "\n")
    write_row(row, describe(results))


def describe(results: Sequence[dict[str, Any]]) -> Measured:
    """Describe the ratio at each size."""
    sizes = [
        f"{each['layers']} x {each['hidden_size']}, batch {each['rows']} x {each['seq_len']}, "
        f"{each['packed_examples']} examples per row"
        for each in results
    ]
    figures = [
        f"{each['ratio']:.3f} ({each['ratio_min']:.3f} - {each['ratio_max']:.3f})"
        for each in results
    ]
    return Measured(
        what=f"step fed by the pipeline / by prepared batches: {'; '.join(sizes)}",
        figure="; ".join(figures),
        runs=f"{ROUNDS.value} rounds, alternating",
    )


if __name__ == "__main__":
    app.run(main)
