"""Predict classes, numbers or choices for the rows of a table: of GLUE, SWAG, CODAH or one's own.

The table's columns stand before what is predicted: `prediction`; of classes and choices also
`probability`, that of the prediction, and `probability_LABEL` of each.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bert_jax.tasks import codah, swag, table_pieces
from bert_jax.tasks.glue_tasks import DIAGNOSTIC, STSB_LEAST, STSB_MOST, TASKS
from bert_jax.tasks.multiple_choice import CHOICES
from bert_jax.tasks.predicting import Asked, LogitsOf, counted, probabilities
from bert_jax.tasks.table_files import TSV, column_names
from bert_jax.tasks.table_pieces import TablePiece, TableWriter
from bert_jax.tasks.task import CHOOSE, REGRESS
from bert_jax.tasks.text_rows import text_rows
from bert_jax.tasks.tsv import listed
from data_pipeline.finetune import EncodedRows
from data_pipeline.whole_file import whole_file

PREDICTION, PROBABILITY = "prediction", "probability"
_WAY_OUT = "name the columns of texts with --text_column and --second_text_column"
_MOST_DIGITS = 6  # of a predicted number

Texts = tuple[list[str], list[str] | None]  # of rows, and the second ones of pairs


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which columns hold the texts, and what a row of the model is made of."""

    wanted: tuple[str, ...]
    texts: Callable[[Mapping[str, list[str]]], Texts]
    is_pair: bool
    headers: tuple[tuple[str, ...], ...] = ()  # of tsv files whose first row is data


def layout(asked: Asked) -> Layout:
    """Return the columns that the task's own files have, or those that were named.

    Raises:
      ValueError: nobody says which column has the texts.
    """
    if asked.layer.kind == CHOOSE:
        return _choices(asked)
    options = asked.layer.options
    name = "mnli" if options.task == DIAGNOSTIC else options.task
    first, second = options.text_column, options.second_text_column
    headers: tuple[tuple[str, ...], ...] = ()
    if name in TASKS:
        first, second = TASKS[name].text, TASKS[name].second
        headers = (TASKS[name].header,) if TASKS[name].header else ()
    if asked.text_column is not None:
        first = asked.text_column
    if asked.second_text_column is not None:
        second = asked.second_text_column
    if not first:
        raise ValueError(
            f"--text_column is missing: the column of {asked.path} with the texts; its columns "
            f"are {listed(column_names(asked.path))}"
        )

    def texts(columns: Mapping[str, list[str]]) -> Texts:
        return columns[first], columns[second] if second else None

    return Layout((first, second) if second else (first,), texts, bool(second), headers)


def _choices(asked: Asked) -> Layout:
    """Return the columns of SWAG or CODAH; of a model of somebody else's by the file's ending."""
    name = asked.layer.options.task
    headers: tuple[tuple[str, ...], ...] = ()
    if name == "codah" or (not name and asked.path.suffix == TSV):
        wanted = codah.COLUMNS[1:-1]  # the prompt and its endings
        headers = (codah.COLUMNS, codah.COLUMNS[:-1])  # of a test set perhaps without answers

        def parts(columns: Mapping[str, list[str]], number: int) -> tuple[list[str], list[str]]:
            return columns["prompt"], columns[f"ending{number}"]
    else:
        wanted = swag.COLUMNS

        def parts(columns: Mapping[str, list[str]], number: int) -> tuple[list[str], list[str]]:
            endings = columns[f"ending{number}"]
            pairs = zip(columns["sent2"], endings, strict=True)
            return columns["sent1"], [f"{second} {ending}" for second, ending in pairs]

    def texts(columns: Mapping[str, list[str]]) -> Texts:
        choices = [parts(columns, number) for number in range(CHOICES)]
        firsts = [text for row in zip(*(one for one, _ in choices), strict=True) for text in row]
        seconds = [text for row in zip(*(two for _, two in choices), strict=True) for text in row]
        return firsts, seconds

    return Layout(tuple(wanted), texts, True, headers)


class PredictTable:
    """A table to predict."""

    unit = "rows"

    def __init__(self, asked: Asked, output: pathlib.Path, show: table_pieces.Show) -> None:
        """Go through the whole input.

        Raises:
          ValueError: a missing column, a row that cannot be read, an output of no format.
        """
        table_pieces.check_output(output)
        self._asked, self._layout = asked, layout(asked)
        least = 5 + self._layout.is_pair
        if asked.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length is {asked.max_seq_length}; such rows need {least} at least"
            )
        wanted, headers = self._layout.wanted, self._layout.headers
        self._table = table_pieces.open_table(asked.path, wanted, _WAY_OUT, headers, show)
        self._new = table_pieces.free_names(self._table.names, list(self._kinds()))
        self._cut = self._empty = self._replaced = 0

    @property
    def total(self) -> int:
        """Rows of the table."""
        return self._table.rows

    def _kinds(self) -> dict[str, pa.DataType]:
        """Return the new columns and their types."""
        layer = self._asked.layer
        if layer.kind == REGRESS:
            return {PREDICTION: pa.float64()}
        kinds = {
            PREDICTION: pa.int64() if layer.kind == CHOOSE else pa.string(),
            PROBABILITY: pa.float64(),
        }
        if self._asked.probabilities == "all":
            kinds |= {f"{PROBABILITY}_{label}": pa.float64() for label in self._labels()}
        return kinds

    def _labels(self) -> Sequence[str]:
        layer = self._asked.layer
        return list(map(str, range(CHOICES))) if layer.kind == CHOOSE else layer.labels

    def run(self, output: pathlib.Path, logits_of: LogitsOf) -> list[pathlib.Path]:
        """Predict and write, as Predicting says."""
        table = self._table
        added = {self._new[name]: kind for name, kind in self._kinds().items()}
        with whole_file(output) as unfinished:
            writer = TableWriter(unfinished, output.suffix, table, added)
            with contextlib.closing(writer):
                rows = 0
                for piece in table_pieces.pieces(table, _WAY_OUT):
                    rows += piece.rows
                    if rows > table.rows:
                        break
                    writer.write(piece, self._predicted(piece, logits_of))
                if rows != table.rows:
                    raise ValueError(f"{table.path} was changed while it was read; start again")
            self._replaced = writer.replaced
        return [output]

    def _predicted(self, piece: TablePiece, logits_of: LogitsOf) -> dict[str, Sequence[Any]]:
        logits = logits_of(self._rows(piece), piece.rows)
        return {self._new[name]: values for name, values in self._columns(logits)}

    def _rows(self, piece: TablePiece) -> EncodedRows:
        firsts, seconds = self._layout.texts(piece.texts)
        made = text_rows(firsts, seconds, self._asked.vocabulary, self._asked.max_seq_length)
        self._cut += made.truncated
        self._empty += made.empty
        per_example = CHOICES if self._asked.layer.kind == CHOOSE else 1
        return dataclasses.replace(made.rows, rows_per_example=per_example)

    def _columns(self, logits: np.ndarray) -> Iterator[tuple[str, Sequence[Any]]]:
        layer = self._asked.layer
        if layer.kind == REGRESS:
            values = logits[:, 0].astype(np.float64) * layer.deviation + layer.mean
            if layer.options.task == "stsb":
                values = np.clip(values, STSB_LEAST, STSB_MOST)
            yield PREDICTION, [float(f"{value:.{_MOST_DIGITS}g}") for value in values]
            return
        best, shares = logits.argmax(axis=1), probabilities(logits)
        names = self._labels()
        is_number = layer.kind == CHOOSE
        yield PREDICTION, best.tolist() if is_number else [names[number] for number in best]
        yield PROBABILITY, shares.max(axis=1).tolist()
        if self._asked.probabilities == "all":
            for number, name in enumerate(names):
                yield f"{PROBABILITY}_{name}", shares[:, number].tolist()

    def account(self) -> list[tuple[str, str]]:
        """Return what was found in the rows."""
        limit = self._asked.max_seq_length
        unit = "texts" if self._asked.layer.kind == CHOOSE else ""
        findings = {f"{unit}_cut_to_{limit}_tokens".strip("_"): self._cut}
        findings["with_an_empty_text"] = self._empty
        rows = [("rows", counted(self.total, self.unit, **findings))]
        if self._replaced:
            rows.append(("", f"{self._replaced:,} values had tabs or line breaks: now spaces"))
        names = list(self._new.values())
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "")
        return [*rows, ("columns", f"the table's, then {shown}")]
