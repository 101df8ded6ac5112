"""Predict classes, numbers or choices for the rows of GLUE, SWAG, CODAH or a user's own table.

The output has the table's columns, then `prediction`; for classes and choices also `probability`
(of the prediction) and `probability_LABEL` for each label.
"""

import contextlib
import dataclasses
import pathlib
from collections import Counter

import numpy as np
import pyarrow as pa

from bert_jax.tasks import multiple_choice, table_pieces
from bert_jax.tasks.encode import EncodedTexts, encode_texts, join_windows
from bert_jax.tasks.files import SUFFIXES, TSV, describe_missing, find_suffix, read_column_names
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
from bert_jax.tasks.table import format_numbers
from bert_jax.tasks.table_pieces import TablePiece, TableWriter
from bert_jax.tasks.task import CHOOSE, REGRESS
from data_pipeline.io import Refused
from data_pipeline.io.atomic import new_file
from data_pipeline.io.small_files import list_names

PREDICTION, PROBABILITY = "prediction", "probability"


def choose_columns(
    request: PredictRequest,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Choose the columns of the texts: the request's, or else the task's.

    Also returns candidates for the column names of a file whose first row is data.
    """
    options = request.layer.options
    if request.layer.kind == CHOOSE:
        # A third-party model does not record its task; the file's extension decides.
        if options.task == "codah" or (not options.task and find_suffix(request.path) == TSV):
            # The prompt and its endings; a test set may have no answers.
            return CODAH_COLUMNS[1:-1], (CODAH_COLUMNS, CODAH_COLUMNS[:-1])
        return SWAG_COLUMNS, ()
    first, second = options.text_column, options.second_text_column
    headers: tuple[tuple[str, ...], ...] = ()
    if task := TASKS.get("mnli" if options.task == DIAGNOSTIC else options.task):
        first, second, headers = task.text, task.second, task.headers
    if request.text_column is not None:
        first = request.text_column
    if request.second_text_column is not None:
        second = request.second_text_column
    if not first:
        raise Refused(
            f"--text_column is missing: the column of {request.path} with the texts; its columns "
            f"are {list_names(read_column_names(request.path))}"
        )
    return ((first, second) if second else (first,)), headers


class TablePredictor:
    """Predict the rows of a table."""

    unit = "rows"

    def __init__(self, request: PredictRequest, show: table_pieces.Show) -> None:
        """Read the whole input once; refuse a missing column or a row that cannot be read."""
        self._request, self._layer = request, request.layer
        self._wanted, headers = choose_columns(request)
        check_request(request, SUFFIXES, "a table", 4 + min(len(self._wanted), 2))
        is_own = request.layer.options.task == "table"  # GLUE's texts are kept as published
        self._table = table_pieces.open_table(request.path, self._wanted, headers, show, is_own)
        if self._layer.kind == CHOOSE:
            multiple_choice.refuse_more_endings(request.path, self._table.names)
        self._classes = self._layer.labels
        if self._layer.kind == CHOOSE:
            self._classes = tuple(map(str, range(CHOICES)))
        self.total = self._table.rows
        no_logits = np.zeros((0, max(1, len(self._classes))))
        names = list(self._predict(no_logits))
        self._new = table_pieces.choose_free_names(self._table.names, names)
        self._counts = Counter[str]()
        self._missing_rows = list[int]()

    def run(self, compute_logits: ComputeLogits) -> list[pathlib.Path]:
        """Predict and write the table; see Predictor.run."""
        table, output, names = self._table, self._request.output, list(self._new.values())
        pieces = table_pieces.read_pieces(table)
        with (
            new_file(output) as unfinished,
            contextlib.closing(TableWriter(unfinished, output.suffix, table, names)) as writer,
        ):
            for piece in reread(pieces, lambda piece: piece.rows, table.rows, table.path):
                encoded = self._encode(piece)
                logits = compute_logits(encoded.rows, piece.rows)
                if self._layer.kind != CHOOSE:
                    logits = join_windows(self._layer.kind, logits, encoded.windows_N)
                columns = {self._new[name]: each for name, each in self._predict(logits).items()}
                writer.write(piece, columns)
        self._counts.update(replaced=writer.replaced, not_finite=writer.not_finite)
        return [output]

    def _encode(self, piece: TablePiece) -> EncodedTexts:
        columns = piece.columns.values
        texts = [columns[name] for name in self._wanted]
        if self._layer.kind == CHOOSE:
            texts = [*multiple_choice.lay_out(columns)]
        self._missing_rows += piece.columns.missing_rows
        seconds = texts[1] if len(texts) > 1 else None
        encoded = encode_texts(texts[0], seconds, self._request.vocabulary, self._layer.options)
        in_windows = int((encoded.windows_N > 1).sum())
        self._counts.update(cut=encoded.truncated, empty=encoded.empty, in_windows=in_windows)
        per_example = CHOICES if self._layer.kind == CHOOSE else 1
        rows = dataclasses.replace(encoded.rows, rows_per_example=per_example)
        return dataclasses.replace(encoded, rows=rows)

    def _predict(self, logits: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of predictions by name."""
        layer = self._layer
        if layer.kind == REGRESS:
            texts = format_numbers(logits, layer.mean, layer.deviation)
            numbers = np.array(texts, np.float64)
            if layer.options.task == "stsb":
                numbers = np.clip(numbers, STSB_MIN, STSB_MAX)
            return {PREDICTION: pa.array(numbers)}
        best, shares = logits.argmax(axis=1), probabilities(logits)
        names = [self._classes[number] for number in best]
        predicted = pa.array(best) if layer.kind == CHOOSE else pa.array(names, pa.string())
        columns = {PREDICTION: predicted, PROBABILITY: pa.array(shares.max(axis=1))}
        if self._request.probabilities == "all":
            for number, name in enumerate(self._classes):
                columns[f"{PROBABILITY}_{name}"] = pa.array(shares[:, number])
        return columns

    def summary_rows(self) -> list[tuple[str, str]]:
        """Report truncated and empty rows and the new columns."""
        counts = self._counts
        cut = f"cut to {self._layer.options.max_seq_length} tokens"
        if self._layer.kind == CHOOSE:
            cut = f"texts {cut}"
        findings = {
            cut: counts["cut"],
            "in several windows": counts["in_windows"],
            "with an empty text": counts["empty"],
        }
        rows = [("rows", describe_count(self.total, self.unit, findings))]
        if replaced := counts["replaced"]:
            rows.append(("", f"{replaced:,} values had tabs or line breaks: now spaces"))
        if not_finite := counts["not_finite"]:
            rows.append(("", f"{not_finite:,} rows had NaN or infinity: null in JSON"))
        missing = describe_missing(self._request.path, self._missing_rows)
        rows += [("! text", sentence) for sentence in missing]
        listing = list_names(list(self._new.values()), 6)
        return [*rows, ("columns", f"the table's, then {listing}")]
