"""The format alone: what is written comes back, and what cannot be written or found is said."""

import errno
import pathlib
import sys

import numpy as np
import pytest

from data_pipeline.spec.schema import TFRECORD_FIELDS, RowShape
from data_pipeline.store.tfrecord import (
    find_record_files,
    hash_first_segments,
    open_writer,
    read_examples,
    restore_ids,
    serialize_examples,
)

SHAPE = RowShape(seq_len=7, predictions=3, examples=1)


def batch_of(rows):
    """Random values, next_sentence_weights among them, which no record holds."""
    rng = np.random.default_rng(rows)
    arrays = SHAPE.arrays(rows).items()
    return {name: rng.integers(0, 3, dims).astype(dtype) for name, (dims, dtype) in arrays}


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_is_written_is_read_in_groups_and_the_bytes_are_told(tmp_path, compression):
    written, read_bytes = batch_of(2500), []
    with open_writer(tmp_path / "records", compression) as writer:
        for record in serialize_examples(written):
            writer.write(record)
    groups = list(read_examples(tmp_path / "records", read_bytes.append))
    assert [len(batch["input_ids"]) for _, batch in groups] == [1024, 1024, 452]
    assert {shape for shape, _ in groups} == {SHAPE}
    assert sum(read_bytes) == (tmp_path / "records").stat().st_size
    for name in TFRECORD_FIELDS:
        read = np.concatenate([batch[name] for _, batch in groups])
        assert read.dtype == (np.float32 if name == "masked_lm_weights" else np.int64)
        np.testing.assert_array_equal(read, written[name].reshape(2500, -1))


def test_a_batch_whose_examples_are_all_left_out_has_no_record():
    assert list(serialize_examples(batch_of(0))) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /dev/full")
def test_a_full_disk_is_an_oserror_that_says_so():
    with pytest.raises(OSError) as error, open_writer(pathlib.Path("/dev/full"), "none") as writer:
        writer.write(b"record")
    assert error.value.errno == errno.ENOSPC


def test_files_are_found_once_and_folders_are_not_files(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b", "a[1]", "sub/c"):
        (tmp_path / name).touch()
    found = find_record_files("--input", f"{tmp_path}/sub/../b, {tmp_path}/a[1], {tmp_path}/*")
    assert [path.name for path in found] == ["b", "a[1]"]
    with pytest.raises(ValueError, match="--input has ' , ', which matches no file"):
        find_record_files("--input", " , ")
    with pytest.raises(ValueError, match=r"--input has .*/z\*', which matches no file"):
        find_record_files("--input", f"{tmp_path}/b,{tmp_path}/z*")


def batch(ids, positions=(0,), labels=(0,), weights=(0,), second=4, visible=6):
    """One example of six positions, B from position `second` on."""
    place = np.arange(6)
    return {
        "input_ids": np.array([ids], np.uint16),
        "input_mask": (place < visible)[None].astype(np.uint8),
        "segment_ids": (place >= second)[None].astype(np.uint8),
        "masked_lm_positions": np.array([positions], np.uint8),
        "masked_lm_ids": np.array([labels], np.uint16),
        "masked_lm_weights": np.array([weights], np.uint8),
    }


def test_labels_go_back_and_unused_slots_leave_cls_alone():
    masked = batch([2, 9, 4, 3, 4, 3], (2, 4, 0), (7, 8, 0), (1, 1, 0))
    assert restore_ids(masked).tolist() == [[2, 9, 7, 3, 8, 3]]
    assert masked["input_ids"].tolist() == [[2, 9, 4, 3, 4, 3]]


def test_the_hash_is_that_of_the_first_segments_text():
    plain = hash_first_segments(batch([2, 9, 7, 3, 8, 3]))
    same = [
        batch([2, 9, 4, 3, 8, 3], (2,), (7,), (1,)),  # masked
        batch([2, 9, 7, 3, 5, 3]),  # another second segment
        batch([2, 9, 7, 3, 0, 0], visible=4),  # none
    ]
    other = [
        batch([2, 7, 9, 3, 8, 3]),  # another order
        batch([2, 9, 6, 3, 8, 3]),
        batch([2, 9, 7, 3, 8, 3], second=3),
    ]
    assert all(hash_first_segments(one) == plain for one in same)
    assert not any(hash_first_segments(one) == plain for one in other)
