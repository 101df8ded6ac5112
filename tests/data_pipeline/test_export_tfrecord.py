"""Exported records, read with TensorFlow as other people's trainers read them."""

import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from data_pipeline.export_tfrecord import main
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store

SEQ_LEN, SLOTS = 37, 5
SIZES = [f"--seq_len={SEQ_LEN}", f"--max_predictions_per_seq={SLOTS}"]
# As run_pretraining.py@eedf5716ce reads them.
GOOGLE_SPEC = {
    **{
        name: tf.io.FixedLenFeature([SEQ_LEN], tf.int64)
        for name in ("input_ids", "input_mask", "segment_ids")
    },
    "masked_lm_positions": tf.io.FixedLenFeature([SLOTS], tf.int64),
    "masked_lm_ids": tf.io.FixedLenFeature([SLOTS], tf.int64),
    "masked_lm_weights": tf.io.FixedLenFeature([SLOTS], tf.float32),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}


def records_of(path):
    compression = "GZIP" if path.suffix == ".gz" else ""
    return list(tf.data.TFRecordDataset(os.fsencode(path), compression).as_numpy_iterator())


def lists_of(record):
    """Name, kind and length of each feature."""
    features = tf.train.Example.FromString(record).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return frozenset(
        (name, kind, len(getattr(features[name], kind).value)) for name, kind in kinds.items()
    )


def source_of(store, split="train", sizes=(SEQ_LEN, SLOTS), **options):
    opened = open_store(store)
    return open_examples(opened, getattr(opened, split), PretrainOptions(**options), *sizes)


def export(store, output, *flags):
    assert main([f"--store={store}", f"--output={output}", *SIZES, *flags]) == 0
    return json.loads((output / "export.json").read_text())


@pytest.mark.slow
def test_every_record_parses_as_google_reads_it_to_the_row_of_its_position(tiny_store, tmp_path):
    options = {"random_seed": 7, "masking": "whole_word"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    output = tmp_path / (os.fsdecode(b"\xff") if sys.platform == "linux" else "out")
    facts = export(tiny_store, output, "--epochs=2", "--shards=3", "--workers=1", *flags)
    source = source_of(tiny_store, **options)
    assert facts["examples"] == source.rows_in_epoch(0) + source.rows_in_epoch(1)
    files = [records_of(output / f"train-{n:05}-of-00003.tfrecord") for n in range(3)]
    assert sum(map(len, files)) == facts["examples"]
    rows = source.rows(np.arange(facts["examples"]))
    for number, records in enumerate(files):
        for name, values in tf.io.parse_example(records, GOOGLE_SPEC).items():
            expected = rows[name][number::3].reshape(values.shape)
            np.testing.assert_array_equal(values, expected, name)
    store = open_store(tiny_store)
    assert facts["store_digest"] == store.digest and options.items() <= facts["options"].items()
    assert facts["features"]["masked_lm_weights"] == f"float[{SLOTS}]"
    names = {path.name for path in output.iterdir()}
    assert names == {*facts["files"], "export.json", "vocab.txt"}
    assert (output / "vocab.txt").read_bytes() == store.vocab_path.read_bytes()


@pytest.mark.slow
def test_features_are_those_of_googles_own_file(tiny_store, tmp_path, shared_data):
    flags = ["--seq_len=128", "--max_predictions_per_seq=20", "--epochs=1", "--shards=1"]
    export(tiny_store, tmp_path / "out", *flags)
    ours = records_of(tmp_path / "out" / "train-00000-of-00001.tfrecord")
    theirs = records_of(shared_data / "golden" / "google_bert_instances" / "sample_text.tfrecord")
    assert {lists_of(record) for record in ours} == {lists_of(record) for record in theirs}


def test_the_default_is_a_pass_for_each_walk_of_the_split(tiny_store, tmp_path):
    flags = ["--split=heldout", "--dupe_factor=3", "--shards=1"]
    facts = export(tiny_store, tmp_path / "out", *flags)
    source = source_of(tiny_store, "heldout", dupe_factor=3)
    assert facts["examples"] == sum(map(source.rows_in_epoch, range(3)))


def of_sentence_order(store, output, *flags):
    """Some examples are of one sentence, whose order there is nothing to tell of."""
    sizes = ["--seq_len=13", "--max_predictions_per_seq=2", "--segments=sop", "--epochs=1"]
    return export(store, output, *sizes, "--shards=3", *flags)


def test_an_example_that_has_no_order_to_tell_is_left_out(tiny_store, tmp_path, capsys):
    facts = of_sentence_order(tiny_store, tmp_path / "out", "--workers=1")
    source = source_of(tiny_store, sizes=(13, 2), segments="sop")
    rows = source.rows(np.arange(source.rows_in_epoch(0)))
    has_label = rows["next_sentence_weights"] == 1
    assert 0 < has_label.sum() < len(has_label)
    expected = [row[row > 0].tolist() for row in rows["input_ids"][has_label]]
    written = []
    for path in (tmp_path / "out").glob("*.tfrecord"):
        for record in records_of(path):
            features = tf.train.Example.FromString(record).features.feature
            written.append([one for one in features["input_ids"].int64_list.value if one > 0])
    assert sorted(written) == sorted(expected)
    left_out = len(has_label) - len(expected)
    assert facts["examples"] == len(expected)
    assert facts["left_out"] == {"examples_without_next_sentence": left_out}
    words = " ".join(capsys.readouterr().out.split())
    assert f"! {left_out:,} of {len(has_label):,} examples are skipped" in words


@pytest.mark.long
def test_processes_and_gzip_change_no_record_and_no_count(tiny_store, tmp_path):
    flags = ["--random_seed=7", "--masking=whole_word"]
    one = of_sentence_order(tiny_store, tmp_path / "one", *flags, "--workers=1")
    more = ["--workers=2", "--compression=gzip"]
    two = of_sentence_order(tiny_store, tmp_path / "two", *flags, *more)
    assert two["examples"] == one["examples"]
    assert two["left_out"] == one["left_out"] != {}
    for number in range(3):
        plain = tmp_path / "one" / f"train-{number:05}-of-00003.tfrecord"
        packed = tmp_path / "two" / f"train-{number:05}-of-00003.tfrecord.gz"
        assert packed.read_bytes()[:2] == b"\x1f\x8b"
        assert records_of(packed) == records_of(plain) != []
