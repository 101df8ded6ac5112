"""TFRecords into a store: every value as Google's own reader finds it, and every mistake named."""

import gzip
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from data_pipeline.import_tfrecord import main
from data_pipeline.io.atomic import WORKING
from data_pipeline.store import open_store

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(25))]
SEQ_LEN, SLOTS = 13, 3


def example(number, seq_len=SEQ_LEN, slots=SLOTS):
    """A masked pair: [CLS] a b c [SEP] d e [SEP], with b shown as [MASK] and d as itself."""
    a = 5 + number % 25
    visible = [2, a, 4, 7, 3, 8, 9, 3]
    return {
        "input_ids": visible + [0] * (seq_len - 8),
        "input_mask": [1] * 8 + [0] * (seq_len - 8),
        "segment_ids": [0] * 5 + [1] * 3 + [0] * (seq_len - 8),
        "masked_lm_positions": [2, 5] + [0] * (slots - 2),
        "masked_lm_ids": [6, 8] + [0] * (slots - 2),
        "masked_lm_weights": [1.0, 1.0] + [0.0] * (slots - 2),
        "next_sentence_labels": [number % 2],
    }


def record(features):
    made = {}
    for name, values in features.items():
        is_float = name == "masked_lm_weights"
        values = tf.train.FloatList(value=values) if is_float else tf.train.Int64List(value=values)
        kind = "float_list" if is_float else "int64_list"
        made[name] = tf.train.Feature(**{kind: values})
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    write(tmp_path / "good.tfrecord", [record(example(n)) for n in range(50)])
    return tmp_path


def run(folder, *flags):
    return main([f"--vocab={folder / 'vocab.txt'}", f"--output={folder / 'store'}", *flags])


def stored(store, seq_len, name):
    return np.load(store / "examples" / str(seq_len) / f"{name}.npy")


def test_the_store_keeps_a_list_however_the_vocabulary_is_written(folder):
    (folder / "vocab.txt").write_bytes("\r\n".join(PIECES).encode())
    assert run(folder, f"--input={folder / 'good.tfrecord'}") == 0
    store = open_store(folder / "store")
    assert store.vocab_path.read_text() == "\n".join(PIECES) + "\n"
    theirs = tokenizers.Tokenizer.from_file(str(folder / "store" / "tokenizer.json"))
    assert theirs.get_vocab() == {piece: i for i, piece in enumerate(PIECES)}


def test_googles_own_file_imports_bit_for_bit_and_in_its_order(tmp_path, shared_data):
    golden = shared_data / "golden" / "google_bert_instances"
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    records = golden / "sample_text.tfrecord"
    assert main([f"--input={records}", f"--vocab={vocab}", f"--output={tmp_path / 's'}"]) == 0
    for name, values in np.load(golden / "sample_text.s128.p20.dupe5.seed12345.npz").items():
        np.testing.assert_array_equal(
            stored(tmp_path / "s", 128, name).reshape(values.shape), values, name
        )
    train, heldout = (stored(tmp_path / "s", 128, f"{split}_rows") for split in SPLITS)
    assert sorted([*train, *heldout]) == list(range(60)) and len(heldout) >= 1


SPLITS = ("train", "heldout")


def test_texts_that_begin_alike_go_to_one_side_and_tokens_are_counted_before_masking(folder):
    assert run(folder, f"--input={folder}/good.tfrecord", "--holdout=0.3") == 0
    ids = stored(folder / "store", SEQ_LEN, "input_ids")
    sides = [set(ids[stored(folder / "store", SEQ_LEN, f"{name}_rows"), 1]) for name in SPLITS]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    store = open_store(folder / "store")
    for split in (store.train, store.heldout):
        expected = np.zeros(len(PIECES), np.int64)
        for n in stored(folder / "store", SEQ_LEN, f"{split.name}_rows"):
            for token in (5 + n % 25, 6, 7, 8, 9):
                expected[token] += 1
        np.testing.assert_array_equal(split.token_counts, expected)
        assert store.manifest["splits"][split.name]["tokens"] == expected.sum()


def test_held_out_files_are_held_out(folder):
    write(folder / "dev.rec", [record(example(n)) for n in range(7)])
    flags = [f"--input={folder}/good.tfrecord", f"--heldout_input={folder}/dev.rec"]
    assert run(folder, *flags) == 0
    np.testing.assert_array_equal(
        stored(folder / "store", SEQ_LEN, "heldout_rows"), np.arange(50, 57)
    )


def test_gzip_and_several_lengths_in_one_store(folder):
    packed = gzip.compress((folder / "good.tfrecord").read_bytes())
    (folder / "packed.tfrecord").write_bytes(packed)
    long = [record(example(n, seq_len=29, slots=5)) for n in range(40)]
    write(folder / "long.tfrecord", long)
    files = f"{folder}/packed.tfrecord,{folder}/long.tfrecord"
    assert run(folder, f"--input={files}", "--holdout=0.2") == 0
    manifest = json.loads((folder / "store/manifest.json").read_text())
    assert {
        seq_len: (length["max_predictions_per_seq"], length["train"] + length["heldout"])
        for seq_len, length in manifest["examples"].items()
    } == {"13": (3, 50), "29": (5, 40)}
    assert [source["examples"] for source in manifest["sources"]] == [50, 40]
    dtypes = {str(np.load(path).dtype) for path in (folder / "store/examples/13").glob("[!th]*")}
    assert dtypes == {"uint8"}


def test_a_file_without_a_record_may_be_one_of_several(folder):
    names = ["none.tfrecord", "good.tfrecord", "none.tfrecord.gz"]
    for name, compression in (("none.tfrecord", ""), ("none.tfrecord.gz", "GZIP")):
        tf.io.TFRecordWriter(str(folder / name), compression).close()
    assert run(folder, f"--input={','.join(str(folder / name) for name in names)}") == 0
    manifest = json.loads((folder / "store/manifest.json").read_text())
    assert [source["examples"] for source in manifest["sources"]] == [0, 50, 0]


def test_the_names_of_model_gardens_records_are_known(folder):
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    renamed = ({names.get(key, key): example(n)[key] for key in example(n)} for n in range(50))
    write(folder / "v2.tfrecord", map(record, renamed))
    assert run(folder, f"--input={folder / 'v2.tfrecord'}") == 0
    for name in example(0):
        expected = np.squeeze([example(n)[name] for n in range(50)])
        np.testing.assert_array_equal(stored(folder / "store", SEQ_LEN, name), expected)


def changed(**features):
    return [record(example(0)), record(example(1) | features)]


def without(name):
    return [record({key: value for key, value in example(0).items() if key != name})]


_FLOAT = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
FLOATS = tf.train.Example(
    features=tf.train.Features(feature=dict.fromkeys(example(0), _FLOAT))
).SerializeToString()
BAD = {
    "shorter": (changed(segment_ids=[0] * 12), "segment_ids in record 1 of FILE has 12 values, b"),
    "missing": (without("masked_lm_ids"), "record 0 of FILE has no feature masked_lm_ids; its fe"),
    "missing later": ([record(example(0)), *without("input_mask")], "record 1 of FILE has no feat"),
    "renamed later": (
        [
            record(example(0)),
            record({{"input_ids": "input_word_ids"}.get(n, n): v for n, v in example(1).items()}),
        ],
        "record 1 of FILE has no feature input_ids; its features are",
    ),
    "float ids": ([FLOATS], "feature input_ids in record 0 of FILE has float_list, but needs "),
    "no example": ([b"garbage"], "record 0 of FILE is not a tf.train.Example"),
    "id": (changed(input_ids=[2, 30] + [5] * 11), "1 of FILE has 30; it must be from 0 to 29"),
    "label id": (changed(masked_lm_ids=[6, -1, 0]), "masked_lm_ids of record 1 of FILE has -1"),
    "position": (changed(masked_lm_positions=[2, 13, 0]), "has 13; it must be from 0 to 12"),
    "weight": (changed(masked_lm_weights=[0.5, 0, 0]), "masked_lm_weights of record 1 of FILE has"),
    "nsp": (changed(next_sentence_labels=[2]), "next_sentence_labels of record 1 of FILE has 2"),
    "vocabulary": (changed(input_ids=[9] * 13), "begins with the id 9, which is 'w4' in --vocab="),
}


@pytest.mark.fault(19, "a record of another length, without a feature, or of impossible values")
@pytest.mark.parametrize("name", BAD)
def test_a_record_that_cannot_be_right_is_one_sentence(folder, capsys, name):
    records, words = BAD[name]
    path = write(folder / "bad.tfrecord", records)
    assert run(folder, f"--input={path}") == 2
    error = capsys.readouterr().err
    assert words.replace("FILE", str(path)) in error and error.count("\n") == 1
    assert not (folder / "store").exists()


@pytest.mark.fault(19, "TFRecord files with a flipped bit, cut off, empty, of text; gzipped too")
def test_damage_is_found_whatever_is_lost(folder, capsys):
    whole = (folder / "good.tfrecord").read_bytes()
    flipped = bytearray(whole)
    flipped[1000] ^= 1
    zipped = gzip.compress(whole)
    size = len(record(example(0))) + 16
    cases = {
        "flipped": (bytes(flipped), "is damaged in the record at byte"),
        "cut": (whole[:-7], "is cut off in the record at byte"),
        "cut in a record's head": (whole[: 3 * size + 5], "is cut off in the record at byte"),
        "text": (b"One sentence a line, and no record.\n", "is no TFRecord file"),
        "empty": (b"", "holds no record"),
        # TensorFlow tells at one time that a record is cut, at another that nothing follows.
        "gzip cut": (zipped[: len(zipped) // 2], "is (cut off in the record|a damaged gzip file)"),
        "gzip cut in its head": (zipped[:3], "is (cut off in the record|a damaged gzip file)"),
        "gzip without its end": (zipped[:-4], "is a damaged gzip file"),
        "gzip of text": (gzip.compress(b"text"), "is a damaged gzip file"),
    }
    for name, (data, words) in cases.items():
        (folder / "bad.tfrecord").write_bytes(data)
        assert run(folder, f"--input={folder}/bad.tfrecord") == 2, name
        error = capsys.readouterr().err
        assert re.search(words, error) and error.count("\n") == 1, (name, error)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--input=FOLDER/none*", "which matches no file under"),
        ("", "--input is missing"),
        ("--input=gs://bucket/x", "--input is gs://bucket/x"),
        ("--input=GOOD --holdout=0.7", "--holdout is 0.7; it must be above 0.0"),
        ("--input=GOOD --heldout_input=GOOD", "good.tfrecord, which --input has too"),
        ("--input=GOOD --heldout_input=good.tfrecord", "good.tfrecord, which --input has too"),
        ("--input=GOOD --heldout_input=x --holdout=0.1", "leave one of them out"),
        ("--input=FOLDER/one.tfrecord", "none can be held out while others are trained on"),
        ("--input=GOOD,FOLDER/slots.tfrecord", "has 4 predictions per example"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(folder, capsys, monkeypatch, flags, words):
    monkeypatch.chdir(folder)
    write(folder / "one.tfrecord", [record(example(3))] * 4)
    write(folder / "slots.tfrecord", [record(example(3, slots=4))])
    flags = flags.replace("GOOD", "FOLDER/good.tfrecord").replace("FOLDER", str(folder))
    assert run(folder, *flags.split()) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (folder / "store").exists()


def test_a_name_that_is_not_utf_8_is_refused_before_its_records_are_read(folder, capsys):
    try:
        (folder / "good.tfrecord").rename(folder / os.fsdecode(b"a\xff"))
    except OSError:
        pytest.skip("needs a file system whose names are bytes")
    assert run(folder, f"--input={folder}/a*") == 2
    assert re.search(r"^error: --input has .*/a\\xff, a name that is not", capsys.readouterr().err)


def test_what_a_killed_import_left_is_replaced_and_a_finished_store_is_not(folder, capsys):
    (folder / "store" / WORKING / "files" / "examples").mkdir(parents=True)
    assert run(folder, f"--input={folder}/good.tfrecord") == 0
    assert not (folder / "store" / WORKING).exists()
    assert run(folder, f"--input={folder}/good.tfrecord") == 2
    assert "which holds a finished store; give another folder\n" in capsys.readouterr().err
