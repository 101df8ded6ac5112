"""The format alone: what is written comes back, and what cannot be written or found is said."""

import errno
import pathlib
import sys

import numpy as np
import pytest

from data_pipeline.schema import RowShape
from data_pipeline.tfrecord import (
    FEATURES,
    feature_lengths,
    find_record_files,
    open_writer,
    read_examples,
    serialized,
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
        for record in serialized(written):
            writer.write(record)
    groups = list(read_examples(tmp_path / "records", read_bytes.append))
    assert [len(batch["input_ids"]) for _, batch in groups] == [1024, 1024, 452]
    assert {shape for shape, _ in groups} == {SHAPE}
    assert sum(read_bytes) == (tmp_path / "records").stat().st_size
    for name in FEATURES:
        read = np.concatenate([batch[name] for _, batch in groups])
        assert read.dtype == (np.float32 if name == "masked_lm_weights" else np.int64)
        np.testing.assert_array_equal(read, written[name].reshape(2500, -1))


def test_the_lengths_of_a_record_are_those_of_the_format():
    assert feature_lengths(SHAPE) == {
        "input_ids": 7,
        "input_mask": 7,
        "segment_ids": 7,
        "masked_lm_positions": 3,
        "masked_lm_ids": 3,
        "masked_lm_weights": 3,
        "next_sentence_labels": 1,
    }


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /dev/full")
def test_a_full_disk_is_an_oserror_that_says_so():
    with pytest.raises(OSError) as error, open_writer(pathlib.Path("/dev/full"), "none") as writer:
        writer.write(b"record")
    assert error.value.errno == errno.ENOSPC


def test_a_folder_that_is_not_there_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="No such file"), open_writer(tmp_path / "no" / "x", "none"):
        pass


def test_files_are_found_once_and_folders_are_not_files(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).touch()
    found = find_record_files("--input", f"{tmp_path}/b, {tmp_path}/*")
    assert [path.name for path in found] == ["b", "a"]
    with pytest.raises(ValueError, match=r"--input has .*/z\*', which matches no file"):
        find_record_files("--input", f"{tmp_path}/a,{tmp_path}/z*")
