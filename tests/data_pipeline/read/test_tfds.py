"""TFDS data sets on disk, written with TFDS' own features and metadata, against its own reading."""

import os
import pathlib
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from data_pipeline.read import lines
from data_pipeline.read import tfds as tfds_documents
from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import Source, find_sources
from tests.data_pipeline.io.test_files import DriverError

OPTIONS = TextOptions()
TEXTS = [f"Article {i}.\n\nIts «second» paragraph.\r\n" * (1 + i % 5) for i in range(401)]
LENGTHS = [149, 0, 252]  # texts a shard; TFDS leaves one empty if a data set is small


@pytest.fixture
def data_dir(tmp_path, monkeypatch) -> pathlib.Path:
    """The folder where TFDS looks for data sets."""
    from tensorflow_datasets.core import constants

    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path))
    tfds_documents._open_builder_once.cache_clear()
    return tmp_path


def write_data_set(data_dir: pathlib.Path, suffix: str = "tfrecord") -> list[pathlib.Path]:
    """Write articles/20230601.en:1.0.0; returns its shards."""
    import tensorflow_datasets as tfds

    folder = data_dir / "articles" / "20230601.en" / "1.0.0"
    folder.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "id": tfds.features.Scalar(dtype=np.int64)}
    )
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name="articles", split="train", filetype_suffix=suffix
    )
    paths = [pathlib.Path(path) for path in template.sharded_filepaths(len(LENGTHS))]
    number = 0
    for path, length in zip(paths, LENGTHS, strict=True):
        write, close = writer(path, suffix)
        for _ in range(length):
            write(features.serialize_example({"text": TEXTS[number], "id": number}))
            number += 1
        close()
    split = tfds.core.SplitInfo(
        name="train", shard_lengths=LENGTHS, num_bytes=0, filename_template=template
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[split], check_data=False
    )
    return paths


def writer(path: pathlib.Path, suffix: str) -> tuple[Callable[[bytes], None], Callable[[], None]]:
    if suffix == "array_record":
        array_record_module = pytest.importorskip("array_record.python.array_record_module")
        records = array_record_module.ArrayRecordWriter(str(path), "group_size:7")
    else:
        import tensorflow as tf

        records = tf.io.TFRecordWriter(str(path))
    return records.write, records.close


def read(source: Source, told: list[int] | None = None) -> list[list[str]]:
    told = [] if told is None else told
    return list(read_documents(source, OPTIONS, told.append))


def paragraphs(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["tfrecord", "array_record"])
def test_examples_are_documents_and_each_shard_a_source(data_dir, suffix):
    import tensorflow_datasets as tfds

    paths = write_data_set(data_dir, suffix)
    sources = find_sources("tfds:articles/20230601.en", OPTIONS)
    assert sources == [
        Source(f"tfds:articles/20230601.en:1.0.0#train/{i}", paths[i].stat().st_size)
        for i in (0, 2)
    ]
    told: list[int] = []
    sent = pickle.loads(pickle.dumps(sources))
    found = [document for source in sent for document in read(source, told)]
    assert found == [paragraphs(text) for text in TEXTS]
    assert sum(told) == sum(source.stored_bytes for source in sources) and len(told) > 4
    builder = tfds.builder_from_directory(paths[0].parent)
    if suffix == "array_record":
        theirs = [example["text"] for example in builder.as_data_source(split="train")]
    else:
        theirs = [example["text"] for example in tfds.as_numpy(builder.as_dataset(split="train"))]
    assert sorted(found) == sorted(paragraphs(text.decode()) for text in theirs)


def test_version_and_split_may_be_named(data_dir):
    write_data_set(data_dir)
    sources = find_sources("tfds:articles/20230601.en", OPTIONS)
    for more in (":train", ":1.0.0", ":1.0.0:train"):
        assert find_sources(f"tfds:articles/20230601.en{more}", OPTIONS) == sources


@pytest.mark.slow
def test_what_a_data_set_does_not_have_is_refused(data_dir):
    (path, *_) = write_data_set(data_dir)
    for entry, key, sentence in (
        ("tfds:articles/20230601.en:test", "text", r"no split 'test'; its splits are train$"),
        ("tfds:articles/20230601.en", "body", r"no feature of text called 'body'; its features ar"),
        ("tfds:articles/20230601.en", "id", r"features are id \(Scalar\), text \(Text\); name the"),
        ("tfds:articles/20230601.de", "text", r"tfds:articles/20230601\.de, which is not among th"),
        ("tfds:articles/20230601.en:2.0.0", "text", r"2\.0\.0, which is not among the data sets "),
        ("tfds:wikipedia/20230601.en", "text", r"wikipedia.* not among the data sets in /.*; nam"),
        (
            "tfds:no_such",
            "text",
            r"nothing is downloaded here\), as in: python -c .*\('no_such'\)\.download_and_prep",
        ),
        ("tfds:", "text", r"is given as tfds:NAME\[/CONFIG\]\[:VERSION\]\[:SPLIT\], as in tfds:w"),
        ("tfds:articles/20230601.en:train[:9%]", "text", r"is given as tfds:NAME\[/CONFIG\]"),
    ):
        with pytest.raises(ValueError, match=rf"^--input has .*{sentence}"):
            find_sources(entry, TextOptions(text_key=key))
    path.unlink()
    with pytest.raises(ValueError, match=r"of which /.*/articles-train\.tfrecord-0.* is missing; "):
        find_sources("tfds:articles/20230601.en", OPTIONS)


def test_a_bucket_of_data_sets_that_cannot_be_read_is_one_sentence(data_dir, monkeypatch):
    from tensorflow_datasets.core import constants, read_only_builder

    def fail(name):
        raise DriverError("no credentials")

    monkeypatch.setattr(constants, "DATA_DIR", "gs://bucket/data")
    monkeypatch.setattr(read_only_builder, "builder_from_files", fail)
    with pytest.raises(OSError, match=r"^gs://bucket/data: reading failed: DriverError no cred"):
        find_sources("tfds:articles/20230601.en", OPTIONS)


@pytest.mark.parametrize("suffix", ["tfrecord", "array_record"])
def test_damaged_and_cut_off_shards_are_refused(data_dir, suffix):
    path = write_data_set(data_dir, suffix)[2]
    source = find_sources("tfds:articles/20230601.en", OPTIONS)[1]
    whole = path.read_bytes()
    half = len(whole) // 2
    for data in (whole[:half] + bytes(99) + whole[half + 99 :], whole[:half], whole[:-9], b""):
        path.write_bytes(data)
        with pytest.raises(
            ValueError, match=r"^tfds:articles/20230601\.en:1\.0\.0#train/2 .* data"
        ):
            read(source)
    os.remove(path)
    with pytest.raises(ValueError, match=r"^tfds:articles/20230601\.en:1\.0\.0#train/2 .* data"):
        read(source)


def test_fewer_examples_than_there_should_be_and_a_text_beyond_the_limit_are_refused(
    data_dir, monkeypatch
):
    short, _, path = write_data_set(data_dir)
    first, second = find_sources("tfds:articles/20230601.en", OPTIONS)
    path.write_bytes(short.read_bytes())
    with pytest.raises(ValueError, match=r"train/2 \(/.*\) has 149 of the 252 examples that its d"):
        read(second)
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(ValueError, match=r"#train/0 example 3 has a document of more than"):
        read(first)
