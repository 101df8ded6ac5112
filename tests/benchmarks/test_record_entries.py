"""The record table: its text, what an entry holds, and what makes it stand."""

import dataclasses
import gzip
import json
import math
import platform

import pytest

from benchmarks.records import __main__ as records
from benchmarks.records import entries, report, trace
from bert_jax.config import Config, StoreFacts, resolve, settings_from
from configs import quickstart
from data_pipeline import python_docs
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import Refused, small_files

MARKS = [str(step) for step in (0, 20, *range(100, 1201, 100), 1240)]
TRACE = trace.Trace(
    "f" * 64,
    tuple(9.0 - step / 10 for step in range(20)),
    {step: f"{int(step):016x}" for step in MARKS},
    {step: f"{int(step) + 1:016x}" for step in MARKS},
)
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
        "config": "configs/quickstart.py:model=bert",
        "losses": losses,
        "train_secs": dict.fromkeys(LOSSES, 100.0),
        "peak_mb": 900.0,
        "tflop": count_quickstart_tflop(),
        "machine": entries.Machine("a cpu", 2, "0.10.2"),
        "commit": "0" * 40,
        "settings": entries.describe_settings(resolve_quickstart()),
        "trace": TRACE,
        "name": name,
    }
    entry = entries.Entry(**values | changes)
    return dataclasses.replace(entry, digest=changes.get("digest", entries.compute_digest(entry)))


def count_quickstart_tflop():
    """2 operations forward and 4 backward per weight and position, 12 x width per pair of them."""
    total = 0
    for seq_len, steps, rows, predictions in ((32, 1000, 96, 5), (64, 240, 48, 10)):
        layers = 2 * (6 * (4 * 128 * 128 + 2 * 128 * 512) * seq_len + 12 * 128 * seq_len**2)
        heads = 6 * (128 + 4096) * 128 * predictions + 6 * (128 + 2) * 128
        total += steps * rows * (layers + heads)
    return total / 1e12


def test_tflop_are_those_counted_by_hand():
    assert entries.count_tflop(resolve_quickstart()) == pytest.approx(count_quickstart_tflop())
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
        (
            {"losses": dict.fromkeys(LOSSES, -1.0)},
            "of the seeds 1 to 5, all above 0",
        ),
        (
            {"settings": make_entry("a").settings | {"optim": {"name": "sgd"}}},
            "config.optim.name is sgd",
        ),
        ({"settings": make_entry("a").settings | {"init": "hf:x"}}, "config.init is hf:x"),
        ({"track": "memory"}, "track is memory"),
        ({"digest": "0" * 64}, "digest is 000000000000"),
        ({"trace": dataclasses.replace(TRACE, losses=(1.0,))}, "trace has not 20 losses"),
        ({"trace": dataclasses.replace(TRACE, weights={"0": "a"})}, "after 15 steps"),
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
    alike = dataclasses.replace(entry, machine=entries.Machine("a cpu with avx2", 2, "0.10.2"))
    assert "1.25" in "".join(entries.check_entries([make_entry("a"), alike])[1].faults)


def test_muons_iterations_are_counted_by_hand():
    """X is 128 wide or less: 5 times X X', A A and B X, each 2 operations per multiply-add."""
    square, longer = 3 * 2 * 128**3, 2 * (128 * 128 * 512 * 2 + 128**3)
    layer = 5 * (4 * square + 2 * longer)
    config = resolve_quickstart()
    muon = dataclasses.replace(config, optim=dataclasses.replace(config.optim, name="muon"))
    own = entries.count_tflop(muon) - entries.count_tflop(config)
    assert own == pytest.approx(1240 * 2 * layer / 1e12)
    assert entries.count_optimizer_flops("muon", [(512, 128), (128, 512)], 3) == 3 * 5 * 2 * longer
    assert entries.count_optimizer_flops("lamb", [(512, 128)], 3) == 0
    with pytest.raises(Refused, match=r"config.optim.name is shampoo"):
        entries.count_optimizer_flops("shampoo", [], 3)


SEED_RESULT = {"train_secs": 100.0, "peak_mb": None, "loss": 5.0}
RESULTS = {
    "recipe": {
        "config": "configs/quickstart.py:model=bert",
        "flags": ["--config.log_every_steps=40"],
        "settings": json.loads(json.dumps(make_entry("a").settings)),
        "store": "/somewhere",
        "commit": "c" * 40,
    },
    "seeds": {seed: SEED_RESULT | {"peak_mb": 800.0 + int(seed)} for seed in "12345"},
}


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """Entries are written to a folder of the test; seed 1 has ended as TRACE does."""
    monkeypatch.setattr(entries, "ENTRIES", tmp_path / "entries")
    ended = 1240, (TRACE.weights["1240"], TRACE.optimizer["1240"])
    monkeypatch.setattr(entries, "read_fingerprints", lambda workdir: ended)
    return tmp_path / "entries"


def test_an_entry_is_written_from_results_and_read_again(saved):
    made = []
    entry = entries.make_entry(
        "compute", "all", RESULTS, saved, lambda *given: made.append(given) or TRACE
    )
    path = entries.write_entry("first", entry)
    (read,) = entries.read_entries()
    ((config, last),) = made
    assert (config.seed, config.data.random_seed, config.data.store) == (1, 1, "/somewhere")
    assert last == 1240 and read.peak_mb == 805.0 and read.trace == TRACE
    assert read.config == "configs/quickstart.py:model=bert --config.log_every_steps=40"
    assert "/somewhere" not in path.read_text() and "random_seed" not in path.read_text()
    assert entries.check_entries([read])[0].faults == []
    for name in ("first", "of/mine", "../first"):
        with pytest.raises(Refused, match="give another --name"):
            entries.write_entry(name, entry)


def test_a_seed_that_is_missing_is_refused_before_tracing(saved):
    seeds = {seed: result for seed, result in RESULTS["seeds"].items() if seed != "3"}
    with pytest.raises(Refused, match="seeds 3 have no results"):
        entries.make_entry("compute", "all", RESULTS | {"seeds": seeds}, saved, pytest.fail)


def test_training_that_does_not_repeat_is_refused(saved):
    other = dataclasses.replace(TRACE, weights=TRACE.weights | {"1240": "0" * 16})
    with pytest.raises(Refused, match="does not repeat here to the bit"):
        entries.make_entry("compute", "all", RESULTS, saved, lambda config, last: other)


def test_the_entries_of_the_repository_stand():
    for verdict in entries.check_entries(entries.read_entries()):
        assert not verdict.faults, verdict.entry.name


@pytest.fixture
def readme(tmp_path, monkeypatch):
    """A copy of the README, and a terminal that is wide enough for the table."""
    path = tmp_path / "README.md"
    path.write_text(report.README.read_text())
    monkeypatch.setattr(report, "README", path)
    monkeypatch.setenv("COLUMNS", "160")
    return path


def test_check_draws_a_row_per_entry_and_fails_with_one_that_does_not_stand(
    monkeypatch, capsys, readme
):
    table = [make_entry("a"), make_entry("bb")]
    monkeypatch.setattr(entries, "read_entries", lambda: table)
    assert records.main(["--check"]) == 1
    out, text = capsys.readouterr().out, readme.read_text()
    assert "5.050 (4.900 - 5.200)" in out and "stands" in out and "no gain over a" in out
    assert (
        "| a | compute | 5.050 (4.900 - 5.200) | - | 11.38 | 100 | 900 | nothing | stands |" in text
    )
    assert (readme.parent / report.CURVE).read_bytes()[:4] == b"\x89PNG"
    table.pop()
    assert records.main(["--check"]) == 0
    assert "| bb |" not in readme.read_text()


def test_the_readme_has_the_table_of_the_entries():
    table = report.format_table(entries.check_entries(entries.read_entries()))
    assert report.BEGIN + table + report.END in report.README.read_text()


@pytest.mark.long
@pytest.mark.skipif(platform.python_version() != "3.11.7", reason="other Pythons carry other text")
def test_the_text_is_what_this_python_carries(tmp_path):
    python_docs.write(tmp_path / "docs.jsonl", make_console(quiet=True))
    assert gzip.decompress(records.TEXT.read_bytes()) == (tmp_path / "docs.jsonl").read_bytes()
    assert records.TEXT.read_bytes()[4:8] == bytes(4)  # no time: the file is made again the same


@pytest.mark.long
def test_the_store_of_the_text_has_the_recorded_fingerprint(tmp_path):
    assert records.main([f"--build={tmp_path / 'store'}"]) == 0


def test_another_store_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        records, "open_store", lambda store: type("Store", (), {"digest": "1" * 64})
    )
    with pytest.raises(Refused, match="is the store 111111111111"):
        records.check_store("x")
