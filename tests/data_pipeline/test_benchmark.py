"""The benchmark writes a rate that it measured, and refuses what it cannot measure."""

import json
import os
import sys

import pytest

from data_pipeline import benchmark
from data_pipeline.store import Store
from tests.data_pipeline.corpora import SPECIAL_IDS, split_of, varied, vocab_size_of


@pytest.fixture
def opened(tmp_path, monkeypatch) -> str:
    """The name of a store that opens as a small corpus."""
    split = split_of(varied(20, seed=3))
    vocabulary = {"size": vocab_size_of(split), "special_ids": SPECIAL_IDS}
    store = Store(tmp_path, {"vocabulary": vocabulary, "digest": "abc"}, split, split)
    monkeypatch.setattr(benchmark, "open_store", lambda directory: store)
    return str(tmp_path)


def test_the_rate_is_written(opened, tmp_path, capsys):
    out = tmp_path / "out.json"
    flags = ["--seq_len=32", "--batch_size=8", "--group_sequences=16", "--secs=0.2"]
    assert benchmark.main([opened, *flags, f"--json_out={out}"]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["sequences_per_sec"] > 0 and record["measured_secs"] >= 0.2
    assert record["tokens_per_sec"] == record["sequences_per_sec"] * 32
    assert (record["seq_len"], record["max_predictions_per_seq"]) == (32, 5)
    is_linux = sys.platform == "linux"  # macOS has no os.sched_getaffinity
    assert record["cores"] == (len(os.sched_getaffinity(0)) if is_linux else os.cpu_count())
    assert "sequences/s of 32 tokens" in capsys.readouterr().out


def test_without_linux_all_cores_are_used_and_none_can_be_named(opened, monkeypatch, capsys):
    for name in ("sched_getaffinity", "sched_setaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert benchmark.main([opened, "--cores=1"]) == 2
    assert capsys.readouterr().err.startswith("error: --cores is 1; only Linux can hold")
    assert benchmark._pin_to_cores(0) == os.cpu_count()


def test_what_cannot_be_measured_is_one_line_and_exit_2(opened, tmp_path, monkeypatch, capsys):
    allowed = "this process may use 1 to" if sys.platform == "linux" else "only Linux can"
    for flags, sentence in (
        (["--cores=9999"], f"error: --cores is 9999; {allowed}"),
        (["--seq_len=3"], "error: seq_len is 3; "),
    ):
        assert benchmark.main([opened, *flags]) == 2
        assert capsys.readouterr().err.startswith(sentence)
    monkeypatch.undo()
    assert benchmark.main([str(tmp_path / "absent")]) == 2
    error = capsys.readouterr().err
    assert "is not a store" in error and error.count("\n") == 1
