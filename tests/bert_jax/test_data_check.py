"""A store that is damaged under a run: found beside its steps, and the run stopped."""

import dataclasses
import os
import re
import shutil
import threading
import time

import jax
import pytest

from bert_jax import data_check, loop, preparation
from bert_jax.config import CheckpointConfig, Config, EvalConfig, OptimConfig, Phase
from bert_jax.data_check import DataCheck
from bert_jax.exit_codes import Refused
from bert_jax.objectives import find
from bert_jax.stopping import Stop
from data_pipeline import verify
from data_pipeline.options import PretrainOptions
from data_pipeline.store import open_store
from tests.bert_jax.tiny_models import MODEL

ARRAY = "train/token_ids.npy"


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
    check = DataCheck(open_store(store), workdir, stop)
    problem = check.problem(60.0, waits=True)
    assert stop.is_asked() == bool(problem)
    check.close()
    return problem


def test_a_whole_store_is_read_once_for_a_workdir(store, tmp_path, monkeypatch):
    assert checked(store, tmp_path / "run") == ""
    monkeypatch.setattr(verify, "verify", lambda *_: pytest.fail("read again"))
    assert checked(store, tmp_path / "run") == ""


@pytest.mark.parametrize("known", [False, True])
def test_a_flipped_bit_stops_the_run(store, tmp_path, known):
    assert not known or checked(store, tmp_path / "run") == ""
    flip_a_bit(store)
    assert f"{ARRAY} has the SHA-256" in checked(store, tmp_path / "run")
    assert checked(store, tmp_path / "run")  # and again


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 10**5, b"{}", b"[1]"])
def test_what_was_found_before_is_not_trusted_where_it_is_damaged(store, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / data_check.FILE).write_bytes(content)
    flip_a_bit(store)
    assert checked(store, tmp_path / "run")


def test_it_ends_with_the_run_and_gives_way_to_the_steps(store, tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "BYTES_PER_SEC", 1.0)
    monkeypatch.setattr(verify, "_BLOCK_BYTES", 1)
    found = []
    advance = DataCheck._advance

    def noted(self, read_bytes):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        advance(self, read_bytes)

    monkeypatch.setattr(DataCheck, "_advance", noted)
    check = DataCheck(open_store(store), tmp_path, Stop())
    while not found:
        time.sleep(0.01)
    began = time.monotonic()
    check.close()
    assert time.monotonic() - began < 30 and not (tmp_path / data_check.FILE).exists()
    assert found[0] == 19 and os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < 19


def test_the_other_processes_read_nothing_and_hear_what_is_wrong(store, tmp_path, monkeypatch):
    monkeypatch.setattr(data_check.processes, "number", lambda: 1)
    monkeypatch.setattr(data_check.processes, "agree", lambda *_: ["a file is bad", ""])
    check = DataCheck(open_store(store), tmp_path, Stop())
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
    assert re.search(words, data_check.refusal("a file is bad", 40, step, saved, quarantined))


@pytest.fixture
def config(store):
    return Config(
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=16, steps=6, batch_size=16, max_predictions_per_seq=3),),
        optim=OptimConfig(warmup_steps=1),
        data=PretrainOptions(store=str(store)),
        eval=EvalConfig(every_steps=100, examples=21),
        checkpoint=CheckpointConfig(every_steps=2, keep=9),
        log_every_steps=2,
    )


def train(config, workdir):
    objective = find(config.objective)
    return loop.train(preparation.prepare(config, objective, workdir, jax.devices()[:1]))


@pytest.mark.fault(22, "a bit of the store is flipped while the run trains")
@pytest.mark.parametrize(
    "found_at", [pytest.param("once all is read", marks=pytest.mark.long), "a step"]
)
def test_a_run_is_stopped_and_what_it_saved_set_aside(
    config, store, tmp_path, monkeypatch, found_at
):
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
