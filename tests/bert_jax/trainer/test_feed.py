"""Stores that a run reads, from a folder or a bucket, and one that is damaged under it."""

import dataclasses
import os
import re
import shutil
import threading
import time

import pytest

from bert_jax.config import CheckpointConfig
from bert_jax.runtime.exit_codes import Refused
from bert_jax.runtime.preemption import Stop
from bert_jax.trainer import feed, loop
from bert_jax.trainer.feed import DataCheck
from data_pipeline import store as store_lib
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import writer
from tests.bert_jax.small_runs import small_config, train

ADDRESS = "memory://bucket/store"
ARRAY = "train/token_ids.npy"


def test_a_store_in_a_bucket_is_copied_once_and_is_the_same_store(bucket, tiny_store, tmp_path):
    told = []
    options = PretrainOptions(store=ADDRESS, data_cache=str(tmp_path))
    copied = feed.open_store(options, lambda *of: told.append(of))
    assert copied.digest == feed.open_store(PretrainOptions(store=str(tiny_store))).digest
    assert copied.directory.parent == tmp_path and told
    told.clear()
    assert feed.open_store(options, lambda *of: told.append(of)).directory == copied.directory
    assert told == []
    nowhere = dataclasses.replace(options, store=f"{ADDRESS}/x")
    for bad, words in (
        (PretrainOptions(store=ADDRESS), r"--config\.data\.data_cache=FOLDER"),
        (nowhere, "is not a complete store"),
        (PretrainOptions(), r"python -m data_pipeline\.build --input"),
    ):
        with pytest.raises(ValueError, match=words):
            feed.open_store(bad)


@pytest.fixture
def store(tiny_store, tmp_path):
    return shutil.copytree(tiny_store, tmp_path / "store")


def flip_a_bit(store):
    path = store / ARRAY
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return status


def checked(store, workdir):
    """What a check that reads all of it finds."""
    workdir.mkdir(exist_ok=True)
    stop = Stop()
    check = DataCheck(store_lib.open_store(store), workdir, stop)
    problem = check.problem(60.0, waits=True)
    assert stop.is_asked() == bool(problem)
    check.close()
    return problem


def test_a_whole_store_is_read_once_for_a_workdir(store, tmp_path, monkeypatch):
    assert checked(store, tmp_path / "run") == ""
    monkeypatch.setattr(writer, "verify", lambda *_: pytest.fail("read again"))
    assert checked(store, tmp_path / "run") == ""


@pytest.mark.parametrize("known", [None, "all", b"", b"\xff", b"[" * 10**5, b"{}", b"[1]"])
def test_a_flipped_bit_stops_the_run_whatever_was_found_before(store, tmp_path, known):
    workdir = tmp_path / "run"
    if known == "all":
        assert checked(store, workdir) == ""
    elif known is not None:
        workdir.mkdir()
        (workdir / feed.VERIFIED_FILE).write_bytes(known)
    flip_a_bit(store)
    for _ in range(2):
        assert f"{ARRAY} has the SHA-256" in checked(store, workdir)


def test_it_ends_with_the_run_and_gives_way_to_the_steps(store, tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "BYTES_PER_SEC", 1.0)
    monkeypatch.setattr(writer, "_BLOCK_BYTES", 1)
    found = []
    advance = DataCheck._advance

    def noted(self, read_bytes):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        advance(self, read_bytes)

    monkeypatch.setattr(DataCheck, "_advance", noted)
    check = DataCheck(store_lib.open_store(store), tmp_path, Stop())
    while not found:
        time.sleep(0.01)
    began = time.monotonic()
    check.close()
    assert time.monotonic() - began < 30 and not (tmp_path / feed.VERIFIED_FILE).exists()
    assert found[0] == 19 and os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < 19


def test_the_other_processes_read_nothing_and_hear_what_is_wrong(store, tmp_path, monkeypatch):
    monkeypatch.setattr(feed.processes, "number", lambda: 1)
    monkeypatch.setattr(feed.processes, "agree", lambda *_: ["a file is bad", ""])
    check = DataCheck(store_lib.open_store(store), tmp_path, Stop())
    assert check._thread is None
    assert check.problem(1.0, waits=True) == "a file is bad"


@pytest.mark.parametrize(
    ("step", "saved", "quarantined", "words"),
    [
        (40, [], [], r"no step was trained on them;.* resumes .*; if they were damaged before"),
        (45, [], [], r"steps 41 to 45 were trained on them;.* resumes"),
        (60, [50, 60], [50, 60], r"\(50, 60\) are in checkpoints_damaged/;.* resumes"),
        (60, [50, 60], [], r"no checkpoint of an earlier step is left;.* train anew in another"),
    ],
)
def test_the_sentence_says_what_was_trained_on_them(step, saved, quarantined, words):
    assert re.search(words, feed.describe_damage("a file is bad", 40, step, saved, quarantined))


@pytest.mark.slow
@pytest.mark.fault(22, "a bit of the store is flipped while the run trains")
@pytest.mark.parametrize(
    "found_at", [pytest.param("once all is read", marks=pytest.mark.long), "a step"]
)
def test_a_run_is_stopped_and_what_it_saved_quarantined(store, tmp_path, monkeypatch, found_at):
    saves = CheckpointConfig(every_steps=2, keep=9)
    config = small_config(store, steps=6, checkpoint=saves, log_every_steps=2)
    workdir, released = tmp_path / "run", threading.Event()
    whole = (store / ARRAY).read_bytes()
    flip_a_bit(store)
    advance = DataCheck._advance

    def held(self, read_bytes):
        assert released.wait(120)
        advance(self, read_bytes)

    after_step = loop._Run._after_step

    def released_after_step_4(self, running):
        if self.step == 5 and found_at == "a step":
            released.set()
            self.data_check._thread.join()
        after_step(self, running)

    monkeypatch.setattr(DataCheck, "_advance", held)
    monkeypatch.setattr(loop._Run, "_after_step", released_after_step_4)
    if found_at != "a step":
        released.set()
    with pytest.raises(Refused, match=rf"{ARRAY} has the SHA-256.*resumes from the newest"):
        train(config, workdir)
    saved = {path.name for path in (workdir / "checkpoints").iterdir()}
    assert saved == {"0"}
    assert not (workdir / "summary.json").exists()
    if found_at == "a step":
        damaged = {path.name for path in (workdir / "checkpoints_damaged").iterdir()}
        assert damaged == {"2", "4"}
        (store / ARRAY).write_bytes(whole)
        assert train(config, workdir)["steps"] == 6
