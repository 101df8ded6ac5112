"""Rows of docs/results that benchmarks write: --record."""

import datetime
import importlib
import json
import re
import subprocess

import pytest

from benchmarks import (
    build_speed,
    continue_encoder,
    exports,
    families,
    finetune_vs_trainer,
    record,
    results,
    sentence_vectors,
)
from benchmarks.parity_runs import report
from benchmarks.parity_runs.pairs import Case
from benchmarks.step import side_by_side
from data_pipeline.io import Refused
from tests.docs import pages

ROWS = [
    {
        "name": name,
        "what": f"speed of {name}",
        "figure": "1.50 (1.40 - 1.60), 15 / 10 s",
        "command": f"`python -m benchmarks.{program} --rounds=3`",
        "device": "2 cores",
        "date": "2026-11-01",
        "commit": "0123abc",
        "runs": "1",
    }
    for name, program in (("first", "sentence_vectors"), ("second", "families"))
]
ROWS[0]["headline"] = "Vectors: 1.50."
COMMAND = "python -m benchmarks.sentence_vectors --sentences=FILE"
MEASURED = results.Measured(
    "vectors of 7 sentences", "2.25, 9.0 / 4.0 s", "4 rounds", "Vectors: 2.25.", {"torch": "2.14.1"}
)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with code, one theme of results, and a page that shows the headline of `first`."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    theme = {"title": "Speed", "sections": [{"heading": "## Steps", "text": [], "rows": ROWS}]}
    (folder / "speed.json").write_text(json.dumps(theme), encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text("- Vectors: 1.50. <!-- row: first -->\n")
    (tmp_path / "code.py").write_text("")
    for words in (("init",), ("add", "."), ("commit", "--message=all")):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", folder)
    monkeypatch.syspath_prepend(results.DOCS)
    generate, pictures = importlib.import_module("generate"), importlib.import_module("pictures")
    monkeypatch.setattr(generate, "RESULTS", folder)
    monkeypatch.setattr(generate, "WITH_HEADLINES", (page,))
    monkeypatch.setattr(pictures, "draw_speed", lambda rows: None)
    return tmp_path


def read_rows(clone):
    (section,) = json.loads((clone / "docs/results/speed.json").read_text())["sections"]
    return section["rows"]


@pytest.mark.parametrize(
    ("named", "names"), [("first", ["first", "second"]), ("new:first", ["first", "new", "second"])]
)
def test_a_row_is_renewed_or_put_below_another_and_shown(clone, named, names):
    row = results.find_row(named, COMMAND)
    results.write_row(row, MEASURED)
    rows = {row["name"]: row for row in read_rows(clone)}
    assert list(rows) == names
    written = rows.pop(row.name)
    assert written["command"] == f"`{COMMAND}`" and written["figure"] == MEASURED.figure
    assert written["date"] == datetime.date.today().isoformat()
    head = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True).stdout
    assert commit.startswith(written["commit"]) and len(written["commit"]) == 8
    assert "jax" in written["device"] and written["device"].endswith("torch 2.14.1")
    assert all(other in ROWS for other in rows.values())
    # The page, read without docs/generate.py: cells of each row, and what unfolds under the first.
    page = (clone / "docs/results/speed.md").read_text(encoding="utf-8")
    cells = [cell.split(" | ") for cell in re.findall(r"^\| (.*) \|$", page, re.MULTILINE)][1:]
    shown = [(what.partition(" <")[0], figure, when) for what, figure, when in cells]
    assert shown == [
        (each["what"], each["figure"], f"{each['date']}, {each['commit']}")
        for each in read_rows(clone)
    ]
    detail = cells[names.index(row.name)][0]
    assert all(written[key] in detail for key in ("command", "device", "runs"))
    if named == "first":
        assert (clone / "README.md").read_text() == "- Vectors: 2.25. <!-- row: first -->\n"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("third", "no row is named third; choose from first, second"),
        ("new:third", "no row is named third"),
        ("second:first", "second is taken"),
        ("second", "benchmarks.sentence_vectors does not measure that row"),
    ],
)
def test_a_row_that_is_not_there_or_not_this_programs_is_refused(clone, named, words):
    with pytest.raises(Refused, match=words):
        results.find_row(named, COMMAND)
    assert read_rows(clone) == ROWS


def test_changed_code_is_refused_and_changed_pages_are_not(clone):
    (clone / "README.md").write_text("another recording's")
    (clone / "docs" / "results" / "speed.json").touch()
    (clone / "not_added.txt").touch()
    assert results.find_row("first", COMMAND)
    (clone / "code.py").write_text("changed = True")
    with pytest.raises(Refused, match=r"at no commit \(M code.py\)"):
        results.find_row("first", COMMAND)
    with pytest.raises(SystemExit, match="commit it"):
        results.open_row("first", COMMAND)


@pytest.mark.parametrize("flag", [["--record=a:b"], ["--record", "a:b"], ["-record=a"]])
def test_the_command_is_as_given_but_for_the_flag(flag):
    given = ["/x/bin/python", "-m", "benchmarks.smaller", *flag, "runs/a b", "--rounds=3"]
    assert results.read_command(given) == "python -m benchmarks.smaller 'runs/a b' --rounds=3"


RUN = {"score": 0.5, "wall_secs": 20.0, "cpu_secs": 30.0, "train_secs": 10.0, "step_secs": 0.1}
PRETRAINED = {**RUN, "heldout": {"mlm": 6.4, "nsp": 0.6}, "unigram_loss": 6.3}
PAIRS = [{"ours": RUN, "theirs": RUN | {"wall_secs": secs}} for secs in (44.0, 52.0, 39.0)]
TIMED = [{"hf_secs": 1.2, "our_secs": 1.0}, {"hf_secs": 1.5, "our_secs": 1.0}]
RATIO = {"median": 1.35, "min": 1.2, "max": 1.5}
PARITY = {
    "versions": {"transformers": "5.24.0", "torch": "2.14.1", "jax": "0.10.2"},
    "losses": {"rte": {"ours": [1.0] * 50, "largest_difference": 1.4e-6}},
    "seeds": {
        task: {
            "case": {"examples": 600, "steps": 37, "batch_size": 32},
            "score": "accuracy",
            "baseline": 0.473,
            "runs": PAIRS,
        }
        for task in ("cola", "rte", "sst2")
    },
    "vectors": {
        "sentences": 2000,
        "task": "cola",
        "ratio": RATIO,
        "cpu_ratio": RATIO,
        "rounds": TIMED,
    },
    "pretraining": {
        "losses": {
            "case": {"steps": 200},
            "largest_difference": 2.6e-5,
            "ours": PRETRAINED,
            "theirs": PRETRAINED,
        },
        "seeds": {"steps": 100, "runs": [{"ours": PRETRAINED, "theirs": PRETRAINED}] * 3},
    },
}
STEP = {
    "cases": {
        "4x256": {
            "case": {"batch_size": 16, "seq_len": 128},
            "rounds": [{"hf_ms": 1273.4, "our_ms": 503.2}, {"hf_ms": 1300.0, "our_ms": 500.0}],
        }
    },
    "asked_of_theirs": {"dtype": "float32"},
    "versions": {"hf": {"torch": "2.14.1"}},
    "device": "cpu",
}
SUMMARY = {
    "heldout_mlm_loss": 4.2449,
    "unigram_mlm_loss": 6.368,
    "ngram_mlm_loss": 4.553,
    "heldout_nsp_accuracy": 0.7,
    "majority_nsp_accuracy": 0.5,
    "train_secs": 200.0,
}
PLAN = {
    "topology": "v5e:4x4",
    "parameters": 110_100_000,
    "phases": [
        {
            "seq_len": 128,
            "rows_per_step": 256,
            "estimate": {"step_secs": 0.01312, "exposed_secs": 0.00293, "peak_share": 0.433},
        }
    ],
    "run": {"steps": 1_000_000, "secs": 15_600.0},
    "versions": {"libtpu": "0.0.52"},
}
SAMPLER = {
    "by_cores": [{"cores": 1, "sequences_per_sec": 169_930.4}],
    "numpy_sequences_per_sec": 242_000.0,
    "seq_len": 128,
    "packed_examples": 1,
    "store_tokens": 132_600_000,
}
DESCRIBED = [
    *(report.describe(PARITY, name) for name in report.ROWS),
    finetune_vs_trainer.describe({"rte": PAIRS}, {"rte": Case("rte", 600, 32, 2.0, 0.1, 0)}, {}),
    sentence_vectors.describe(2000, [5.95, 6.4, 6.1], [3.1, 3.3, 3.0], {}),
    side_by_side.describe("Hugging Face's class", STEP),
    build_speed.describe(["61 MB, --workers=1: 6.18 MB/s, 6.4 MB per CPU second"]),
    exports.describe([{"transformers": "5.24.0", "differences": {"hidden": 7.3e-6}}], 9, 1185),
    families.describe({"bert": [{"masked_words": 5.1}, {"masked_words": 5.3}]}, 2),
    continue_encoder.describe({"old": [{"field": 4.8, "english": 4.0, "task": 0.39}]}, "w", 1),
    record.describe_runs("quickstart", [SUMMARY, SUMMARY | {"heldout_mlm_loss": 4.146}]),
    record.describe_sampler(SAMPLER),
    record.describe_plan(PLAN),
]


@pytest.mark.parametrize("measured", DESCRIBED, ids=lambda measured: measured.what[:40])
def test_each_figure_of_a_headline_stands_in_the_row(measured):
    assert measured.what and measured.runs and pages.numbers_in(measured.figure)
    assert "|" not in measured.what + measured.figure
    stated = pages.numbers_in(f"{measured.what} {measured.figure}")
    assert set(pages.numbers_in(measured.headline)) <= set(stated)


def test_a_ratio_is_the_median_of_rounds_and_its_times_are_one_rounds():
    (trained, vectors, step) = (
        measured.figure
        for measured in DESCRIBED
        if measured.what.startswith(("a MiniLM fine-tuned", "mean vectors of 2,000 sentences from"))
        or "Hugging Face's class" in measured.what
    )
    assert trained.startswith("RTE 2.20 (1.95 - 2.60), 44.0 / 20.0 s; scores: RTE 0.500 ± 0.000 /")
    assert vectors == "1.94 (1.92 - 2.03), 6.40 / 3.30 s"
    assert step == "4x256 2.57 (2.53 - 2.60), 1,273 / 503 ms"


def test_every_program_of_a_row_records_it():
    root = pages.ROOT / "benchmarks"
    programs = {
        program
        for row in pages.results()
        for program in re.findall(r"-m benchmarks\.(\w+)|`make (\w+)", row["command"])
    }
    programs = {first or second for first, second in programs}
    sources = {
        program: path.read_text(encoding="utf-8")
        for program in programs
        for path in (root / f"{program}.py", root / program / "__main__.py")
        if path.is_file()
    }
    assert len(sources) > 10
    # docs/development.md says why.
    by_hand = {"planted_faults", "squad_split"}
    assert {name for name, source in sources.items() if "write_row" not in source} == by_hand | {
        "step_vs_hf_flax",
        "step_vs_hf_torch",
    }
