"""Say what predicting new rows asks of a task; predict_table, _words and _answers do it.

Each reads its input once to the end before anything is computed, then a piece at a time.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from bert_jax.task_layer import TaskLayer
from data_pipeline.finetune import EncodedRows
from data_pipeline.vocab import Vocabulary

# Gives the logits of rows in their order, as tasks/task.py has their shapes; the second argument
# says how many of the rows, sentences or questions that a person counts they are.
LogitsOf = Callable[[EncodedRows, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Asked:
    """An input, and how it is to be read."""

    path: pathlib.Path
    layer: TaskLayer
    vocabulary: Vocabulary
    max_seq_length: int  # tokens of a row at most, [CLS] and [SEP] counted
    text_column: str | None = None  # None: that of the training
    second_text_column: str | None = None  # "": single texts
    null_threshold: float | None = None  # None: that of the training
    probabilities: str = "all"  # or best: of the predicted class alone


class Predicting(Protocol):
    """An input that was gone through once and is whole."""

    @property
    def unit(self) -> str:
        """What is counted: "rows"."""

    @property
    def total(self) -> int:
        """How many of them the input has."""

    def run(self, output: pathlib.Path, logits_of: LogitsOf) -> list[pathlib.Path]:
        """Write the predictions piece by piece into new files; return their places.

        Raises:
          ValueError: the input has changed since, or does not fit the output's format.
          OSError: a file cannot be read or written.
        """

    def account(self) -> list[tuple[str, str]]:
        """Return labels and texts for the closing lines, once all is written."""


def counted(total: int, unit: str, **findings: int) -> str:
    """Return "100 rows, 3 cut to 128 tokens": a count, and what was found where it was."""
    words = [f"{total:,} {unit}"]
    words += [f"{count:,} {name.replace('_', ' ')}" for name, count in findings.items() if count]
    return ", ".join(words)


def probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """float64[N,C]: softmax over the classes, rounded to six decimals."""
    from scipy import special  # here, as no start, help or refusal needs it

    return np.round(special.softmax(logits_NC.astype(np.float64), axis=-1), 6)


def check_ending(output: pathlib.Path, endings: tuple[str, ...], what: str) -> None:
    """Refuse an output whose ending names no format of the task.

    Raises:
      ValueError: names those that there are.
    """
    if output.suffix not in endings:
        raise ValueError(
            f"--output is {output}, which ends in {output.suffix!r}; {what} is written as "
            f"{' or '.join(endings)}"
        )
