"""Time fine-tuning from start to end, ours and transformers' Trainer, in turns on a CPU.

    python -m benchmarks.finetune_vs_trainer --data=GLUE --python=ENV/bin/python
    python -m benchmarks.finetune_vs_trainer --data=GLUE --python=ENV/bin/python --tasks=rte

ENV has torch, transformers and accelerate. A round is each task on both sides, which go first in
turns: `python -m bert_jax.finetune` and the program of parity_runs/hf_trainer_worker.py, each a
process of its own that reads the files, tokenizes, trains, scores dev and saves. Both train in
batches of 32 with dropout, the same optimizer, rate and warm-up, in float32, from the MiniLM
weights that make setup installs. Our processes share a folder of compiled programs, as a grid's do.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console

from benchmarks import results
from benchmarks.parity_runs.pairs import (
    FOLDERS,
    HEADER_LINES,
    Case,
    Pairs,
    Ran,
    find_weights,
    run_pair,
    timed,
)
from benchmarks.parity_runs.report import SIDES, pair_line
from benchmarks.step.workers import Worker
from bert_jax.logging.statistics import describe_mean

WORKER = "benchmarks.parity_runs.hf_trainer_worker"
# The columns of texts and of the label in a task's files.
COLUMNS = {"cola": ([3], 1), "rte": ([1, 2], 3), "sst2": ([0], 1)}
EXAMPLES = {"cola": 2000, "rte": 600, "sst2": 2000}
BATCH_SIZE, DROPOUT_RATE = 32, 0.1


def run_trainer(pairs: Pairs, case: Case, folder: pathlib.Path) -> Ran:
    """Fine-tune by the Trainer in a process of its own.

    Raises:
      RuntimeError: it ended.
    """
    task = pairs.opened(pairs.options(case, folder / "files"))
    texts, label = COLUMNS[case.task]
    header = {"header_lines": HEADER_LINES[case.task], "labels": task.labels}
    with timed() as spent:
        worker = Worker(pairs.python, WORKER)
        try:
            trained = worker.ask(
                "fine_tune",
                model_dir=str(pairs.model_dir),
                folder=str(folder / "files"),
                table={"text_columns": texts, "label_column": label, **header},
                max_length=pairs.max_length,
                dropout_rate=case.dropout_rate,
                batch_size=case.batch_size,
                steps=case.steps,
                seed=case.seed,
                optim={k: v for k, v in dataclasses.asdict(case.optim).items() if k != "name"},
            )
        finally:
            worker.close()
    logits = np.load(folder / "files" / "logits.npy")
    score = task.score(task.dev_splits[0], logits)[task.main_score]
    return Ran(trained["losses"], float(score), train_secs=trained["secs"], **spent)


def describe(
    rounds: Mapping[str, Sequence[Mapping[str, Any]]],
    cases: Mapping[str, Case],
    versions: Mapping[str, str],
) -> results.Measured:
    """Describe the times and scores of all rounds, by task."""
    times, ratios, scores, sizes = [], [], [], []
    for task, runs in rounds.items():
        ours, theirs = ([run[side]["wall_secs"] for run in runs] for side in SIDES)
        means = [describe_mean([run[side]["score"] for run in runs]) for side in SIDES]
        name, case = FOLDERS[task], cases[task]
        times.append(f"{name} {results.describe_times(theirs, ours, 's')}")
        ratios.append(f"{name} {results.describe_ratio(theirs, ours)}")
        scores.append(f"{name} {' / '.join(means)}")
        sizes.append(f"{name} ({case.examples:,} examples, {case.steps} steps of {BATCH_SIZE})")
    return results.Measured(
        what=f"a MiniLM fine-tuned on {', '.join(sizes)}, time of a process from start to end: "
        "Trainer of transformers / ours; score on dev, ours / theirs",
        figure=f"{'; '.join(times)}; scores: {', '.join(scores)}",
        runs=f"{len(runs)} rounds, alternating",
        headline="Fine-tuning a MiniLM, the time of transformers' Trainer "
        f"divided by ours (range): {', '.join(ratios)}.",
        versions=versions,
    )


def main() -> None:
    """Take turns, and report the median ratio of each task and its range."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="CoLA/, RTE/ and SST-2/")
    parser.add_argument("--python", type=pathlib.Path, required=True, help="the Trainer's")
    parser.add_argument("--model_dir", help="a BERT in Hugging Face's format")
    parser.add_argument("--tasks", default=",".join(COLUMNS))
    parser.add_argument("--examples", type=int, help=f"of each task; by default {EXAMPLES}")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json_out", type=pathlib.Path, help="file to write every round to")
    parser.add_argument("--record", default="", metavar="ROW", help=results.HELP)
    given = parser.parse_args()
    row = results.open_row(given.record)
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    python = given.python.absolute()
    pairs = Pairs(find_weights(given.model_dir), given.data, python, given.max_seq_length)
    worker = Worker(python, WORKER)
    versions = worker.ask("versions")
    worker.close()
    cases = {
        task: Case(
            task, given.examples or EXAMPLES[task], BATCH_SIZE, given.epochs, DROPOUT_RATE, seed=0
        )
        for task in given.tasks.split(",")
    }
    rounds: dict[str, list[dict[str, Any]]] = {task: [] for task in cases}
    with tempfile.TemporaryDirectory() as compiled:
        for seed in range(given.rounds):
            for task, first in cases.items():
                case = dataclasses.replace(first, seed=seed)
                with console.status(f"{FOLDERS[task]}, round {seed}"):
                    theirs = functools.partial(run_trainer, pairs)
                    ran = run_pair(pairs, case, pathlib.Path(compiled), theirs)
                console.print(pair_line(FOLDERS[task], seed, ran))
                rounds[task].append(ran)
                if given.json_out:
                    given.json_out.write_text(json.dumps(rounds, indent=1) + "\n")
    measured = describe(rounds, cases, versions)
    console.print(f"the Trainer / ours, median (range), theirs / ours: {measured.figure}")
    results.write_row(row, measured)


if __name__ == "__main__":
    main()
