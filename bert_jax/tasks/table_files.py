"""Columns of anybody's table: tsv, csv with its quotes, JSON lines or Parquet, by extension."""

import csv
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.tasks.tsv import Columns, check_columns, decoded_lines, read_columns

TSV, CSV, JSON_LINES, PARQUET = ".tsv", ".csv", (".jsonl", ".json", ".ndjson"), ".parquet"
SUFFIXES = (TSV, CSV, *JSON_LINES, PARQUET)
_MOST_CHARACTERS = 2**31 - 1  # of a text of a csv; Python's own limit is 131,072
_WAY_OUT = (
    "name them with config.data.text_column, config.data.second_text_column and "
    "config.data.label_column"
)


def read_table(path: pathlib.Path, wanted: Sequence[str]) -> Columns:
    """The wanted columns of a table as text; what is null is empty.

    Rows are counted as an editor counts lines; those of Parquet from 1.

    Raises:
      ValueError: an extension that says nothing, a column that is missing (with those that are
        there), a row that cannot be read (with its number), a value that is no text, number or
        truth value, no row at all.
    """
    if path.suffix == TSV:
        return read_columns(path, wanted, way_out=_WAY_OUT)
    if path.suffix == CSV:
        rows = _csv_rows(path, wanted)
    elif path.suffix in JSON_LINES:
        rows = _json_rows(path, wanted)
    elif path.suffix == PARQUET:
        rows = _parquet_rows(path, wanted)
    else:
        raise ValueError(
            f"{path} ends in {path.suffix!r}; a table is known by its extension, one of "
            f"{', '.join(SUFFIXES)}: rename or convert the file"
        )
    values: dict[str, list[str]] = {name: [] for name in wanted}
    numbers = list[int]()
    for number, row in rows:
        for name in wanted:
            values[name].append(_text(path, number, name, row[name]))
        numbers.append(number)
    if not numbers:
        raise ValueError(f"{path} has no rows; copy or download it again")
    return Columns(path, values, numbers)


def column_names(path: pathlib.Path) -> list[str]:
    """The columns of a table, for a message; none where its first row cannot be read."""
    if path.suffix == PARQUET:
        return list(pq.read_schema(path).names)
    _, line = next(decoded_lines(path), (1, ""))
    if path.suffix in JSON_LINES:
        return list(json.loads(line)) if line.startswith("{") else []
    return next(csv.reader([line], delimiter="," if path.suffix == CSV else "\t"), [])


def _text(path: pathlib.Path, number: int, name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{path} row {number} has a {type(value).__name__} under {name!r}; a text, a number "
            "or true or false is read: choose another column, or write the table again"
        )
    return str(value)


def _csv_rows(path: pathlib.Path, wanted: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with the line that each begins in: a quoted text may go on over several."""
    csv.field_size_limit(_MOST_CHARACTERS)
    reader = csv.reader((line for _, line in decoded_lines(path)), strict=True)
    names = list[str]()
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path} row {number} is not csv ({error}): a text with commas, quotes or line "
                'breaks stands in double quotes, and a quote in it is doubled ("")'
            ) from error
        if fields is None:
            return
        if not fields:  # a blank line
            continue
        if not names:
            names = fields
            check_columns(path, names, wanted, _WAY_OUT)
        elif len(fields) != len(names):
            raise ValueError(
                f"{path} row {number} has {len(fields)} fields and not {len(names)} "
                f"({', '.join(names)}): mend or remove the row; a text with commas must be quoted"
            )
        else:
            yield number, dict(zip(names, fields, strict=True))


def _json_rows(
    path: pathlib.Path, wanted: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"{path} row {number} is not JSON ({error}); JSON lines have one object a line"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{path} row {number} is a JSON {type(record).__name__}, not an object; JSON lines "
                "have one object a line"
            )
        missing = [name for name in wanted if name not in record]
        if missing:
            raise ValueError(
                f"{path} row {number} has no {missing[0]!r}; its keys are {', '.join(record)}, "
                f"and {', '.join(wanted)} are read: {_WAY_OUT}"
            )
        yield number, record


def _parquet_rows(
    path: pathlib.Path, wanted: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with pq.ParquetFile(path) as file:
            check_columns(path, file.schema_arrow.names, wanted, _WAY_OUT)
            number = 0
            for batch in file.iter_batches(columns=list(wanted)):
                columns = {name: batch.column(name).to_pylist() for name in wanted}
                for i in range(len(batch)):
                    number += 1
                    yield number, {name: columns[name][i] for name in wanted}
    except pa.ArrowException as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(
            f"{path} is no whole Parquet file ({reason}); copy or download it again"
        ) from error
