"""Write a fine-tuned model's predictions for a task's splits, and list its scores."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoint.reader import restore_params
from bert_jax.finetuning.feed import TaskFeed
from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.logging.metrics_writer import PREDICTIONS
from bert_jax.model.bert import Params
from bert_jax.tasks.task import write_splits
from bert_jax.train_step.objectives import Batch
from bert_jax.train_step.step import make_eval_step
from bert_jax.trainer.setup import Setup


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
