"""Read documents from files of records: JSON lines, and tables in csv and tsv.

A record is a document; its text is under --text_key.
"""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data_pipeline.io import Refused
from data_pipeline.io.small_files import check_unicode, list_names, name_kind
from data_pipeline.read import wiki
from data_pipeline.read.lines import MAX_DOCUMENT_BYTES, HeadEndsError, split_paragraphs

_SHOWN_CHARACTERS = 40
_MAX_ROW_CHARS = 4 * MAX_DOCUMENT_BYTES  # a row of a table has other columns than its text
_OPEN = "unexpected end of data"  # csv's error for a quote that does not close
_DIALECT_CHARS = 1 << 15  # a table's start shows how it is written
_UNQUOTED_CHARS = 1 << 22  # a tsv's first quote in them shows whether texts are quoted
# Candidates for the delimiter; the one that finds the column of the text is used.
_DELIMITERS = {"csv": ",;\t|", "tsv": "\t"}

_FORM = (
    "JSON lines (a .json or .jsonl file, or one that opens a JSON object) must hold one JSON "
    "object per line: jq -c . FILE writes objects so, jq -c '.[]' FILE a list of them, "
    "jq -c '.[] | {text: .}' FILE a list of texts, and --format=text reads the file as it is"
)


def opens_json_lines(line: str) -> bool:
    """Return whether a file with this first line of text holds JSON lines."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        return type(json.loads(line)) is dict
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # JSON that Python cannot parse: parse_object reports it
        return True


def read_json_lines(address: str, lines: Iterable[str], text_key: str) -> Iterator[list[str]]:
    """Yield the lines of the text of each line's object.

    A text that is null is a document without text. Raises Refused for a line that is not an object,
    or has no text under the key.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{address} line {number}"
        record = parse_object(place, line)
        text = find_value(record, text_key)
        if text is MISSING:
            keys = list_names(_list_keys(record))
            raise Refused(
                f"{place} has no key {text_key!r}; its keys are {keys}; name the right one with "
                "--text_key=KEY, a nested one as KEY.KEY"
            )
        if text is None:  # how exports of tables write a missing text
            yield []
            continue
        if type(text) is not str:
            nested = f"{text_key}." if type(text) is dict else ""
            fix = f"write it as a string, or name another key with --text_key={nested}KEY"
            if nested and "0" in text:  # a whole column
                fix = "pandas writes a row per line by to_json(FILE, orient='records', lines=True)"
            raise Refused(
                f"{place} has {name_kind(text)} under the key {text_key!r}, and text is "
                f'needed, as in "text": "..."; {fix}'
            )
        check_unicode(text, text_key, place)
        if record.keys() == wiki.JSON_KEYS:
            text = wiki.unescape(text)
        yield split_paragraphs(place, text)


MISSING = object()


def find_value(record: Mapping[str, Any], key: str) -> Any:
    """Return the value under a key, or under "key.key" in nested objects; MISSING if none is."""
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None if value is None else MISSING
        value = value[part]
    return value


def _list_keys(record: Mapping[str, Any]) -> list[str]:
    """List the keys of a record, and after each object its own keys, as KEY.KEY."""
    keys = []
    for key in sorted(record):
        nested = sorted(record[key]) if isinstance(record[key], dict) else []
        keys += [key, *(f"{key}.{name}" for name in nested)]
    return keys


def parse_object(place: str, line: str, form: str = _FORM) -> dict[str, Any]:
    """Parse a line; raise Refused, with its place and the form of lines, if it is no object."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise Refused(
            f"{place} is not JSON ({error.msg} at character {error.pos + 1}); {form}"
        ) from error
    except ValueError as error:  # the only other cause: Python limits the digits of an integer
        raise Refused(
            f"{place} has a number of too many digits to be read ({str(error).split(';')[0]}); "
            "write it as a string, or leave it out"
        ) from error
    except RecursionError as error:
        raise Refused(
            f"{place} has lists or objects nested too deeply to be read; write its text as a "
            "plain string, and leave the rest out"
        ) from error
    if type(record) is not dict:
        raise Refused(f"{place} is a JSON {type(record).__name__}, not an object; {form}")
    return record


def read_table(address: str, lines: Iterable[str], kind: str, text_key: str) -> Iterator[list[str]]:
    """Yield the lines of the text in each row of a table; `kind` is csv or tsv.

    The first row names the columns, and the first rows show what separates them. A quoted text
    may have line ends, and quotes that are doubled; a tsv may be written without quoting. Raises
    Refused if text_key is "" or names no column, for a row with another number of fields and
    for a quote that does not close.
    """
    lines = iter(lines)
    head, is_cut = _take_head(lines, kind)
    delimiter, quoting = _find_dialect(address, head, kind, text_key)
    lines = itertools.chain(head, _end_head() if is_cut else lines)
    rows = read_fields(address, _end_lines(lines), delimiter, quoting)
    _, names = next(rows, (0, []))
    place = _check_columns(address, names, text_key)
    for number, fields in rows:
        if len(fields) != len(names):
            raise Refused(
                f"{address} row {number} has {len(fields)} fields and not {len(names)}: "
                f"{delimiter.join(fields)[:_SHOWN_CHARACTERS]!r}; a text with {delimiter!r}, "
                'quotes or line breaks in it stands in double quotes, a quote in it is doubled ("")'
            )
        if fields == names and len(names) > 1:
            raise Refused(
                f"{address} row {number} is a header within the rows, as where tables were joined; "
                "remove the row"
            )
        if kind == "tsv" and _spans_lines(fields) and _are_rows(delimiter.join(fields), names):
            raise Refused(
                f"{address} row {number} has a text in quotes over several lines, each of which "
                f"looks like a row: {delimiter.join(fields)[:_SHOWN_CHARACTERS]!r}; if the quotes "
                "belong to the texts, write the table as csv or as JSON lines"
            )
        yield split_paragraphs(f"{address} row {number}", fields[place])


def _are_rows(text: str, names: list[str]) -> bool:
    """Return whether each line of a text has as many tabs as a row of these columns."""
    tabs = len(names) - 1
    return all(line.count("\t") == tabs for line in text.split("\n"))


def _spans_lines(fields: list[str]) -> bool:
    """Return whether a row of several columns has a text over several lines."""
    return len(fields) > 1 and any("\n" in field for field in fields)


def _take_head(lines: Iterator[str], kind: str) -> tuple[list[str], bool]:
    """Take the first lines, in a tsv also those up to a quote and as many after it.

    Return them, and whether they are all that a cut head has.
    """
    head: list[str] = []
    chars, most = 0, _UNQUOTED_CHARS if kind == "tsv" else _DIALECT_CHARS
    try:
        for line in lines:
            head.append(line)
            if '"' in line:
                most = min(most, chars + _DIALECT_CHARS)
            chars += len(line) + 1
            if chars > most:
                break
    except HeadEndsError:
        return head, True
    return head, False


def _end_head() -> Iterator[str]:
    yield from ()
    raise HeadEndsError


def read_fields(
    place: str, lines: Iterable[str], delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table that are not blank, each with the number of its first line.

    The lines have their ends, which quoted texts keep. A first line such as "sep=;", which is for
    Excel, is no row. Raises Refused for a row that is cut or not quoted as it should be, or that
    has no end.
    """
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    number, chars = 1, 0

    def count_chars() -> Iterator[str]:
        nonlocal chars
        for line in lines:
            chars += len(line)
            if chars > _MAX_ROW_CHARS:
                raise Refused(
                    f"{place} row {number} has more than {_MAX_ROW_CHARS:,} characters; is it a "
                    "table, and are its quotes closed?"
                )
            yield line

    reader = csv.reader(count_chars(), delimiter=delimiter, strict=True, quoting=quoting)  # type: ignore[arg-type]
    while True:
        number, chars = reader.line_num + 1, 0
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise Refused(
                f"{place} row {number} cannot be read as a table ({error}): a text with "
                f"{delimiter!r}, quotes or line breaks in it stands in double quotes, and a quote "
                'in it is doubled ("")'
            ) from error
        if fields is None:
            return
        if fields and not (number == 1 and fields[0].startswith("sep=")):
            yield number, fields


def _end_lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.removesuffix("\r") + "\n" for line in lines)


def _find_dialect(address: str, head: list[str], kind: str, text_key: str) -> tuple[str, int]:
    """Return the delimiter and csv's quoting that fit the first rows best."""
    dialects = [(delimiter, csv.QUOTE_MINIMAL) for delimiter in _DELIMITERS[kind]]
    if kind == "tsv":
        dialects.append((_DELIMITERS[kind], csv.QUOTE_NONE))
    tried = [(*_try_dialect(address, head, *dialect), dialect) for dialect in dialects]
    named = [(rank, dialect) for rank, names, dialect in tried if text_key and text_key in names]
    if not named:
        _check_columns(address, max((names for _, names, _ in tried), key=len), text_key)
    return min(named, key=lambda each: each[0])[1]


def _try_dialect(
    address: str, head: list[str], delimiter: str, quoting: int
) -> tuple[int, list[str]]:
    """Return how badly a dialect fits, and the names of the columns by it.

    0: all rows have the same width; 1: they do without quoting; 2: a quoted text next to others has
    line ends, or is open at the head's end; 3: the rows differ, or a quote does not close.
    """
    names: list[str] = []
    fits, is_joined = True, False
    try:
        for _, fields in read_fields(address, _end_lines(head), delimiter, quoting):
            names = names or fields
            fits &= len(fields) == len(names)
            is_joined |= _spans_lines(fields)
    except Refused as error:
        is_open = _OPEN in str(error)
        return (2 if fits and is_open and names else 3), names
    return (2 if is_joined else int(quoting == csv.QUOTE_NONE)) if fits else 3, names


def _check_columns(address: str, names: list[str], text_key: str) -> int:
    """Return the place of the column of the text, or refuse a table without it."""
    if text_key and names.count(text_key) == 1:  # a table of pandas has a column without name
        return names.index(text_key)
    state = f"no single column {text_key!r}" if text_key else "columns"
    raise Refused(
        f"{address} is a table with {state}; its columns are {list_names(names)}; "
        "name the one that holds the text with --text_key=COLUMN, or read the lines as they are "
        "by --format=text"
    )
