"""Compare fine-tuned models of several sizes, in float32 and in int8: size, time and score.

    python -m benchmarks.smaller runs/sst2-whole runs/sst2-half ...

Of each run of bert_jax.finetune it prints the parameters, the bytes of the weights, the time of its
first development split in batches of 64, tokens to logits, and its score there. Models take turns
within a round, after one round that compiles; times are medians over rounds, in wall time and in
processor time, which other work on the machine changes less.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
import rich.console
import rich.table

from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_model
from bert_jax.model.bert import Bert, Heads
from bert_jax.tasks.registry import open_task
from bert_jax.tasks.task import Task
from bert_jax.train_step.objectives import Batch

BATCH_SIZE = 64


def prepare(address: str, is_int8: bool) -> tuple[Task, str, Callable[[], np.ndarray]]:
    """Read a run; return its task, its size in words, and a function that computes the logits."""
    checkpoint, layer = load.load_fine_tuned(address)
    task = open_task(layer.options, checkpoint.vocabulary)
    rows = task.splits[task.dev_splits[0]]
    heads = Heads(mlm=False, nsp=False, classes=checkpoint.heads.classes)
    model = place_model(checkpoint, heads, jax.devices()[:1], is_int8=is_int8)
    weights_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    outputs = OBJECTIVES[layer.kind].outputs
    if outputs is None:
        sys.exit(f"error: the objective of {layer.kind} has no outputs")

    def compute_batch(bert: Bert, batch: Batch) -> dict[str, jax.Array]:
        return {"logits": outputs(bert, dict(batch))}

    step = batches.compile_step(model.model, compute_batch)

    def compute() -> np.ndarray:
        return batches.collect(batches.run_rows(step, model, rows, BATCH_SIZE), rows.examples)[
            "logits"
        ]

    return task, f"{model.model.parameter_count:,} / {weights_bytes / 1e6:.1f} MB", compute


def main() -> None:
    """Take turns, and print a line for each run and dtype."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="workdir of a fine-tuning")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row, lines = open_row(given.record), []
    systems = {(run, is_int8): prepare(run, is_int8) for run in given.runs for is_int8 in (0, 1)}
    logits = {key: compute() for key, (_, _, compute) in systems.items()}
    spent: dict[tuple[str, bool], list[tuple[float, float]]] = {key: [] for key in systems}
    for _ in range(given.rounds):
        for key, (_, _, compute) in systems.items():
            began = time.monotonic(), time.process_time()
            compute()
            spent[key].append((time.monotonic() - began[0], time.process_time() - began[1]))
    table = rich.table.Table("run", "dtype", "parameters / weights", "clock", "processor", "score")
    for (run, is_int8), (task, size, _) in systems.items():
        clock, processor = map(statistics.median, zip(*spent[run, is_int8], strict=True))
        score = task.score(task.dev_splits[0], logits[run, is_int8])[task.main_score]
        dtype = "int8" if is_int8 else "float32"
        secs = f"{clock:.2f} s", f"{processor:.2f} s"
        cells = (run, dtype, size, *secs, f"{task.main_score} {score:.4f}")
        table.add_row(*cells)
        lines.append(", ".join(cells))
    rich.console.Console(width=None if sys.stdout.isatty() else 160).print(table)
    what = "runs in float32 and int8: parameters / weights, wall time, CPU time, score on dev"
    write_row(row, Measured(what, "; ".join(lines), f"median of {given.rounds} rounds"))


if __name__ == "__main__":
    main()
