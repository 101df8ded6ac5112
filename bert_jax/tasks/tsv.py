"""Columns of a tsv file as GLUE publishes them: no quotes, perhaps a byte order mark or no header.

A quotation mark is a character like any other, and half of a pair stands in many rows. A row ends
at a line feed alone: other characters that Unicode breaks lines at occur within sentences.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from data_pipeline import small_files
from data_pipeline.small_files import MAX_BYTES

_BOM = b"\xef\xbb\xbf"
_SHOWN_CHARACTERS = 60
_SHOWN_NAMES, _SHOWN_NAME = 20, 40


@dataclasses.dataclass(frozen=True)
class Columns:
    """Some columns of a file, and where in it each row stands."""

    path: pathlib.Path
    values: dict[str, list[str]]
    row_numbers: list[int]  # from 1, as an editor counts lines
    short_rows: tuple[int, ...] = ()  # numbers of rows that were left out for want of fields

    def __len__(self) -> int:
        return len(self.row_numbers)

    def place(self, index: int) -> str:
        """The file and the row of it that a row of the columns is from, for a message."""
        return f"{self.path} row {self.row_numbers[index]}"


def read_columns(
    path: pathlib.Path,
    wanted: Sequence[str],
    header: Sequence[str] = (),
    also: Sequence[str] = (),
    drops_short_rows: bool = False,
    way_out: str = "is it the file of another task, or without its header?",
) -> Columns:
    """The wanted columns of a file, and those of `also` that it has, by the names in its first row.

    header names the columns of a file whose first row is data. Blank lines are no rows. With
    drops_short_rows a row of too few fields is left out and noted instead of refused.

    Raises:
      ValueError: a column that is missing, with those that are there; a row with another number of
        fields, or text that is not UTF-8, with its number; no row at all.
    """
    rows = fields_of_rows(path)
    if header:
        names = list(header)
    else:
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{path} is empty; copy or download it again")
        names = first[1]
    check_columns(path, names, wanted, way_out)
    places = {name: names.index(name) for name in (*wanted, *also) if name in names}
    values: dict[str, list[str]] = {name: [] for name in places}
    numbers, short = list[int](), list[int]()
    for number, fields in rows:
        if drops_short_rows and len(fields) < len(names):
            short.append(number)
            continue
        if len(fields) != len(names):
            raise ValueError(wrong_fields(path, number, fields, names))
        for name, place in places.items():
            values[name].append(fields[place])
        numbers.append(number)
    if not numbers:
        raise ValueError(f"{path} has a header and no rows; copy or download it again")
    return Columns(path, values, numbers, tuple(short))


def check_columns(
    path: pathlib.Path, names: Sequence[str], wanted: Sequence[str], way_out: str
) -> None:
    """Raise unless each of the wanted columns is among the names, once."""
    for name in wanted:
        if names.count(name) != 1:
            state = f"{names.count(name)} columns" if name in names else "no column"
            raise ValueError(
                f"{path} has {state} {name!r}; its columns are {listed(names)}, and "
                f"{', '.join(wanted)} are read: {way_out}"
            )


def listed(names: Sequence[str]) -> str:
    """Write the names that a file has for its columns: some, shortened, special ones escaped."""
    shown = [
        name if name.isprintable() and len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]!r:.60}"
        for name in names[:_SHOWN_NAMES]
    ]
    more = [f"and {len(names) - _SHOWN_NAMES:,} more"] * (len(names) > _SHOWN_NAMES)
    return ", ".join([*shown, *more]) or "none"


def fields_of_rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each row that is not blank."""
    for number, line in decoded_lines(path):
        text = line.removesuffix("\n").removesuffix("\r")
        if text:
            yield number, text.split("\t")


def decoded_lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, counted from 1, with what ends them; without a byte order mark.

    Raises:
      ValueError: text that is not UTF-8, a line longer than MAX_BYTES.
    """
    with small_files.open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), 1):
            if len(line) > MAX_BYTES:
                raise ValueError(
                    f"{path} row {number} is longer than {MAX_BYTES:,} bytes; is it the file that "
                    "is meant, and is it text?"
                )
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} row {number} is not UTF-8: byte 0x{line[error.start]:02x} at its byte "
                    f"{error.start + 1}; convert the file, as `iconv -f latin1 -t utf-8` does for "
                    "one in Latin-1, or download it again"
                ) from error


def wrong_fields(
    path: pathlib.Path, number: int, fields: Sequence[str], names: Sequence[str]
) -> str:
    """Say that a row has more or fewer fields than columns have names."""
    start = "\\t".join(fields)[:_SHOWN_CHARACTERS]
    return (
        f"{path} row {number} has {len(fields)} fields and not {len(names)} ({listed(names)}); "
        f"it begins {start!r}: mend or remove the row, or download the file again"
    )
