"""Find the files of a task's splits and read their columns: tsv, csv, JSON lines or Parquet.

A file's format follows from its extension. In a tsv, as GLUE publishes it, a quotation mark is an
ordinary character (many rows have only half of a pair), there may be a byte order mark or no
header, and only a line feed ends a row: other line breaks of Unicode occur within sentences.
"""

import codecs
import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.config.schema import TaskOptions
from bert_jax.tasks.labels import is_header
from data_pipeline.io import small_files
from data_pipeline.io.address import expand_home
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import MAX_BYTES, DamagedFile, list_names
from data_pipeline.read.parquet import check_packing, explain_damage
from data_pipeline.read.records import read_fields

TRAIN, DEV, TEST = "train", "dev", "test"
TSV, CSV, JSON_LINES, PARQUET = ".tsv", ".csv", (".jsonl", ".json", ".ndjson"), ".parquet"
SUFFIXES = (TSV, CSV, *JSON_LINES, PARQUET)
HOW_TO_FIX = (
    "name them with config.data.text_column, config.data.second_text_column and "
    "config.data.label_column"
)
_JSON_FORM = "each line is one row's JSON object: jq -c '.[]' FILE writes the rows of a list so"
_BOM = b"\xef\xbb\xbf"
_SHOWN_CHARACTERS = 60
_SHOWN_ROWS = 3
_QUOTED = re.compile(r'"(?:[^"]*+"")++[^"]*+"')  # a quotation mark in it is doubled
_PARQUET_ROWS = 64  # rows in memory at once: a file of some hundred bytes may hold long texts

_READABLE = (
    "a text, a number or true or false can be read: choose another column, or write the table again"
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # escaped in JSON

Read = TypeVar("Read")
Rows = Iterator[tuple[int, Mapping[str, Any]]]  # number of each row, and its columns by name


@dataclasses.dataclass(frozen=True)
class Columns:
    """Hold some columns of a file as text, with the row numbers in the file."""

    path: pathlib.Path
    values: dict[str, list[str]]
    row_numbers: list[int]  # counted from 1, like lines in an editor
    short_rows: tuple[int, ...] = ()  # numbers of rows skipped because they lack fields
    missing_rows: tuple[int, ...] = ()  # numbers of rows with a null or NaN, here an empty text

    def place(self, index: int) -> str:
        """Name the file and the row of an entry, for an error message."""
        return f"{self.path} row {self.row_numbers[index]}"


def read_columns(
    path: pathlib.Path,
    wanted: Sequence[str],
    header: Sequence[str] = (),
    also: Sequence[str] = (),
    drops_short_rows: bool = False,
) -> Columns:
    """Read the wanted columns of a tsv file, and the columns in `also` that it has.

    The first row names the columns, unless `header` does. Blank lines are skipped. With
    drops_short_rows a row with too few fields is skipped and noted instead of refused.

    Raises:
      Refused: a column is missing, a row has another number of fields, text is not UTF-8, or
        there are no rows.
    """
    rows = split_rows(path)
    names = list(header) if header else next(rows, (0, []))[1]
    if not names:
        raise Refused(f"{path} is empty; copy or download it again")
    check_columns(path, names, wanted, "is it the file of another task, or without its header?")
    places = {name: names.index(name) for name in (*wanted, *also) if name in names}
    values: dict[str, list[str]] = {name: [] for name in places}
    numbers, short = list[int](), list[int]()
    for number, fields in rows:
        if drops_short_rows and len(fields) < len(names):
            short.append(number)
            continue
        _check_fields(path, number, fields, names)
        for name, place in places.items():
            values[name].append(fields[place])
        numbers.append(number)
    if not numbers:
        raise Refused(f"{path} has a header and no rows; copy or download it again")
    return Columns(path, values, numbers, tuple(short))


def check_columns(
    path: pathlib.Path, names: Sequence[str], wanted: Sequence[str], how_to_fix: str
) -> None:
    """Refuse a file that lacks a wanted column or has it twice."""
    for name in wanted:
        if names.count(name) != 1:
            state = f"{names.count(name)} columns" if name in names else "no column"
            raise Refused(
                f"{path} has {state} {name!r}; its columns are {list_names(names)}, and "
                f"{', '.join(wanted)} are read: {how_to_fix}"
            )


def split_rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each row of a tsv that is not blank."""
    for number, line in decode_lines(path):
        text = line.removesuffix("\n").removesuffix("\r")
        if text:
            yield number, text.split("\t")


def decode_lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers and line ends; drop a byte order mark."""
    with small_files.open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), 1):
            if len(line) > MAX_BYTES:
                raise Refused(
                    f"{path} row {number} is longer than {MAX_BYTES:,} bytes; is it the file that "
                    "is meant, and is it text?"
                )
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused(
                    f"{path} row {number} is not UTF-8: byte 0x{line[error.start]:02x} at its byte "
                    f"{error.start + 1}; convert the file from the encoding that it was written in "
                    f"(iconv -f {_name_encoding(line)} -t UTF-8), or download it again"
                ) from error


def _name_encoding(line: bytes) -> str:
    """Name UTF-16 where a line opens with its mark; no other encoding shows in a line."""
    return "UTF-16" if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "ENCODING"


def _check_fields(
    path: pathlib.Path,
    number: int,
    fields: Sequence[str],
    names: Sequence[str],
    how_to_fix: str = "or download the file again",
) -> None:
    """Refuse a row that has more or fewer fields than the header, or is the header again."""
    if len(fields) != len(names):
        start = "\\t".join(fields)[:_SHOWN_CHARACTERS]
        raise Refused(
            f"{path} row {number} has {len(fields)} fields and not {len(names)} "
            f"({list_names(names)}); it begins {start!r}: correct or remove the row, {how_to_fix}"
        )
    check_not_header(path, number, dict(zip(names, fields, strict=True)))


def check_not_header(path: pathlib.Path, number: int, row: Mapping[str, object]) -> None:
    """Refuse a row of several columns that repeats their names."""
    if len(row) > 1 and is_header([*row], [*row.values()]):
        raise Refused(
            f"{path} row {number} is a header within the rows, {list_names([*row])}, as where "
            "tables were joined: remove the row"
        )


def read_table(path: pathlib.Path, wanted: Sequence[str]) -> Columns:
    """Read the wanted columns of a table as text.

    Raises:
      Refused: an unknown extension, a missing column, a row that cannot be read, a value that is
        not a text, number or truth value, or no rows.
    """
    values: dict[str, list[str]] = {name: [] for name in wanted}
    numbers, missing = list[int](), list[int]()
    for number, row in read_rows(path, wanted):
        for name in values:  # a column may be wanted twice
            value = format_value(path, number, name, row[name])
            refuse_quoted(path, number, name, value)
            values[name].append(value)
        numbers.append(number)
        if any(is_missing(row[name]) for name in wanted):
            missing.append(number)
    if not numbers:
        raise Refused(f"{path} has no rows; copy or download it again")
    return Columns(path, values, numbers, missing_rows=tuple(missing))


def refuse_quoted(path: pathlib.Path, number: int, name: str, text: str) -> None:
    """Refuse a text of a tsv that has doubled quotation marks between two, as csv writes it."""
    if path.suffix == TSV and _QUOTED.fullmatch(text):
        raise Refused(
            f"{path} row {number} has a text under {name!r} that is quoted as csv quotes it, "
            f"{text!r:.60}, and quotation marks in a tsv are part of the text; write the table as "
            "a .csv with commas"
        )


def read_rows(
    path: pathlib.Path,
    wanted: Sequence[str],
    how_to_fix: str = HOW_TO_FIX,
    headers: Sequence[Sequence[str]] = (),
) -> Rows:
    """Yield the rows, numbered as an editor counts lines; of Parquet only the wanted columns.

    headers are candidates for the column names of a tsv whose first row is data: the one as long as
    that row is used, unless the row itself names the wanted columns. Raises as read_table does, but
    not for a table without rows.
    """
    if path.suffix == TSV:
        return _tsv_rows(path, wanted, how_to_fix, headers)
    if path.suffix == CSV:
        return read_csv_rows(path, wanted, how_to_fix)
    if path.suffix in JSON_LINES:
        return _json_rows(path, wanted, how_to_fix)
    if path.suffix == PARQUET:
        return _parquet_rows(path, wanted, how_to_fix)
    raise Refused(
        f"{path} ends in {path.suffix!r}; a table is known by its extension, one of "
        f"{', '.join(SUFFIXES)}: rename or convert the file"
    )


def read_column_names(path: pathlib.Path) -> list[str]:
    """Return the names of a table's columns; none of JSON lines whose first line is no object."""
    if path.suffix == PARQUET:
        with explain_damage(str(path)), small_files.open_regular(path) as stored:
            return list(pq.read_schema(stored).names)
    if path.suffix in JSON_LINES:
        _, line = next(decode_lines(path), (1, ""))
        return list(small_files.parse_json(line.encode(), path)) if line.startswith("{") else []
    return next(_csv_rows(path) if path.suffix == CSV else split_rows(path), (0, []))[1]


def is_missing(value: Any) -> bool:
    """Return whether a value of a table is null or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def describe_missing(path: pathlib.Path, numbers: Sequence[int]) -> tuple[str, ...]:
    """Describe rows with a missing text in a sentence; none without such rows."""
    if not numbers:
        return ()
    count = f"{len(numbers):,} row{'s' * (len(numbers) != 1)} without a text (null or NaN)"
    return (f"{path.name}: {count}, read as an empty one: {list_rows(numbers)}",)


def list_rows(numbers: Sequence[int]) -> str:
    """List the numbers of rows for the screen: the first ones."""
    rows = [f"{number:,}" for number in numbers[:_SHOWN_ROWS]]
    return ", ".join([*rows, *["..."] * (len(numbers) > _SHOWN_ROWS)])


def format_value(path: pathlib.Path, number: int, name: str, value: Any) -> str:
    """Return a value of a table as text, null and NaN as ""; refuse a list or an object."""
    if is_missing(value):
        return ""
    if not isinstance(value, str | int | float):
        raise Refused(
            f"{path} row {number} has a {type(value).__name__} under {name!r}; {_READABLE}"
        )
    return str(value)


def _tsv_rows(
    path: pathlib.Path, wanted: Sequence[str], how_to_fix: str, headers: Sequence[Sequence[str]]
) -> Rows:
    names: Sequence[str] = ()
    for number, fields in split_rows(path):
        if not names:
            fitting = [
                header
                for header in headers
                if len(header) == len(fields) and set(wanted) <= set(header)
            ]
            if set(wanted) <= set(fields) or not fitting:
                names = fields
                check_columns(path, names, wanted, how_to_fix)
                continue
            names = fitting[0]
        _check_fields(path, number, fields, names)
        yield number, dict(zip(names, fields, strict=True))


def _csv_rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the fields of each row of a csv that is not blank."""
    return read_fields(str(path), (line for _, line in decode_lines(path)))


def read_csv_rows(path: pathlib.Path, wanted: Sequence[str], how_to_fix: str) -> Rows:
    """Yield the rows of a csv file with the line each begins in (a text may have several)."""
    names = list[str]()
    for number, fields in _csv_rows(path):
        if not names:
            names = fields
            check_columns(path, names, wanted, how_to_fix)
        else:
            _check_fields(path, number, fields, names, "or quote a text with commas in it")
            yield number, dict(zip(names, fields, strict=True))


def _json_rows(path: pathlib.Path, wanted: Sequence[str], how_to_fix: str) -> Rows:
    for number, line in decode_lines(path):
        if not line.strip():
            continue
        try:
            record = small_files.parse_object(line.encode(), f"{path} row {number}")
        except DamagedFile as error:
            raise DamagedFile(f"{error}; {_JSON_FORM}") from None
        missing = [name for name in wanted if name not in record]
        if missing:
            raise Refused(
                f"{path} row {number} has no {missing[0]!r}; its keys are "
                f"{list_names(list(record))}, and {', '.join(wanted)} are read: {how_to_fix}"
            )
        if _SURROGATE.search(line):
            for name, value in record.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                small_files.check_unicode(name + text, name, f"{path} row {number}")
        check_not_header(path, number, record)
        yield number, record


def _parquet_rows(path: pathlib.Path, wanted: Sequence[str], how_to_fix: str) -> Rows:
    batches = read_parquet_batches(path, wanted, how_to_fix, list(dict.fromkeys(wanted)))
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, 1):
        check_not_header(path, number, row)
        yield number, row


def read_parquet_batches(
    path: pathlib.Path, wanted: Sequence[str], how_to_fix: str, columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet file a few rows at a time; columns=None means all of them."""
    with (
        explain_damage(str(path)),
        small_files.open_regular(path) as stored,
        pq.ParquetFile(stored, pre_buffer=False, page_checksum_verification=True) as file,
    ):
        check_columns(path, file.schema_arrow.names, wanted, how_to_fix)
        for name in wanted:
            kind = file.schema_arrow.field(name).type
            if pa.types.is_temporal(kind):  # Python has no dates of some of its values
                raise Refused(f"{path} has {kind} under {name!r}; {_READABLE}")
        for group in range(file.num_row_groups):
            for number in range(file.metadata.num_columns):
                column = file.metadata.row_group(group).column(number)
                is_read = columns is None or column.path_in_schema in columns
                if is_read and column.physical_type == "BYTE_ARRAY":
                    check_packing(str(path), column)
        first = 1
        for batch in file.iter_batches(_PARQUET_ROWS, columns=columns):
            _check_batch(path, batch, first)
            yield batch
            first += len(batch)


def _check_batch(path: pathlib.Path, batch: pa.RecordBatch, first: int) -> None:
    """Refuse text that is not UTF-8, which Parquet does not check; `first` is a row's number."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Refused(
            f"{path} rows {first:,} to {first + len(batch) - 1:,} cannot be read: "
            f"{str(error).rstrip('.')}; write the table again"
        ) from error


def split_file(options: TaskOptions, split: str, names: Sequence[str]) -> pathlib.Path | None:
    """Find the file of a split in the task's folder; return None where there is no test file."""
    if options.source != "files":
        raise Refused(
            f"config.data.source is {options.source!r}, but {options.task} is read from files "
            "alone; leave it at 'files'"
        )
    key = f"config.data.{split}_file"
    given = {TRAIN: options.train_file, DEV: options.dev_file, TEST: options.test_file}[split]
    folder = expand_home("config.data.dir", options.dir)
    if not options.dir or not folder.is_dir():  # "" would be the current folder
        raise Refused(
            f"config.data.dir is {options.dir!r}, which is not a folder; give the folder "
            f"of the files of {options.task}, --config.data.dir=DIR"
        )
    if given:
        if not (folder / given).is_file():
            raise Refused(f"{key} is {given!r}, but there is no file {folder / given}")
        return folder / given
    matches = [folder / name for name in names if (folder / name).is_file()]
    if len(matches) > 1:
        raise Refused(
            f"{folder} holds both {matches[0].name} and {matches[1].name}; choose one with "
            f"--{key}=NAME"
        )
    if not matches and split != TEST:
        raise Refused(
            f"{folder} has no {split} file of {options.task}: none of {', '.join(names)}; name "
            f"yours with --{key}=NAME"
        )
    return matches[0] if matches else None


def read_splits(
    options: TaskOptions,
    file_names: Mapping[str, Sequence[str]],
    read: Callable[[pathlib.Path], Read],
) -> dict[str, Read]:
    """Read the file of each split with `read`; a missing test file is skipped."""
    paths = {split: split_file(options, split, names) for split, names in file_names.items()}
    return {split: read(path) for split, path in paths.items() if path is not None}
