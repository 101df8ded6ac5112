"""Open a user's own table: texts or pairs of texts in columns, classes or numbers to predict.

Classes are the labels of the training split. Numbers are learned in standard deviations from the
mean of the training split.
"""

import dataclasses
import math
import pathlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.encode import encode_texts, join_windows
from bert_jax.tasks.files import (
    DEV,
    SUFFIXES,
    TEST,
    TRAIN,
    Columns,
    describe_missing,
    read_column_names,
    read_columns,
    read_splits,
    refuse_quoted,
)
from bert_jax.tasks.labels import check_labels, fold_text, read_number
from bert_jax.tasks.metrics import (
    ACCURACY,
    MACRO_F1,
    PEARSON,
    SPEARMAN,
    make_constant_logits,
    score_logits,
)
from bert_jax.tasks.table_pieces import format_tsv_line
from bert_jax.tasks.task import CLASSIFY, REGRESS, Example, Scores, Task
from data_pipeline.io import Refused
from data_pipeline.io.address import expand_home
from data_pipeline.io.small_files import list_names
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class TableTargets:
    """Hold the targets of train and dev: class ids, or numbers to predict."""

    values: Mapping[str, np.ndarray]  # class ids int32[N], or the table's numbers float64[N]
    note: str  # a line for the screen
    names: tuple[str, ...] = ()  # names of the classes; empty for numbers
    warnings: tuple[str, ...] = ()
    # The predicted number is logit * deviation + mean, both of the training split.
    mean: float = 0.0
    deviation: float = 1.0

    def labels(self, split: str) -> dict[str, np.ndarray]:
        """Return the labels of a split's rows; none of a test set."""
        if split not in self.values:
            return {}
        if self.names:
            return {"label_ids": self.values[split]}
        deviations = (self.values[split] - self.mean) / self.deviation
        return {"label_values": deviations.astype(np.float32)}

    def columns(self, logits: np.ndarray) -> dict[str, list[str]]:
        """Return the columns to write: predicted numbers, or classes and their probabilities."""
        if not self.names:
            return {"prediction": format_numbers(logits, self.mean, self.deviation)}
        from scipy import special  # imported here: --help and refusals do not need it

        probabilities = special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
        return {
            "prediction": [self.names[number] for number in logits.argmax(axis=1)],
            "probability": [f"{probability:.4f}" for probability in probabilities],
        }


def format_numbers(logits: np.ndarray, mean: float, deviation: float) -> list[str]:
    """Write predicted numbers, with six digits and as many more as the mean has over the deviation.

    Six alone would write all numbers around a large mean, such as times in seconds, as one.
    """
    digits = 5 + len(f"{abs(mean / (deviation or 1.0)):.0f}")
    values = logits[:, 0].astype(np.float64) * deviation + mean
    return [f"{value:.{digits}g}" for value in values]


def learn_classes(train: Columns, dev: Columns, column: str) -> TableTargets:
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
    return TableTargets(ids, f"{len(names)} classes of {column}: {counted}", names, warnings)


def _by_number_then_word(label: str) -> tuple[float, str]:
    number = read_number(label)
    return (number if math.isfinite(number) else math.inf), label


def learn_numbers(train: Columns, dev: Columns, column: str) -> TableTargets:
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
    note = f"numbers of mean {mean:.4g} and standard deviation {deviation:.4g}"
    return TableTargets(values, note, mean=mean, deviation=deviation)


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
    is_regression, label_column = options.is_regression, options.label_column
    texts = [name for name in (options.text_column, options.second_text_column) if name]

    def read(path: pathlib.Path, split: str) -> Columns:
        if not options.text_column or not label_column:
            raise Refused(
                "config.data.text_column and config.data.label_column must both be set; the "
                f"columns of {path} are {list_names(read_column_names(path))}"
            )
        columns = read_columns(path, texts if split == TEST else [*texts, label_column])
        refuse_quoted(columns)
        return columns

    names = {split: [f"{split}{suffix}" for suffix in SUFFIXES] for split in (TRAIN, DEV, TEST)}
    files = read_splits(options, names, read)
    learn = learn_numbers if is_regression else learn_classes
    targets = learn(files[TRAIN], files[DEV], label_column)
    kind = REGRESS if is_regression else CLASSIFY
    scores = (SPEARMAN, PEARSON) if is_regression else (ACCURACY, MACRO_F1)
    splits, windows, notes = {}, {}, [targets.note]
    warnings = [*targets.warnings]
    for split, columns in files.items():
        seconds = columns.values[options.second_text_column] if options.second_text_column else None
        firsts = columns.values[options.text_column]
        encoded = encode_texts(firsts, seconds, vocabulary, options)
        windows[split] = encoded.windows_N
        warnings += describe_missing(columns.path, columns.missing_rows)
        notes += encoded.notes(split, options.max_seq_length)
        splits[split] = encoded.labeled(targets.labels(split))

    # The functions below read `numbers`, not `files`, which they would keep in memory.
    numbers = {split: columns.row_numbers for split, columns in files.items()}

    def score(split: str, logits_RC: np.ndarray) -> Scores:
        logits_NC = join_windows(kind, logits_RC, windows[split])
        return score_logits(scores, targets.values[split], logits_NC)

    def format_predictions(split: str, logits_RC: np.ndarray) -> dict[str, str]:
        columns = targets.columns(join_windows(kind, logits_RC, windows[split]))
        rows = zip(numbers[split], *columns.values(), strict=True)
        lines = [format_tsv_line(map(str, row)) for row in (("row", *columns), *rows)]
        return {f"{split}.tsv": "".join(lines)}

    train, classes = files[TRAIN].values, len(targets.names) or 1
    constant = make_constant_logits(targets.values[TRAIN], classes, splits[DEV].examples)
    return Task(
        name=expand_home("config.data.dir", options.dir).resolve().name,
        kind=kind,
        classes=classes,
        splits=splits,
        dev_splits=(DEV,),
        score=score,
        main_score=scores[0],
        baseline=score(DEV, constant),
        format_predictions=format_predictions,
        labels=targets.names,
        notes=tuple(notes),
        warnings=tuple(warnings),
        example=Example(tuple(train[name][0] for name in texts), train[label_column][0]),
        mean=targets.mean,
        deviation=targets.deviation,
    )
