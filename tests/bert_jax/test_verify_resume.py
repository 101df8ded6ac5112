"""Two workdirs are the same run, or each planted difference is named."""

import json
import random

import numpy as np
import pytest

from bert_jax import verify_resume
from bert_jax.checkpoint import reader
from bert_jax.config import Config, Phase

LINES = [
    {"step": 5, "split": "train", "loss": 3.25, "sequences_per_sec": 10.0, "goodput": 0.5},
    {"step": 10, "split": "heldout", "mlm_loss": 3.0},
]
SUMMARY = {"steps": 10, "heldout_mlm_loss": 3.0, "train_secs": 4.0}
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two equal runs, the arrays of each by its folder, and the steps of their checkpoints."""
    arrays, steps = {}, {}
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, LINES)
        (folder / "summary.json").write_text(json.dumps(SUMMARY))
        arrays[folder] = {"params/kernel": KERNEL.copy(), "step": np.int32(10)}
        steps[folder] = 10
    monkeypatch.setattr(reader, "find_newest_step", lambda at: steps[at.parent])
    monkeypatch.setattr(reader, "read_arrays", lambda at, step: arrays[at.parent])
    return tmp_path / "whole", tmp_path / "killed", arrays, steps


def write(folder, lines, name="metrics.jsonl"):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_equal_runs_have_no_difference_whatever_their_timings(runs):
    whole, killed, arrays, _ = runs
    write(killed, [{**LINES[0], "sequences_per_sec": 99.0, "goodput": 0.1}, LINES[1]])
    (killed / "summary.json").write_text(json.dumps(SUMMARY | {"train_secs": 9.0, "attempts": 7}))
    nan = np.array([np.nan, -0.0], np.float32)
    for of in arrays.values():
        of["nan"] = nan.copy()
    found = verify_resume.compare_runs(whole, killed)
    assert found.differences == ()
    assert (found.arrays, found.numbers, found.lines, found.step) == (3, 15, 2, 10)


def test_a_finding_about_timings_is_no_difference_and_another_one_is(runs):
    whole, killed, *_ = runs
    waits = {"rule": "input_starves", "step": 9, "sentence": "the devices wait 13%.", "try": ""}
    flat = {"rule": "nothing_learned", "step": 9, "sentence": "it is flat.", "try": ""}
    (killed / "summary.json").write_text(json.dumps(SUMMARY | {"findings": [waits]}))
    assert verify_resume.compare_runs(whole, killed).differences == ()
    (killed / "summary.json").write_text(json.dumps(SUMMARY | {"findings": [waits, flat]}))
    (said,) = verify_resume.compare_runs(whole, killed).differences
    assert "findings is [] and" in said and "it is flat" in said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (None, "kernel is in one checkpoint only"),
        (KERNEL + np.float32(1e-6) * (KERNEL == 3), "kernel: 1 of 12 numbers differ"),
        (np.where(KERNEL == 0, np.float32(-0.0), KERNEL), "kernel: 1 of 12 numbers differ"),
        (KERNEL.astype(np.float16), "kernel is float32(3, 4) and float16(3, 4)"),
        (KERNEL.T, "kernel is float32(3, 4) and float32(4, 3)"),
    ],
)
def test_a_changed_array_is_named(runs, changed, words):
    whole, killed, arrays, _ = runs
    arrays[killed]["params/kernel"] = changed
    if changed is None:
        del arrays[killed]["params/kernel"]
    assert verify_resume.compare_runs(whole, killed).differences == (f"params/{words}",)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([LINES[0] | {"loss": 3.2500000000000004}, LINES[1]], "line 1, step 5: loss is 3.25 and 3"),
        ([LINES[0], {"step": 10, "split": "heldout"}], "step 10: mlm_loss is 3.0 and None"),
        (LINES[:1], "metrics: 2 lines and 1"),
        ([LINES[0], LINES[0], LINES[1]], "metrics: 2 lines and 3"),
    ],
)
def test_a_changed_line_is_named(runs, lines, words):
    whole, killed, *_ = runs
    write(killed, lines)
    (said,) = verify_resume.compare_runs(whole, killed).differences
    assert words in said


def test_bad_steps_the_summary_and_the_last_step_count_too(runs):
    whole, killed, _, steps = runs
    write(killed, [{"step": 7}], "bad_steps.jsonl")
    (killed / "summary.json").write_text(json.dumps(SUMMARY | {"heldout_mlm_loss": 3.1}))
    steps[killed] = 5
    said = verify_resume.compare_runs(whole, killed).differences
    assert said[0] == "bad steps: 0 lines and 1"
    assert "heldout_mlm_loss is 3.0 and 3.1" in said[1]
    assert said[2] == "the newest checkpoints are of steps 10 and 5"


def test_several_processes_train_on_cpus(tmp_path, monkeypatch):
    given = []

    def start(command, log, environment):
        given.append(environment)

    monkeypatch.setattr(verify_resume.child_process, "start", start)
    for count in (1, 2):
        verify_resume.Attempt(["train"], count, tmp_path / "log")
    assert given == [{}, {"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "cpu"}]


def test_an_undisturbed_run_that_rolled_back_has_a_pace_too(tmp_path):
    lines = [
        {"began": 1.0, "at": 2.0, "step": 6, "secs": {"training": 1.0}},
        {"began": 3.0, "at": 6.0, "step": 10, "secs": {"training": 2.0}},
    ]
    write(tmp_path, lines, "attempts.jsonl")
    config = Config(phases=(Phase(16, 10),), log_every_steps=5)
    run = verify_resume.KilledRun(None, tmp_path, tmp_path, config, random.Random(0))
    assert run._interval_secs == 5 * 2.0 / 10
