"""Find the files of a task's splits and read their columns: tsv, csv, JSON lines or Parquet.

A file's format follows from its extension. In a tsv, as GLUE publishes it, a quotation mark is an
ordinary character (many rows have only half of a pair), there may be a byte order mark or no
header, and only a line feed ends a row: other line breaks of Unicode occur within sentences. The
first line of a csv shows what separates its columns: commas, else semicolons, tabs or bars. A
negative class label of Hugging Face's `datasets` in Parquet is a missing one.
"""

import codecs
import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.labels import fold_text, is_header
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import expand_home
from data_pipeline.io.compression import COMPRESSED
from data_pipeline.io.small_files import MAX_BYTES, DamagedFile, list_names
from data_pipeline.read.lines import decode_blocks
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
_SHOWN_CHARACTERS = 60
_SHOWN_ROWS = 3
_QUOTED = re.compile(r'"(?:[^"]*+"")++[^"]*+"')  # a quotation mark in it is doubled
_NO_COINCIDENCE = 5  # texts with a comma, and without one, that show how a tsv is quoted
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
    row_numbers: list[int] = dataclasses.field(default_factory=list)  # the first row is 1
    short_rows: list[int] = dataclasses.field(default_factory=list)  # skipped: too few fields
    missing_rows: list[int] = dataclasses.field(default_factory=list)  # a null or NaN, read as ""

    def place(self, index: int) -> str:
        """Name the file and the row of an entry, for an error message."""
        return f"{self.path} row {self.row_numbers[index]}"

    def first(self, count: int) -> "Columns":
        """Return the first `count` rows."""
        values = {name: texts[:count] for name, texts in self.values.items()}
        return dataclasses.replace(self, values=values, row_numbers=self.row_numbers[:count])


def read_columns(
    path: pathlib.Path,
    wanted: Sequence[str],
    how_to_fix: str = HOW_TO_FIX,
    *,
    suffix: str = "",
    headers: Sequence[Sequence[str]] = (),
    also: Sequence[str] = (),
    drops_short_rows: bool = False,
) -> Columns:
    """Read the wanted columns of a table as text, and the columns in `also` that it has.

    For suffix and headers see read_rows. With drops_short_rows a row of a tsv or csv with too few
    fields is skipped and noted instead of refused.

    Raises:
      Refused: as read_rows; there are no rows; a value is neither text nor number nor bool.
    """
    short_rows = list[int]()
    skipped = short_rows if drops_short_rows else None
    rows = read_rows(path, wanted, how_to_fix, suffix, headers, skipped)
    first = next(rows, None)
    if first is None:
        raise Refused(f"{path} has no rows; copy or download it again")
    names = [*wanted, *(name for name in also if name in first[1])]
    columns = collect_columns(path, itertools.chain([first], rows), names)
    return dataclasses.replace(columns, short_rows=short_rows)


def collect_columns(
    path: pathlib.Path, rows: Iterable[tuple[int, Mapping[str, Any]]], wanted: Sequence[str]
) -> Columns:
    """Collect the wanted columns of rows as text."""
    columns = Columns(path, {name: [] for name in wanted})
    for number, row in rows:
        for name, texts in columns.values.items():
            texts.append(_format_value(path, number, name, row[name]))
        columns.row_numbers.append(number)
        if any(_is_missing(row[name]) for name in columns.values):
            columns.missing_rows.append(number)
    return columns


def check_columns(
    path: pathlib.Path, names: Sequence[str], wanted: Sequence[str], how_to_fix: str
) -> None:
    """Refuse a file that lacks a wanted column or has it twice."""
    for name in wanted:
        if names.count(name) != 1:
            state = f"{names.count(name)} columns" if name in names else "no column"
            if len(names) == 1 and (marks := re.findall("[,;|\t]", names[0])):
                how_to_fix = f"{marks[0]!r} separates them, and a .csv needs commas, a .tsv tabs"
            alike = [other for other in names if fold_text(other) == fold_text(name)]
            if alike and name not in names:
                how_to_fix = f"{alike[0]!a} only looks like it: rename that column"
            raise Refused(
                f"{path} has {state} {name!r}; its columns are {list_names(names)}; the "
                f"task reads {', '.join(wanted)}: {how_to_fix}"
            )


def split_rows(
    path: pathlib.Path, suffix: str = TSV, wanted: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row of a tsv or csv that is not blank, and the row's first line.

    A csv's columns are separated by the mark that finds the wanted ones, else by the first mark of
    its first line.
    """
    if suffix == CSV:
        lines = (line for _, line in decode_lines(path))
        first = next(lines, "")
        marks = [mark for mark in ",;\t|" if mark in first] or [","]
        header = first.rstrip("\r\n")
        named = (m for m in marks if {*wanted} <= {name.strip('"') for name in header.split(m)})
        mark = next(named, marks[0])
        yield from read_fields(str(path), itertools.chain([first], lines), mark)
        return
    for number, line in decode_lines(path):
        text = line.removesuffix("\n").removesuffix("\r")
        if text:
            yield number, text.split("\t")


def decode_lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers and line feeds; drop a byte order mark.

    The file is UTF-8, or UTF-16 by its mark, plain or compressed. An archive, binary data and a
    file whose lines end in carriage returns alone are refused.
    """
    with small_files.open_regular(path) as stored:
        lines = _cut_lines(path, decode_blocks(str(path), stored))
        for number, line in enumerate(lines, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if b"\r" in line[:-1] and not line.endswith(b"\n"):
                    raise Refused(
                        f"{path} has lines that end in carriage returns alone, as old Macs wrote "
                        "them; convert them: tr '\\r' '\\n' < FILE > NEW"
                    )
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Refused(
                    f"{path} row {number} is not UTF-8: byte 0x{line[error.start]:02x} at its byte "
                    f"{error.start + 1}; convert the file from the encoding that it was written in "
                    "(iconv -f ENCODING -t UTF-8), or download it again"
                ) from error


def _cut_lines(path: pathlib.Path, blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > MAX_BYTES:
            raise Refused(
                f"{path} has a row of more than {MAX_BYTES:,} bytes, which begins "
                f"{rest[:_SHOWN_CHARACTERS]!r}; is it the file that is meant, and is it text?"
            )
    if rest:
        yield rest


def check_not_header(path: pathlib.Path, number: int, row: Mapping[str, object]) -> None:
    """Refuse a row of several columns that repeats their names."""
    if len(row) > 1 and is_header([*row], [*row.values()]):
        raise Refused(
            f"{path} row {number} is a header within the rows, {list_names([*row])}, as where "
            "tables were joined: remove the row"
        )


def refuse_quoted(columns: Columns) -> None:
    """Refuse a text of a tsv that has doubled quotation marks between two, as csv writes it.

    So is a column in which a text is in quotation marks if and only if it has a comma: Excel's.
    """
    if find_suffix(columns.path) != TSV:
        return
    for name, texts in columns.values.items():
        quoted = [index for index, text in enumerate(texts) if _QUOTED.fullmatch(text)]
        commas = [index for index, text in enumerate(texts) if "," in text]
        marked = [i for i, text in enumerate(texts) if len(text) > 1 and text[0] == text[-1] == '"']
        if marked == commas and min(len(commas), len(texts) - len(commas)) >= _NO_COINCIDENCE:
            quoted = commas
        if quoted:
            raise Refused(
                f"{columns.place(quoted[0])} has a text under {name!r} that is quoted as csv "
                f"quotes it, {texts[quoted[0]]!r:.60}, and quotation marks in a tsv are part of "
                "the text; write the table as a .csv with commas"
            )


def read_rows(
    path: pathlib.Path,
    wanted: Sequence[str],
    how_to_fix: str = HOW_TO_FIX,
    suffix: str = "",
    headers: Sequence[Sequence[str]] = (),
    skipped: list[int] | None = None,
) -> Rows:
    """Yield the rows, numbered as an editor counts lines; of Parquet only the wanted columns.

    suffix gives the format; the default is the path's. A tsv whose first row does not name the
    wanted columns gets its column names from `headers`: from the candidate that is as long as the
    row. Rows of a tsv or csv with too few fields are refused; with `skipped` they are left out, and
    their numbers added to it.

    Raises:
      Refused: an unknown format, a missing column, a row that cannot be read.
    """
    suffix = suffix or find_suffix(path)
    if suffix in (TSV, CSV):
        rows = _read_delimited_rows(path, wanted, how_to_fix, suffix, headers, skipped)
    elif suffix in JSON_LINES:
        rows = _json_rows(path, wanted, how_to_fix)
    elif suffix == PARQUET:
        batches = read_parquet_batches(path, wanted, how_to_fix, list(dict.fromkeys(wanted)))
        rows = enumerate(itertools.chain.from_iterable(map(_list_rows_of, batches)), 1)
    else:
        raise Refused(
            f"{path} ends in {suffix!r}; a table is known by its extension, one of "
            f"{', '.join(SUFFIXES)}: rename or convert the file"
        )
    for number, row in rows:
        check_not_header(path, number, row)
        yield number, row


def read_column_names(path: pathlib.Path, wanted: Sequence[str] = ()) -> list[str]:
    """Return the names of a table's columns; none of JSON lines whose first line is no object."""
    suffix = find_suffix(path)
    if suffix == PARQUET:
        with explain_damage(str(path)), small_files.open_regular(path) as stored:
            return list(pq.read_schema(stored).names)
    if suffix in JSON_LINES:
        _, line = next(decode_lines(path), (1, ""))
        return list(small_files.parse_json(line.encode(), path)) if line.startswith("{") else []
    return _name_unnamed(next(split_rows(path, suffix, wanted), (0, []))[1])


def _name_unnamed(names: list[str]) -> list[str]:
    """Name several unnamed columns as pandas does; spreadsheets write them for empty columns."""
    if names.count("") < 2:
        return names
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]


def find_suffix(path: pathlib.Path) -> str:
    """Return the extension of a table, the one before .gz, .bz2, .xz or .zst."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def _is_missing(value: Any) -> bool:
    """Return whether a value of a table is null or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def describe_missing(path: pathlib.Path, numbers: Sequence[int]) -> tuple[str, ...]:
    """Describe rows with a missing text in one sentence; return () without such rows."""
    if not numbers:
        return ()
    count = f"{len(numbers):,} row{'s' * (len(numbers) != 1)} without a text (null or NaN)"
    return (f"{path.name}: {count}, read as an empty one: {list_rows(numbers)}",)


def list_rows(numbers: Sequence[int]) -> str:
    """List the first row numbers for the screen."""
    rows = [f"{number:,}" for number in numbers[:_SHOWN_ROWS]]
    return ", ".join([*rows, *["..."] * (len(numbers) > _SHOWN_ROWS)])


def _format_value(path: pathlib.Path, number: int, name: str, value: Any) -> str:
    """Return a value of a table as text, null and NaN as ""; refuse a list or an object."""
    if _is_missing(value):
        return ""
    if not isinstance(value, str | int | float):
        raise Refused(
            f"{path} row {number} has a {type(value).__name__} under {name!r}; {_READABLE}"
        )
    return str(value)


def _read_delimited_rows(
    path: pathlib.Path,
    wanted: Sequence[str],
    how_to_fix: str,
    suffix: str,
    headers: Sequence[Sequence[str]],
    skipped: list[int] | None,
) -> Rows:
    """Yield the rows of a tsv or csv with the line that each begins in; a row may span lines."""
    names: Sequence[str] = ()
    for number, fields in split_rows(path, suffix, wanted):
        if not names:
            fitting = [
                header
                for header in headers
                if suffix == TSV and len(header) == len(fields) and set(wanted) <= set(header)
            ]
            if set(wanted) <= set(fields) or not fitting:
                names = _name_unnamed(fields)
                check_columns(path, names, wanted, how_to_fix)
                continue
            names = fitting[0]
        if skipped is not None and len(fields) < len(names):
            skipped.append(number)
            continue
        if len(fields) != len(names):
            start = "\\t".join(fields)[:_SHOWN_CHARACTERS]
            comma = " or quote a text with commas in it," if suffix == CSV else ""
            raise Refused(
                f"{path} row {number} has {len(fields)} fields and not {len(names)} "
                f"({list_names(names)}); it begins {start!r}: correct or remove the row,{comma} "
                "or download the file again"
            )
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
                f"{list_names(list(record))}; the task reads {', '.join(wanted)}: {how_to_fix}"
            )
        if _SURROGATE.search(line):
            for name, value in record.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                small_files.check_unicode(name + text, name, f"{path} row {number}")
        yield number, record


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
            try:  # Parquet does not check that text is UTF-8
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Refused(
                    f"{path} rows {first:,} to {first + len(batch) - 1:,} cannot be read: "
                    f"{str(error).rstrip('.')}; write the table again"
                ) from error
            yield batch
            first += len(batch)


def _list_rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows; null for a class label below 0, by which `datasets` writes a missing one."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    labels = _list_class_labels((batch.schema.metadata or {}).get(b"huggingface", b"{}"))
    with contextlib.suppress(TypeError):  # a column that is no number now
        for row in rows if labels else ():
            row |= {name: None for name in labels if (row.get(name) or 0) < 0}
    return rows


@functools.lru_cache(maxsize=1)  # one file's batches have the same metadata
def _list_class_labels(metadata: bytes) -> tuple[str, ...]:
    """List the class labels among the features that `datasets` wrote into a file's metadata."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        features = small_files.parse_json(metadata, "metadata")["info"]["features"]
        return tuple(key for key, each in features.items() if each.get("_type") == "ClassLabel")
    return ()


def split_file(options: TaskOptions, split: str, names: Sequence[str]) -> pathlib.Path | None:
    """Find the file of a split in the task's folder; return None where there is no test file."""
    if options.source != "files":
        raise Refused(
            f"config.data.source is {options.source!r}, but {options.task} is read from files "
            "alone; leave it at 'files'"
        )
    key = f"config.data.{split}_file"
    given = getattr(options, f"{split}_file")
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
    read: Callable[[pathlib.Path, str], Read],
) -> dict[str, Read]:
    """Read the file of each split with read(path, split); a missing test file is skipped."""
    paths = {split: split_file(options, split, names) for split, names in file_names.items()}
    return {split: read(path, split) for split, path in paths.items() if path is not None}
