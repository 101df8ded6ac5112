"""Define how new rows are predicted; predict_table, ner/predict and squad/predict do it.

Each reads its input once to the end, so that damage is found before anything is computed, and then
again piece by piece.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import numpy as np

from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import EncodedRows
from data_pipeline.vocab import Vocabulary

# (rows, their count of rows, sentences or questions in the input) -> logits in the order of the
# rows; tasks/task.py has the shapes.
ComputeLogits = Callable[[EncodedRows, int], np.ndarray]

Piece = TypeVar("Piece")


@dataclasses.dataclass(frozen=True)
class PredictRequest:
    """Name an input and an output, and say how to read and predict it."""

    path: pathlib.Path
    output: pathlib.Path
    layer: TaskLayer
    vocabulary: Vocabulary
    text_column: str | None = None  # None: as in training
    second_text_column: str | None = None  # "": single texts
    null_threshold: float | None = None  # None: as chosen in training
    probabilities: str = "all"  # "all" classes', or the "best" alone


class Predictor(Protocol):
    """Predict an input that was read once and is undamaged."""

    unit: str  # the counted thing, such as "rows"
    total: int  # how many of them the input has

    def run(self, compute_logits: ComputeLogits) -> list[pathlib.Path]:
        """Write the predictions piece by piece into new files; return their paths.

        Raises:
          Refused: the input has changed since, or does not fit the output's format.
        """

    def summary_rows(self) -> list[tuple[str, str]]:
        """Return labels and texts for the closing lines, after `run`."""


def reread(
    pieces: Iterable[Piece], size: Callable[[Piece], int], total: int, path: pathlib.Path
) -> Iterator[Piece]:
    """Yield the pieces of an input that is read again; refuse one that was changed meanwhile.

    size counts a piece's share of the total.
    """
    done = 0
    for piece in pieces:
        done += size(piece)
        if done > total:
            break
        yield piece
    if done != total:
        raise Refused(f"{path} was changed while it was read; start again")


def group_by_size(
    items: Iterable[Piece], measure: Callable[[Piece], tuple[int, int]], most: tuple[int, int]
) -> Iterator[list[Piece]]:
    """Yield groups of consecutive items, each at most `most` in both measures, or a single item."""
    group: list[Piece] = []
    total = 0, 0
    for item in items:
        sizes = measure(item)
        if group and any(a + b > limit for a, b, limit in zip(total, sizes, most, strict=True)):
            yield group
            group, total = [], (0, 0)
        group.append(item)
        total = total[0] + sizes[0], total[1] + sizes[1]
    if group:
        yield group


def describe_count(total: int, unit: str, findings: Mapping[str, int]) -> str:
    """Write "100 rows, 3 cut to 128 tokens": a total, then the findings that are not 0."""
    words = [f"{count:,} {name}" for name, count in findings.items() if count]
    return ", ".join([f"{total:,} {unit}", *words])


def probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Compute the softmax over the classes, float64[N,C], rounded to six decimals."""
    from scipy import special  # imported here: --help and refusals do not need it

    return np.round(special.softmax(logits_NC.astype(np.float64), axis=-1), 6)


def check_request(
    request: PredictRequest, endings: tuple[str, ...], content: str, least_tokens: int
) -> None:
    """Refuse an output whose extension is not a format of the task, and rows too short for text."""
    ending = request.output.suffix
    if ending not in endings:
        raise Refused(
            f"--output is {request.output}, which ends in {ending!r}; {content} is written as "
            f"{' or '.join(endings)}"
        )
    most_tokens = request.layer.options.max_seq_length
    if most_tokens < least_tokens:
        raise Refused(
            f"--max_seq_length is {most_tokens}; rows of {content} need {least_tokens} "
            "tokens or more"
        )
