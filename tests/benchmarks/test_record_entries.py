"""The record table: its text, what an entry holds, and what makes it stand."""

import dataclasses
import gzip
import json
import math
import pathlib
import platform

import pytest

from benchmarks.records import __main__ as records
from benchmarks.records import entries
from bert_jax.config import Config, StoreFacts, recorded, resolve, settings_from
from configs import quickstart
from data_pipeline import python_docs
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused

LOSSES = {"1": 5.0, "2": 5.2, "3": 4.9, "4": 5.1, "5": 5.05}


def resolve_quickstart(**changes):
    config = settings_from(Config, quickstart.get_config("model=bert"))
    return resolve(dataclasses.replace(config, **changes), store=StoreFacts(4096))


def make_entry(name, gains=(0, 0, 0, 0, 0), **changes):
    """An entry of the quickstart's recipe, better than LOSSES by the gain of each seed."""
    losses = {seed: loss - gain for (seed, loss), gain in zip(LOSSES.items(), gains, strict=True)}
    values = {
        "track": entries.COMPUTE,
        "changed": "nothing",
        "written": f"2026-11-27T12:00:{len(name):02d}+00:00",
        "losses": losses,
        "train_secs": dict.fromkeys(LOSSES, 100.0),
        "tflop": count_quickstart_tflop(),
        "machine": entries.Machine("a cpu", 2, "0.10.2"),
        "commit": "0" * 40,
        "settings": entries.list_differences(resolve_quickstart()),
        "name": name,
    }
    return entries.Entry(**values | changes)


def count_quickstart_tflop():
    """2 operations forward and 4 backward per weight and position, 12 x width per pair of them."""
    total = 0
    for seq_len, steps, rows, predictions in ((32, 1000, 96, 5), (64, 240, 48, 10)):
        layers = 2 * (6 * (4 * 128 * 128 + 2 * 128 * 512) * seq_len + 12 * 128 * seq_len**2)
        heads = 6 * (128 + 4096) * 128 * predictions + 6 * (128 + 2) * 128
        total += steps * rows * (layers + heads)
    return total / 1e12


def test_tflop_are_those_counted_by_hand():
    assert entries.count_tflop(resolve_quickstart(), "x") == pytest.approx(count_quickstart_tflop())
    assert count_quickstart_tflop() < entries.MAX_TFLOP


def test_settings_that_differ_from_the_defaults_bring_all_back():
    config = resolve_quickstart()
    differing = json.loads(json.dumps(entries.list_differences(config)))
    assert (
        differing["model"]["hidden_size"] == 128 and "global_rope_theta" not in differing["model"]
    )
    assert small_files.parse_record(differing, type(config), "x") == config


def test_a_gain_stands_if_it_exceeds_its_half_width():
    gains = (0.1, 0.2, 0.15, 0.05, 0.1)
    first, second, third = entries.check_entries(
        [make_entry("a"), make_entry("bb", gains), make_entry("ccc", (0.1, 0.2, 0.15, 0.05, 0.11))]
    )
    # mean 0.12, sample deviation 0.0570, t of 4 degrees of freedom 2.776
    assert (first.gain, first.faults) == (None, [])
    assert second.gain.mean == pytest.approx(0.12) and second.faults == []
    assert second.gain.half_width == pytest.approx(2.7764 * math.sqrt(0.013 / 4 / 5), rel=1e-4)
    assert third.gain.mean == pytest.approx(0.002) and third.faults == ["no gain over bb"]


def test_an_entry_that_does_not_stand_is_no_reference():
    worse = make_entry("bb", (0.3, -0.3, 0.3, -0.3, 0.3))
    better = make_entry("ccc", (0.1, 0.1, 0.1, 0.1, 0.11))
    verdicts = entries.check_entries([make_entry("a"), worse, better])
    assert [bool(verdict.faults) for verdict in verdicts] == [False, True, False]
    assert verdicts[2].gain.mean == pytest.approx(0.102)


def test_fixed_data_is_compared_with_fixed_compute_and_not_the_reverse():
    data = make_entry("bb", (0.5, 0.5, 0.5, 0.5, 0.51), track=entries.DATA)
    compute = make_entry("ccc", (0.1, 0.1, 0.1, 0.1, 0.11))
    verdicts = entries.check_entries([make_entry("a"), data, compute])
    assert [verdict.gain and round(verdict.gain.mean, 3) for verdict in verdicts] == [
        *(None, 0.502, 0.102)
    ]


LONGER = entries.list_differences(resolve_quickstart())
LONGER["phases"][0]["steps"] = 1100


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tflop": 11.0}, "tflop is 11.0000, and its settings give 11.3757"),
        ({"settings": LONGER, "tflop": 12.338}, "over 11.4"),
        ({"train_secs": dict.fromkeys(LOSSES, 126.0)}, "1.26 times the time of a"),
        ({"track": "data", "train_secs": dict.fromkeys(LOSSES, 1801.0)}, "1801 s of training"),
        ({"losses": {"1": 3.0}}, "losses are not of the seeds 1 to 5"),
        ({"settings": make_entry("a").settings | {"init": "hf:x"}}, "config.init is hf:x"),
        ({"track": "memory"}, "track is memory"),
    ],
)
def test_a_broken_rule_is_named(changes, fault):
    gains = (0.5, 0.5, 0.5, 0.5, 0.51)
    _, verdict = entries.check_entries([make_entry("a"), make_entry("bb", gains, **changes)])
    assert any(fault in each for each in verdict.faults), verdict.faults


def test_another_machine_has_no_time_ratio():
    slow = {"train_secs": dict.fromkeys(LOSSES, 900.0)}
    other = entries.Machine("another cpu", 2, "0.10.2")
    entry = make_entry("bb", (0.5, 0.5, 0.5, 0.5, 0.51), machine=other, **slow)
    assert entries.check_entries([make_entry("a"), entry])[1].faults == []


def test_an_optimizer_with_products_of_its_own_is_refused():
    config = resolve_quickstart()
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, name="muon"))
    with pytest.raises(Refused, match=r"config.optim.name is muon"):
        entries.count_tflop(config, "x")


@pytest.fixture
def workdirs(tmp_path):
    """Records of five finished runs, one per seed, as the trainer leaves them."""
    for seed in range(1, 6):
        config = resolve_quickstart(seed=seed)
        data = dataclasses.replace(config.data, random_seed=seed, store=f"/somewhere/{seed}")
        write_run(tmp_path / f"run-{seed}", dataclasses.replace(config, data=data))
    return [str(tmp_path / f"run-{seed}") for seed in (2, 1, 3, 4, 5)]


def write_run(workdir, config, digest=entries.STORE_DIGEST):
    code = {"commit": "c" * 40, "source_digest": "d", "packages": {"jax": "0.10.2"}}
    record = {"config": recorded(config), "code": code, "store": {"digest": digest}}
    workdir.mkdir(exist_ok=True)
    (workdir / "run.json").write_text(json.dumps(record))
    summary = {"train_secs": 100.0 + config.seed, "attempts": 1}
    (workdir / "summary.json").write_text(json.dumps(summary))


def test_an_entry_is_written_from_finished_runs_and_read_again(workdirs, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "ENTRIES", tmp_path / "entries")
    entry = entries.make_entry("compute", "all", workdirs, lambda workdir: 4.0 + int(workdir[-1]))
    path = entries.write_entry("first", entry)
    (read,) = entries.read_entries()
    assert read == dataclasses.replace(entry, name="first")
    assert read.losses == {"1": 5.0, "2": 6.0, "3": 7.0, "4": 8.0, "5": 9.0}
    assert read.train_secs["5"] == 105.0 and read.commit == "c" * 40
    assert "/somewhere" not in path.read_text() and "random_seed" not in path.read_text()
    assert entries.check_entries([read])[0].faults == []
    with pytest.raises(Refused, match="exists"):
        entries.write_entry("first", entry)


@pytest.mark.parametrize(
    ("digest", "changes", "message"),
    [
        ("0" * 64, {}, "trained on the store 000000000000"),
        (entries.STORE_DIGEST, {"seed": 6}, "the seeds of --workdirs are 1, 2, 3, 4, 6"),
        (entries.STORE_DIGEST, {"seed": 5, "objective": "mlm"}, "differ in settings"),
    ],
)
def test_runs_that_are_no_entry_are_refused_before_scoring(workdirs, digest, changes, message):
    write_run(pathlib.Path(workdirs[-1]), resolve_quickstart(**changes), digest)
    with pytest.raises(Refused, match=message):
        entries.make_entry("compute", "all", workdirs, lambda workdir: pytest.fail("scored"))


def test_an_unfinished_run_is_refused(workdirs, tmp_path):
    (tmp_path / "run-3" / "summary.json").unlink()
    with pytest.raises(Refused, match=r"run-3 has no summary.json"):
        entries.make_entry("compute", "all", workdirs, lambda workdir: pytest.fail("scored"))


def test_the_entries_of_the_repository_stand():
    for verdict in entries.check_entries(entries.read_entries()):
        assert not verdict.faults, verdict.entry.name


def test_check_prints_a_row_per_entry_and_fails_with_one_that_does_not_stand(monkeypatch, capsys):
    table = [make_entry("a"), make_entry("bb")]
    monkeypatch.setattr(entries, "read_entries", lambda: table)
    monkeypatch.setenv("COLUMNS", "120")
    assert records.main(["--check"]) == 1
    out = capsys.readouterr().out
    assert "5.050 (4.900 - 5.200)" in out and "stands" in out and "no gain over a" in out
    table.pop()
    assert records.main(["--check"]) == 0


@pytest.mark.slow
@pytest.mark.skipif(platform.python_version() != "3.11.7", reason="other Pythons carry other text")
def test_the_text_is_what_this_python_carries(tmp_path):
    python_docs.write(tmp_path / "docs.jsonl", make_console(quiet=True))
    assert gzip.decompress(records.TEXT.read_bytes()) == (tmp_path / "docs.jsonl").read_bytes()
    assert records.TEXT.read_bytes()[4:8] == bytes(4)  # no time: the file is made again the same


@pytest.mark.slow
def test_the_store_of_the_text_has_the_recorded_fingerprint(tmp_path):
    assert records.main([f"--build={tmp_path / 'store'}"]) == 0


def test_another_store_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        records, "open_store", lambda store: type("Store", (), {"digest": "1" * 64})
    )
    with pytest.raises(Refused, match="is the store 111111111111"):
        records.check_store("x")
