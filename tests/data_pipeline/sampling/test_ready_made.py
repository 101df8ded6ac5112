"""Ready-made examples as a stream: every example once an epoch, each step made again at will."""

import dataclasses
import shutil

import numpy as np
import pytest

from data_pipeline import export_tfrecord, import_tfrecord
from data_pipeline.sampling.stream import open_examples, open_stored_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import TFRECORD_FIELDS
from data_pipeline.store import open_store
from data_pipeline.store.tfrecord import read_examples
from tests.data_pipeline.batch_check import check_pretrain_batch

SEQ_LEN, SLOTS = 24, 4
SIZES = [f"--seq_len={SEQ_LEN}", f"--max_predictions_per_seq={SLOTS}"]


@pytest.fixture(scope="module")
def exported(tiny_store, tmp_path_factory):
    output = tmp_path_factory.mktemp("exported")
    flags = [*SIZES, "--epochs=2", "--shards=3", "--workers=1", "--masking=whole_word"]
    assert export_tfrecord.main([f"--store={tiny_store}", f"--output={output}", *flags]) == 0
    return output


@pytest.fixture(scope="module")
def store(exported, tmp_path_factory):
    output = tmp_path_factory.mktemp("imported")
    flags = [f"--input={exported}/*.tfrecord", f"--vocab={exported}/vocab.txt", "--holdout=0.1"]
    assert import_tfrecord.main([*flags, f"--output={output}"]) == 0
    return open_store(output)


def stream(store, split="train", **options):
    return open_stored_examples(store, split, PretrainOptions(**options), SEQ_LEN, SLOTS)


def as_set(batch):
    """Each row as bytes; fields one after another."""
    rows = len(batch["input_ids"])
    flat = [batch[name].reshape(rows, -1).astype(np.float64) for name in sorted(batch)]
    return sorted(row.tobytes() for row in np.concatenate(flat, axis=1))


def test_every_exported_example_comes_back_bit_for_bit(tiny_store, store):
    options = PretrainOptions(masking="whole_word")
    opened = open_store(tiny_store)
    source = open_examples(opened, opened.train, options, SEQ_LEN, SLOTS)
    examples = source.rows_in_epoch(0) + source.rows_in_epoch(1)
    made = source.rows(np.arange(examples))
    back = [
        one.rows(np.arange(one.rows_in_epoch(0)))
        for one in (stream(store, "train"), stream(store, "heldout"))
    ]
    both = {name: np.concatenate([part[name] for part in back]) for name in made}
    assert as_set(both) == as_set(made)
    for part in back:
        check_pretrain_batch(part, stream(store).shape)


def test_ready_made_examples_are_exported_once_as_they_are(store, tmp_path):
    flags = [*SIZES, "--split=heldout", "--shards=1", "--workers=1"]
    flags += [f"--store={store.directory}", f"--output={tmp_path / 'out'}"]
    assert export_tfrecord.main(flags) == 0
    (path,) = (tmp_path / "out").glob("*.tfrecord")
    written = [batch for _, batch in read_examples(path)]
    source = stream(store, "heldout")
    expected = source.rows(np.arange(source.rows_in_epoch(0)))
    for name in TFRECORD_FIELDS:
        both = np.concatenate([batch[name] for batch in written])
        np.testing.assert_array_equal(both, expected[name].reshape(len(both), -1))


def test_every_epoch_has_each_example_once_in_another_order(store):
    source = stream(store)
    size = source.rows_in_epoch(0)
    epochs = [source.rows(epoch * size + np.arange(size)) for epoch in range(3)]
    assert as_set(epochs[0]) == as_set(epochs[1]) == as_set(epochs[2])
    for a, b in ((0, 1), (1, 2), (0, 2)):
        same = (epochs[a]["input_ids"] == epochs[b]["input_ids"]).all(axis=1)
        assert same.mean() < 0.1
    other_seed = stream(store, random_seed=5).rows(np.arange(size))
    assert (other_seed["input_ids"] != epochs[0]["input_ids"]).any()


def test_no_held_out_example_is_trained_on(store):
    train, heldout = (stream(store, split) for split in ("train", "heldout"))
    rows = [source.rows(np.arange(source.rows_in_epoch(0))) for source in (train, heldout)]
    assert not set(as_set(rows[0])) & set(as_set(rows[1]))
    assert train.mean_rows_per_epoch == train.rows_in_epoch(4) == len(rows[0]["input_ids"])


def test_a_length_and_a_setting_unlike_those_of_the_records_are_refused(store):
    for size in ((128, SLOTS), (SEQ_LEN, 5)):
        words = (
            f"seq_len is {size[0]} and max_predictions_per_seq is {size[1]}, but .* {SEQ_LEN} tok"
        )
        with pytest.raises(ValueError, match=words):
            open_stored_examples(store, "train", PretrainOptions(), *size)
    for name, value in {"masking": "whole_word", "packed_examples": 8, "dupe_factor": 5}.items():
        words = rf"config.data.{name} is .* whose segments and masks are"
        with pytest.raises(ValueError, match=words):
            stream(store, **{name: value})


def test_examples_without_pairs_are_what_the_segments_say(store):
    """ELECTRA, and encoders without segments, take no others."""
    source = stream(store, segments="full_sentences")
    with pytest.raises(ValueError, match="segments is 'full_sentences', and ready-made examples"):
        source.rows(np.arange(4))
    alone = np.zeros_like(source.arrays["segment_ids"])
    single = dataclasses.replace(source, arrays=source.arrays | {"segment_ids": alone})
    batch = single.rows(np.arange(4))
    assert not batch["next_sentence_weights"].any()
    pairs = stream(store, segments="sop").rows(np.arange(4))
    assert pairs["next_sentence_weights"].all() and pairs["segment_ids"].any()
    np.testing.assert_array_equal(pairs["input_ids"], batch["input_ids"])


def test_a_row_outside_of_the_examples_and_ids_beyond_the_vocabulary_are_refused(store, tmp_path):
    copy = shutil.copytree(store.directory, tmp_path / "copy")
    path = copy / f"examples/{SEQ_LEN}/train_rows.npy"
    rows = np.load(path)
    rows[1] = -2
    np.save(path, rows)
    with pytest.raises(ValueError, match=r"train_rows\.npy has the row -2 of"):
        stream(open_store(copy))
    source = stream(store)
    ids = source.arrays["input_ids"].copy()
    ids[:, 3] = source.vocab_size
    damaged = dataclasses.replace(source, arrays=source.arrays | {"input_ids": ids})
    with pytest.raises(ValueError, match="beyond the 200 pieces of the store's vocabulary"):
        damaged.rows(np.arange(4))
