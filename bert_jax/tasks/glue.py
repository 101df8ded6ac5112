"""GLUE: the nine tasks and the diagnostic set, as rows, official scores and predictions to upload.

Tasks by name: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli; ax is mnli, and asks for the
diagnostic set beside it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.record_files import write_whole
from bert_jax.tasks import task as task_lib
from bert_jax.tasks.glue_files import Examples, read_files
from bert_jax.tasks.glue_tasks import (
    DIAGNOSTIC,
    DIAGNOSTIC_LABELLED,
    STSB_LEAST,
    STSB_MOST,
    TASKS,
    GlueTask,
)
from bert_jax.tasks.glue_tfds import read_tfds
from bert_jax.tasks.label_scores import (
    MATTHEWS,
    class_scores,
    majority_scores,
    number_scores,
)
from bert_jax.tasks.task import Scores, Task
from bert_jax.tasks.text_rows import text_rows
from data_pipeline.finetune import EncodedRows
from data_pipeline.vocab import Vocabulary

NAMES = (*TASKS, DIAGNOSTIC)
_SHOWN_ROWS = 3


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read a task's files, check its labels, and make its rows.

    Raises:
      ValueError: a file or column that is missing, a label outside the task's, named by file and
        row, and whatever else tsv.read_columns refuses.
    """
    if options.task not in NAMES:
        raise ValueError(
            f"config.data.task is {options.task!r}; the tasks of GLUE are {', '.join(NAMES)}"
        )
    if options.source not in ("files", "tfds"):
        raise ValueError(f"config.data.source is {options.source!r}; it must be files or tfds")
    is_diagnostic = options.task == DIAGNOSTIC
    task = TASKS["mnli" if is_diagnostic else options.task]
    read = read_tfds if options.source == "tfds" else read_files
    found = read(task, options, is_diagnostic)
    if options.train_examples > 0:
        found["train"] = found["train"].first(options.train_examples)
    labels = {
        split: _labels(task, examples)
        for split, examples in found.items()
        if examples.labels is not None
    }
    rows, notes = _rows(found, labels, options, vocabulary)
    return _task(task, found, rows, labels, notes)


def _labels(task: GlueTask, examples: Examples) -> np.ndarray:
    """int32[N] classes, or float32[N] scores."""
    texts = examples.labels or []
    if task.is_regression:
        return np.array(
            [_number(text, examples.place(i)) for i, text in enumerate(texts)], np.float32
        )
    class_of = {label: number for number, label in enumerate(task.labels)}
    for i, label in enumerate(texts):
        if label not in class_of:
            raise ValueError(
                f"{examples.place(i)} has the label {label!r:.60}; {task.name} has "
                f"{', '.join(task.labels)}: mend the row, or download the file again"
            )
    return np.array([class_of[label] for label in texts], np.int32)


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not STSB_LEAST <= value <= STSB_MOST:
        raise ValueError(
            f"{place} has the score {text!r:.60}; it must be a number from {STSB_LEAST:g} to "
            f"{STSB_MOST:g}: mend the row, or download the file again"
        )
    return value


def _rows(
    found: Mapping[str, Examples],
    labels: Mapping[str, np.ndarray],
    options: TaskOptions,
    vocabulary: Vocabulary,
) -> tuple[dict[str, EncodedRows], list[str]]:
    """The rows of each split, and what was found in them."""
    rows, notes = {}, list[str]()
    for split, examples in found.items():
        if examples.short_rows:
            shown = ", ".join(f"{number:,}" for number in examples.short_rows[:_SHOWN_ROWS])
            more = " ..." if len(examples.short_rows) > _SHOWN_ROWS else ""
            notes.append(
                f"{split}: {len(examples.short_rows):,} rows are cut short in the file and left "
                f"out (row {shown}{more})"
            )
        made = text_rows(examples.texts, examples.second_texts, vocabulary, options.max_seq_length)
        notes += made.notes(split, options.max_seq_length)
        rows[split] = made.rows
        if split in labels:
            is_number = labels[split].dtype == np.float32
            rows[split] = made.labelled(
                {"label_values" if is_number else "label_ids": labels[split]}
            )
    return rows, notes


def _task(
    task: GlueTask,
    found: Mapping[str, Examples],
    rows: Mapping[str, EncodedRows],
    labels: Mapping[str, np.ndarray],
    notes: list[str],
) -> Task:
    first = labels[task.dev[0].split]
    if task.is_regression:
        baseline = number_scores(first, np.full_like(first, labels["train"].mean()))
    else:
        baseline = majority_scores(task.scores, labels["train"], first)
    dev = [file.split for file in task.dev]
    if DIAGNOSTIC_LABELLED in rows:
        dev.append(DIAGNOSTIC_LABELLED)
    return Task(
        name=task.name,
        kind=task_lib.REGRESS if task.is_regression else task_lib.CLASSIFY,
        classes=max(1, len(task.labels)),
        splits=rows,
        dev_splits=tuple(dev),
        score=_Scorer(task, labels),
        main_score=task.dev[0].scored_as + task.scores[0],
        baseline=_named(task.dev[0].scored_as, baseline),
        write_predictions=_Writer(task, {split: one.indices for split, one in found.items()}),
        labels=task.labels,
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class _Scorer:
    """The official scores of a development set."""

    task: GlueTask
    labels: Mapping[str, np.ndarray]

    def __call__(self, split: str, logits: np.ndarray) -> Scores:
        if split == DIAGNOSTIC_LABELLED:
            scores = class_scores([MATTHEWS], self.labels[split], logits.argmax(axis=1))
            return _named(f"{DIAGNOSTIC}_", scores)
        if self.task.is_regression:
            return number_scores(self.labels[split], logits[:, 0])
        scores = class_scores(self.task.scores, self.labels[split], logits.argmax(axis=1))
        scored_as = {file.split: file.scored_as for file in self.task.dev}
        return _named(scored_as[split], scores)


def _named(scored_as: str, scores: Scores) -> Scores:
    return {scored_as + name: value for name, value in scores.items()}


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Predictions in the leaderboard's format; those of development sets under names of their own.

    Source: gluebenchmark.com/faq, the format of a submission.
    """

    task: GlueTask
    indices: Mapping[str, list[str]]

    def __call__(self, split: str, logits: np.ndarray, folder: pathlib.Path) -> list[pathlib.Path]:
        path = folder / f"{_file_name(self.task, split)}.tsv"
        lines = ["index\tprediction"]
        if self.task.is_regression:
            given = [f"{value:.3f}" for value in np.clip(logits[:, 0], STSB_LEAST, STSB_MOST)]
        else:
            given = [self.task.labels[number] for number in logits.argmax(axis=1)]
        lines += [f"{i}\t{text}" for i, text in zip(self.indices[split], given, strict=True)]
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, ("\n".join(lines) + "\n").encode())
        return [path]


def _file_name(task: GlueTask, split: str) -> str:
    if split == DIAGNOSTIC:
        return "AX"
    for file in task.test:
        if file.split == split:
            return file.predictions or task.name
    return f"{task.name}-{split}"
