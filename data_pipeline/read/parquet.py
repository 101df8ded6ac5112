"""Read documents from Parquet and Arrow files: a row is a document, its text under --text_key."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.io import Refused
from data_pipeline.io.errors import get_first_line, is_transient
from data_pipeline.io.files import open_file
from data_pipeline.read.lines import MAX_DOCUMENT_BYTES, check_size, split_paragraphs

_REQUEST_BYTES = 4 << 20  # bytes per request: those between parts of the column are not read
_BATCH_BYTES = 4 << 20  # text in memory at a time
_MAX_BATCH_ROWS = 64  # rows may share a text that is stored once; each has a copy in memory
_MAX_SHARED_BYTES = _MAX_BATCH_ROWS * MAX_DOCUMENT_BYTES  # copies of the longest text
# A group of rows may unpack to _LARGE_BYTES, or to more if that is at most _MAX_PACKED times its
# stored size.
_LARGE_BYTES, _MAX_PACKED = 256 << 20, 1000
_MAGIC = b"PAR1"
# First bytes of an Arrow file, in which a stream follows, and of a stream as `datasets` writes it.
_ARROW_FILE, _ARROW_STREAM = b"ARROW1\0\0", b"\xff\xff\xff\xff"
_ARROW_END_BYTES = 8  # the mark after the last message
_MAX_ARROW_BYTES = 1 << 30  # a stored batch's; `datasets` writes 1,000 rows in each
_SHOWN_COLUMNS = 12


def is_parquet(head: bytes) -> bool:
    """Return whether a file with these first bytes is Parquet."""
    return head.startswith(_MAGIC)


def is_arrow(head: bytes) -> bool:
    """Return whether a file with these first bytes is an Arrow file or stream."""
    return head.startswith(_ARROW_FILE) or (
        head.startswith(_ARROW_STREAM) and head[4:8] != _ARROW_STREAM
    )


def check_columns(address: str, text_key: str, is_arrow: bool = False) -> None:
    """Raise Refused if there is no column of text of that name, or the file is damaged."""
    if is_arrow:
        next(_arrow_batches(address, text_key, lambda stored_bytes: None), None)
        return
    with open_file(address, _REQUEST_BYTES) as stored:
        _open(address, stored, text_key)


def read_rows(
    address: str,
    stored_bytes: int,
    text_key: str,
    advance: Callable[[int], None],
    is_arrow: bool = False,
) -> Iterator[list[str]]:
    """Yield the lines of the text of each row; a row without text is an empty document.

    Only that column is read: a few rows at a time from Parquet, a batch at a time from Arrow.
    `advance` is called with their share of the stored bytes. Raises Refused for what check_columns
    refuses, damaged pages, a file that is cut off, text that is not UTF-8 and a document over
    MAX_DOCUMENT_BYTES.
    """
    rows = 0
    if is_arrow:
        batches = _arrow_batches(address, text_key, advance)
    else:
        batches = _parquet_batches(address, stored_bytes, text_key, advance)
    for batch in batches:
        yield from _split_texts(address, batch, rows)
        rows += len(batch)


def _arrow_batches(
    address: str, text_key: str, advance: Callable[[int], None]
) -> Iterator[pa.Array]:
    """Yield the text column of each batch of rows in a file of Arrow."""
    with open_file(address, _REQUEST_BYTES) as stored, explain_damage(address, "Arrow"):
        stored.seek(len(_ARROW_FILE) if stored.read(8) == _ARROW_FILE else 0)
        reader = pa.ipc.open_stream(stored)
        path = _find_column(address, reader.schema, text_key)
        end_bytes, reported_bytes = stored.tell(), 0
        for batch in reader:
            end_bytes = stored.tell()
            if end_bytes - reported_bytes > _MAX_ARROW_BYTES:
                raise Refused(
                    f"{address} has a batch of {end_bytes - reported_bytes:,} bytes, and at most "
                    f"{_MAX_ARROW_BYTES:,} are read; write smaller batches"
                )
            batch.validate(full=True)
            yield _pick(batch, path)
            advance(end_bytes - reported_bytes)
            reported_bytes = end_bytes
        if stored.tell() - end_bytes != _ARROW_END_BYTES:
            raise Refused(
                f"{address} is an Arrow file that is cut off: the mark of its end is missing; copy "
                "or download it again"
            )


@contextlib.contextmanager
def explain_damage(address: str, kind: str = "Parquet") -> Iterator[None]:
    """Convert Arrow's errors in the block to a Refused of one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and (error.errno is not None or is_transient(error)):
            raise  # an error of the disk or the network, not of Arrow
        reason = get_first_line(error).rstrip(".")
        raise Refused(
            f"{address} is a truncated or damaged {kind} file ({reason}); copy or download it again"
        ) from error


def _open(address: str, stored: BinaryIO, text_key: str) -> tuple[pq.ParquetFile, list[str]]:
    """Open a Parquet file and find its text column; return the column's path too."""
    with explain_damage(address):
        file = pq.ParquetFile(
            stored, buffer_size=_REQUEST_BYTES, pre_buffer=False, page_checksum_verification=True
        )
        path = _find_column(address, file.schema_arrow, text_key)
        for column in _columns_of(file, text_key):
            check_packing(address, column)
    return file, path


def check_packing(address: str, column: Any) -> None:
    """Raise Refused if a column of a group of rows would unpack to more than any text does."""
    unpacked_bytes, packed_bytes = column.total_uncompressed_size, column.total_compressed_size
    if unpacked_bytes > max(_LARGE_BYTES, _MAX_PACKED * packed_bytes):
        raise Refused(
            f"{address} has {unpacked_bytes:,} bytes of {column.path_in_schema!r} packed into "
            f"{packed_bytes:,}, which no text is; leave it out"
        )


def _find_column(address: str, schema: pa.Schema, text_key: str) -> list[str]:
    """Return the path of the text column: one name, or two for a key such as "doc.text".

    Raises Refused if no column or several columns have the name, or the column is not text.
    """
    types = pa.types  # null: a shard whose texts are all missing
    texts = [types.is_string, types.is_large_string, types.is_string_view, types.is_null]
    texts += [types.is_binary, types.is_large_binary, types.is_binary_view]  # Hive writes text so
    for path in ([text_key], text_key.split(".")):
        kind: Any = schema
        for name in path:
            has_fields = kind is schema or types.is_struct(kind)
            index = kind.get_field_index(name) if has_fields else -1  # -1 too if two have the name
            if index < 0:
                break
            kind = kind.field(index).type
        else:
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if any(is_kind(kind) for is_kind in texts):
                return path
            break
    names = [f"{field.name} ({field.type})" for field in list(schema)[:_SHOWN_COLUMNS]]
    more = f" and {len(schema) - len(names)} more" if len(schema) > len(names) else ""
    raise Refused(
        f"{address} has no column of text called {text_key!r}; its columns are "
        f"{', '.join(names)}{more}; name the right one with --text_key=COLUMN"
    )


def _pick(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    """Return the column of the text."""
    import pyarrow.compute as pc

    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if len(path) > 1 else column


def _columns_of(file: pq.ParquetFile, text_key: str) -> list[Any]:
    """Return the metadata of a column in each row group; [] if there is no such column."""
    schema = file.metadata.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    if text_key not in paths:
        return []
    number = paths.index(text_key)
    groups = range(file.metadata.num_row_groups)
    return [file.metadata.row_group(group).column(number) for group in groups]


def _parquet_batches(
    address: str, stored_bytes: int, text_key: str, advance: Callable[[int], None]
) -> Iterator[pa.Array]:
    """Yield the column a few rows at a time; `advance` gets their share of the stored bytes."""
    with open_file(address, _REQUEST_BYTES) as stored, explain_damage(address):
        file, path = _open(address, stored, text_key)
        rows, reported_bytes, all_rows = 0, 0, max(1, file.metadata.num_rows)
        for group, column in enumerate(_columns_of(file, text_key)):
            group_bytes = max(1, column.total_uncompressed_size)
            row_bytes = max(1, group_bytes // max(1, column.num_values))
            # Each row may be a copy of one text as long as the group.
            most_rows = min(_MAX_BATCH_ROWS, _MAX_SHARED_BYTES // group_bytes)
            batch_rows = max(1, min(most_rows, _BATCH_BYTES // row_bytes))
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=[text_key]):
                yield _pick(batch, path)
                rows += len(batch)
                done_bytes = stored_bytes * min(rows, all_rows) // all_rows
                advance(done_bytes - reported_bytes)
                reported_bytes = done_bytes


def _split_texts(address: str, column: pa.Array, rows: int) -> Iterator[list[str]]:
    """Yield the lines of each text of a column, none of a missing one; `rows` rows came before."""
    for row, value in enumerate(column, rows + 1):
        place = f"{address} row {row}"
        if value.is_valid and pa.types.is_dictionary(column.type):
            value = value.value  # null if the dictionary's entry is null
        if not value.is_valid:
            yield []
            continue
        check_size(place, value.as_buffer().size)
        try:
            text = str(value.as_buffer(), "utf-8")
        except UnicodeDecodeError as error:
            raise Refused(
                f"{address} has text that is not UTF-8 in row {row} ({error.reason}); write the "
                "file again"
            ) from error
        yield split_paragraphs(place, text)
