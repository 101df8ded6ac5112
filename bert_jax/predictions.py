"""What a fine-tuned model says of a task's splits, in the task's own files, and its scores."""

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax import inference
from bert_jax.checkpoint_reading import restore_params
from bert_jax.log import PREDICTIONS
from bert_jax.models.bert import Params
from bert_jax.objectives import Batch
from bert_jax.preparation import Setup
from bert_jax.step import eval_step
from bert_jax.task_feed import TaskFeed, TaskPhase
from bert_jax.tasks.objectives import OBJECTIVES


def write(setup: Setup, step: int) -> list[pathlib.Path]:
    """Write the predictions for every split but the training split; the files.

    All processes compute, the first one writes. Development sets are as the run's last evaluation
    had them; the parameters for the others, and for all where this process evaluated nothing, are
    those of the checkpoint of `step`, on the run's own mesh.

    Raises:
      ValueError: that checkpoint is damaged.
      OSError: a file cannot be written.
    """
    feed, folder = task_feed(setup), setup.workdir / PREDICTIONS
    logits = _known(setup)
    left = [split for split in feed.task.splits if split != "train" and split not in logits]
    if left:
        params = restore_params(setup.storage.checkpoints, step, setup.model, setup.mesh)
        logits_of = _logits(feed, setup)
        logits |= {split: _of_split(feed, setup, logits_of, params, split) for split in left}
    if jax.process_index() != 0:
        return []
    unfinished = folder.with_name(f"{PREDICTIONS}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    written = [
        path
        for split in feed.task.splits  # a test set after dev, whose threshold it takes
        if split in logits
        for path in feed.task.write_predictions(split, logits[split], unfinished)
    ]
    shutil.rmtree(folder, ignore_errors=True)  # those of before stay until there are others
    unfinished.rename(folder)  # whole: a grid takes a run that has the folder for finished
    return [folder / path.relative_to(unfinished) for path in written]


def task_feed(setup: Setup) -> TaskFeed:
    """The feed of a fine-tuning run."""
    if not isinstance(setup.feed, TaskFeed):
        raise TypeError(f"{setup.storage.address} holds a run without a task")
    return setup.feed


def _known(setup: Setup) -> dict[str, np.ndarray]:
    (phase,) = setup.phases
    return dict(phase.dev_logits) if isinstance(phase, TaskPhase) else {}


def _logits(feed: TaskFeed, setup: Setup) -> Callable[[Params, Batch], dict[str, Any]]:
    """By the program that evaluated the development sets, which is kept and not compiled again."""
    evaluate = eval_step(setup.model, OBJECTIVES[feed.task.kind])
    return lambda params, batch: {"logits": evaluate(params, dict(batch))["outputs"]}


def _of_split(
    feed: TaskFeed,
    setup: Setup,
    logits: Callable[[Params, Batch], dict[str, Any]],
    params: Params,
    split: str,
) -> np.ndarray:
    rows = feed.task.splits[split].labelled_as(feed.task.splits["train"])
    batch_size = feed.config.batch_size // feed.config.micro_batches
    of = params, setup.mesh, rows, batch_size, feed.pad_id, feed.positions_of_model
    found = inference.shown(
        inference.each_batch(logits, *of), rows.examples, f"predicting {split}", setup.screen
    )
    return inference.collected(found, rows.examples)["logits"]


def score_rows(setup: Setup, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Labels and texts of the development scores, each beside what knowing nothing scores."""
    task = task_feed(setup).task
    rows: list[tuple[str, str]] = []
    for name, value in summary.items():
        score = name.removeprefix("heldout_dev_")
        if score == name or score.endswith("loss"):
            continue
        known = f" (majority {task.baseline[score]:.3f})" if score in task.baseline else ""
        rows.append(("" if rows else "scores", f"{score} {value:.4f}{known}"))
    return rows
