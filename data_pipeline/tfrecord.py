"""Google BERT's TFRecords: pre-training examples as tf.train.Example protos, read and written.

A record is one example with the features that create_pretraining_data.py@eedf5716ce writes: seven
lists under the names of our batch fields, float32 for masked_lm_weights, int64 for the others. A
TFRecord file frames each record with its length and CRC-32C checksums of both, and may be gzipped
as a whole.
"""

import collections
import contextlib
import errno
import glob
import gzip
import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

import numpy as np

from data_pipeline.record_frames import FOOT_BYTES, HEAD_BYTES, record_lengths
from data_pipeline.schema import PRETRAIN_FIELDS, Field, RowShape

# All fields of a batch but next_sentence_weights: the format gives every example a label.
FEATURES: dict[str, Field] = {
    name: field for name, field in PRETRAIN_FIELDS.items() if name != "next_sentence_weights"
}
COMPRESSIONS = {"none": "", "gzip": "GZIP"}  # as the flag says it, as TensorFlow does

_GROUP_RECORDS = 1024
_GROUP_BYTES = 16 << 20  # of records as long as the first
# All records of a file are padded to one length; its numbers take one to three bytes each. What a
# group holds at most stays under 256 MiB, whatever a few bytes of gzip unpack to.
_MOST_RECORD_BYTES = 16 << 20
_LONGEST_BY_FIRST, _SHORT_RECORD_BYTES = 16, 256 << 10
_FRAME_BYTES = HEAD_BYTES + FOOT_BYTES
_GZIP_MAGIC = b"\x1f\x8b\x08"
_AT_BYTE = re.compile(r"(corrupted|truncated) record at (\d+)")


def feature_lengths(shape: RowShape) -> dict[str, int]:
    """How many values each feature of a record holds."""
    sizes = {"B": 1, "S": shape.seq_len, "P": shape.predictions}
    return {name: sizes[field.dims[-1]] for name, field in FEATURES.items()}


def serialized(batch: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The examples of a batch as records, each a tf.train.Example, the same bytes at every call.

    Shapes: those of FEATURES; other fields are left out.
    """
    import tensorflow as tf

    rows = len(batch["input_ids"])
    values = {name: batch[name].reshape(rows, -1).tolist() for name in FEATURES}
    example = tf.train.Example()
    features = example.features.feature
    lists = {
        name: features[name].float_list if _is_float(field) else features[name].int64_list
        for name, field in FEATURES.items()
    }
    for row in range(rows):
        # One message is filled over and over: making its lists costs more than filling them.
        for name, values_of_rows in values.items():
            lists[name].value[:] = values_of_rows[row]
        yield example.SerializeToString(deterministic=True)


@contextlib.contextmanager
def open_writer(path: pathlib.Path, compression: str) -> Iterator[Any]:
    """A TFRecord file to call `write(record)` of; compression is a key of COMPRESSIONS.

    Raises:
      OSError: the file cannot be written, as on a full disk.
    """
    import tensorflow as tf

    options = tf.io.TFRecordOptions(compression_type=COMPRESSIONS[compression])
    try:
        with tf.io.TFRecordWriter(str(path), options) as writer:
            yield writer
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message, str(path)) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, str(path)) from error


def find_record_files(flag: str, patterns: str) -> list[pathlib.Path]:
    """The files that a comma-separated list of globs names, each once, sorted within a pattern.

    Raises:
      ValueError: a pattern without a file; the sentence calls the flag by its name.
    """
    paths: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        files = [match for match in matches if os.path.isfile(match)]
        if not files:
            raise ValueError(
                f"{flag} has {pattern!r}, which matches no file under {os.getcwd()}; give TFRecord "
                "files or globs, and put quotes around a glob so that the shell leaves it alone"
            )
        paths |= dict.fromkeys(files)
    return [pathlib.Path(path) for path in paths]


def read_examples(
    path: pathlib.Path, advance: Callable[[int], None] = lambda stored_bytes: None
) -> Iterator[tuple[RowShape, dict[str, np.ndarray]]]:
    """The examples of a file in groups; `advance` is told the stored bytes as they are read.

    Shapes: of a feature with F values, int64[N,F] or float32[N,F], N up to 1024.

    Raises:
      ValueError: no TFRecord file, a damaged or empty one, a record that is no example of BERT's or
        of another length than the first; the sentence names the file and the record.
    """
    shape = None
    done = 0
    for records in _read_records(path, advance):
        shape = shape or _shape_of(path, records[0])
        yield shape, _parsed(path, records, shape, done)
        done += len(records)
    if not done:
        raise ValueError(f"{path} holds no record; leave it out, or write it again")


def _read_records(path: pathlib.Path, advance: Callable[[int], None]) -> Iterator[list[bytes]]:
    import tensorflow as tf

    with open(path, "rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    read_bytes = 0
    with gzip.open(path) if is_gzip else open(path, "rb") as framed:
        group_records, lengths = _frames(path, cast(BinaryIO, framed))
        dataset = tf.data.TFRecordDataset(
            str(path), COMPRESSIONS["gzip" if is_gzip else "none"], buffer_size=1 << 22
        ).batch(group_records)
        groups = dataset.with_options(_reads_no_further()).as_numpy_iterator()
        try:
            while True:
                collections.deque(itertools.islice(lengths, group_records), maxlen=0)
                records = next(groups, None)
                if records is None:
                    break
                group_bytes = sum(map(len, records)) + _FRAME_BYTES * len(records)
                read_bytes += group_bytes
                advance(0 if is_gzip else group_bytes)
                yield list(records)
        except tf.errors.DataLossError as error:
            raise ValueError(_damage(path, str(error))) from error
    # TensorFlow takes less than the head of a record at the end of a file for the end.
    if read_bytes % 2**32 != _whole_bytes(path, is_gzip) % 2**32:
        error_text = "several in one" if is_gzip else f"truncated record at {read_bytes}"
        raise ValueError(_damage(path, error_text))
    advance(path.stat().st_size if is_gzip else 0)


def _reads_no_further() -> Any:
    """Options of a tf.data pipeline that reads what is asked for and nothing ahead of it."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return options


def _frames(path: pathlib.Path, file: BinaryIO) -> tuple[int, Iterator[int]]:
    """How many records make a group, and the lengths of all, each checked when it is drawn."""
    first = next(_until_damage(record_lengths(str(path), file, _MOST_RECORD_BYTES)), 0)
    file.seek(0)
    most_bytes = min(_MOST_RECORD_BYTES, max(_SHORT_RECORD_BYTES, _LONGEST_BY_FIRST * first))
    group_records = max(1, min(_GROUP_RECORDS, _GROUP_BYTES // max(1, first)))
    return group_records, _until_damage(record_lengths(str(path), file, most_bytes))


def _until_damage(lengths: Iterator[int]) -> Iterator[int]:
    """Yield lengths up to where a gzip file cannot be unpacked, of which TensorFlow tells."""
    with contextlib.suppress(EOFError, zlib.error, gzip.BadGzipFile):
        yield from lengths


def _whole_bytes(path: pathlib.Path, is_gzip: bool) -> int:
    """Bytes of a file, unpacked; of gzip modulo 2**32, as its last four bytes say."""
    if not is_gzip:
        return path.stat().st_size
    with open(path, "rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def _damage(path: pathlib.Path, error: str) -> str:
    found = _AT_BYTE.search(error)
    if found is None:
        return f"{path} is a damaged gzip file, or several in one; copy it again, or unpack it"
    kind, byte = found.groups()
    if byte == "0" and kind == "corrupted":
        return (
            f"{path} is no TFRecord file, or its first record is damaged; give files of records as "
            "create_pretraining_data.py writes them"
        )
    how = "cut off in" if kind == "truncated" else "damaged in"
    return (
        f"{path} is {how} the record at byte {int(byte):,} (unpacked); copy it again, or leave it "
        "out"
    )


def _shape_of(path: pathlib.Path, record: bytes) -> RowShape:
    """The shape that a file's first record gives all its records."""
    lengths = _lengths_of(path, record, 0)
    shape = RowShape(lengths["input_ids"], lengths["masked_lm_positions"], 1)
    _check_lengths(path, lengths, shape, 0)
    return shape


def _lengths_of(path: pathlib.Path, record: bytes, number: int) -> dict[str, int]:
    """How many values each feature of a record has."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(
            f"record {number} of {path} is no tf.train.Example; give files of records as "
            "create_pretraining_data.py writes them"
        ) from error
    lengths = {}
    for name, field in FEATURES.items():
        if name not in features:
            raise ValueError(
                f"record {number} of {path} has no feature {name}, its features are "
                f"{sorted(features)}; give records as create_pretraining_data.py writes them"
            )
        kind = "float_list" if _is_float(field) else "int64_list"
        found = features[name].WhichOneof("kind")
        if found != kind:
            raise ValueError(
                f"feature {name} in record {number} of {path} is a {found}, it must be a {kind}; "
                "give records as create_pretraining_data.py writes them"
            )
        lengths[name] = len(getattr(features[name], kind).value)
    return lengths


def _check_lengths(
    path: pathlib.Path, lengths: Mapping[str, int], shape: RowShape, number: int
) -> None:
    for name, expected in feature_lengths(shape).items():
        if lengths[name] != expected or not expected:
            raise ValueError(
                f"feature {name} in record {number} of {path} has {lengths[name]} values, it "
                f"should have {expected or 'some'}: all records of a file are padded to one "
                f"length ({shape.seq_len} tokens and {shape.predictions} predictions, by the first)"
            )


def _parsed(
    path: pathlib.Path, records: list[bytes], shape: RowShape, first_number: int
) -> dict[str, np.ndarray]:
    import tensorflow as tf

    spec = {
        name: tf.io.FixedLenFeature([length], tf.float32 if _is_float(FEATURES[name]) else tf.int64)
        for name, length in feature_lengths(shape).items()
    }
    try:
        return {name: array.numpy() for name, array in tf.io.parse_example(records, spec).items()}
    except tf.errors.InvalidArgumentError as error:
        # TensorFlow does not say which record it was.
        for number, record in enumerate(records, first_number):
            _check_lengths(path, _lengths_of(path, record, number), shape, number)
        raise ValueError(
            f"TensorFlow cannot parse records {first_number} and following of {path}: {error}"
        ) from error


def _is_float(field: Field) -> bool:
    return field.dtype is np.float32
