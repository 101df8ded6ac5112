"""Parquet files to documents: a row is one, its text in the column --text_key."""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.document_size import check_size, grown
from data_pipeline.files import one_sentence, open_file
from data_pipeline.lines import paragraphs_of

_REQUEST_BYTES = 4 << 20  # at a time of a file: what lies between pieces of the column is not read
_BATCH_BYTES = 4 << 20  # of text, in memory at a time
_MOST_BATCH_BYTES = 64 << 20  # where rows share the longest text that there can be
_MOST_BATCH_ROWS = 1024
_PAGE_HEAD_BYTES, _DICTIONARY_PAGE = 32, 2
# What a group of rows may unpack to, whatever it is packed into, and how many times that size.
_LARGE_BYTES, _MOST_PACKED = 256 << 20, 1000
_MAGIC = b"PAR1"
_SHOWN_COLUMNS = 12


def is_parquet(head: bytes) -> bool:
    """Whether a file that begins like this is Parquet."""
    return head.startswith(_MAGIC)


def check_columns(address: str, text_key: str) -> None:
    """Raise if there is no column of text to read.

    Raises:
      ValueError: no column of that name, or one of something else than text; the sentence names
        the columns. A file that is cut off or damaged.
    """
    with one_sentence(address), open_file(address, _REQUEST_BYTES) as stored:
        _opened(address, stored, text_key)


def read_rows(
    address: str, stored_bytes: int, text_key: str, advance: Callable[[int], None]
) -> Iterator[list[str]]:
    """Yield the text of each row, cut into its lines; a row without text is an empty document.

    Reads the one column, a few rows at a time. `advance` is told the row's share of the file.

    Raises:
      ValueError: what check_columns raises; damaged pages; text that is not UTF-8; a document over
        MAX_DOCUMENT_BYTES.
    """
    with one_sentence(address), open_file(address, _REQUEST_BYTES) as stored:
        file = _opened(address, stored, text_key)
        rows, told_bytes, all_rows = 0, 0, max(1, file.metadata.num_rows)
        for batch in _batches(address, stored, file, text_key):
            for row, text in enumerate(_texts(address, batch, rows), rows + 1):
                grown(f"{address} row {row}", 0, text)
                yield paragraphs_of(text)
            rows += len(batch)
            done_bytes = stored_bytes * min(rows, all_rows) // all_rows
            advance(done_bytes - told_bytes)
            told_bytes = done_bytes


def _opened(address: str, stored: BinaryIO, text_key: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(
            stored, buffer_size=_REQUEST_BYTES, pre_buffer=False, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's or the network's, not Arrow's
        raise _damaged(address, error) from error
    schema = file.schema_arrow
    if schema.names.count(text_key) != 1 or not _is_text(schema.field(text_key).type):
        raise ValueError(
            f"{address} has no column of text called {text_key!r}; its columns are "
            f"{_columns(schema)}; name the right one with --text_key=COLUMN"
        )
    for column in _columns_of(file, text_key):
        unpacked_bytes = column.total_uncompressed_size
        if unpacked_bytes > max(_LARGE_BYTES, _MOST_PACKED * column.total_compressed_size):
            raise ValueError(
                f"{address} has {unpacked_bytes:,} bytes of {text_key!r} packed into "
                f"{column.total_compressed_size:,}, which no text is; leave it out"
            )
    return file


def _columns_of(file: pq.ParquetFile, text_key: str) -> list[Any]:
    """The metadata of one column in each group of rows; none where there is no such column."""
    schema = file.metadata.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    if text_key not in paths:
        return []
    number = paths.index(text_key)
    groups = range(file.metadata.num_row_groups)
    return [file.metadata.row_group(group).column(number) for group in groups]


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _columns(schema: pa.Schema) -> str:
    shown = [f"{field.name} ({field.type})" for field in list(schema)[:_SHOWN_COLUMNS]]
    left = len(schema) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _batches(
    address: str, stored: BinaryIO, file: pq.ParquetFile, text_key: str
) -> Iterator[pa.Array]:
    """Yield the column of some rows at a time."""
    try:
        for group, column in enumerate(_columns_of(file, text_key)):
            rows = _batch_rows(stored, column)
            for batch in file.iter_batches(rows, row_groups=[group], columns=[text_key]):
                yield batch.column(0)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's or the network's, not Arrow's
        raise _damaged(address, error) from error


def _texts(address: str, column: pa.Array, rows: int) -> Iterator[str]:
    """Yield the texts of a column, "" where there is none; `rows` came before it."""
    for row, value in enumerate(column, rows + 1):
        if not value.is_valid:
            yield ""
            continue
        if pa.types.is_dictionary(column.type):
            value = value.value
        check_size(f"{address} row {row}", value.as_buffer().size)
        try:
            yield value.as_py()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{address} has text that is not UTF-8 in row {row} ({error.reason}); write the "
                "file again"
            ) from error


def _batch_rows(stored: BinaryIO, column: Any) -> int:
    """How many rows of a group have about _BATCH_BYTES of text, and at most _MOST_BATCH_BYTES.

    Rows may share a text that is stored once, and each has all of its bytes in memory.
    """
    row_bytes = column.total_uncompressed_size // max(1, column.num_values)
    rows = min(
        _BATCH_BYTES // max(1, row_bytes), _MOST_BATCH_BYTES // _shared_bytes(stored, column)
    )
    return max(1, min(_MOST_BATCH_ROWS, rows))


def _shared_bytes(stored: BinaryIO, column: Any) -> int:
    """The longest text that rows of a group may share: all of its dictionary, or of its column."""
    column_bytes = max(1, column.total_uncompressed_size)
    if "DELTA_BYTE_ARRAY" in column.encodings:  # a text is what it has beyond the one before
        return int(column_bytes)
    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    stored.seek(max(0, first))
    try:
        kind, page_bytes = _page_header(stored.read(_PAGE_HEAD_BYTES))
    except IndexError:
        return int(column_bytes)
    return max(1, page_bytes) if kind == _DICTIONARY_PAGE else 1


def _page_header(data: bytes) -> tuple[int, int]:
    """The kind of a page and its size unpacked, the first two fields of its header.

    Source: PageHeader in parquet.thrift, in Thrift's compact protocol.
    """
    numbers, at = [], 0
    for _ in range(2):
        value = shift = 0
        at += 1  # the field's head: the next field, an i32
        while data[at] & 0x80:
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
        value |= data[at] << shift
        at += 1
        numbers.append(value >> 1 ^ -(value & 1))
    return numbers[0], numbers[1]


def _damaged(address: str, error: Exception) -> ValueError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return ValueError(
        f"{address} is a Parquet file that is cut off or damaged ({reason}); copy or download it "
        "again"
    )
