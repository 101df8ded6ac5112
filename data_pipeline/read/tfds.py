"""Read documents from TensorFlow Datasets: an example is a document, its text feature --text_key.

Data sets are read from TFDS's folder, without the code that made them; its library reads their
metadata. A shard is a source, so several can be read at a time. Nothing is downloaded: a build
should not fetch tens of gigabytes as a side effect.
"""

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from data_pipeline.io import Refused
from data_pipeline.io.errors import explain_errors, get_first_line
from data_pipeline.io.files import StoredFile
from data_pipeline.io.record_frames import record_lengths
from data_pipeline.read.lines import MAX_DOCUMENT_BYTES, split_paragraphs

PREFIX = "tfds:"
_ENTRY = re.compile(r"tfds:([\w-]+(?:/[\w.-]+)?)(?::(\d+\.\d+\.\d+))?(?::([A-Za-z]\w*))?")
_TFRECORD, _ARRAY_RECORD = "tfrecord", "array_record"  # formats that are read
_BATCH_RECORDS = 64
_AGAIN = "copy or prepare the data set again"
_MAX_RECORD_BYTES = 4 * MAX_DOCUMENT_BYTES  # an example has other features than its text


def find_shards(entry: str, text_key: str) -> list[StoredFile]:
    """Return the shards of "tfds:NAME[/CONFIG][:VERSION][:SPLIT]" (default: train) with examples.

    Raises Refused for another form, a data set that is not on disk or lacks a file, a missing
    split or feature, and a file format that is not read.
    """
    import tensorflow_datasets as tfds

    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise Refused(
            f"--input has {entry!r}; a data set of TFDS is given as tfds:NAME[/CONFIG][:VERSION]"
            "[:SPLIT], as in tfds:wikipedia/20230601.en"
        )
    name, version, split = match.groups(default="")
    builder = _open_builder_once(f"{name}:{version}" if version else name)
    split, splits, features = split or "train", builder.info.splits, builder.info.features
    if split not in splits:
        raise Refused(
            f"--input has {entry!r}, which has no split {split!r}; its splits are "
            f"{', '.join(splits)}"
        )
    if text_key not in features or not isinstance(features[text_key], tfds.features.Text):
        names = ", ".join(f"{name} ({type(features[name]).__name__})" for name in sorted(features))
        raise Refused(
            f"--input has {entry!r}, which has no feature of text called {text_key!r}; its "
            f"features are {names}; name the right one with --text_key=FEATURE"
        )
    if builder.info.file_format.value not in (_TFRECORD, _ARRAY_RECORD):
        raise Refused(
            f"--input has {entry!r}, whose files are {builder.info.file_format.value}; tfrecord "
            "and array_record are read: prepare it so (tfds.builder with file_format='tfrecord'), "
            "or give Parquet files by their paths"
        )
    shards = splits[split]
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
    """Yield the lines of the text of each example.

    Raises Refused for a shard that is damaged or has not all of its examples, text that is not
    UTF-8, a document over MAX_DOCUMENT_BYTES.
    """
    name, _, shard = address.removeprefix(PREFIX).partition("#")
    split, _, number = shard.rpartition("/")
    builder = _open_builder_once(name)
    shards = builder.info.splits[split]
    path, examples = str(shards.filepaths[int(number)]), shards.shard_lengths[int(number)]
    is_array_record = builder.info.file_format.value == _ARRAY_RECORD
    read = _array_records if is_array_record else _tf_records
    done, reported_bytes = 0, 0
    for records in read(address, path):
        for record in records:
            done += 1
            yield _document(f"{address} example {done}", record, text_key)
        done_bytes = stored_bytes * min(done, examples) // examples
        advance(done_bytes - reported_bytes)
        reported_bytes = done_bytes
    if done != examples:
        raise Refused(
            f"{address} ({path}) has {done} of the {examples} examples that its data set has in "
            f"it; it is cut off: {_AGAIN}"
        )


def _document(place: str, record: bytes, text_key: str) -> list[str]:
    """Return the lines of the text of a serialized tf.train.Example."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        values = tf_example_pb2.Example.FromString(record).features.feature[text_key]
        data = bytes(values.bytes_list.value[0])
        text = data.decode("utf-8")
    except (DecodeError, IndexError) as error:
        raise Refused(f"{place} has no text under {text_key!r}; {_AGAIN}") from error
    except UnicodeDecodeError as error:
        raise Refused(
            f"{place} is not UTF-8: byte 0x{data[error.start]:02x} at byte offset {error.start} "
            f"({error.reason}); prepare the data set with text"
        ) from error
    return split_paragraphs(place, text)


def open_builder(name: str, given: str = "") -> Any:
    """Return the metadata of a data set that TFDS reads from its files; nothing is downloaded.

    `given` begins the error about a data set that is not there; by default it names --input.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants, read_only_builder

    try:
        with explain_errors(str(constants.DATA_DIR)):  # TensorFlow's, where that is a bucket
            return read_only_builder.builder_from_files(name)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise Refused(
            f"{given or f'--input has tfds:{name}, which'} is not among the data sets in "
            f"{constants.DATA_DIR}; name the folder by TFDS_DATA_DIR, or prepare it there first "
            '(nothing is downloaded here), as in: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{name}').download_and_prepare()\""
        ) from error


_open_builder_once = functools.lru_cache(maxsize=8)(open_builder)


def _stored_bytes(entry: str, path: Any) -> int:
    try:
        return int(path.stat().length)
    except FileNotFoundError as error:
        raise Refused(
            f"--input has {entry!r}, of which {os.fspath(path)} is missing; {_AGAIN}"
        ) from error


def _tf_records(address: str, path: str) -> Iterator[list[bytes]]:
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(path, buffer_size=1 << 20).batch(_BATCH_RECORDS)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            for _ in record_lengths(address, file, _MAX_RECORD_BYTES, _AGAIN):
                pass
        for records in dataset.as_numpy_iterator():
            yield list(records)
    except tf.errors.OpError as error:
        raise _damaged(address, path, error) from error


def _array_records(address: str, path: str) -> Iterator[list[bytes]]:
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(path)
        for start in range(0, reader.num_records(), _BATCH_RECORDS):
            yield reader.read(range(start, min(start + _BATCH_RECORDS, reader.num_records())))
    except (RuntimeError, ValueError, IndexError) as error:
        raise _damaged(address, path, error) from error


def _damaged(address: str, path: str, error: Exception) -> Refused:
    reason = get_first_line(error).split(" [[")[0].rstrip(".;")
    return Refused(f"{address} cannot be read from {path} ({reason}); {_AGAIN}")
