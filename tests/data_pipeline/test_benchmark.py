"""The benchmark writes a rate that it measured, and refuses what it cannot measure."""

import json
import os
import sys

import pytest

from data_pipeline import benchmark
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.store import Store
from tests.data_pipeline.corpora import SPECIAL_IDS, split_of, varied, vocab_size_of


@pytest.fixture
def opened(tmp_path, monkeypatch) -> str:
    """The flag of a store that opens as a small corpus."""
    split = split_of(varied(20, seed=3))
    vocabulary = {"size": vocab_size_of(split), "special_ids": SPECIAL_IDS}
    store = Store(tmp_path, {"vocabulary": vocabulary, "digest": "abc"}, split, split)
    monkeypatch.setattr(benchmark, "open_store", lambda directory: store)
    return f"--store={tmp_path}"


@pytest.fixture(autouse=True)
def container(tmp_path, monkeypatch):
    """The folder of the limits of this process's container; without files there are none."""
    monkeypatch.setattr(benchmark, "count_cores", lambda: count_cores(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("packed_examples", [1, 3])
def test_the_rates_are_written(opened, tmp_path, capsys, packed_examples):
    out = tmp_path / "out.json"
    flags = ["--seq_len=32", "--batch_size=8", "--group_sequences=16", "--secs=0.1"]
    flags.append(f"--packed_examples={packed_examples}")
    assert benchmark.main([opened, *flags, "--cores=1", f"--json_out={out}"]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    (line,) = record["by_cores"]
    assert record["sequences_per_sec"] == line["sequences_per_sec"] > 0
    assert line["cores"] == 1 and line["measured_secs"] >= 0.1
    in_row = record["sequences_in_row"]
    assert (in_row > 1) == (packed_examples > 1)
    assert line["sequences_per_sec"] == pytest.approx(line["rows_per_sec"] * in_row)
    text = line["rows_per_sec"] * 32 * record["text_share"]
    assert line["tokens_per_sec"] == pytest.approx(text) and 0.3 < record["text_share"] < 1
    assert record["numpy_sequences_per_sec"] > 0
    assert (record["seq_len"], record["max_predictions_per_seq"]) == (32, 5)
    stages = {stage["name"]: stage["microseconds_a_sequence"] for stage in record["stages"]}
    expected = ["which text", "text", "masks", "packing" if packed_examples > 1 else "fields"]
    assert list(stages) == expected and min(stages.values()) > 0
    shown = capsys.readouterr().out
    assert "through tf.data" in shown and all(name in shown for name in expected)


def test_each_number_of_cores_is_measured_where_none_is_named(container, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(3, 9)), raising=False)
    assert benchmark._choose_core_counts(0) == [1, 2, 4, 6]
    assert benchmark._choose_core_counts(5) == [5]
    for quota, cores in (("max 100000", 6), ("250000 100000", 2), ("10000 100000", 1)):
        (container / "cpu.max").write_text(f"{quota}\n")
        assert count_cores(container) == cores


def test_without_linux_all_cores_are_used_and_none_can_be_named(opened, monkeypatch, capsys):
    for name in ("sched_getaffinity", "sched_setaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert benchmark.main([opened, "--cores=1"]) == 2
    assert capsys.readouterr().err.startswith("error: --cores is 1; only Linux can bind")
    assert benchmark._choose_core_counts(0) == [os.cpu_count()]
