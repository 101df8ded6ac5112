"""Fine-tune a BERT on a task, or resume a run.

After Ctrl-C, another signal or a crash, the same command resumes the run.
"""

import dataclasses
import pathlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig, RunFlags
from data_pipeline.cli.flags import Command


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneFlags:
    """Declare the flags."""

    config: GivenConfig[FinetuneConfig] = cli.config_flag(FinetuneConfig)
    run: RunFlags


COMMAND = Command(
    "bert_jax.finetune",
    __doc__,
    FinetuneFlags,
    "python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte "
    "--config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import jax
import numpy as np

from bert_jax.checkpoint.reader import restore_params
from bert_jax.config import validate
from bert_jax.finetuning import setup as finetuning
from bert_jax.finetuning.feed import TaskFeed
from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.logging.metrics_writer import PREDICTIONS
from bert_jax.model.bert import Params
from bert_jax.runtime import profiler
from bert_jax.tasks.task import write_splits
from bert_jax.train_step.objectives import Batch
from bert_jax.train_step.step import make_eval_step
from bert_jax.trainer import run
from bert_jax.trainer.setup import Setup
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog


def _main(log: LibraryLog, flags: FinetuneFlags) -> int:
    with cli.preparing():
        began = time.time()
        logging.set_verbosity(logging.ERROR)
        config = flags.config.load()
        if flags.run.print_config:
            validate.check_finetune(config)
            return cli.print_config(config)
        steps = flags.run.profile_steps
        profiled = profiler.read_window(steps) if steps else None
        with run.prepare_process(flags.run, config.hosts, log) as (workdir, watchdog):
            setup = finetuning.build_finetuning(config, workdir, profiled=profiled, began=began)
    return run.train_to_exit_code(setup, watchdog, "bert_jax.finetune", _finish)


def _finish(setup: Setup, summary: dict[str, Any]) -> None:
    rows = score_rows(setup, summary)
    written = write_predictions(setup, summary["steps"])
    rows += [("" if i else "predictions", str(path)) for i, path in enumerate(written)]
    rows += run.describe_result(setup, summary)
    place = shlex.quote(setup.storage.address)
    command = f"{find_python()} -m bert_jax.predict --checkpoint={place} --input=FILE --output=FILE"
    setup.screen.table("done", rows)
    setup.screen.command(command, before="new rows: ")


def write_predictions(setup: Setup, step: int) -> list[pathlib.Path]:
    """Write the predictions for every split except train; return the files.

    All processes compute, the first one writes. Development sets use the logits of the run's last
    evaluation; other splits, and all of them where this process evaluated nothing, are computed
    from the checkpoint of `step` on the run's mesh.
    """
    feed = task_feed(setup)
    logits = dict(feed.dev_logits)
    missing = [split for split in feed.task.splits if split != "train" and split not in logits]
    if missing:
        parts = setup.parts
        params = restore_params(setup.storage.checkpoints, step, parts.model, parts.mesh)
        logits |= predict_splits(setup, params, missing)
    if jax.process_index() != 0:
        return []
    return write_splits(feed.task, logits, setup.workdir / PREDICTIONS)


def task_feed(setup: Setup) -> TaskFeed:
    """Return the feed of a fine-tuning run."""
    if not isinstance(setup.feed, TaskFeed):
        raise TypeError(f"{setup.storage.address} holds a run without a task")
    return setup.feed


def predict_splits(setup: Setup, params: Params, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute the logits of splits by the evaluation program, which is compiled already."""
    feed = task_feed(setup)
    evaluate = make_eval_step(setup.parts.model, OBJECTIVES[feed.task.kind])

    def compute(params: Params, batch: Batch) -> dict[str, Any]:
        return {"logits": evaluate(params, dict(batch))["outputs"]}

    logits = {}
    for split in splits:
        rows = feed.task.splits[split].labeled_as(feed.task.splits["train"])
        batch_size = feed.config.batch_size // feed.config.micro_batches
        results = batches.run_batches(
            *(compute, params, setup.parts.mesh, rows, batch_size),
            *(feed.pad_id, feed.positions_of_model),
        )
        label = f"predicting {split}"
        results = batches.report_progress(results, rows.examples, label, setup.screen)
        logits[split] = batches.collect(results, rows.examples)["logits"]
    return logits


def score_rows(setup: Setup, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and texts of the development scores, each next to its baseline."""
    task = task_feed(setup).task
    rows: list[tuple[str, str]] = []
    losses = {f"heldout_{split}_loss" for split in task.dev_splits}
    for name, value in summary.items():
        score = name.removeprefix("heldout_dev_")
        if score == name or name in losses:
            continue
        baseline = f" (majority {task.baseline[score]:.3f})" if score in task.baseline else ""
        rows.append(("" if rows else "scores", f"{score} {value:.4f}{baseline}"))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "the same command resumes from the last save, if there was one"
    return cli.run(COMMAND, _main, how_to_resume, argv, run.leave, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
