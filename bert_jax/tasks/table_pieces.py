"""Go through a table of any length in pieces, and write it with columns beside its own.

Formats are those of table_files.py, by the endings of the names. Memory holds one piece.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_jax.tasks.table_files import (
    CSV,
    JSON_LINES,
    PARQUET,
    SUFFIXES,
    TSV,
    column_names,
    parquet_batches,
    rows_of,
    text_of,
)

PIECE_ROWS = 1024
_PIECE_CHARS = 4 << 20  # of all values together
_MOST_COLUMNS = 10_000
_TABS = str.maketrans("\t\r\n", "   ")  # a tsv has no quotes that could hold these
# What JSON has no type for, and csv neither: written as Arrow casts it to text.
_AS_TEXT = (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_large_binary, pa.types.is_binary)

Show = Callable[[int], None]
NewColumns = Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class OpenedTable:
    """A table that was gone through once, so that its second reading meets no surprise."""

    path: pathlib.Path
    wanted: tuple[str, ...]  # columns of text that are read
    headers: tuple[tuple[str, ...], ...]  # as of table_files.rows_of
    names: tuple[str, ...]  # of all columns, in their order
    rows: int
    schema: pa.Schema | None = None  # of a Parquet file


@dataclasses.dataclass(frozen=True)
class TablePiece:
    """Rows that follow each other."""

    texts: Mapping[str, list[str]]  # the wanted columns
    records: list[Mapping[str, Any]]  # all columns; none where `arrow` has them
    arrow: pa.Table | None

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.records) if self.arrow is None else len(self.arrow)

    def dicts(self) -> list[Mapping[str, Any]]:
        """Return the rows, with values that JSON has types for."""
        return self.records if self.arrow is None else _plain(self.arrow).to_pylist()


def open_table(
    path: pathlib.Path,
    wanted: Sequence[str],
    way_out: str,
    headers: Sequence[Sequence[str]] = (),
    show: Show = lambda rows: None,
) -> OpenedTable:
    """Go through a whole table: count its rows, learn its columns, refuse what cannot be read.

    show is told now and then how many rows were seen.

    Raises:
      ValueError: what table_files.read_table refuses; two columns of one name.
    """
    table = OpenedTable(path, tuple(wanted), tuple(map(tuple, headers)), (), 0)
    names: dict[str, None] = {}
    rows, schema = 0, None
    for piece in pieces(table, way_out):
        if piece.arrow is not None:
            schema = piece.arrow.schema
            names = dict.fromkeys(schema.names)
        for record in piece.records:
            if record.keys() - names.keys():
                names |= dict.fromkeys(record)
        if len(names) > _MOST_COLUMNS:
            raise ValueError(f"{path} has more than {_MOST_COLUMNS:,} columns; is it a table?")
        rows += piece.rows
        show(rows)
    if not rows:
        raise ValueError(f"{path} has no rows; copy or download it again")
    _check_different(path, wanted)
    return dataclasses.replace(table, names=tuple(names), rows=rows, schema=schema)


def _check_different(path: pathlib.Path, wanted: Sequence[str]) -> None:
    """Raise if two columns have one name: the output could not tell them apart."""
    names = [] if path.suffix in JSON_LINES else column_names(path)
    twice = [name for name in names if names.count(name) > 1]
    if twice and set(wanted) <= set(names):  # or it is no row of names
        raise ValueError(
            f"{path} has {names.count(twice[0])} columns {twice[0]!r}; rename one of them, so that "
            "the output can tell them apart"
        )


def pieces(table: OpenedTable, way_out: str = "") -> Iterator[TablePiece]:
    """Yield the rows in their order, at most PIECE_ROWS at a time.

    Raises:
      ValueError: as of open_table.
    """
    path, wanted = table.path, table.wanted
    if path.suffix == PARQUET:
        yield from _parquet_pieces(table, way_out)
        return
    records: list[Mapping[str, Any]] = []
    texts: dict[str, list[str]] = {name: [] for name in wanted}
    chars = 0
    for number, record in rows_of(path, wanted, way_out, table.headers):
        if path.suffix not in JSON_LINES:
            _check_width(path, number, record)
        for name in wanted:
            texts[name].append(text_of(path, number, name, record[name]))
        records.append(record)
        chars += sum(len(value) if isinstance(value, str) else 16 for value in record.values())
        if len(records) == PIECE_ROWS or chars > _PIECE_CHARS:
            yield TablePiece(texts, records, None)
            records, texts, chars = [], {name: [] for name in wanted}, 0
    if records:
        yield TablePiece(texts, records, None)


def _check_width(path: pathlib.Path, number: int, record: Mapping[str, Any]) -> None:
    if None in record or len(record) > _MOST_COLUMNS:
        raise ValueError(f"{path} row {number} has more than {_MOST_COLUMNS:,} columns")


def _parquet_pieces(table: OpenedTable, way_out: str) -> Iterator[TablePiece]:
    number = 0
    waiting: list[pa.RecordBatch] = []

    def piece() -> TablePiece:
        arrow = pa.Table.from_batches(waiting)
        texts = {
            name: [
                text_of(table.path, number + i, name, value)
                for i, value in enumerate(arrow.column(name).to_pylist(), 1)
            ]
            for name in table.wanted
        }
        return TablePiece(texts, [], arrow)

    for batch in parquet_batches(table.path, table.wanted, way_out, None):
        waiting.append(batch)
        rows, chars = sum(map(len, waiting)), sum(part.nbytes for part in waiting)
        if rows >= PIECE_ROWS or chars > _PIECE_CHARS:
            yield piece()
            number += rows
            waiting = []
    if waiting:
        yield piece()


def _plain(arrow: pa.Table) -> pa.Table:
    """Cast what JSON has no type for to text."""
    for place, field in enumerate(arrow.schema):
        if any(is_kind(field.type) for is_kind in _AS_TEXT):
            kind = pa.string()
            try:
                column = pc.cast(arrow.column(place), kind)
            except pa.ArrowException as error:
                raise ValueError(
                    f"the column {field.name!r} of type {field.type} has no text form; write "
                    "--output as .parquet, which keeps types, or drop the column"
                ) from error
            arrow = arrow.set_column(place, pa.field(field.name, kind), column)
    return arrow


def free_names(taken: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Return a name for each new column: its own, or with _2, _3, ... where the table has it."""
    names: dict[str, str] = {}
    used = set(taken)
    for name in wanted:
        free, number = name, 2
        while free in used:
            free, number = f"{name}_{number}", number + 1
        names[name] = free
        used.add(free)
    return names


def check_output(path: pathlib.Path) -> None:
    """Refuse a place whose ending names no format.

    Raises:
      ValueError: names the endings that there are.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"--output is {path}, which ends in {path.suffix!r}; a table is written by its ending, "
            f"one of {', '.join(SUFFIXES)}"
        )


class TableWriter:
    """Writes a table, piece after piece, with new columns behind its own."""

    def __init__(
        self,
        path: pathlib.Path,
        suffix: str,
        table: OpenedTable,
        added: Mapping[str, pa.DataType],
    ) -> None:
        """path is a new file, in the format of suffix; added are new columns and their types."""
        self._table, self._added = table, added
        self._names = [*table.names, *added]
        self.replaced = 0  # values of a tsv whose tabs and line breaks became spaces
        self._suffix = suffix
        self._parquet: pq.ParquetWriter | None = None
        self._path = path
        if suffix != PARQUET:
            # A surrogate that a JSON text may hold has no UTF-8.
            self._file = path.open("w", encoding="utf-8", newline="", errors="replace")
        if suffix in (CSV, TSV):
            self._write_row = (
                csv.writer(self._file, lineterminator="\n").writerow
                if suffix == CSV
                else self._write_tsv
            )
            self._write_row(self._names)

    def write(self, piece: TablePiece, new: NewColumns) -> None:
        """Write the rows of a piece; new has the values of the new columns, a row each.

        Raises:
          ValueError: a row of JSON lines does not fit a Parquet column.
          OSError: the disk refuses.
        """
        if self._suffix == PARQUET:
            self._write_parquet(piece, new)
            return
        for record, *values in zip(piece.dicts(), *new.values(), strict=True):
            whole = {**record, **dict(zip(new, values, strict=True))}
            if self._suffix in JSON_LINES:
                self._file.write(json.dumps(_finite(whole), ensure_ascii=False) + "\n")
            else:
                self._write_row([_cell(whole.get(name)) for name in self._names])

    def close(self) -> None:
        """End the file."""
        if self._parquet is not None:
            self._parquet.close()
        elif self._suffix != PARQUET:
            self._file.close()

    def _write_tsv(self, cells: Sequence[str]) -> None:
        clean = [cell.translate(_TABS) for cell in cells]
        self.replaced += sum(cell != before for cell, before in zip(clean, cells, strict=True))
        self._file.write("\t".join(clean) + "\n")

    def _write_parquet(self, piece: TablePiece, new: NewColumns) -> None:
        own = piece.arrow
        if own is None:
            own = self._as_arrow(piece.records)
        for name, kind in self._added.items():
            own = own.append_column(pa.field(name, kind), pa.array(new[name], kind))
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._path, own.schema)
        self._parquet.write_table(own)

    def _as_arrow(self, records: list[Mapping[str, Any]]) -> pa.Table:
        """Rows of text formats: texts as they are, values of JSON by the types of the first."""
        names = self._table.names
        rows = [{name: record.get(name) for name in names} for record in records]
        try:
            if self._parquet is None:
                arrow = pa.Table.from_pylist(rows, pa.schema(_fields(rows, names)))
            else:
                schema = self._parquet.schema
                kept = [schema.field(name) for name in names]
                arrow = pa.Table.from_pylist(rows, pa.schema(kept))
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"the rows of {self._table.path} do not fit the types of the first "
                f"{PIECE_ROWS:,}, which Parquet keeps ({reason}); write --output as .jsonl"
            ) from error
        return arrow


def _fields(rows: list[dict[str, Any]], names: Sequence[str]) -> list[pa.Field]:
    inferred = pa.Table.from_pylist(rows).schema
    kinds = {field.name: field.type for field in inferred}
    return [
        pa.field(name, pa.string() if pa.types.is_null(kinds[name]) else kinds[name])
        for name in names
    ]


def _finite(value: Any) -> Any:
    """Replace numbers that JSON has not by null."""
    if isinstance(value, float) and value - value != 0.0:
        return None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
