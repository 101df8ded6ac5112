"""Objects of a bucket, in fsspec's file system in memory: whole, in time, errors as a sentence."""

import time

import pytest

from data_pipeline.io.address import use_one_driver
from data_pipeline.io.bucket import Bucket


@pytest.fixture
def bucket(memory):
    return Bucket("memory://bucket/mine", answer_secs=5)


def test_an_object_is_written_read_and_deleted(bucket):
    assert bucket.read("a") is None and bucket.sizes() == {}
    bucket.write("a", b"one")
    bucket.write("a", b"two")
    bucket.write("deep/b", b"three")
    assert bucket.read("a") == b"two"
    assert bucket.sizes() == {"a": 3, "deep/": 0}
    bucket.delete("a")
    bucket.delete("a")
    assert bucket.sizes() == {"deep/": 0}


def test_only_the_first_creates(bucket):
    assert [bucket.create("lock", text) for text in (b"first", b"second")] == [True, False]
    assert bucket.read("lock") == b"first"


def test_a_request_without_an_answer_ends(bucket, memory, monkeypatch):
    monkeypatch.setattr(type(memory), "cat_file", lambda self, path: time.sleep(3))
    begun = time.monotonic()
    with pytest.raises(
        TimeoutError, match=r"^memory://bucket/mine: reading a got no answer within"
    ):
        Bucket("memory://bucket/mine", answer_secs=0.1).read("a")
    assert time.monotonic() - begun < 2


def test_epath_goes_through_gcsfs_which_remembers_no_listing(monkeypatch):
    gcsfs = pytest.importorskip("gcsfs")
    monkeypatch.setenv("EPATH_USE_TF", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    use_one_driver()
    from etils import epath

    # The driver of the file system that epath asks, by its own account.
    files = epath.Path("gs://runs")._backend.fs("gs://runs")
    assert isinstance(files, gcsfs.GCSFileSystem)
    assert files.dircache.use_listings_cache is False
