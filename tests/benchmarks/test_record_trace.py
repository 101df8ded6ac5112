"""Replays of entries: what they compare and refuse, and that a trace is the run of the trainer."""

import contextlib
import dataclasses
import json
import subprocess
import sys

import pytest

from benchmarks.records import __main__ as records
from benchmarks.records import entries, trace
from bert_jax.config import MeshConfig, resolve
from bert_jax.trainer.feed import read_facts
from tests.benchmarks.test_record_entries import TRACE, make_entry
from tests.bert_jax.small_runs import compiled_once, small_config, train
from tests.faults.runs import ROOT, environment

__all__ = ["compiled_once"]  # a fixture


def shift(values, step, by):
    return tuple(value + by if n == step else value for n, value in enumerate(values, 1))


@pytest.mark.parametrize(
    ("changes", "first", "words"),
    [
        ({}, 0, []),
        ({"rows": "0" * 64}, 0, ["rows have the digest 000000000000"]),
        ({"losses": shift(TRACE.losses, 7, 2e-4)}, 0, ["the loss of step 7 is 8.4002"]),
        ({"losses": shift(TRACE.losses, 7, 0.9e-4)}, 0, []),
        ({"losses": shift(TRACE.losses, 20, float("nan"))}, 0, ["the loss of step 20 is nan"]),
        ({"weights": TRACE.weights | {"100": "a"}}, 0, ["weights have another fingerprint"]),
        ({"optimizer": TRACE.optimizer | {"100": "a"}}, 100, ["optimizer have another"]),
        ({"weights": TRACE.weights | {"100": "a"}}, 101, []),
    ],
)
def test_a_planted_difference_is_named(changes, first, words):
    found = dataclasses.replace(TRACE, **changes)
    differences = trace.find_differences(TRACE, found, first, is_same_machine=True)
    assert len(differences) == len(words)
    assert all(word in each for word, each in zip(words, differences, strict=True)), differences


def test_another_machine_compares_no_fingerprints():
    found = dataclasses.replace(TRACE, weights={"0": "a"}, rows="0" * 64)
    (difference,) = trace.find_differences(TRACE, found, 0, is_same_machine=False)
    assert difference.startswith("rows")


@pytest.fixture
def replays(monkeypatch):
    """Steps that were replayed, as (config, last step); the table has the entry `first`."""
    entry = make_entry("first", machine=entries.describe_machine())
    replayed = []
    monkeypatch.setattr(entries, "read_entries", lambda: [entry])
    monkeypatch.setattr(records, "check_store", lambda store: None)
    monkeypatch.setattr(trace, "record_trace", lambda *given: replayed.append(given) or TRACE)
    return replayed


def test_a_replay_trains_the_first_seed_up_to_the_last_step(replays, capsys):
    assert records.main(["--replay=first", "--steps=100:340", "--store=there"]) == 0
    ((config, last),) = replays
    assert (config.seed, config.data.random_seed, config.data.store) == (1, 1, "there")
    assert last == 340 and "fingerprints after steps 100, 200, 300" in capsys.readouterr().out


def test_a_replay_that_differs_fails_and_names_the_commit(replays, monkeypatch, capsys):
    other = dataclasses.replace(TRACE, rows="0" * 64)
    monkeypatch.setattr(trace, "record_trace", lambda config, last: other)
    assert records.main(["--replay=first"]) == 1
    assert f"first differs; its commit is {'0' * 40}" in capsys.readouterr().out


def test_another_machine_replays_the_first_steps_alone(replays, monkeypatch, capsys):
    elsewhere = entries.Machine("another cpu", 96, "0.10.2")
    monkeypatch.setattr(entries, "describe_machine", lambda: elsewhere)
    assert records.main(["--replay=first", "--steps=0:1240"]) == 0
    assert replays[0][1] == 20 and "no fingerprints" in capsys.readouterr().out


def test_a_process_with_fewer_cores_is_another_machine(monkeypatch):
    monkeypatch.setattr(entries, "count_cores", lambda: 96)
    all_cores = entries.describe_machine()
    monkeypatch.setattr(entries, "count_cores", lambda: 1)
    assert not entries.describe_machine().is_like(all_cores)


def test_an_entry_without_vector_instructions_may_have_other_fingerprints(
    replays, monkeypatch, capsys
):
    here = entries.describe_machine()
    named = dataclasses.replace(here, cpu="a cpu with avx2")
    entry = make_entry("first", machine=dataclasses.replace(named, cpu="a cpu"))
    monkeypatch.setattr(entries, "describe_machine", lambda: named)
    monkeypatch.setattr(entries, "read_entries", lambda: [entry])
    assert records.main(["--replay=first", "--steps=0:100"]) == 0
    assert "fingerprints after steps 0, 20, 100" in capsys.readouterr().out
    other = dataclasses.replace(TRACE, weights=TRACE.weights | {"100": "0" * 64})
    monkeypatch.setattr(trace, "record_trace", lambda config, last: other)
    assert records.main(["--replay=first", "--steps=0:100"]) == 0
    assert "no fingerprints" in capsys.readouterr().out
    exact = make_entry("first", machine=named)
    monkeypatch.setattr(entries, "read_entries", lambda: [exact])
    assert records.main(["--replay=first", "--steps=0:100"]) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replay=second"], "no entry second; choose from first"),
        (["--replay="], "no entry ; choose from first"),  # not a check
        (["--replay=first", "--steps=0:1241"], "0:1241; end from 20 to 1240"),
        (["--replay=first", "--steps=0:19"], "0:19; end from 20 to 1240"),
        (["--replay=first", "--steps=130:150"], "130:150"),
        (["--replay=first", "--steps=x"], "'x' is not two steps as in 0:20"),
        (["--replay=first", "--seeds=1,x"], "'1,x' is not seeds as in 1,2,3"),
    ],
)
def test_what_cannot_be_replayed_is_refused(replays, capsys, flags, words):
    with contextlib.suppress(SystemExit):  # of argparse
        assert records.main(flags) == 2
    assert words in capsys.readouterr().err and not replays


def test_settings_of_another_commit_are_refused_with_the_commit(replays, monkeypatch, capsys):
    settings = make_entry("first").settings | {"a_setting_of_then": 1}
    entry = make_entry("first", settings=settings, commit="c" * 40)
    monkeypatch.setattr(entries, "read_entries", lambda: [entry])
    assert records.main(["--replay=first"]) == 2
    error = capsys.readouterr().err
    assert "a_setting_of_then" in error and f"git checkout {'c' * 40}" in error and not replays


@pytest.mark.long
def test_a_trace_is_the_trainers_run(tiny_store, tmp_path, monkeypatch):
    config = small_config(tiny_store, steps=18, seed=3, log_every_steps=1)
    phases = config.phases[0], dataclasses.replace(config.phases[0], seq_len=24, steps=5)
    config = dataclasses.replace(config, phases=phases, mesh=MeshConfig())
    train(config, tmp_path)
    monkeypatch.setattr(trace, "FINGERPRINT_STEPS", 7)
    run = resolve(config, store=read_facts(config.data))
    made = trace.record_trace(run, 23)
    assert list(made.weights) == list(made.optimizer) == ["0", "7", "14", "20", "21", "23"]
    ended = 23, (made.weights["23"], made.optimizer["23"])
    assert trace.read_fingerprints(tmp_path) == ended
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert list(made.losses) == losses[:20]


@pytest.mark.long
def test_the_first_steps_of_the_newest_entry_repeat(tmp_path):
    if not (table := entries.read_entries()):
        pytest.skip("benchmarks/records/entries has no entry yet")
    store = tmp_path / "store"
    assert records.main([f"--build={store}"]) == 0
    command = [sys.executable, "-m", "benchmarks.records", f"--replay={table[-1].name}"]
    command += ["--steps=0:20", f"--store={store}"]
    settings = environment(XLA_FLAGS="")  # not the tests', which change the compiled program
    done = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
