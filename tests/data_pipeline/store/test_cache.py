"""The local copy of a store in a bucket: whole or not there, one for all processes of a host."""

import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from data_pipeline.io.atomic import WORKING
from data_pipeline.store import cache, open_store
from data_pipeline.store.cache import fetch_store
from tests.faults.runs import ROOT

# Copies a store; says when it begins, then waits for a file to appear, then says what it copied.
PROCESS = """
import pathlib, sys, time
from data_pipeline.store.cache import fetch_store
address, cache_dir, go = sys.argv[1:]
told = []
def advance(done_bytes, total_bytes):
    if not told:
        print("copying", flush=True)
        while not pathlib.Path(go).exists():
            time.sleep(0.01)
    told.append(done_bytes / total_bytes)
print("started", flush=True)
print(fetch_store(address, cache_dir, advance), told[-1:], flush=True)
"""


def start(store: pathlib.Path, cache_dir: pathlib.Path, go: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, f"file://{store}", str(cache_dir), str(go)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_copy_is_the_store(bucket, tiny_store, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_PART_BYTES", 1000)
    told: list[tuple[int, int]] = []
    copy = fetch_store("memory://bucket/store/", str(tmp_path), lambda *of: told.append(of))
    original, opened = open_store(tiny_store), open_store(copy)
    assert copy == tmp_path / original.digest and opened.manifest == original.manifest
    for name in (*original.manifest["arrays"], original.vocab_path.name, "manifest.json"):
        assert (copy / name).read_bytes() == (tiny_store / name).read_bytes()
    total_bytes = sum((copy / name).stat().st_size for name in original.manifest["arrays"])
    total_bytes += opened.vocab_path.stat().st_size
    assert told[-1] == (total_bytes, total_bytes) and len(told) > 20
    assert told == sorted(told)


def test_a_copy_is_taken_as_it_is_until_the_store_was_built_again(bucket, tiny_store, tmp_path):
    """A local store is itself, and needs no cache."""
    assert fetch_store(str(tiny_store), "") == tiny_store
    first = fetch_store("memory://bucket/store", str(tmp_path))
    ids = bucket.cat_file("/bucket/store/train/token_ids.npy")
    bucket.rm("/bucket/store/train/token_ids.npy")
    assert fetch_store("memory://bucket/store", str(tmp_path), None) == first
    bucket.pipe("/bucket/store/train/token_ids.npy", ids)
    manifest = json.loads(bucket.cat_file("/bucket/store/manifest.json"))
    manifest["digest"] = "0" * 64
    bucket.pipe("/bucket/store/manifest.json", json.dumps(manifest).encode())
    second = fetch_store("memory://bucket/store", str(tmp_path))
    assert first != second and open_store(second).digest == "0" * 64


def refused(sentence: str, cache_dir: pathlib.Path, address: str = "memory://bucket/store") -> None:
    with pytest.raises(ValueError, match=sentence):
        fetch_store(address, str(cache_dir))
    assert not cache_dir.exists() or all(name.endswith(".lock") for name in names(cache_dir))


def test_what_cannot_be_copied_is_refused_and_leaves_nothing(bucket, tmp_path, monkeypatch):
    cache_dir = tmp_path / "cache"
    with pytest.raises(
        ValueError, match=r"^the store is gs://b/x, .*--config\.data\.data_cache=FO"
    ):
        fetch_store("gs://b/x", "")
    with pytest.raises(ValueError, match=r"^config\.data\.data_cache is gs://b/c, but must be "):
        fetch_store("memory://bucket/store", "gs://b/c")
    refused(
        r"^memory://none is not a complete store: it has no manifest\.json; ",
        cache_dir,
        "memory://none",
    )
    ids = bucket.cat_file("/bucket/store/train/token_ids.npy")
    bucket.rm("/bucket/store/train/token_ids.npy")
    refused(
        r"^memory://bucket/store is not a complete .* no train/token_ids\.npy; copy one", cache_dir
    )
    for damaged in (ids[:-2] + b"\0\1", ids[:-2], ids + b"\0"):
        bucket.pipe("/bucket/store/train/token_ids.npy", damaged)
        refused(r"/train/token_ids\.npy differs from the store's manifest \(its SHA", cache_dir)
    bucket.pipe("/bucket/store/train/token_ids.npy", ids)
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, 1000))
    refused(
        r"^memory://bucket/store takes 0\.\d+ GB and /.*/cache has 0\.000 GB left; make", cache_dir
    )


@pytest.mark.parametrize(
    "key, value, sentence",
    [
        ("digest", "../../elsewhere", r"has file names that no store has; copy"),
        ("arrays", {"../x.npy": {"sha256": "0"}}, r"has file names that no store has; copy"),
        ("arrays", {"/etc/x": {"sha256": "0"}}, r"has file names that no store has; copy"),
        ("arrays", {"x": {}}, r"'arrays': 'x' has no key 'sha256'; copy the store again"),
        ("format", "other", r"store/manifest\.json is not the manifest of a bert_jax store"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(bucket, tmp_path, key, value, sentence):
    manifest = json.loads(bucket.cat_file("/bucket/store/manifest.json"))
    bucket.pipe("/bucket/store/manifest.json", json.dumps(manifest | {key: value}).encode())
    refused(sentence, tmp_path / "cache")


def test_an_error_in_one_part_ends_the_copy(bucket, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise TimeoutError("the bucket does not answer")

    original = type(bucket).cat_file
    monkeypatch.setattr(
        type(bucket),
        "cat_file",
        lambda self, path, **span: (fail if "heldout" in path else original)(self, path, **span),
    )
    with pytest.raises(OSError, match=r"the bucket does not answer"):
        fetch_store("memory://bucket/store", str(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert threading.active_count() < 8


@pytest.mark.slow
def test_two_processes_share_one_copy(tiny_store, tmp_path):
    go, cache_dir = tmp_path / "go", tmp_path / "cache"
    first = start(tiny_store, cache_dir, go)
    assert [first.stdout.readline() for _ in range(2)] == ["started\n", "copying\n"]
    second = start(tiny_store, cache_dir, go)
    assert second.stdout.readline() == "started\n"
    waiting = second.stdout.readline()
    assert f"process {first.pid} on " in waiting and " since " in waiting
    copy = cache_dir / open_store(tiny_store).digest
    assert second.poll() is None and names(copy) == [WORKING]
    go.touch()
    assert first.communicate(timeout=30) == (f"{copy} [1.0]\n", "")
    assert second.communicate(timeout=30) == (f"{copy} []\n", "")
    assert open_store(copy).digest == copy.name


def test_the_room_of_a_half_made_copy_counts_as_free(bucket, tiny_store, tmp_path, monkeypatch):
    left = tmp_path / open_store(tiny_store).digest / WORKING / "files" / "half"
    left.parent.mkdir(parents=True)
    left.touch()
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(10**9, 0, 0 if left.exists() else 10**9)
    )
    assert open_store(fetch_store("memory://bucket/store", str(tmp_path))).digest == left.parts[-4]


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_only_a_file_is_locked(bucket, tiny_store, tmp_path, kind):
    cache_dir, target = tmp_path / "cache", tmp_path / "target"
    cache_dir.mkdir()
    lock = cache_dir / f"{open_store(tiny_store).digest}.lock"
    make = {"folder": lock.mkdir, "pipe": lambda: os.mkfifo(lock)}
    make.get(kind, lambda: lock.symlink_to(target))()
    if kind == "link":
        target.write_text("kept")
    refused(rf"{lock} is a link, a folder or a device", cache_dir)
    assert target.exists() == (kind == "link") and (kind != "link" or target.read_text() == "kept")


@pytest.mark.slow
def test_a_copy_that_was_killed_starts_over(tiny_store, tmp_path):
    cache_dir = tmp_path / "cache"
    killed = start(tiny_store, cache_dir, tmp_path / "never")
    assert [killed.stdout.readline() for _ in range(2)] == ["started\n", "copying\n"]
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=30)
    digest = open_store(tiny_store).digest
    assert names(cache_dir) == [digest, f"{digest}.lock"] and names(cache_dir / digest) == [WORKING]
    (cache_dir / digest / WORKING / "files" / "stray").touch()
    copy = fetch_store(f"file://{tiny_store}", str(cache_dir))
    assert names(cache_dir) == [digest, f"{digest}.lock"]
    assert open_store(copy).digest == digest and not {"stray", WORKING} & {*names(copy)}
