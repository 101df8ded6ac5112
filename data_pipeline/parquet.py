"""Parquet files to documents: a row is one, its text in the column --text_key."""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.document_size import grown
from data_pipeline.files import one_sentence, open_file
from data_pipeline.lines import paragraphs_of

_REQUEST_BYTES = 4 << 20  # at a time of a file: what lies between pieces of the column is not read
_BATCH_BYTES = 4 << 20  # of text, in memory at a time
_MOST_BATCH_ROWS = 1024
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
        rows, told_bytes, all_rows = 0, 0, file.metadata.num_rows
        for texts in _batches(address, file, text_key):
            for row, text in enumerate(texts, rows + 1):
                grown(f"{address} row {row}", 0, text)
                yield paragraphs_of(text)
            rows += len(texts)
            done_bytes = stored_bytes * rows // all_rows
            advance(done_bytes - told_bytes)
            told_bytes = done_bytes


def _opened(address: str, stored: BinaryIO, text_key: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(
            stored, buffer_size=_REQUEST_BYTES, pre_buffer=False, page_checksum_verification=True
        )
    except pa.ArrowException as error:
        raise _damaged(address, error) from error
    schema = file.schema_arrow
    if schema.names.count(text_key) != 1 or not _is_text(schema.field(text_key).type):
        raise ValueError(
            f"{address} has no column of text called {text_key!r}; its columns are "
            f"{_columns(schema)}; name the right one with --text_key=COLUMN"
        )
    return file


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


def _batches(address: str, file: pq.ParquetFile, text_key: str) -> Iterator[list[str]]:
    """Yield the texts of some rows at a time, "" where there is none."""
    rows = 0
    try:
        for batch in file.iter_batches(_batch_rows(file, text_key), columns=[text_key]):
            texts = [text or "" for text in batch.column(0).to_pylist()]
            rows += len(texts)
            yield texts
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{address} has text that is not UTF-8 after row {rows} ({error.reason}); write the "
            "file again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's or the network's, not Arrow's
        raise _damaged(address, error) from error


def _batch_rows(file: pq.ParquetFile, text_key: str) -> int:
    """How many rows have about _BATCH_BYTES of text, where they have most."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    schema = file.metadata.schema
    column = [schema.column(i).path for i in range(len(schema))].index(text_key)
    row_bytes = max(
        (
            group.column(column).total_uncompressed_size // group.num_rows
            for group in groups
            if group.num_rows
        ),
        default=0,
    )
    return max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))


def _damaged(address: str, error: Exception) -> ValueError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return ValueError(
        f"{address} is a Parquet file that is cut off or damaged ({reason}); copy or download it "
        "again"
    )
