"""Open a user's own table: texts or pairs of texts in columns, classes or numbers to predict.

Classes are the labels of the training split. Numbers are learned in standard deviations from the
mean of the training split.
"""

import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.schema import TaskOptions
from bert_jax.tasks.encode import encode_texts, join_windows
from bert_jax.tasks.files import (
    DEV,
    SUFFIXES,
    TEST,
    TRAIN,
    Columns,
    describe_missing,
    read_column_names,
    read_table,
    split_file,
)
from bert_jax.tasks.labels import check_labels, fold_text, read_number
from bert_jax.tasks.metrics import (
    ACCURACY,
    MACRO_F1,
    SPEARMAN,
    score_classes,
    score_majority,
    score_numbers,
)
from bert_jax.tasks.table_pieces import format_tsv_line
from bert_jax.tasks.task import CLASSIFY, REGRESS, Example, Scores, Task
from data_pipeline.io.address import expand_home
from data_pipeline.io.atomic import write_file
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import list_names
from data_pipeline.vocab import Vocabulary

_SCORES = (ACCURACY, MACRO_F1)


@dataclasses.dataclass(frozen=True)
class Classes:
    """Hold the names of the classes, the labels of train and dev, and a line for the screen."""

    names: tuple[str, ...]
    ids: Mapping[str, np.ndarray]
    note: str
    warnings: tuple[str, ...]
    mean, deviation = 0.0, 1.0

    @property
    def labels(self) -> dict[str, dict[str, np.ndarray]]:
        return {split: {"label_ids": ids_N} for split, ids_N in self.ids.items()}

    @property
    def baseline(self) -> Scores:
        return score_majority(_SCORES, self.ids[TRAIN], self.ids[DEV])

    def score(self, split: str, logits: np.ndarray) -> Scores:
        return score_classes(_SCORES, self.ids[split], logits.argmax(axis=1))

    def columns(self, logits: np.ndarray) -> dict[str, list[str]]:
        """Return the columns to write: the predicted class of each row and its probability."""
        from scipy import special  # here: --help and refusals do not need it

        probabilities = special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
        return {
            "prediction": [self.names[number] for number in logits.argmax(axis=1)],
            "probability": [f"{probability:.4f}" for probability in probabilities],
        }


def learn_classes(train: Columns, dev: Columns, column: str) -> Classes:
    """Collect the classes of the training split: numeric labels in order, then words in order."""
    counts = Counter(train.values[column])
    if len(counts) < 2:
        raise Refused(
            f"{train.path} has only the label {next(iter(counts))!r:.60} under {column!r} in all "
            "its rows, so there is nothing to learn; name another column with "
            "config.data.label_column"
        )
    for columns in (train, dev):
        for i, label in enumerate(columns.values[column]):
            if not fold_text(label):
                raise Refused(
                    f"{columns.place(i)} has no label under {column!r}; fill it in, or remove "
                    "the row"
                )
            if label not in counts:
                raise Refused(
                    f"{columns.place(i)} has the label {label!r:.60}, which no row of {train.path} "
                    f"has; its labels are {list_names(sorted(counts))}: correct the row, or add "
                    "such rows to the training file"
                )
    places = ((label, train.place(i)) for i, label in enumerate(train.values[column]))
    warnings = check_labels(places, column)
    names = tuple(sorted(counts, key=_by_number_then_word))
    number_of = {name: number for number, name in enumerate(names)}
    ids = {
        split: np.array([number_of[label] for label in columns.values[column]], np.int32)
        for split, columns in ((TRAIN, train), (DEV, dev))
    }
    counted = list_names([f"{name} ({counts[name]:,})" for name in names])
    return Classes(names, ids, f"{len(names)} classes of {column}: {counted}", warnings)


def _by_number_then_word(label: str) -> tuple[float, str]:
    number = read_number(label)
    return (number if math.isfinite(number) else math.inf), label


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Hold numbers to predict; a logit is a number of standard deviations from their mean."""

    values: Mapping[str, np.ndarray]  # float64[N] as they are in the table
    mean: float
    deviation: float  # the standard deviation of the training split
    names, warnings = (), ()

    @property
    def labels(self) -> dict[str, dict[str, np.ndarray]]:
        return {
            split: {"label_values": ((array - self.mean) / self.deviation).astype(np.float32)}
            for split, array in self.values.items()
        }

    @property
    def baseline(self) -> Scores:
        return score_numbers(self.values[DEV], np.zeros_like(self.values[DEV]))

    @property
    def note(self) -> str:
        return f"numbers of mean {self.mean:.4g} and standard deviation {self.deviation:.4g}"

    def score(self, split: str, logits: np.ndarray) -> Scores:
        return score_numbers(self.values[split], logits[:, 0])

    def columns(self, logits: np.ndarray) -> dict[str, list[str]]:
        """Return the column to write: the predicted number of each row."""
        values = logits[:, 0].astype(np.float64) * self.deviation + self.mean
        return {"prediction": [f"{value:.6g}" for value in values]}


def learn_numbers(train: Columns, dev: Columns, column: str) -> Numbers:
    """Read the numbers of both splits; refuse a label that is not a number, or all the same."""
    values = {
        split: np.array(
            [_number(text, columns.place(i)) for i, text in enumerate(columns.values[column])]
        )
        for split, columns in ((TRAIN, train), (DEV, dev))
    }
    least, greatest = values[TRAIN].min(), values[TRAIN].max()
    if least == greatest:  # the deviation would be a rounding error, not 0
        raise Refused(
            f"{train.path} has the same number under {column!r} in all its rows, so there is "
            "nothing to learn; name another column with config.data.label_column"
        )
    with np.errstate(all="ignore"):  # refused below
        mean, deviation = float(values[TRAIN].mean()), float(values[TRAIN].std())
    if not 0.0 < deviation < math.inf:
        raise Refused(
            f"{train.path} has numbers from {least:.4g} to {greatest:.4g} under {column!r}, and "
            f"their standard deviation comes to {deviation}, so that they cannot be scaled; remove "
            "rows whose number stands for a missing one, or write the numbers in another unit"
        )
    return Numbers(values, mean, deviation)


def _number(text: str, place: str) -> float:
    value = read_number(text)
    if not math.isfinite(value):
        raise Refused(
            f"{place} has the label {text!r:.60}, which is not a number; correct the row, or set "
            "config.data.is_regression=False to learn classes"
        )
    return value


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read train, dev and, if there is one, test from config.data.dir."""
    files = _read(options)
    is_regression = options.is_regression
    learn = learn_numbers if is_regression else learn_classes
    learned = learn(files[TRAIN], files[DEV], options.label_column)
    kind = REGRESS if is_regression else CLASSIFY
    splits, windows, notes = {}, {}, [learned.note]
    warnings = [*learned.warnings]
    for split, columns in files.items():
        seconds = columns.values[options.second_text_column] if options.second_text_column else None
        texts = columns.values[options.text_column]
        encoded = encode_texts(texts, seconds, vocabulary, options)
        windows[split] = encoded.windows_N
        warnings += describe_missing(columns.path, columns.missing_rows)
        notes += encoded.notes(split, options.max_seq_length)
        splits[split] = encoded.labeled(learned.labels.get(split, {}))
    numbers = {split: columns.row_numbers for split, columns in files.items()}

    def score(split: str, logits_RC: np.ndarray) -> Scores:
        return learned.score(split, join_windows(kind, logits_RC, windows[split]))

    def write_predictions(
        split: str, logits_RC: np.ndarray, folder: pathlib.Path
    ) -> list[pathlib.Path]:
        columns = learned.columns(join_windows(kind, logits_RC, windows[split]))
        return [_write_columns(folder / f"{split}.tsv", {"row": numbers[split], **columns})]

    return Task(
        name=expand_home("config.data.dir", options.dir).resolve().name,
        kind=kind,
        classes=len(learned.names) or 1,
        splits=splits,
        dev_splits=(DEV,),
        score=score,
        main_score=SPEARMAN if is_regression else ACCURACY,
        baseline=learned.baseline,
        write_predictions=write_predictions,
        labels=learned.names,
        notes=tuple(notes),
        warnings=tuple(warnings),
        example=_take_example(files[TRAIN], options),
        mean=learned.mean,
        deviation=learned.deviation,
    )


def _read(options: TaskOptions) -> dict[str, Columns]:
    """Read the columns of each split; a test set has no labels."""
    texts = [name for name in (options.text_column, options.second_text_column) if name]
    files = {}
    for split in (TRAIN, DEV, TEST):
        path = split_file(options, split, [f"{split}{suffix}" for suffix in SUFFIXES])
        if path is None:
            continue
        if not options.text_column or not options.label_column:
            raise Refused(
                "config.data.text_column and config.data.label_column must both be set; the "
                f"columns of {path} are {list_names(read_column_names(path))}"
            )
        label = [] if split == TEST else [options.label_column]
        files[split] = read_table(path, [*texts, *label])
    return files


def _take_example(train: Columns, options: TaskOptions) -> Example:
    names = (options.text_column, options.second_text_column, options.label_column)
    *texts, label = [train.values[name][0] for name in names if name]
    return Example(tuple(texts), label)


def _write_columns(path: pathlib.Path, columns: Mapping[str, Sequence[object]]) -> pathlib.Path:
    """Write a tsv: the number of each row, its prediction and its probability."""
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    lines = [format_tsv_line(map(str, row)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(lines).encode())
    return path
