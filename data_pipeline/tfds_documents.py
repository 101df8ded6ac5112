"""TensorFlow Datasets to documents: an example is one, its text in the feature --text_key.

Data sets are read where TFDS keeps them, its metadata by its own library and without the code that
made them. A shard is a source, so that several can be read at a time. Nothing is downloaded: tens
of gigabytes are not fetched by a flag of something else.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from data_pipeline.document_size import MAX_DOCUMENT_BYTES, grown
from data_pipeline.files import StoredFile, driver_errors
from data_pipeline.lines import paragraphs_of
from data_pipeline.record_frames import record_lengths

PREFIX = "tfds:"
_ENTRY = re.compile(r"tfds:([\w-]+(?:/[\w.-]+)?)(?::(\d+\.\d+\.\d+))?(?::([A-Za-z]\w*))?")
_SHARD = re.compile(r"tfds:(.+)#(.+)/(\d+)")
_BATCH_RECORDS = 64
_AGAIN = "copy or prepare the data set again"
_MOST_RECORD_BYTES = 4 * MAX_DOCUMENT_BYTES  # an example has other features beside its text


def find_shards(entry: str, text_key: str) -> list[StoredFile]:
    """The shards of "tfds:NAME[/CONFIG][:VERSION][:SPLIT]" that hold examples; SPLIT is train.

    Raises:
      ValueError: not of that form, a data set that is not on disk or of which a file is missing, a
        split or feature that it does not have, a format of files that is not read.
    """
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(
            f"--input has {entry!r}; a data set of TFDS is given as tfds:NAME[/CONFIG][:VERSION]"
            "[:SPLIT], as in tfds:wikipedia/20230601.en"
        )
    name, version, split = match.groups(default="")
    builder = _builder(f"{name}:{version}" if version else name)
    split = split or "train"
    if split not in builder.info.splits:
        raise ValueError(
            f"--input has {entry!r}, which has no split {split!r}; its splits are "
            f"{', '.join(builder.info.splits)}"
        )
    _check_feature(entry, builder.info.features, text_key)
    _check_format(entry, builder)
    shards = builder.info.splits[split]
    return [
        StoredFile(
            f"{PREFIX}{name}:{builder.version}#{split}/{number}", _stored_bytes(entry, path), False
        )
        for number, (path, examples) in enumerate(
            zip(shards.filepaths, shards.shard_lengths, strict=True)
        )
        if examples
    ]


def read_shard(
    address: str, stored_bytes: int, text_key: str, advance: Callable[[int], None]
) -> Iterator[list[str]]:
    """Yield the text of each example, cut into its lines.

    Raises:
      ValueError: a shard that is damaged or has not all of its examples, text that is not UTF-8, a
        document over MAX_DOCUMENT_BYTES.
    """
    match = _SHARD.fullmatch(address)
    if match is None:
        raise ValueError(f"{address} is no shard of a data set; find_sources names them")
    name, split, number = match[1], match[2], int(match[3])
    builder = _builder(name)
    shards = builder.info.splits[split]
    path, examples = str(shards.filepaths[number]), shards.shard_lengths[number]
    read = _array_records if _is_array_record(builder) else _tf_records
    done, told_bytes = 0, 0
    for records in read(address, path):
        for record in records:
            done += 1
            yield _document(
                f"{address} example {done}", _text(f"{address} example {done}", record, text_key)
            )
        done_bytes = stored_bytes * min(done, examples) // examples
        advance(done_bytes - told_bytes)
        told_bytes = done_bytes
    if done != examples:
        raise ValueError(
            f"{address} ({path}) has {done} of the {examples} examples that its data set has in "
            "it; it is cut off: copy or prepare the data set again"
        )


def _text(place: str, record: bytes, text_key: str) -> bytes:
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        values = tf_example_pb2.Example.FromString(record).features.feature[text_key]
        return bytes(values.bytes_list.value[0])
    except (DecodeError, IndexError) as error:
        raise ValueError(
            f"{place} is no example with text under {text_key!r}; copy or prepare the data set "
            "again"
        ) from error


def _document(place: str, data: bytes) -> list[str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place} is not UTF-8: byte 0x{data[error.start]:02x} at byte offset {error.start} "
            f"({error.reason}); prepare the data set with text"
        ) from error
    grown(place, 0, text)
    return paragraphs_of(text)


@functools.lru_cache(maxsize=8)
def _builder(name: str) -> Any:
    """What TFDS knows of a data set from its files."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants, read_only_builder

    try:
        with driver_errors(str(constants.DATA_DIR)):  # TensorFlow's, where that is a bucket
            return read_only_builder.builder_from_files(name)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(
            f"--input has tfds:{name}, which is not among the data sets in {constants.DATA_DIR}; "
            "name the folder by TFDS_DATA_DIR, or make it there first (the build downloads "
            'nothing), as in: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{name}').download_and_prepare()\""
        ) from error


def _check_feature(entry: str, features: Any, text_key: str) -> None:
    import tensorflow_datasets as tfds

    if text_key not in features or not isinstance(features[text_key], tfds.features.Text):
        shown = ", ".join(f"{name} ({type(features[name]).__name__})" for name in sorted(features))
        raise ValueError(
            f"--input has {entry!r}, which has no feature of text called {text_key!r}; its "
            f"features are {shown}; name the right one with --text_key=FEATURE"
        )


def _check_format(entry: str, builder: Any) -> None:
    import tensorflow_datasets as tfds

    formats = tfds.core.FileFormat
    if builder.info.file_format not in (formats.TFRECORD, formats.ARRAY_RECORD):
        raise ValueError(
            f"--input has {entry!r}, whose files are {builder.info.file_format.value}; tfrecord "
            "and array_record are read: prepare it so (tfds.builder with file_format='tfrecord'), "
            "or give Parquet files by their paths"
        )


def _is_array_record(builder: Any) -> bool:
    import tensorflow_datasets as tfds

    return bool(builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD)


def _stored_bytes(entry: str, path: Any) -> int:
    try:
        return int(path.stat().length)
    except FileNotFoundError as error:
        raise ValueError(
            f"--input has {entry!r}, of which {os.fspath(path)} is missing; copy or prepare the "
            "data set again"
        ) from error


def _tf_records(address: str, path: str) -> Iterator[list[bytes]]:
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(path, buffer_size=1 << 20).batch(_BATCH_RECORDS)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            for _ in record_lengths(address, file, _MOST_RECORD_BYTES, _AGAIN):
                pass
        for records in dataset.as_numpy_iterator():
            yield list(records)
    except tf.errors.OpError as error:
        raise ValueError(
            f"{address} cannot be read from {path} ({_first_line(error)}); copy or prepare the "
            "data set again"
        ) from error


def _array_records(address: str, path: str) -> Iterator[list[bytes]]:
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(path)
        for start in range(0, reader.num_records(), _BATCH_RECORDS):
            yield reader.read(range(start, min(start + _BATCH_RECORDS, reader.num_records())))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{address} cannot be read from {path} ({_first_line(error)}); copy or prepare the "
            "data set again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].split(" [[")[0].rstrip(".;")
