"""Stores that a run reads, from a folder or a bucket, and one that is damaged under it."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import socket
import threading
import time

import numpy as np
import pytest

from bert_jax.config import CheckpointConfig, Config, EvalConfig, Phase, validate
from bert_jax.interop import teacher as teacher_lib
from bert_jax.interop.pretrained import Pretrained
from bert_jax.logging.console import Screen
from bert_jax.runtime.preemption import Stop
from bert_jax.runtime.resume import list_differences
from bert_jax.train_step.objectives import MLM_NSP
from bert_jax.trainer import data_check, feed, heldout, loop
from bert_jax.trainer.data_check import DataCheck
from data_pipeline import store as store_lib
from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import reader
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.small_runs import small_config, train
from tests.bert_jax.tiny_models import MODEL, resolved
from tests.damages import flip_a_bit

ADDRESS = "memory://bucket/store"
ARRAY = "train/token_ids.npy"


def test_a_store_in_a_bucket_is_copied_once_and_is_the_same_store(
    bucket, tiny_store, tmp_path, capsys
):
    screen = Screen(is_writer=True)
    options = PretrainOptions(store=ADDRESS, data_cache=str(tmp_path))
    copied = feed.open_store(options, screen)
    assert copied.digest == feed.open_store(PretrainOptions(store=str(tiny_store))).digest
    assert copied.directory.parent == tmp_path
    assert capsys.readouterr().out.count(f"copying {ADDRESS}, ") == 1
    assert feed.open_store(options, screen).directory == copied.directory
    assert "copying" not in capsys.readouterr().out
    nowhere = dataclasses.replace(options, store=f"{ADDRESS}/x")
    for bad, words in (
        (PretrainOptions(store=ADDRESS), r"--config\.data\.data_cache=FOLDER"),
        (nowhere, "is not a complete store"),
        (PretrainOptions(), r"python -m data_pipeline\.build --input"),
    ):
        with pytest.raises(ValueError, match=words):
            feed.open_store(bad)


def unmask(rows):
    """The tokens before masking, and the number of masked ones in each row."""
    ids, weights = rows["input_ids"].copy(), rows["masked_lm_weights"]
    for row, slots in enumerate(weights > 0):
        positions = rows["masked_lm_positions"][row, slots]
        ids[row, positions] = rows["masked_lm_ids"][row, slots]
    return ids, weights.sum(axis=1)


RATES = (0.3, 0.15, 0.05)


@pytest.fixture
def schedule(tiny_store):
    """A feed whose phases mask at RATES, and are evaluated at 0.2; the plain one masks at 0.2."""
    phases = tuple(Phase(24, 2, batch_size=8, masked_lm_prob=rate) for rate in RATES)
    data = PretrainOptions(store=str(tiny_store), short_seq_prob=0.5)
    config = Config(phases=phases, data=data, eval=EvalConfig(examples=20, masked_lm_prob=0.2))
    plain = dataclasses.replace(
        config,
        phases=(Phase(24, 6, batch_size=8),),
        data=dataclasses.replace(data, masked_lm_prob=0.2),
        eval=EvalConfig(examples=20),
    )
    opened = feed.open_stores(data)
    return feed.StoreFeed(opened, resolved(config)), feed.StoreFeed(opened, resolved(plain))


def test_phases_mask_the_rows_of_one_stream_at_rates_of_their_own(schedule):
    rated, plain = schedule
    positions = np.arange(48)
    for index, rate in enumerate(RATES):
        source = rated.open_source(index)
        rows, expected = source.rows(positions), plain.open_source(0).rows(positions)
        ids, masked = unmask(rows)
        np.testing.assert_array_equal(ids, unmask(expected)[0])
        lengths = rows["input_mask"].sum(axis=1)
        np.testing.assert_array_equal(masked, np.maximum(1, np.rint(lengths * rate)))
        assert rows["masked_lm_ids"].shape[1] == int(np.ceil(24 * rate))
    starts = [rated.locate_step(step).positions_B[0] for step in range(1, 7)]
    assert starts == list(range(0, 48, 8))
    assert np.unique(unmask(rated.open_source(0).rows(positions))[1]).size > 1


def test_every_phase_is_evaluated_on_the_same_masks(schedule):
    rated, plain = schedule
    expected = plain.make_heldout_batches(0)
    for index in range(len(RATES)):
        for batch, same in zip(rated.make_heldout_batches(index), expected, strict=True):
            for name, array in same.items():
                np.testing.assert_array_equal(batch[name], array, name)


def test_predictions_of_a_step_are_estimated_at_the_rate_it_trains_at(schedule):
    rated, _ = schedule
    for index, rate in enumerate(RATES):
        facts = heldout.count_phase(rated, index, MLM_NSP)
        masked = unmask(rated.open_source(index).rows(np.arange(400)))[1].mean()
        estimate = facts.per_step["predictions_per_step"] / 8
        assert estimate == pytest.approx(masked, rel=0.15), rate


def test_a_teacher_is_its_weights_its_vocabulary_and_its_config(schedule, monkeypatch):
    monkeypatch.setattr(teacher_lib, "hash_weights", lambda teacher: "the same")
    store, config = schedule[0].stores, schedule[0].config
    words = load_vocabulary(store[0].vocab_path, True)
    records = []
    for act in ("gelu", "relu"):
        held = Pretrained("hf:x", dataclasses.replace(MODEL, hidden_act=act), {}, words)
        taught = feed.StoreFeed(store, config, teacher_lib.identify_teacher(held))
        records.append({"fixed": taught.provenance.fixed})
    assert list_differences(*records) == {"teacher.hidden_act": ("gelu", "relu")}


@pytest.mark.parametrize("name", ["sha256", "lowercase", "size"])
def test_vocabularies_are_of_one_run_by_all_that_both_records_have(name):
    words = {"file": "vocab.txt", "size": 200, "lowercase": True, "sha256": "0f"}
    other = words | {"file": "other.txt", name: 7}
    assert list_differences({"vocabulary": words}, {"vocabulary": other}) == {
        f"vocabulary.{name}": (words[name], 7)
    }
    other.pop(name)
    assert list_differences({"vocabulary": words}, {"vocabulary": other}) == {}


@pytest.mark.parametrize("key", ["phases[1]", "eval"])
def test_masks_of_ready_made_examples_have_no_rate(schedule, key):
    rate = {"masked_lm_prob": 0.3}
    phases = (Phase(24, 2), Phase(24, 2, **rate if key != "eval" else {}))
    config = Config(phases=phases, eval=EvalConfig(**rate if key == "eval" else {}))
    with pytest.raises(ValueError, match=re.escape(f"config.{key}.masked_lm_prob is 0.3")):
        validate.check_masks(config, is_text=False)


@pytest.fixture
def store(tiny_store, tmp_path):
    return shutil.copytree(tiny_store, tmp_path / "store")


def begin_check(store, workdir, stop=None):
    return DataCheck([store_lib.open_store(store)], workdir, stop or Stop(), 60.0)


def checked(store, workdir):
    """What a check that reads all of it finds."""
    workdir.mkdir(exist_ok=True)
    stop = Stop()
    check = begin_check(store, workdir, stop)
    problem = check.problem(60.0, waits=True)
    assert stop.is_asked() == bool(problem)
    check.close()
    return problem


def test_a_whole_store_is_read_once_for_a_workdir(store, tmp_path, monkeypatch):
    assert checked(store, tmp_path / "run") == ""
    monkeypatch.setattr(reader, "verify", lambda *_: pytest.fail("read again"))
    assert checked(store, tmp_path / "run") == ""


@pytest.mark.parametrize("known", [None, "all", b"", b"\xff", b"[" * 10**5, b"{}", b"[1]"])
def test_a_flipped_bit_stops_the_run_whatever_was_found_before(store, tmp_path, known):
    workdir = tmp_path / "run"
    if known == "all":
        assert checked(store, workdir) == ""
    elif known is not None:
        workdir.mkdir()
        (workdir / data_check.VERIFIED).write_bytes(known)
    flip_a_bit(store / ARRAY)
    for _ in range(2):
        assert f"{ARRAY} has the SHA-256" in checked(store, workdir)


@pytest.mark.slow
def test_it_ends_with_the_run_and_gives_way_to_the_steps(store, tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "BYTES_PER_SEC", 1.0)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 1)
    found = []
    advance = DataCheck._advance

    def noted(self, read_bytes):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        advance(self, read_bytes)

    monkeypatch.setattr(DataCheck, "_advance", noted)
    check = begin_check(store, tmp_path)
    while not found:
        time.sleep(0.01)
    began = time.monotonic()
    check.close()
    assert time.monotonic() - began < 30 and not (tmp_path / data_check.VERIFIED).exists()
    assert found[0] == 19 and os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) < 19


def as_one_of_two(monkeypatch, theirs, number):
    """Let the process be one of two; the other reads the folder `theirs` at the same path."""

    def agree(name, value, limit_secs):
        if not value.startswith("["):
            return [value, value]
        _, marks, known = json.loads(value)
        marks |= {"files": marks["files"] if theirs is None else theirs}
        other = json.dumps(["host-b", marks, known])
        return [value, other] if number == 0 else [other, value]

    monkeypatch.setattr(data_check.processes, "agree", agree)
    monkeypatch.setattr(data_check.processes, "number", lambda: number)
    monkeypatch.setattr(data_check.processes, "count", lambda: 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_reads_its_own_copy_and_its_part_of_a_shared_one(
    store, tmp_path, monkeypatch, number
):
    everything = set(reader.list_verified_files(store, store_lib.open_store(store).manifest))
    parts = {}
    for name, theirs in (("own", {}), ("shared", None)):
        as_one_of_two(monkeypatch, theirs, number)
        monkeypatch.setattr(reader, "verify", lambda *of, n=name: parts.setdefault(n, of[3]))
        monkeypatch.setattr(data_check.processes, "read_posts", lambda topic: {1: "verified"})
        (tmp_path / name).mkdir()
        check = begin_check(store, tmp_path / name)
        assert check.problem(60.0, waits=True) == ""
        monkeypatch.undo()
    assert parts["own"] == everything
    assert parts["shared"] and parts["shared"] < everything
    assert (tmp_path / "own" / data_check.VERIFIED).exists() == (number == 0)
    if number == 0:
        entries = json.loads((tmp_path / "own" / data_check.VERIFIED).read_text())
        assert list(entries) == ["0", "1"] and entries["1"]["host"] == "host-b"


def test_parts_of_a_shared_store_are_all_of_it_once():
    files = {"a": [7], "b": [5], "c": [5], "d": [3], "e": [2], "missing": None}
    parts = [data_check._share_out(files, number, 3) for number in range(3)]
    assert sorted(path.name for part in parts for path in part) == sorted(files)
    assert [sum((files[path.name] or [0])[0] for path in part) for part in parts] == [7, 8, 7]


def test_damage_names_the_process_and_its_host(store, tmp_path, monkeypatch):
    flip_a_bit(store / ARRAY)
    as_one_of_two(monkeypatch, {}, 1)
    check = begin_check(store, tmp_path)
    check._thread.join()
    assert check._problem.startswith(f"process 1 ({socket.gethostname()}): ")
    assert f"{ARRAY} has the SHA-256" in check._problem


@pytest.mark.parametrize("kind", ["nfs4", "fuse.gcsfuse", "ext4"])
def test_a_network_disk_has_the_name_of_its_source(tmp_path, monkeypatch, kind):
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (
        f"1 2 0:99 / /x rw - {kind} no\n1 2 {number} / /y rw shared:1 - {kind} disk:/export rw\n"
    )
    read_text = pathlib.Path.read_text
    monkeypatch.setattr(
        pathlib.Path,
        "read_text",
        lambda path: lines if path.name == "mountinfo" else read_text(path),
    )
    name, is_shared = data_check._identify_disk(tmp_path)
    assert is_shared == (kind != "ext4") and (name == f"{kind} disk:/export") == is_shared


@pytest.mark.parametrize(
    ("step", "saved", "quarantined", "words"),
    [
        (40, [], [], r"no step was trained on them;.* resumes .*; if they were damaged before"),
        (45, [], [], r"steps 41 to 45 were trained on them;.* resumes"),
        (60, [50, 60], [50, 60], r"\(50, 60\) are in checkpoints_damaged/;.* resumes"),
        (60, [50, 60], [], r"no checkpoint of an earlier step is left;.* start over in another"),
    ],
)
def test_the_sentence_says_what_was_trained_on_them(step, saved, quarantined, words):
    assert re.search(
        words, data_check.describe_damage("a file is bad", 40, step, saved, quarantined)
    )


@pytest.mark.long
@pytest.mark.fault(22, "a bit of the store is flipped while the run trains")
@pytest.mark.parametrize("found_at", ["once all is read", "a step"])
def test_a_run_is_stopped_and_what_it_saved_quarantined(store, tmp_path, monkeypatch, found_at):
    saves = CheckpointConfig(every_steps=4)
    config = small_config(store, steps=6, checkpoint=saves, log_every_steps=2)
    workdir, released = tmp_path / "run", threading.Event()
    whole = (store / ARRAY).read_bytes()
    flip_a_bit(store / ARRAY)
    advance = DataCheck._advance

    def held(self, read_bytes):
        assert released.wait(120)
        advance(self, read_bytes)

    after_step = loop.TrainingRun._after_step

    def released_after_step_4(self):
        if self.step == 5 and found_at == "a step":
            released.set()
            self.data_check._thread.join()
        after_step(self)

    monkeypatch.setattr(DataCheck, "_advance", held)
    monkeypatch.setattr(loop.TrainingRun, "_after_step", released_after_step_4)
    if found_at != "a step":
        released.set()
    with pytest.raises(Refused, match=rf"{ARRAY} has the SHA-256.*resumes from the newest"):
        train(config, workdir)
    saved = {path.name for path in (workdir / "checkpoints").iterdir()}
    assert saved == {"0"}
    assert not (workdir / "summary.json").exists()
    if found_at == "a step":
        damaged = {path.name for path in (workdir / "checkpoints_damaged").iterdir()}
        assert damaged == {"4"}
        (store / ARRAY).write_bytes(whole)
        assert train(config, workdir)["steps"] == 6
