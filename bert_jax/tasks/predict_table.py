"""Predict classes, numbers or choices for the rows of GLUE, SWAG, CODAH or a user's own table.

The output has the table's columns, then `prediction`; for classes and choices also `probability`
(of the prediction) and `probability_LABEL` for each label.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bert_jax.tasks import multiple_choice, table_pieces
from bert_jax.tasks.encode import EncodedTexts, encode_texts, join_windows
from bert_jax.tasks.files import SUFFIXES, TSV, describe_missing, read_column_names
from bert_jax.tasks.glue.specs import DIAGNOSTIC, STSB_MAX, STSB_MIN, TASKS
from bert_jax.tasks.multiple_choice import CHOICES, CODAH_COLUMNS, SWAG_COLUMNS
from bert_jax.tasks.predicting import (
    ComputeLogits,
    PredictRequest,
    check_request,
    describe_count,
    probabilities,
    reread,
)
from bert_jax.tasks.table_pieces import TablePiece, TableWriter
from bert_jax.tasks.task import CHOOSE, REGRESS
from data_pipeline.io.atomic import new_file
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import list_names

PREDICTION, PROBABILITY = "prediction", "probability"
_MAX_DIGITS = 6  # significant digits of a predicted number

Texts = tuple[list[str], list[str] | None]  # first and second texts of rows; None: single texts


@dataclasses.dataclass(frozen=True)
class Layout:
    """Describe which columns hold the texts, and how they become rows."""

    wanted: tuple[str, ...]
    texts: Callable[[Mapping[str, list[str]]], Texts]
    headers: tuple[tuple[str, ...], ...] = ()  # names for tsv files whose first row is data


def choose_layout(request: PredictRequest) -> Layout:
    """Choose the columns that were named, or else the columns of the task's own files."""
    if request.layer.kind == CHOOSE:
        return _choose_choices(request)
    options = request.layer.options
    name = "mnli" if options.task == DIAGNOSTIC else options.task
    first, second = options.text_column, options.second_text_column
    headers: tuple[tuple[str, ...], ...] = ()
    if name in TASKS:
        first, second = TASKS[name].text, TASKS[name].second
        headers = (TASKS[name].header,) if TASKS[name].header else ()
    if request.text_column is not None:
        first = request.text_column
    if request.second_text_column is not None:
        second = request.second_text_column
    if not first:
        raise Refused(
            f"--text_column is missing: the column of {request.path} with the texts; its columns "
            f"are {list_names(read_column_names(request.path))}"
        )

    def texts(columns: Mapping[str, list[str]]) -> Texts:
        return columns[first], columns[second] if second else None

    return Layout((first, second) if second else (first,), texts, headers)


def _choose_choices(request: PredictRequest) -> Layout:
    """Choose the columns of SWAG or CODAH; for a third-party model by the file's extension."""
    name = request.layer.options.task
    if name == "codah" or (not name and request.path.suffix == TSV):
        # The prompt and its endings; a test set has perhaps no answers.
        headers = (CODAH_COLUMNS, CODAH_COLUMNS[:-1])
        return Layout(CODAH_COLUMNS[1:-1], multiple_choice.lay_out, headers)
    return Layout(SWAG_COLUMNS, multiple_choice.lay_out)


class TablePredictor:
    """Predict the rows of a table."""

    unit = "rows"

    def __init__(self, request: PredictRequest, show: table_pieces.Show) -> None:
        """Read the whole input once; refuse a missing column or a row that cannot be read."""
        self._request, self._layout = request, choose_layout(request)
        wanted, headers = self._layout.wanted, self._layout.headers
        check_request(request, SUFFIXES, "a table", 4 + min(len(wanted), 2))
        is_own = request.layer.options.task == "table"  # GLUE's texts are kept as published
        self._table = table_pieces.open_table(request.path, wanted, headers, show, is_own)
        if request.layer.kind == CHOOSE:
            multiple_choice.refuse_more_endings(request.path, self._table.names)
        self.total = self._table.rows
        self._new = table_pieces.choose_free_names(self._table.names, list(self._kinds()))
        self._cut = self._empty = self._replaced = self._not_finite = self._in_windows = 0
        self._missing_rows = list[int]()

    def _kinds(self) -> dict[str, pa.DataType]:
        """Return the new columns and their types."""
        layer = self._request.layer
        if layer.kind == REGRESS:
            return {PREDICTION: pa.float64()}
        kinds = {
            PREDICTION: pa.int64() if layer.kind == CHOOSE else pa.string(),
            PROBABILITY: pa.float64(),
        }
        if self._request.probabilities == "all":
            kinds |= {f"{PROBABILITY}_{label}": pa.float64() for label in self._labels()}
        return kinds

    def _labels(self) -> Sequence[str]:
        layer = self._request.layer
        return list(map(str, range(CHOICES))) if layer.kind == CHOOSE else layer.labels

    def run(self, compute_logits: ComputeLogits) -> list[pathlib.Path]:
        """Predict and write the table; see Predictor.run."""
        table, output = self._table, self._request.output
        added = {self._new[name]: kind for name, kind in self._kinds().items()}
        pieces = table_pieces.read_pieces(table)
        with (
            new_file(output) as unfinished,
            contextlib.closing(TableWriter(unfinished, output.suffix, table, added)) as writer,
        ):
            for piece in reread(pieces, lambda piece: piece.rows, table.rows, table.path):
                encoded = self._encode(piece)
                logits = compute_logits(encoded.rows, piece.rows)
                if self._request.layer.kind != CHOOSE:
                    logits = join_windows(self._request.layer.kind, logits, encoded.windows_N)
                columns = {self._new[name]: values for name, values in self._columns(logits)}
                writer.write(piece, columns)
        self._replaced, self._not_finite = writer.replaced, writer.not_finite
        return [output]

    def _encode(self, piece: TablePiece) -> EncodedTexts:
        firsts, seconds = self._layout.texts(piece.columns.values)
        self._missing_rows += piece.columns.missing_rows
        layer = self._request.layer
        encoded = encode_texts(firsts, seconds, self._request.vocabulary, layer.options)
        self._cut += encoded.truncated
        self._empty += encoded.empty
        self._in_windows += int((encoded.windows_N > 1).sum())
        per_example = CHOICES if layer.kind == CHOOSE else 1
        rows = dataclasses.replace(encoded.rows, rows_per_example=per_example)
        return dataclasses.replace(encoded, rows=rows)

    def _columns(self, logits: np.ndarray) -> Iterator[tuple[str, Sequence[Any]]]:
        layer = self._request.layer
        if layer.kind == REGRESS:
            values = logits[:, 0].astype(np.float64) * layer.deviation + layer.mean
            if layer.options.task == "stsb":
                values = np.clip(values, STSB_MIN, STSB_MAX)
            yield PREDICTION, [float(f"{value:.{_MAX_DIGITS}g}") for value in values]
            return
        best, shares = logits.argmax(axis=1), probabilities(logits)
        names = self._labels()
        is_number = layer.kind == CHOOSE
        yield PREDICTION, best.tolist() if is_number else [names[number] for number in best]
        yield PROBABILITY, shares.max(axis=1).tolist()
        if self._request.probabilities == "all":
            for number, name in enumerate(names):
                yield f"{PROBABILITY}_{name}", shares[:, number].tolist()

    def summary_rows(self) -> list[tuple[str, str]]:
        """Report truncated and empty rows and the new columns."""
        cut = f"cut to {self._request.layer.options.max_seq_length} tokens"
        if self._request.layer.kind == CHOOSE:
            cut = f"texts {cut}"
        findings = {
            cut: self._cut,
            "in several windows": self._in_windows,
            "with an empty text": self._empty,
        }
        rows = [("rows", describe_count(self.total, self.unit, findings))]
        if self._replaced:
            rows.append(("", f"{self._replaced:,} values had tabs or line breaks: now spaces"))
        if self._not_finite:
            rows.append(("", f"{self._not_finite:,} rows had NaN or infinity: null in JSON"))
        missing = describe_missing(self._request.path, self._missing_rows)
        rows += [("! text", sentence) for sentence in missing]
        names = list(self._new.values())
        listing = ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "")
        return [*rows, ("columns", f"the table's, then {listing}")]
