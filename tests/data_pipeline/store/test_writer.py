"""Each file of a store against its SHA-256: a flipped byte anywhere is found and named."""

import errno
import json
import resource

import numpy as np
import pytest

from data_pipeline.corpus.encode import ChunkFacts, EncodedChunk
from data_pipeline.corpus.spool import Spool
from data_pipeline.store import read_manifest
from data_pipeline.store.reader import count_bytes, list_verified_files, verify
from data_pipeline.store.writer import SplitWriter
from tests.data_pipeline.stores import random_documents, write_store

FILES = [
    *(
        f"{split}/{name}.npy"
        for split in ("train", "heldout")
        for name in ("token_ids", "sentence_offsets", "document_offsets", "token_counts")
    ),
    "vocab.txt",
]


@pytest.fixture
def store(tmp_path):
    documents = random_documents(8, seed=1)
    return write_store(tmp_path / "store", documents[:5], documents[5:])


def test_a_whole_store_is_read_to_the_last_byte(store):
    told = []
    manifest = read_manifest(store)
    verify(store, manifest, told.append)
    total = sum((store / name).stat().st_size for name in FILES)
    assert sum(told) == count_bytes(list_verified_files(store, manifest)) == total


@pytest.mark.fault(19, "a bit flipped in a file of a store")
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_found_and_its_file_named(store, name):
    whole = (store / name).read_bytes()
    for place in (0, -1):
        content = bytearray(whole)
        content[place] ^= 1
        (store / name).write_bytes(content)
        with pytest.raises(ValueError) as error:
            verify(store, read_manifest(store), lambda done: None)
        assert f"{store}/{name} has the SHA-256" in str(error.value)
        assert all(f"{store}/{other} " not in str(error.value) for other in FILES if other != name)


def test_a_missing_file_and_changed_ones_are_all_named(store):
    manifest = json.loads((store / "manifest.json").read_text()) | {"digest": "0" * 64}
    with pytest.raises(ValueError, match="a digest that does not belong to its files"):
        verify(store, manifest, lambda done: None)
    (store / "train/token_ids.npy").unlink()
    (store / "heldout/token_counts.npy").write_bytes(b"")
    with pytest.raises(ValueError) as error:
        verify(store, read_manifest(store), lambda done: None)
    assert "train/token_ids.npy is missing; " in str(error.value)
    assert "heldout/token_counts.npy has the SHA-256" in str(error.value)


@pytest.mark.parametrize("part", ["counts", "spool"])
def test_a_limit_that_is_met_is_an_oserror_that_says_so(tmp_path, part):
    writer = SplitWriter(tmp_path / "train", np.dtype(np.uint16), 100_000, unknown_id=1)
    spool, text = Spool(tmp_path / "spool"), np.zeros(300_000, np.uint16)
    facts = ChunkFacts(*(np.zeros((1, 0), np.uint64) for _ in range(6)))
    chunk = EncodedChunk(text, np.array([len(text)]), facts, {}, {}, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        with pytest.raises(OSError) as error:
            writer.close() if part == "counts" else spool.append(chunk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno == errno.EFBIG
