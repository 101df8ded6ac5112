"""What is learned from the labels of a table: classes, or numbers in units of their spread."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bert_jax.tasks.label_scores import (
    ACCURACY,
    MACRO_F1,
    class_scores,
    majority_scores,
    number_scores,
)
from bert_jax.tasks.task import Scores
from bert_jax.tasks.tsv import Columns

_SCORES = (ACCURACY, MACRO_F1)
_SHOWN_CLASSES = 20
_SHOWN_CHARACTERS = 60


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes by name, and the labels of train and dev."""

    names: tuple[str, ...]
    labels: Mapping[str, Mapping[str, np.ndarray]]
    baseline: Scores
    notes: tuple[str, ...]

    @property
    def outputs(self) -> int:
        return len(self.names)

    def score(self, split: str, logits: np.ndarray) -> Scores:
        return class_scores(_SCORES, self.labels[split]["label_ids"], logits.argmax(axis=1))

    def columns(self, logits: np.ndarray) -> dict[str, list[str]]:
        """The class of each row, and the probability that the model gives it."""
        from scipy import special  # here, as no start, help or refusal needs it

        given = logits.argmax(axis=1)
        probabilities = special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
        return {
            "prediction": [self.names[number] for number in given],
            "probability": [f"{probability:.4f}" for probability in probabilities],
        }


def learn_classes(train: Columns, dev: Columns, column: str) -> Classes:
    """The classes of the training split, numbers in their order before words in theirs.

    Raises:
      ValueError: a row without a label, a label of dev that training does not have, by file and
        row; only one class.
    """
    counts = Counter(train.values[column])
    if len(counts) < 2:
        raise ValueError(
            f"{train.path} has the one label {next(iter(counts))!r:.60} under {column!r} in all "
            "its rows, and there is nothing to learn; name another column with "
            "config.data.label_column"
        )
    for columns in (train, dev):
        for i, label in enumerate(columns.values[column]):
            if not label:
                raise ValueError(
                    f"{columns.place(i)} has no label under {column!r}; fill it in, or leave the "
                    "row out"
                )
            if label not in counts:
                raise ValueError(
                    f"{columns.place(i)} has the label {label!r:.60}, which no row of {train.path} "
                    f"has; its labels are {_listed(sorted(counts))}: mend the row, or add such "
                    "rows to the training file"
                )
    names = tuple(sorted(counts, key=_by_number_then_word))
    number_of = {name: number for number, name in enumerate(names)}
    ids = {
        split: np.array([number_of[label] for label in columns.values[column]], np.int32)
        for split, columns in (("train", train), ("dev", dev))
    }
    shown = _listed([f"{name} ({counts[name]:,})" for name in names])
    return Classes(
        names=names,
        labels={split: {"label_ids": array} for split, array in ids.items()},
        baseline=majority_scores(_SCORES, ids["train"], ids["dev"]),
        notes=(f"{len(names)} classes of {column}: {shown}",),
    )


def _by_number_then_word(label: str) -> tuple[float, str]:
    try:
        number = float(label)
    except ValueError:
        return math.inf, label
    return (number if math.isfinite(number) else math.inf), label


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_CLASSES:,} more" if len(names) > _SHOWN_CLASSES else ""
    return ", ".join(name[:_SHOWN_CHARACTERS] for name in names[:_SHOWN_CLASSES]) + more


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers to predict; the model gives them as deviations from their mean."""

    mean: float
    deviation: float  # the standard one, of the training split
    values: Mapping[str, np.ndarray]  # float64[N] as they stand in the table
    names: tuple[str, ...] = ()
    outputs: int = 1

    @property
    def labels(self) -> dict[str, dict[str, np.ndarray]]:
        return {
            split: {"label_values": ((array - self.mean) / self.deviation).astype(np.float32)}
            for split, array in self.values.items()
        }

    @property
    def baseline(self) -> Scores:
        return number_scores(self.values["dev"], np.zeros_like(self.values["dev"]))

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"numbers of mean {self.mean:.4g} and standard deviation {self.deviation:.4g}",)

    def score(self, split: str, logits: np.ndarray) -> Scores:
        return number_scores(self.values[split], logits[:, 0])

    def columns(self, logits: np.ndarray) -> dict[str, list[str]]:
        """The number of each row, in the table's units."""
        values = logits[:, 0].astype(np.float64) * self.deviation + self.mean
        return {"prediction": [f"{value:.6g}" for value in values]}


def learn_numbers(train: Columns, dev: Columns, column: str) -> Numbers:
    """The numbers of both splits, and the mean and deviation of the training split.

    Raises:
      ValueError: a label that is no number, by file and row; all are the same.
    """
    values = {
        split: np.array(
            [_number(text, columns.place(i)) for i, text in enumerate(columns.values[column])]
        )
        for split, columns in (("train", train), ("dev", dev))
    }
    deviation = float(values["train"].std())
    if deviation == 0.0:
        raise ValueError(
            f"{train.path} has the same number under {column!r} in all its rows, and there is "
            "nothing to learn; name another column with config.data.label_column"
        )
    return Numbers(float(values["train"].mean()), deviation, values)


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{place} has the label {text!r:.60}, which is no number; mend the row, or set "
            "config.data.is_regression=False to learn classes"
        )
    return value
