"""GLUE out of TFDS data sets on disk, with TFDS's own features, metadata and order of labels."""

import pathlib

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.glue import task as glue
from tests.bert_jax.tasks.glue_layouts import small_vocabulary

pytestmark = pytest.mark.slow  # TensorFlow takes twenty seconds to import


def write_config(data_dir: pathlib.Path, config: str, features, splits) -> None:
    """Write glue/<config>:2.0.0 of the given examples of each split."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    folder = data_dir / "glue" / config / "2.0.0"
    folder.mkdir(parents=True)
    infos = []
    for split, examples in splits.items():
        template = tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name="glue", split=split, filetype_suffix="tfrecord"
        )
        (path,) = template.sharded_filepaths(1)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for example in examples:
                writer.write(features.serialize_example(features.encode_example(example)))
        lengths = [len(examples)]
        infos.append(tfds.core.SplitInfo(split, lengths, num_bytes=0, filename_template=template))
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=infos, check_data=False
    )


@pytest.fixture
def data_dir(tmp_path, monkeypatch) -> pathlib.Path:
    """Make a folder of TFDS: glue/mnli, ax, stsb and cola, with the features of TFDS."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import constants

    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path))
    text = tfds.features.Text()
    names = ["entailment", "neutral", "contradiction"]  # TFDS's order, which is not Google's
    label = tfds.features.ClassLabel(names=names)
    mnli = tfds.features.FeaturesDict(
        {"premise": text, "hypothesis": text, "label": label, "idx": np.int32}
    )

    def rows(*labels: object) -> list[dict[str, object]]:
        return [
            {"premise": "The cat", "hypothesis": f"A {i * 'big '}dog", "label": label, "idx": i}
            for i, label in enumerate(labels)
        ]

    splits = {
        "train": rows("contradiction", "neutral", "entailment"),
        "validation_matched": rows("neutral"),
        "validation_mismatched": rows("contradiction"),
        "test_matched": rows(-1, -1)[::-1],
        "test_mismatched": rows(-1),
    }
    write_config(tmp_path, "mnli", mnli, splits)
    write_config(tmp_path, "ax", mnli, {"test": rows(-1, -1)})
    stsb = tfds.features.FeaturesDict(
        {"sentence1": text, "sentence2": text, "label": np.float32, "idx": np.int32}
    )
    pair = {"sentence1": "The cat", "sentence2": "A cat", "idx": 0}
    sets = {"train": [{**pair, "label": 3.8}], "validation": [{**pair, "label": 0.0}]}
    write_config(tmp_path, "stsb", stsb, sets)
    cola = tfds.features.FeaturesDict(
        {"sentence": text, "label": tfds.features.ClassLabel(num_classes=2), "idx": np.int32}
    )
    sentences = [{"sentence": "A cat", "label": label, "idx": 0} for label in (1, -1)]
    splits = {"train": sentences, "validation": sentences[:1], "test": sentences[1:]}
    write_config(tmp_path, "cola", cola, splits)
    return tmp_path


def test_labels_go_by_name_and_predictions_by_index(data_dir, tmp_path):
    vocabulary = small_vocabulary(tmp_path)
    task = glue.open_task(TaskOptions(task="ax", source="tfds", max_seq_length=128), vocabulary)
    assert task.splits["train"].labels["label_ids"].tolist() == [0, 2, 1]
    assert task.splits["dev_matched"].labels["label_ids"].tolist() == [2]
    assert task.splits["dev_mismatched"].labels["label_ids"].tolist() == [0]
    row = task.splits["train"].token_ids[: task.splits["train"].offsets[1]]
    assert vocabulary.decode(row.tolist()) == "[CLS] the cat [SEP] a dog [SEP]"
    # The shard holds index 1 before index 0.
    assert np.diff(task.splits["test_matched"].offsets).tolist() == [7, 8]
    (path,) = task.write_predictions("ax", np.eye(3)[:2], tmp_path)
    assert path.read_text() == "index\tprediction\n0\tcontradiction\n1\tentailment\n"


def test_what_tfds_does_not_have_is_refused(data_dir, tmp_path):
    vocabulary = small_vocabulary(tmp_path)
    absent = r"glue/rte is not among the data sets in /.*; name the folder by TFDS_DATA_DIR"
    for task, changed, sentence in (
        ("rte", {}, absent),
        ("stsb", {}, r"/glue/stsb/2\.0\.0 has no split 'test'; its splits are train, validat"),
        ("cola", {}, r"/glue/cola/2\.0\.0 split train row 2 has the label '-1'"),
        ("mnli", {"dir": "/glue"}, r"source is tfds, and config\.data\.dir or a file is set as we"),
    ):
        with pytest.raises(ValueError, match=sentence):
            glue.open_task(TaskOptions(task=task, source="tfds", **changed), vocabulary)
