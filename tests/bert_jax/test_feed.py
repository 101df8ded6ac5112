"""Stores that a run reads, from a folder or from a bucket."""

import dataclasses

import fsspec
import pytest

from bert_jax.feed import open_store
from data_pipeline.options import PretrainOptions

ADDRESS = "memory://bucket/store"


@pytest.fixture
def bucket(tiny_store):
    """A file system in memory with the tiny store at ADDRESS."""
    memory = fsspec.filesystem("memory")
    memory.put(str(tiny_store), "/bucket/store", recursive=True)
    yield memory
    memory.rm("/bucket", recursive=True)


def test_a_store_in_a_bucket_is_copied_once_and_is_the_same_store(bucket, tiny_store, tmp_path):
    told = []
    options = PretrainOptions(store=ADDRESS, data_cache=str(tmp_path))
    copied = open_store(options, lambda *of: told.append(of))
    assert copied.digest == open_store(PretrainOptions(store=str(tiny_store))).digest
    assert copied.directory.parent == tmp_path and told
    told.clear()
    assert open_store(options, lambda *of: told.append(of)).directory == copied.directory
    assert told == []


def test_without_a_folder_for_the_copy_the_sentence_names_it(bucket, tmp_path):
    options = PretrainOptions(store=ADDRESS)
    with pytest.raises(ValueError, match=r"--config\.data\.data_cache=FOLDER"):
        open_store(options)
    nowhere = dataclasses.replace(options, store=f"{ADDRESS}/x", data_cache=str(tmp_path))
    with pytest.raises(ValueError, match="is not a whole store"):
        open_store(nowhere)
