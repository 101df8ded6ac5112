"""A probe without a run: which checkpoint is next, what a folder may hold, what is drawn."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax import study
from bert_jax.config import FinetuneConfig, TaskOptions
from bert_jax.lab import probe, runs
from bert_jax.lab.probe import Probe, ProbeScore
from bert_jax.logging.metrics_writer import PROBE_SCORES
from bert_jax.runtime.cli import GivenConfig
from bert_jax.tasks.task import CLASSIFY, Task
from data_pipeline.io.jsonl import append_record


def claim(folder, probed):
    runs.claim_folder(folder, probe.PROBE, probed, "probe", "--probe_dir")


@pytest.mark.parametrize(
    ("saved", "done", "every_steps", "has_ended", "wanted"),
    [
        ([], [], 1, False, None),
        ([0, 40, 80], [], 1, False, 80),  # the newest first
        ([0, 40, 80], [80], 1, False, 40),  # then what is still there
        ([0, 40, 80], [0, 40, 80], 1, False, None),
        ([120, 140], [80], 60, False, 140),
        ([120], [80], 60, False, None),
        ([120], [80], 60, True, 120),  # but the last one of a run that is over has its score
        ([100, 120], [80, 120], 60, True, None),
        ([40], [80], 40, False, 40),
    ],
)
def test_the_next_checkpoint(saved, done, every_steps, has_ended, wanted):
    assert probe.choose_step(saved, done, every_steps, has_ended) == wanted


def test_a_folder_goes_on_with_the_same_probe_and_refuses_another(tmp_path):
    folder = tmp_path / "probe"
    probed = {"run": "runs/mine", "config": {"epochs": 1.0, "phases": ()}}
    claim(folder, probed)
    claim(folder, probed)
    other = {"run": "runs/mine", "config": {"epochs": 2.0, "phases": ()}}
    with pytest.raises(ValueError, match=r"config.epochs=1.0, not 2.0"):
        claim(folder, other)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("notes.txt", "", "is not empty and holds no probe"),
        (probe.PROBE, "[1", r"probe\.json is not JSON"),
        (PROBE_SCORES, json.dumps({"step": 1, "split": "train"}), r"probe\.jsonl .*'split'"),
    ],
)
def test_other_folders_are_refused(tmp_path, file, content, words):
    (tmp_path / file).write_text(f"{content}\n")
    read = probe.read_scores if file == PROBE_SCORES else lambda path: claim(path, {})
    with pytest.raises(ValueError, match=words):
        read(tmp_path)


@pytest.mark.parametrize("given", [".", "../mine/", "{run}/"])
def test_a_run_has_one_probe_next_to_it_however_its_folder_is_named(tmp_path, monkeypatch, given):
    run, claimed = tmp_path / "mine", []
    run.mkdir()
    monkeypatch.chdir(run)
    monkeypatch.setattr(probe, "claim_probe", lambda *each: claimed.append(each))
    monkeypatch.setattr(probe, "run_probe", lambda given: claimed.append((given.run, given.folder)))
    config = GivenConfig(FinetuneConfig, "configs/finetune/glue.py:task=rte", ())
    flags = study.ProbeFlags(workdir=given.format(run=run), config=config)
    study._follow(SimpleNamespace(hold=lambda: None), flags)
    assert [each[:2] for each in claimed] == [(str(run), tmp_path / "mine-probe")] * 2


def test_scores_are_read_by_step_without_the_half_line_of_a_killed_probe(tmp_path):
    for step, score in ((40, 0.6), (0, 0.5), (20, 0.55)):
        append_record(tmp_path / PROBE_SCORES, vars(ProbeScore(step, score, 1.0)))
    with (tmp_path / PROBE_SCORES).open("a") as file:
        file.write('{"step": 60, "sc')
    scores = [(score.step, score.score) for score in probe.read_scores(tmp_path)]
    assert scores == [(0, 0.5), (20, 0.55), (40, 0.6)]


def test_a_probe_keeps_no_text_of_its_task(tmp_path, monkeypatch):
    scored = {"accuracy": 0.527}
    functions = [lambda *_: {}, lambda *_: {}]  # as if they held the files
    score, write = functions
    task = Task("RTE", CLASSIFY, 2, {"dev": None}, ("dev",), score, "accuracy", scored, write)
    model = SimpleNamespace(max_position_embeddings=64)
    record = SimpleNamespace(config=SimpleNamespace(model=model), vocabulary=None)
    monkeypatch.setattr(probe, "open_task", lambda *_: task)
    monkeypatch.setattr(probe.run_record, "read", lambda _: record)
    monkeypatch.setattr(
        probe.workdir_lib, "fetch_workdir", lambda *_: SimpleNamespace(home=tmp_path)
    )
    config = FinetuneConfig(data=TaskOptions(task="rte", dir="glue"))
    kept = probe.claim_probe("run", tmp_path / "probe", config)
    assert (kept.name, kept.baseline, kept.splits) == ("RTE", scored, {})
    assert kept.score not in functions and kept.format_predictions not in functions


def test_the_picture_has_the_scores_over_the_steps_and_the_baseline(tmp_path):
    scored = {"accuracy": 0.527}
    task = Task("RTE", CLASSIFY, 2, {}, ("dev",), None, "accuracy", scored, lambda *_: [])
    run = Probe("run", tmp_path, [], 1, "cpu", task)
    scores = [ProbeScore(step, 0.5 + step / 1000, 1.0) for step in (0, 40, 80)]
    (ax,) = probe.draw_figure(run, scores).axes
    curve, baseline = ax.get_lines()
    np.testing.assert_allclose(curve.get_xydata(), [[0, 0.5], [40, 0.54], [80, 0.58]])
    assert set(baseline.get_ydata()) == {0.527}
    assert {text.get_text() for text in ax.texts} == {"0.580", "baseline\n0.527"}
    assert len(probe.draw_figure(run, scores[:1]).axes) == 1
