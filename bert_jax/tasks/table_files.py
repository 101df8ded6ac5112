"""Columns of anybody's table: tsv, csv with its quotes, JSON lines or Parquet, by extension."""

import csv
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.tasks.tsv import (
    Columns,
    check_columns,
    decoded_lines,
    fields_of_rows,
    listed,
    read_columns,
    wrong_fields,
)
from data_pipeline import small_files
from data_pipeline.small_files import MAX_BYTES

TSV, CSV, JSON_LINES, PARQUET = ".tsv", ".csv", (".jsonl", ".json", ".ndjson"), ".parquet"
SUFFIXES = (TSV, CSV, *JSON_LINES, PARQUET)
_MOST_CHARACTERS = MAX_BYTES  # of a text of a csv; Python's own limit is 131,072
_PARQUET_ROWS = 64  # in memory at once: a file of some hundred bytes may hold long texts
WAY_OUT = (
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
        return read_columns(path, wanted, way_out=WAY_OUT)
    rows = rows_of(path, wanted)
    values: dict[str, list[str]] = {name: [] for name in wanted}
    numbers = list[int]()
    for number, row in rows:
        for name in wanted:
            values[name].append(text_of(path, number, name, row[name]))
        numbers.append(number)
    if not numbers:
        raise ValueError(f"{path} has no rows; copy or download it again")
    return Columns(path, values, numbers)


def rows_of(
    path: pathlib.Path,
    wanted: Sequence[str],
    way_out: str = WAY_OUT,
    headers: Sequence[Sequence[str]] = (),
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number of each row and its columns by name; of Parquet the wanted columns alone.

    headers are the names of the columns of a tsv whose first row is data: the list that is as long
    as that row, where the row itself does not name the wanted columns.

    Raises:
      ValueError: what read_table raises, but for a table without rows.
    """
    if path.suffix == TSV:
        return _tsv_rows(path, wanted, way_out, headers)
    if path.suffix == CSV:
        return _csv_rows(path, wanted, way_out)
    if path.suffix in JSON_LINES:
        return _json_rows(path, wanted, way_out)
    if path.suffix == PARQUET:
        return _parquet_rows(path, wanted, way_out)
    raise ValueError(
        f"{path} ends in {path.suffix!r}; a table is known by its extension, one of "
        f"{', '.join(SUFFIXES)}: rename or convert the file"
    )


def column_names(path: pathlib.Path) -> list[str]:
    """The columns of a table, for a message; none where its first row cannot be read.

    Raises:
      ValueError: it is damaged.
    """
    if path.suffix == PARQUET:
        try:
            return list(pq.read_schema(path).names)
        except pa.ArrowException as error:
            raise ValueError(f"{path} is no whole Parquet file; copy it again") from error
    _, line = next(decoded_lines(path), (1, ""))
    if path.suffix in JSON_LINES:
        return list(small_files.parse_json(line.encode(), path)) if line.startswith("{") else []
    return next(csv.reader([line], delimiter="," if path.suffix == CSV else "\t"), [])


def text_of(path: pathlib.Path, number: int, name: str, value: Any) -> str:
    """Return a value of a table as text, "" for none.

    Raises:
      ValueError: it is a list or the like.
    """
    if value is None:
        return ""
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{path} row {number} has a {type(value).__name__} under {name!r}; a text, a number "
            "or true or false is read: choose another column, or write the table again"
        )
    return str(value)


def _tsv_rows(
    path: pathlib.Path, wanted: Sequence[str], way_out: str, headers: Sequence[Sequence[str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    names: Sequence[str] = ()
    for number, fields in fields_of_rows(path):
        if not names:
            fitting = [header for header in headers if len(header) == len(fields)]
            if set(wanted) <= set(fields) or not fitting:
                names = fields
                check_columns(path, names, wanted, way_out)
                continue
            names = fitting[0]
        if len(fields) != len(names):
            raise ValueError(wrong_fields(path, number, fields, names))
        yield number, dict(zip(names, fields, strict=True))


def _csv_rows(
    path: pathlib.Path, wanted: Sequence[str], way_out: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
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
            check_columns(path, names, wanted, way_out)
        elif len(fields) != len(names):
            raise ValueError(
                f"{path} row {number} has {len(fields)} fields and not {len(names)} "
                f"({listed(names)}): mend or remove the row; a text with commas must be quoted"
            )
        else:
            yield number, dict(zip(names, fields, strict=True))


def _json_rows(
    path: pathlib.Path, wanted: Sequence[str], way_out: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        record = small_files.parse_json(line.encode(), f"{path} row {number}")
        if not isinstance(record, dict):
            raise ValueError(
                f"{path} row {number} is {small_files.kind_in_words(record)}, not an object; JSON "
                "lines have one object a line"
            )
        missing = [name for name in wanted if name not in record]
        if missing:
            raise ValueError(
                f"{path} row {number} has no {missing[0]!r}; its keys are {listed(list(record))}, "
                f"and {', '.join(wanted)} are read: {way_out}"
            )
        yield number, record


def _parquet_rows(
    path: pathlib.Path, wanted: Sequence[str], way_out: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    for batch in parquet_batches(path, wanted, way_out, list(wanted)):
        columns = {name: batch.column(name).to_pylist() for name in wanted}
        for i in range(len(batch)):
            number += 1
            yield number, {name: columns[name][i] for name in wanted}


def parquet_batches(
    path: pathlib.Path, wanted: Sequence[str], way_out: str, columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file a few rows at a time; columns None: all of them.

    Raises:
      ValueError: it is damaged, or lacks a wanted column.
    """
    try:
        with (
            small_files.open_regular(path) as stored,
            pq.ParquetFile(stored, pre_buffer=False, page_checksum_verification=True) as file,
        ):
            check_columns(path, file.schema_arrow.names, wanted, way_out)
            yield from file.iter_batches(_PARQUET_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the file's bytes
            raise
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(
            f"{path} is no whole Parquet file ({reason}); copy or download it again"
        ) from error
