"""A table of one's own: texts or pairs of texts in columns, with classes or numbers to predict."""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Mapping

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.record_files import write_whole
from bert_jax.tasks import task as task_lib
from bert_jax.tasks.label_scores import ACCURACY, SPEARMAN
from bert_jax.tasks.split_files import DEV, TEST, TRAIN, refuse_other_sources, split_file
from bert_jax.tasks.table_files import SUFFIXES, column_names, read_table
from bert_jax.tasks.table_labels import Classes, Numbers, learn_classes, learn_numbers
from bert_jax.tasks.task import Task
from bert_jax.tasks.text_rows import text_rows
from bert_jax.tasks.tsv import Columns, listed
from data_pipeline.vocab import Vocabulary


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read train, dev and, where it is there, test out of options.dir, by the names of columns.

    Classes are the labels of the training split, numbers in their order and words in theirs.
    Numbers to predict are learned in units of their deviation from the mean of the training split.

    Raises:
      ValueError: a file or column that is missing, a label of dev that training does not have or
        one that is no number, by file and row; fewer than two classes; whatever else
        table_files.read_table refuses.
    """
    found = _read(options)
    learned: Classes | Numbers
    train, dev = found[TRAIN], found[DEV]
    if options.is_regression:
        learned = learn_numbers(train, dev, options.label_column)
    else:
        learned = learn_classes(train, dev, options.label_column)
    rows, notes = {}, list(learned.notes)
    for split, columns in found.items():
        seconds = columns.values[options.second_text_column] if options.second_text_column else None
        texts = columns.values[options.text_column]
        made = text_rows(texts, seconds, vocabulary, options.max_seq_length)
        notes += made.notes(split, options.max_seq_length)
        rows[split] = made.labelled(learned.labels.get(split, {}))
    numbers = {split: columns.row_numbers for split, columns in found.items()}
    units = (learned.mean, learned.deviation) if isinstance(learned, Numbers) else (0.0, 1.0)
    return Task(
        name=pathlib.Path(options.dir).expanduser().resolve().name,
        kind=task_lib.REGRESS if options.is_regression else task_lib.CLASSIFY,
        classes=learned.outputs,
        splits=rows,
        dev_splits=("dev",),
        score=learned.score,
        main_score=SPEARMAN if options.is_regression else ACCURACY,
        baseline=learned.baseline,
        write_predictions=_Writer(learned, numbers),
        labels=learned.names,
        notes=tuple(notes),
        mean=units[0],
        deviation=units[1],
    )


def _read(options: TaskOptions) -> dict[str, Columns]:
    """The columns of each split; a test set's without labels."""
    refuse_other_sources(options)
    texts = [name for name in (options.text_column, options.second_text_column) if name]
    found = {}
    for split in (TRAIN, DEV, TEST):
        path = split_file(options, split, [f"{split}{suffix}" for suffix in SUFFIXES])
        if path is None:
            continue
        if not options.text_column or not options.label_column:
            raise ValueError(
                "config.data.text_column and config.data.label_column must both be set; the "
                f"columns of {path} are {listed(column_names(path))}"
            )
        label = [] if split == TEST else [options.label_column]
        found[split] = read_table(path, [*texts, *label])
    return found


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes SPLIT.tsv: a row of the table, what is predicted for it, and how surely."""

    learned: Classes | Numbers
    row_numbers: Mapping[str, list[int]]

    def __call__(self, split: str, logits: np.ndarray, folder: pathlib.Path) -> list[pathlib.Path]:
        columns = self.learned.columns(logits)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{split}.tsv"
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(["row", *columns])
        writer.writerows(zip(self.row_numbers[split], *columns.values(), strict=True))
        write_whole(path, text.getvalue().encode())
        return [path]
