"""Open GLUE's nine tasks and the diagnostic set: rows, official scores, predictions to upload.

Names: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli; ax is mnli with the diagnostic set
required. Examples come from the tsv files, or from TensorFlow Datasets (TFDS) on this machine:
nothing is downloaded. TFDS numbers labels in its own order, so they are read by name.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.encode import encode_texts
from bert_jax.tasks.files import TSV, Columns, list_rows, read_columns
from bert_jax.tasks.glue.specs import (
    DIAGNOSTIC,
    DIAGNOSTIC_FILES,
    DIAGNOSTIC_FOLDER,
    DIAGNOSTIC_LABELED,
    STSB_MAX,
    STSB_MIN,
    TASKS,
    TRAIN,
    GlueTask,
    SplitFile,
)
from bert_jax.tasks.labels import read_number
from bert_jax.tasks.metrics import MATTHEWS, make_constant_logits, score_logits
from bert_jax.tasks.task import CLASSIFY, REGRESS, Example, Scores, Task
from data_pipeline.io import Refused
from data_pipeline.io.address import expand_home
from data_pipeline.read.tfds import open_builder
from data_pipeline.vocab import Vocabulary

NAMES = (*TASKS, DIAGNOSTIC)
# Our names of a split's columns. A task of single sentences has no SECOND, a test set no LABEL;
# INDEX numbers the predictions.
TEXT, SECOND, LABEL, INDEX = "text", "second", "label", "index"
_BATCH_EXAMPLES = 1024  # read from TFDS at once
# Text columns whose names in TFDS differ from the files' names.
_TEXTS_IN_TFDS = {"MNLI": ("premise", "hypothesis"), "MRPC": ("sentence1", "sentence2")}
_DIAGNOSTIC_CONFIG = "glue/ax"


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

    # The functions below read `indices`, not `texts`, which they would keep in memory.
    indices = {split: columns.values[INDEX] for split, columns in texts.items()}
    prefixes = {file.split: file.scored_as for file in task.dev}
    prefixes[DIAGNOSTIC_LABELED] = f"{DIAGNOSTIC}_"

    def score(split: str, logits: np.ndarray) -> Scores:
        names = [MATTHEWS] if split == DIAGNOSTIC_LABELED else task.scores
        scores = score_logits(names, labels[split], logits)
        return {prefixes[split] + name: value for name, value in scores.items()}

    def format_predictions(split: str, logits: np.ndarray) -> dict[str, str]:
        return _format_predictions(task, split, indices[split], logits)

    first, train = task.dev[0], texts["train"].values
    classes = max(1, len(task.labels))
    constant = make_constant_logits(labels["train"], classes, splits[first.split].examples)
    return Task(
        name=task.name,
        kind=REGRESS if task.is_regression else CLASSIFY,
        classes=classes,
        splits=splits,
        dev_splits=tuple(split for split in labels if split != "train"),
        score=score,
        main_score=first.scored_as + task.scores[0],
        baseline=score(first.split, constant),
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
    known: dict[str, float] = {label: number for number, label in enumerate(task.labels)}
    allowed = ", ".join(task.labels)
    if task.is_regression:
        numbers = {text: read_number(text) for text in texts}
        known = {text: value for text, value in numbers.items() if STSB_MIN <= value <= STSB_MAX}
        allowed = f"numbers from {STSB_MIN:g} to {STSB_MAX:g}"
    for i, text in enumerate(texts):
        if text not in known:
            raise Refused(
                f"{columns.place(i)} has the label {text!r:.60}; {task.name} has {allowed}: "
                "correct the row, or download the file again"
            )
    dtype = np.float32 if task.is_regression else np.int32
    return np.array([known[text] for text in texts], dtype)


def _format_predictions(
    task: GlueTask, split: str, indices: Sequence[str], logits: np.ndarray
) -> dict[str, str]:
    """Format predictions for the leaderboard; files of development sets are named after the split.

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


def read_files(
    task: GlueTask, options: TaskOptions, needs_diagnostic: bool = False
) -> dict[str, Columns]:
    """Read the examples of each split; test and diagnostic sets only where their files exist."""
    folder = _find_folder(task, options)
    splits = {}
    for files, given, is_labeled in (
        ((TRAIN,), options.train_file, True),
        (task.dev, options.dev_file, True),
        (task.test, options.test_file, False),
    ):
        for number, file in enumerate(files):
            is_given = number == 0 and bool(given)
            path = folder / (given if is_given else file.file)
            if path.is_file():
                drops_short_rows = task.drops_short_rows and file is TRAIN
                splits[file.split] = _read_split(task, path, is_labeled, drops_short_rows)
            elif is_given or is_labeled:
                raise Refused(
                    f"{path} is missing, the {file.split} set of {task.name}; copy it there, or "
                    "name another file of that folder (config.data.dev_file, test_file)"
                )
    if task.name == "MNLI":
        splits |= _read_diagnostic(task, folder, needs_diagnostic)
    return splits


def _find_folder(task: GlueTask, options: TaskOptions) -> pathlib.Path:
    """Find the folder of the training file: options.dir, or the task's folder in it."""
    folder = expand_home("config.data.dir", options.dir)
    name = options.train_file or TRAIN.file
    for place in (folder, folder / task.name):
        if (place / name).is_file():
            return place
    raise Refused(
        f"config.data.dir is {options.dir}, and there is no {folder / name} and no "
        f"{folder / task.name / name}; give the folder that GLUE's {task.name} was unpacked to"
    )


def _read_split(
    task: GlueTask, path: pathlib.Path, is_labeled: bool, drops_short_rows: bool = False
) -> Columns:
    label, headers = (task.label, task.headers) if is_labeled else ("", ())
    how_to_fix = "is it the file of another task, or without its header?"
    if headers:
        how_to_fix = f"give a file of {task.name}, whose rows have {len(headers[0])} fields"
    columns = read_columns(
        path,
        [name for name in (task.text, task.second, label) if name],
        how_to_fix,
        suffix=TSV,
        headers=headers,
        also=[task.index],
        drops_short_rows=drops_short_rows,
    )
    roles = {TEXT: task.text, SECOND: task.second, LABEL: label, INDEX: task.index}
    values = {role: columns.values[name] for role, name in roles.items() if name in columns.values}
    values.setdefault(INDEX, [str(number) for number in range(len(columns.row_numbers))])
    return dataclasses.replace(columns, values=values)


def _read_diagnostic(task: GlueTask, folder: pathlib.Path, is_needed: bool) -> dict[str, Columns]:
    """Read the parts of the diagnostic set that exist, in the task's folder or next to it."""
    labeled = dataclasses.replace(task, text="Premise", second="Hypothesis", label="Label")
    places = (folder / DIAGNOSTIC_FOLDER, folder.parent / DIAGNOSTIC_FOLDER, folder)
    splits = {}
    for split, name in DIAGNOSTIC_FILES.items():
        path = next((place / name for place in places if (place / name).is_file()), None)
        is_labeled = split == DIAGNOSTIC_LABELED
        if path is not None:
            splits[split] = _read_split(labeled if is_labeled else task, path, is_labeled)
    if is_needed and DIAGNOSTIC not in splits:
        raise Refused(
            f"{places[1] / DIAGNOSTIC_FILES[DIAGNOSTIC]} is missing, the diagnostic set that the "
            "task ax requires; copy it there, or use the task mnli"
        )
    return splits


def read_tfds(
    task: GlueTask, options: TaskOptions, needs_diagnostic: bool = False
) -> dict[str, Columns]:
    """Read the splits of the newest version of glue/TASK in TFDS_DATA_DIR."""
    if options.dir or options.train_file or options.dev_file or options.test_file:
        raise Refused(
            "config.data.source is tfds, and config.data.dir or a file is set as well; TFDS reads "
            "the folder of the environment variable TFDS_DATA_DIR: leave them empty"
        )
    columns = _TEXTS_IN_TFDS.get(task.name, (task.text, task.second))
    builder = _open_config("glue/" + task.name.lower().replace("-", ""))
    splits = {
        file.split: _tfds_split(task, builder, file, columns, is_labeled=file not in task.test)
        for file in (TRAIN, *task.dev, *task.test)
    }
    if task.name == "MNLI":
        try:
            builder = _open_config(_DIAGNOSTIC_CONFIG)
        except ValueError:
            if needs_diagnostic:
                raise
        else:
            file = SplitFile(DIAGNOSTIC, "", "test")
            splits[DIAGNOSTIC] = _tfds_split(task, builder, file, columns, is_labeled=False)
    return splits


def _open_config(config: str) -> Any:
    return open_builder(config, f"config.data.source is tfds, and {config}")


def _tfds_split(
    task: GlueTask, builder: Any, file: SplitFile, columns: tuple[str, str], is_labeled: bool
) -> Columns:
    import tensorflow_datasets as tfds

    if file.tfds_split not in builder.info.splits:
        raise Refused(
            f"{builder.data_path} has no split {file.tfds_split!r}; its splits are "
            f"{', '.join(builder.info.splits)}: prepare the data set of TFDS again"
        )
    feature = builder.info.features["label"]
    has_names = bool(task.labels) and not task.labels[0].isdigit()
    names = {TEXT: columns[0], SECOND: columns[1], LABEL: "label" if is_labeled else ""}
    values: dict[str, list[str]] = {role: [] for role, name in names.items() if name}
    indices = list[int]()
    stored = builder.as_dataset(split=file.tfds_split, shuffle_files=False)
    for batch in tfds.as_numpy(stored.batch(_BATCH_EXAMPLES)):
        indices += map(int, batch["idx"])
        for role, texts in values.items():
            array = batch[names[role]]
            if role != LABEL:
                texts += [text.decode() for text in array]
            else:
                texts += [feature.int2str(int(each)) if has_names else str(each) for each in array]
    # TFDS shuffles when it prepares; the leaderboard requires rows in the order of their index.
    order = list(range(len(indices)))
    if not is_labeled:
        order.sort(key=indices.__getitem__)
    values[INDEX] = [str(index) for index in indices]
    values = {role: [texts[i] for i in order] for role, texts in values.items()}
    numbers = list(range(1, len(order) + 1))
    path = builder.data_path.with_name(f"{builder.data_path.name} split {file.tfds_split}")
    return Columns(path, values, numbers)
