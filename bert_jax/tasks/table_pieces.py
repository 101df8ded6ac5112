"""Read a table of any length piece by piece, and write it with new columns after its own.

The extension decides the format, as in tasks/files.py. One piece is in memory at a time.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_jax.tasks.files import (
    CSV,
    JSON_LINES,
    PARQUET,
    TSV,
    Columns,
    check_not_header,
    collect_columns,
    find_suffix,
    read_column_names,
    read_parquet_batches,
    read_rows,
    refuse_quoted,
)
from bert_jax.tasks.labels import is_header
from bert_jax.tasks.predicting import group_by_size
from data_pipeline.io import Refused
from data_pipeline.io.errors import get_first_line

PIECE_ROWS = 1024
_PIECE_CHARS = 4 << 20  # characters in all values together
_MAX_COLUMNS = 10_000
_HOW_TO_FIX = "name the columns of texts with --text_column and --second_text_column"
_SPECIAL = re.compile('[",\r\n]')  # a csv quotes a text with one of them
_TABS = str.maketrans("\t\r\n", "   ")  # a tsv has no quotes that could hold these
# Types that JSON and csv do not have: written as Arrow casts them to text, as bytes are.
_AS_TEXT = (pa.types.is_temporal, pa.types.is_decimal)

Show = Callable[[int], None]
NewColumns = Mapping[str, pa.Array]


@dataclasses.dataclass(frozen=True)
class OpenedTable:
    """Describe a table that was read once to the end and found undamaged."""

    path: pathlib.Path
    wanted: tuple[str, ...]  # columns of text to read
    headers: tuple[tuple[str, ...], ...]  # candidates for the header, as in files.read_rows
    names: tuple[str, ...] = ()  # all columns, in their order
    rows: int = 0
    refuses_quotes: bool = False  # refuses a tsv's texts that are quoted as in csv


@dataclasses.dataclass(frozen=True)
class TablePiece:
    """Hold consecutive rows of a table."""

    columns: Columns  # the columns that the task reads
    records: Sequence[Mapping[str, Any]]  # all columns; none where `arrow` has them
    arrow: pa.Table | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns.row_numbers)


def open_table(
    path: pathlib.Path,
    wanted: Sequence[str],
    headers: Sequence[Sequence[str]] = (),
    show: Show = lambda rows: None,
    refuses_quotes: bool = False,
) -> OpenedTable:
    """Read a whole table once: count its rows, collect its columns, refuse what cannot be read.

    show is called from time to time with the number of rows so far.
    """
    candidates = tuple(map(tuple, headers))
    table = OpenedTable(path, tuple(wanted), candidates, refuses_quotes=refuses_quotes)
    names: dict[str, None] = {}
    rows = 0
    for piece in read_pieces(table):
        if piece.arrow is not None:
            names = dict.fromkeys(piece.arrow.column_names)
        for record in piece.records:
            if record.keys() - names.keys():
                names |= dict.fromkeys(record)
        if len(names) > _MAX_COLUMNS:
            raise Refused(f"{path} has more than {_MAX_COLUMNS:,} columns; is it a table?")
        rows += piece.rows
        show(rows)
    if not rows:
        raise Refused(f"{path} has no rows; copy or download it again")
    # The output could not tell two columns of the same name apart.
    header = [] if find_suffix(path) in JSON_LINES else read_column_names(path, wanted)
    twice = [name for name in header if header.count(name) > 1]
    if twice and set(wanted) <= set(header):  # otherwise the first row has no names
        raise Refused(
            f"{path} has {header.count(twice[0])} columns {twice[0]!r}; rename one of them, so "
            "that the output can tell them apart"
        )
    return dataclasses.replace(table, names=tuple(names), rows=rows)


def read_pieces(table: OpenedTable) -> Iterator[TablePiece]:
    """Yield the rows in their order, at most PIECE_ROWS at a time."""
    pieces = _parquet_pieces if find_suffix(table.path) == PARQUET else _text_pieces
    for piece in pieces(table):
        if table.refuses_quotes:
            refuse_quoted(piece.columns)
        yield piece


def _text_pieces(table: OpenedTable) -> Iterator[TablePiece]:
    is_delimited = find_suffix(table.path) not in JSON_LINES

    def measure(row: tuple[int, Mapping[str, Any]]) -> tuple[int, int]:
        number, record = row
        if is_delimited and len(record) > _MAX_COLUMNS:
            raise Refused(
                f"{table.path} row {number} has more than {_MAX_COLUMNS:,} columns; is it a table?"
            )
        return 1, sum(len(value) if isinstance(value, str) else 16 for value in record.values())

    every_row = read_rows(table.path, table.wanted, _HOW_TO_FIX, headers=table.headers)
    for rows in group_by_size(every_row, measure, (PIECE_ROWS, _PIECE_CHARS)):
        columns = collect_columns(table.path, rows, table.wanted)
        yield TablePiece(columns, [record for _, record in rows])


def _parquet_pieces(table: OpenedTable) -> Iterator[TablePiece]:
    first = 1
    batches = read_parquet_batches(table.path, table.wanted, _HOW_TO_FIX, None)
    most = PIECE_ROWS, _PIECE_CHARS
    for group in group_by_size(batches, lambda batch: (len(batch), batch.nbytes), most):
        arrow = pa.Table.from_batches(group)
        texts = arrow.select([*dict.fromkeys(table.wanted)]).to_pylist()
        for index, row in enumerate(texts):
            if is_header([*row], [*row.values()]):
                check_not_header(table.path, first + index, arrow.slice(index, 1).to_pylist()[0])
        columns = collect_columns(table.path, enumerate(texts, first), table.wanted)
        yield TablePiece(columns, [], arrow)
        first += len(arrow)


def _to_plain_rows(arrow: pa.Table) -> list[Mapping[str, Any]]:
    """Return the rows; values of types that JSON does not have are text."""
    columns = []
    for field, column in zip(arrow.schema, arrow.columns, strict=True):
        try:
            if any(is_kind(field.type) for is_kind in _AS_TEXT) or _holds_bytes(field.type):
                column = pc.cast(column, pa.string())
            columns.append(column.to_pylist())
        except (pa.ArrowException, ValueError, OverflowError, LookupError) as error:
            raise Refused(
                f"the column {field.name!r} of type {field.type} has no text form; write "
                "--output as .parquet, which keeps types, or drop the column"
            ) from error
    return [dict(zip(arrow.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _holds_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type are bytes, or have bytes within them."""
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return any(map(_holds_bytes, parts)) if parts else "binary" in str(kind)


def choose_free_names(taken: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """Name each new column; append _2, _3, ... to a name that the table already has."""
    names: dict[str, str] = {}
    used = set(taken)
    for name in wanted:
        free, number = name, 2
        while free in used:
            free, number = f"{name}_{number}", number + 1
        names[name] = free
        used.add(free)
    return names


class TableWriter:
    """Write a table piece by piece, with new columns after its own."""

    def __init__(
        self, path: pathlib.Path, suffix: str, table: OpenedTable, added: Sequence[str]
    ) -> None:
        """Open a new file in the format of `suffix`; `added` names the new columns."""
        self._table, self._suffix, self._path = table, suffix, path
        self._names = [*table.names, *added]
        self.replaced = 0  # values of a tsv whose tabs and line breaks became spaces
        self.not_finite = 0  # rows with NaN or infinity, for which JSON has null
        self._parquet: pq.ParquetWriter | None = None
        if suffix != PARQUET:
            self._file = path.open("w", encoding="utf-8", newline="")
        if suffix in (CSV, TSV):
            self._write_cells(self._names)

    def write(self, piece: TablePiece, new: NewColumns) -> None:
        """Write the rows of a piece; new has a value for each row of each new column."""
        if self._suffix == PARQUET:
            self._write_parquet(piece, new)
            return
        records = piece.records if piece.arrow is None else _to_plain_rows(piece.arrow)
        columns = [column.to_pylist() for column in new.values()]
        for record, *values in zip(records, *columns, strict=True):
            whole = {**record, **dict(zip(new, values, strict=True))}
            if self._suffix in JSON_LINES:
                finite = _replace_not_finite(whole)
                self.not_finite += finite != whole
                self._file.write(json.dumps(finite, ensure_ascii=False, default=str) + "\n")
            else:
                self._write_cells([_cell(whole.get(name)) for name in self._names])

    def close(self) -> None:
        """Complete the file."""
        if self._parquet is not None:
            self._parquet.close()
        elif self._suffix != PARQUET:
            self._file.close()

    def _write_cells(self, cells: Sequence[str]) -> None:
        if self._suffix == TSV:
            self.replaced += sum(cell != cell.translate(_TABS) for cell in cells)
            self._file.write(format_tsv_line(cells))
            return
        # csv.writer quotes a carriage return from Python 3.13 on.
        quoted = (
            '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell for cell in cells
        )
        self._file.write(",".join(quoted) + "\n")

    def _write_parquet(self, piece: TablePiece, new: NewColumns) -> None:
        try:
            own = self._as_arrow(piece.records) if piece.arrow is None else piece.arrow
            for name, column in new.items():
                own = own.append_column(pa.field(name, column.type), column)
            if self._parquet is None:
                self._parquet = pq.ParquetWriter(self._path, own.schema)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = get_first_line(error)
            raise Refused(
                f"the rows of {self._table.path} do not fit the types of the first "
                f"{PIECE_ROWS:,}, which Parquet keeps ({reason}); write --output as .jsonl"
            ) from error
        self._parquet.write_table(own)

    def _as_arrow(self, records: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Convert rows of a text format; JSON values take the types of the first piece."""
        names = self._table.names
        rows = [{name: record.get(name) for name in names} for record in records]
        schema = (self._parquet or pa.Table.from_pylist(rows)).schema
        kinds = {name: schema.field(name).type for name in names}
        fields = [
            pa.field(name, pa.string() if pa.types.is_null(kind) else kind)
            for name, kind in kinds.items()
        ]
        table = pa.Table.from_pylist(rows, pa.schema(fields))
        for name in (field.name for field in fields if not pa.types.is_string(field.type)):
            for kept, row in zip(table.column(name).to_pylist(), rows, strict=True):
                if not _is_kept(kept, row[name]):
                    raise TypeError(f"{row[name]!r:.60} under {name!r} would be changed")
        return table


def _is_kept(kept: Any, value: Any) -> bool:
    """Return whether a value that went through Arrow is the one from JSON; 1.5 may become 1."""
    if isinstance(value, Mapping):
        return all(
            each is None or (name in kept and _is_kept(kept[name], each))
            for name, each in value.items()
        )
    if isinstance(value, list):
        return all(map(_is_kept, kept, value))
    is_bool = isinstance(value, bool) == isinstance(kept, bool)
    return (kept == value and is_bool) or value != value  # NaN


def format_tsv_line(cells: Iterable[str]) -> str:
    """Join the cells of a row by tabs; tabs and line breaks within a cell become spaces."""
    return "\t".join(cell.translate(_TABS) for cell in cells) + "\n"


def _replace_not_finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null."""
    if isinstance(value, float) and value - value != 0.0:
        return None
    if isinstance(value, Mapping):
        return {name: _replace_not_finite(member) for name, member in value.items()}
    return [_replace_not_finite(item) for item in value] if isinstance(value, list) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
