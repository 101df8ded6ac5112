"""Read and write Google BERT's TFRecords: pre-training examples as tf.train.Example protos.

A record is one example with the features that create_pretraining_data.py@eedf5716ce writes: seven
lists under the names of our batch fields, float32 for masked_lm_weights, int64 for the others. A
TFRecord file frames each record with its length and CRC-32C checksums of both, and may be gzipped
as a whole.
"""

import collections
import contextlib
import errno
import gzip
import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.io.files import find_files, identify
from data_pipeline.io.record_frames import FOOT_BYTES, HEAD_BYTES, record_lengths
from data_pipeline.spec import hashing
from data_pipeline.spec.schema import TFRECORD_FIELDS, Field, RowShape, restore_ids
from data_pipeline.vocab import Vocabulary

# Names in records of the create_pretraining_data.py of TensorFlow's Model Garden, with
# --use_v2_feature_names.
_V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
COMPRESSIONS = {"none": "", "gzip": "GZIP"}  # value of the flag -> TensorFlow's name

_GROUP_RECORDS = 1024
_GROUP_BYTES = 16 << 20  # bytes of a group if all records are as long as the first
# All records of a file are padded to one length, with one to three bytes per number. No record may
# exceed both _SHORT_RECORD_BYTES and _MAX_BY_FIRST times the first: a group is 256 MiB at most,
# whatever a few bytes of gzip unpack to.
_MAX_RECORD_BYTES = 16 << 20
_MAX_BY_FIRST, _SHORT_RECORD_BYTES = 16, 256 << 10
_FRAME_BYTES = HEAD_BYTES + FOOT_BYTES
_GZIP_MAGIC = b"\x1f\x8b\x08"
_AT_BYTE = re.compile(r"(corrupted|truncated) record at (\d+)")


def count_values(shape: RowShape) -> dict[str, int]:
    """Return how many values each feature of a record has."""
    sizes = {"B": 1, "S": shape.seq_len, "P": shape.predictions}
    return {name: sizes[field.dims[-1]] for name, field in TFRECORD_FIELDS.items()}


def serialize_examples(batch: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yield each example of a batch as a tf.train.Example record, the same bytes at every call.

    Shapes: see TFRECORD_FIELDS; other fields are skipped.
    """
    import tensorflow as tf

    rows = len(batch["input_ids"])
    values = {name: batch[name].reshape(max(1, rows), -1).tolist() for name in TFRECORD_FIELDS}
    example = tf.train.Example()
    features = example.features.feature
    lists = {
        name: features[name].float_list if _is_float(field) else features[name].int64_list
        for name, field in TFRECORD_FIELDS.items()
    }
    for row in range(rows):
        # One message is filled repeatedly: making its lists costs more than filling them.
        for name, values_of_rows in values.items():
            lists[name].value[:] = values_of_rows[row]
        yield example.SerializeToString(deterministic=True)


@contextlib.contextmanager
def open_writer(path: pathlib.Path, compression: str) -> Iterator[Any]:
    """Open a TFRecord file with a `write(record)`; compression is a key of COMPRESSIONS.

    Raises:
      OSError: the file cannot be written, as on a full disk.
    """
    import tensorflow as tf

    options = tf.io.TFRecordOptions(compression_type=COMPRESSIONS[compression])
    try:
        with tf.io.TFRecordWriter(os.fsencode(path), options) as writer:
            yield writer
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message, str(path)) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, str(path)) from error


def find_record_files(flag: str, patterns: str) -> list[pathlib.Path]:
    """List the files of a comma-separated list of globs, each once, sorted within a pattern.

    Raises:
      Refused: no pattern, one without a file, a name that is not UTF-8; the message names the
        flag.
    """
    paths: dict[str, pathlib.Path] = {}
    for pattern in [part.strip() for part in patterns.split(",") if part.strip()] or [patterns]:
        files = [file for file in find_files(pattern) if os.path.isfile(file.address)]
        if not files:
            raise Refused(
                f"{flag} has {pattern!r}, which matches no file under {os.getcwd()}; give TFRecord "
                "files or globs, and put quotes around a glob so that the shell leaves it alone"
            )
        for file in files:
            paths.setdefault(identify(flag, file), pathlib.Path(file.address))
    return list(paths.values())


def read_examples(
    path: pathlib.Path, advance: Callable[[int], None] = lambda stored_bytes: None
) -> Iterator[tuple[RowShape, dict[str, np.ndarray]]]:
    """Yield the examples of a file in groups; call `advance` with the stored bytes that were read.

    A file may hold no record, if its writer had fewer examples than files.

    Shapes: of a feature with F values, int64[N,F] or float32[N,F], N up to 1024.

    Raises:
      Refused: not a TFRecord file, a damaged one, a record that is not an example, or of another
        length than the first; the message names the file and the record.
    """
    shape = None
    done = 0
    for records in _read_records(path, advance):
        shape = shape or _read_shape(path, records[0])
        yield shape, _parse_records(path, records, shape, done)
        done += len(records)


def _read_records(path: pathlib.Path, advance: Callable[[int], None]) -> Iterator[list[bytes]]:
    import tensorflow as tf

    with open(path, "rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    options = tf.data.Options()  # nothing is read before it is needed
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    read_bytes = 0
    with gzip.open(path) if is_gzip else open(path, "rb") as framed:
        group_records, lengths = _plan_groups(path, cast(BinaryIO, framed))
        dataset = tf.data.TFRecordDataset(
            str(path), COMPRESSIONS["gzip" if is_gzip else "none"], buffer_size=1 << 22
        ).batch(group_records)
        groups = dataset.with_options(options).as_numpy_iterator()
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
            raise Refused(_describe_damage(path, str(error))) from error
    # TensorFlow silently ignores less than the head of a record at the end of a file.
    if read_bytes % 2**32 != _count_unpacked_bytes(path, is_gzip) % 2**32:
        error_text = "several in one" if is_gzip else f"truncated record at {read_bytes}"
        raise Refused(_describe_damage(path, error_text))
    advance(path.stat().st_size if is_gzip else 0)


def _plan_groups(path: pathlib.Path, file: BinaryIO) -> tuple[int, Iterator[int]]:
    """Return the records in a group, and the lengths of all records, each checked when read."""
    first = next(_stop_at_damage(record_lengths(str(path), file, _MAX_RECORD_BYTES)), 0)
    file.seek(0)
    most_bytes = min(_MAX_RECORD_BYTES, max(_SHORT_RECORD_BYTES, _MAX_BY_FIRST * first))
    group_records = max(1, min(_GROUP_RECORDS, _GROUP_BYTES // max(1, first)))
    return group_records, _stop_at_damage(record_lengths(str(path), file, most_bytes))


def _stop_at_damage(lengths: Iterator[int]) -> Iterator[int]:
    """Yield lengths until a gzip file cannot be unpacked; TensorFlow then reports the error."""
    with contextlib.suppress(EOFError, zlib.error, gzip.BadGzipFile):
        yield from lengths


def _count_unpacked_bytes(path: pathlib.Path, is_gzip: bool) -> int:
    """Return the unpacked bytes of a file; of gzip modulo 2**32, from its last four bytes."""
    if not is_gzip:
        return path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return int.from_bytes(file.read(), "little")


def _describe_damage(path: pathlib.Path, error: str) -> str:
    match = _AT_BYTE.search(error)
    if match is None:
        return f"{path} is a damaged gzip file, or several in one; copy it again, or unpack it"
    kind, byte = match.groups()
    if byte == "0" and kind == "corrupted":
        return (
            f"{path} is not a TFRecord file, or its first record is damaged; give records as "
            "create_pretraining_data.py writes them"
        )
    how = "cut off in" if kind == "truncated" else "damaged in"
    return f"{path} is {how} the record at byte {int(byte):,} (unpacked); copy it again, or omit it"


def _read_shape(path: pathlib.Path, record: bytes) -> RowShape:
    """Read the shape of all records of a file from its first one."""
    lengths = _read_lengths(path, record, 0)
    shape = RowShape(lengths["input_ids"], lengths["masked_lm_positions"], 1)
    _check_lengths(path, lengths, shape, 0)
    return shape


def _open_features(path: pathlib.Path, record: bytes, number: int) -> Any:
    """Return the features of a record by their names."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise Refused(
            f"record {number} of {path} is not a tf.train.Example; give files of records as "
            "create_pretraining_data.py writes them"
        ) from error


def _find_names(features: Any) -> dict[str, str]:
    """Return the name of each field in a record."""
    names = {name: _V2_NAMES.get(name, name) for name in TFRECORD_FIELDS}
    return {name: other if other in features else name for name, other in names.items()}


def _read_lengths(
    path: pathlib.Path, record: bytes, number: int, names: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Count the values of each feature of a record; `names` has the names in it."""
    features = _open_features(path, record, number)
    lengths = {}
    for field_name, name in (names or _find_names(features)).items():
        if name not in features:
            raise Refused(
                f"record {number} of {path} has no feature {name}; its features are "
                f"{sorted(features)}; give records as create_pretraining_data.py writes them"
            )
        kind = "float_list" if _is_float(TFRECORD_FIELDS[field_name]) else "int64_list"
        actual_kind = features[name].WhichOneof("kind")
        if actual_kind != kind:
            raise Refused(
                f"feature {name} in record {number} of {path} has {actual_kind}, but needs {kind}; "
                "give records as create_pretraining_data.py writes them"
            )
        lengths[field_name] = len(getattr(features[name], kind).value)
    return lengths


def _check_lengths(
    path: pathlib.Path, lengths: Mapping[str, int], shape: RowShape, number: int
) -> None:
    for name, expected in count_values(shape).items():
        if lengths[name] != expected or not expected:
            raise Refused(
                f"feature {name} in record {number} of {path} has {lengths[name]} values, but "
                f"should have {expected or 'some'}: all records of a file are padded to one "
                f"length ({shape.seq_len} tokens and {shape.predictions} predictions, by the first)"
            )


def _parse_records(
    path: pathlib.Path, records: list[bytes], shape: RowShape, first_number: int
) -> dict[str, np.ndarray]:
    import tensorflow as tf

    names = _find_names(_open_features(path, records[0], first_number))
    spec = {
        names[name]: tf.io.FixedLenFeature(
            [length], tf.float32 if _is_float(TFRECORD_FIELDS[name]) else tf.int64
        )
        for name, length in count_values(shape).items()
    }
    try:
        parsed = tf.io.parse_example(records, spec)
        return {name: parsed[stored].numpy() for name, stored in names.items()}
    except tf.errors.InvalidArgumentError as error:
        # TensorFlow does not say which record it was.
        for number, record in enumerate(records, first_number):
            _check_lengths(path, _read_lengths(path, record, number, names), shape, number)
        raise Refused(
            f"TensorFlow cannot parse records {first_number} and following of {path}: {error}"
        ) from error


def _is_float(field: Field) -> bool:
    return field.dtype is np.float32


def check_examples(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    shape: RowShape,
    vocabulary: Vocabulary,
    first_number: int,
) -> None:
    """Raise Refused at the first value that cannot be right, naming record, feature and value.

    Shapes: as read_examples yields; `first_number` is the number of the batch's first record in
    the file.
    """
    vocab = (
        vocabulary.size - 1,
        f"--vocab={vocabulary.path} has {vocabulary.size} pieces: give the one that made the ids",
    )
    position = (shape.seq_len - 1, "a position counts from 0 and lies within the example")
    flag = (1, "the feature is 0 or 1")
    limits = {"input_ids": vocab, "masked_lm_ids": vocab, "masked_lm_positions": position}
    for name, values in batch.items():
        largest, why = limits.get(name, flag)
        is_wrong = (values < 0) | (values > largest)
        if name == "masked_lm_weights":
            is_wrong = (values != 0) & (values != 1)
        if is_wrong.any():
            row, slot = np.argwhere(is_wrong)[0]
            raise Refused(
                f"{name} of record {first_number + row} of {path} has {values[row, slot]}; it must "
                f"be from 0 to {largest}; {why}"
            )
    # Ids of another vocabulary are mostly within bounds, but lack [CLS].
    first_ids, cls_id = batch["input_ids"][:, 0], vocabulary.special_ids["cls"]
    is_wrong = (first_ids != cls_id) | (batch["input_mask"][:, 0] == 0)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise Refused(
            f"record {first_number + row} of {path} begins with the id {first_ids[row]}, which is "
            f"{vocabulary.pieces()[first_ids[row]]!r} in --vocab={vocabulary.path}, or hides it; "
            f"every example begins with [CLS] = {cls_id}: give the vocabulary that made the ids"
        )


_FIRST_SEGMENT = hashing.derive_key(0, hashing.FIRST_SEGMENT_FINGERPRINT)


def hash_first_segments(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Hash the unmasked text of each example's first segment.

    Copies of an example that differ only in their masks or in the second segment have one hash.

    Shapes: the fields of a batch -> uint64[B].
    """
    ids_BS = restore_ids(batch).astype(np.uint64)
    position_S = np.arange(ids_BS.shape[1], dtype=np.uint64)
    bits_BS = hashing.hash64(_FIRST_SEGMENT, ids_BS << np.uint64(32) | position_S)
    bits_BS[(batch["input_mask"] == 0) | (batch["segment_ids"] != 0)] = 0
    return hashing.hash64(_FIRST_SEGMENT, bits_BS.sum(axis=1, dtype=np.uint64))
