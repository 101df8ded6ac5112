"""Open GLUE's nine tasks and the diagnostic set: rows, official scores, predictions to upload.

Names: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli; ax is mnli with the diagnostic set
required.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.config.schema import TaskOptions
from bert_jax.tasks.encode import encode_texts
from bert_jax.tasks.files import Columns, list_rows
from bert_jax.tasks.glue.data import INDEX, LABEL, SECOND, TEXT, read_files, read_tfds
from bert_jax.tasks.glue.specs import (
    DIAGNOSTIC,
    DIAGNOSTIC_LABELED,
    STSB_MAX,
    STSB_MIN,
    TASKS,
    GlueTask,
)
from bert_jax.tasks.labels import read_number
from bert_jax.tasks.metrics import MATTHEWS, score_constant, score_logits
from bert_jax.tasks.task import CLASSIFY, REGRESS, Example, Scores, Task
from data_pipeline.io.refused import Refused
from data_pipeline.vocab import Vocabulary

NAMES = (*TASKS, DIAGNOSTIC)


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read a task's files, check its labels and encode its rows."""
    if options.source not in ("files", "tfds"):
        raise Refused(f"config.data.source is {options.source!r}; it must be files or tfds")
    is_diagnostic = options.task == DIAGNOSTIC
    task = TASKS["mnli" if is_diagnostic else options.task]
    read = read_tfds if options.source == "tfds" else read_files
    texts = read(task, options, is_diagnostic)
    if options.train_examples > 0:
        texts["train"] = texts["train"].first(options.train_examples)
    labels = {
        split: _read_labels(task, columns)
        for split, columns in texts.items()
        if LABEL in columns.values
    }
    splits, notes = {}, list[str]()
    for split, columns in texts.items():
        if short := columns.short_rows:
            skipped = f"{len(short):,} rows are truncated in the file and skipped"
            notes.append(f"{split}: {skipped} (row {list_rows(short)})")
        seconds = columns.values.get(SECOND)
        encoded = encode_texts(columns.values[TEXT], seconds, vocabulary, options)
        notes += encoded.notes(split, options.max_seq_length)
        field = "label_values" if task.is_regression else "label_ids"
        splits[split] = encoded.labeled({field: labels[split]} if split in labels else {})

    def score(split: str, logits: np.ndarray) -> Scores:
        names, scored_as = [MATTHEWS], f"{DIAGNOSTIC}_"
        if split != DIAGNOSTIC_LABELED:
            names = list(task.scores)
            scored_as = next(file.scored_as for file in task.dev if file.split == split)
        return _rename(scored_as, score_logits(names, labels[split], logits))

    def format_predictions(split: str, logits: np.ndarray) -> dict[str, str]:
        return _format_predictions(task, split, texts[split].values[INDEX], logits)

    first, train = task.dev[0], texts["train"].values
    baseline = score_constant(task.scores, labels["train"], labels[first.split])
    return Task(
        name=task.name,
        kind=REGRESS if task.is_regression else CLASSIFY,
        classes=max(1, len(task.labels)),
        splits=splits,
        dev_splits=tuple(split for split in labels if split != "train"),
        score=score,
        main_score=first.scored_as + task.scores[0],
        baseline=_rename(first.scored_as, baseline),
        format_predictions=format_predictions,
        labels=task.labels,
        notes=tuple(notes),
        example=Example(
            tuple(train[role][0] for role in (TEXT, SECOND) if role in train), train[LABEL][0]
        ),
    )


def _read_labels(task: GlueTask, columns: Columns) -> np.ndarray:
    """Return int32[N] classes, or float32[N] scores."""
    texts = columns.values[LABEL]
    if task.is_regression:
        scores = [_read_score(text, columns.place(i)) for i, text in enumerate(texts)]
        return np.array(scores, np.float32)
    class_of = {label: number for number, label in enumerate(task.labels)}
    for i, label in enumerate(texts):
        if label not in class_of:
            raise Refused(
                f"{columns.place(i)} has the label {label!r:.60}; {task.name} has "
                f"{', '.join(task.labels)}: correct the row, or download the file again"
            )
    return np.array([class_of[label] for label in texts], np.int32)


def _read_score(text: str, place: str) -> float:
    value = read_number(text)
    if not STSB_MIN <= value <= STSB_MAX:
        raise Refused(
            f"{place} has the score {text!r:.60}; it must be a number from {STSB_MIN:g} to "
            f"{STSB_MAX:g}: correct the row, or download the file again"
        )
    return value


def _rename(scored_as: str, scores: Scores) -> Scores:
    return {scored_as + name: value for name, value in scores.items()}


def _format_predictions(
    task: GlueTask, split: str, indices: Sequence[str], logits: np.ndarray
) -> dict[str, str]:
    """Format predictions as the leaderboard takes them; development sets have names of their own.

    Source: gluebenchmark.com/faq, the format of a submission.
    """
    if task.is_regression:
        predictions = [f"{value:.3f}" for value in np.clip(logits[:, 0], STSB_MIN, STSB_MAX)]
    else:
        predictions = [task.labels[number] for number in logits.argmax(axis=1)]
    names = {file.split: file.predictions or task.name for file in task.test} | {DIAGNOSTIC: "AX"}
    lines = ["index\tprediction"]
    lines += [f"{index}\t{text}" for index, text in zip(indices, predictions, strict=True)]
    return {f"{names.get(split, f'{task.name}-{split}')}.tsv": "\n".join(lines) + "\n"}
