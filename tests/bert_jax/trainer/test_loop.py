"""A run of the loop: it learns, stops and resumes to the same bits, and refuses what cannot be."""

import contextlib
import dataclasses
import json
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import reader
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import Config, EvalConfig
from bert_jax.inference import store_scores
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop import load, pretrained
from bert_jax.logging.console import Screen
from bert_jax.runtime import goodput
from bert_jax.runtime.preemption import Interrupted, Stop
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.trainer import loop
from bert_jax.trainer.feed import open_store
from bert_jax.trainer.readings import Progress
from bert_jax.verify_resume import compare_runs
from tests.bert_jax.small_runs import (
    compiled_once,
    config,
    lines_of,
    moved,
    prepare,
    small_config,
    stopped,
    train,
    train_with_stops,
    whole,
)
from tests.bert_jax.tiny_models import MODEL, build_store, with_setting

__all__ = ["compiled_once", "config", "moved", "stopped", "whole"]  # fixtures


@pytest.mark.long
def test_a_stopped_run_goes_on_behind_its_last_step(tiny_store, tmp_path, capsys):
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # compiled sooner
    config = small_config(
        tiny_store,
        steps=4,
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1, **changes),
        objective="mlm",
        eval=EvalConfig(every_steps=3, examples=21),
        log_every_steps=1,
    )
    summary = train_with_stops(config, tmp_path, (2,))
    lines = [(line["step"], line["split"]) for line in lines_of(tmp_path)]
    assert lines == [
        *((step, "train") for step in (1, 2, 3)),
        *((3, "heldout"), (4, "train"), (4, "heldout")),
    ]
    assert (summary["steps"], summary["attempts"]) == (4, 2)
    assert reader.read_arrays(tmp_path / "checkpoints", 4)["step"] == 4
    assert "resuming at step 2 of 4" in capsys.readouterr().out


@pytest.mark.parametrize("failing", ["DataCheck", "open_listeners"])
def test_what_fails_at_the_start_leaves_nothing_open(monkeypatch, tmp_path, failing):
    opened, closed = [], []

    def stand_in(name):
        def open_it(*_):
            if name == failing:
                raise OSError(failing)
            opened.append(name)
            close = SimpleNamespace(close=lambda: closed.append(name))
            return close if name == "DataCheck" else []

        return open_it

    for name in ("DataCheck", "open_listeners"):
        monkeypatch.setattr(loop, name, stand_in(name))
    for name in ("_show_opening", "BadSteps", "Programs", "make_pace_of"):
        monkeypatch.setattr(loop, name, lambda *_, **__: None)
    kept = SimpleNamespace(latest_step=0, closed_after=contextlib.nullcontext)
    monkeypatch.setattr(loop, "open_checkpoints", lambda *_: kept)
    state = SimpleNamespace(step=0)
    monkeypatch.setattr(loop, "_restore_or_initialize", lambda *_: (state, Progress()))
    setup = SimpleNamespace(
        workdir=tmp_path,
        storage=None,
        began=0.0,
        screen=Screen(is_writer=False),
        config=Config(),
        stores=[],
        parts=None,
        feed=None,
        phases=[],
    )
    with pytest.raises(OSError, match=failing), loop.open_run(setup, Stop(), Watchdog()):
        pass
    assert opened == closed


@pytest.mark.slow
def test_a_run_stopped_in_its_second_phase_ends_as_one_never_stopped(
    config, whole, stopped, tmp_path, capsys
):
    shutil.copytree(stopped, tmp_path / "parts")
    again = train(config, tmp_path / "parts")
    found = compare_runs(whole.workdir, tmp_path / "parts")
    assert (found.differences, found.step) == ((), 13)
    assert json.loads((tmp_path / "parts" / "summary.json").read_text()) == again
    screen = capsys.readouterr().out
    assert "resuming at step 11 of 13" in screen and "this is number 2, " in screen
    assert (whole.summary["attempts"], again["attempts"]) == (1, 2)
    assert {"restoring", "stopped"} <= {kind for kind, secs in again["wall_secs"].items() if secs}
    assert again["wall_secs"]["lost"] < 0.1 * again["wall_secs"]["training"]  # each stop was saved
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").open()]
    shares = [line["goodput"] for line in lines if line["split"] == "train"]
    assert len(shares) == 4 and all(0 < share < 1 for share in shares)


@pytest.mark.slow
def test_records_of_a_run(whole):
    summary, lines = whole.summary, lines_of(whole.workdir)
    assert [(line["step"], line["split"]) for line in lines] == [
        (3, "train"),
        (4, "heldout"),
        (6, "train"),
        (8, "heldout"),
        (9, "train"),
        (9, "heldout"),  # the end of a phase
        (12, "train"),
        (12, "heldout"),
        (13, "heldout"),
    ]
    assert set(summary) >= {
        "heldout_mlm_loss",
        "heldout_mlm_perplexity",
        "heldout_mlm_accuracy",
        "heldout_nsp_accuracy",
        "unigram_mlm_loss",
        "majority_nsp_accuracy",
        "sequences_per_sec",
        "train_secs",
        "steps",
    }
    assert summary["steps"] == 13
    sizes = [
        (of["seq_len"], of["rows_per_step"], of["examples_per_step"]) for of in summary["phases"]
    ]
    assert sizes == [(16, 16, 16), (24, 8, 8)]  # one example a row
    last_heldout = [line for line in lines if line["split"] == "heldout"][-1]
    assert last_heldout["mlm_loss"] == summary["heldout_mlm_loss"]
    assert list((whole.workdir / "tensorboard").glob("events.out.tfevents.*"))
    screen = whole.screen
    assert screen.count("reference lines: MLM loss") == 2  # once a phase
    compiled = screen.count("compiling the step") + screen.count("the step is already compiled")
    assert compiled == 2  # the second phase beside the steps of the first, or when it begins
    assert screen.count("at this pace the run ends in") == 1
    assert screen.count("held-out at ") == 5
    steps = [int(path.name) for path in (whole.workdir / "checkpoints").iterdir()]
    assert sorted(steps) == [10, 13]  # the newest two


@pytest.mark.slow
def test_the_scores_of_a_run_are_found_again(whole):
    """By what bert_jax.evaluate does with its newest checkpoint, on the tests' eight devices."""
    settings = load.read_run(str(whole.workdir)).config
    asked = ScoredRows(open_store(settings.data), "heldout", settings.data, seq_len=24, examples=21)
    model = pretrained.place_masked_lm(load.load(str(whole.workdir)))
    again = store_scores.score_store(model, asked, 5, Screen(is_writer=False))
    assert again["examples"] == 21
    for name in again.keys() - {"loss", "perplexity", "examples"}:
        key = name if name in whole.summary else f"heldout_{name}"
        assert again[name] == pytest.approx(whole.summary[key], rel=1e-5), name


@pytest.mark.slow
def test_a_finished_run_started_again_only_evaluates(config, whole, tmp_path, monkeypatch):
    workdir = whole.copy(tmp_path / "run")

    def stop(run, index):
        raise Interrupted(signal.SIGINT, run.step)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(loop.TrainingRun, "_compute_scores", stop)
        train(config, workdir)
    assert json.loads((workdir / "summary.json").read_text()) == whole.summary
    again = train(config, workdir)
    assert again["heldout_mlm_loss"] == whole.summary["heldout_mlm_loss"]
    assert lines_of(workdir) == lines_of(whole.workdir)
    attempts = goodput.read_attempts(whole.workdir / goodput.FILE)
    assert goodput.read_attempts(workdir / goodput.FILE) == attempts
    assert again["attempts"] == 1 and again["wall_secs"] == goodput.sum_by_kind(attempts)


@pytest.mark.long
def test_another_mesh_goes_on_with_a_run(whole, moved):
    """Vocabulary rows are padded otherwise, optimizer state is cut otherwise: same numbers."""
    assert "changed       mesh.preset zero1 -> zero1+tp since step 11\n" in moved.screen
    expected = whole.summary["heldout_mlm_loss"]
    assert moved.summary["heldout_mlm_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_a_model_is_read_from_the_checkpoint_of_another_mesh(moved):
    found = pretrained.place_masked_lm(load.load(str(moved.workdir)), jax.devices()[:1])
    saved = reader.read_arrays(moved.workdir / "checkpoints", 13)
    for name, leaf in name_leaves(found.params).items():
        assert len(leaf.devices()) == 1
        rows = slice(len(saved[f"params/{name}"]))  # others pad the vocabulary
        np.testing.assert_array_equal(np.asarray(leaf)[rows], saved[f"params/{name}"], name)


def test_it_learns(learned):
    summary = json.loads((learned / "summary.json").read_text())
    assert summary["heldout_mlm_loss"] < summary["unigram_mlm_loss"] - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "vocab.txt", "curves.png"])
def test_files_that_a_run_would_write_over_are_refused_and_others_are_left(config, tmp_path, name):
    (tmp_path / "store").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / name).write_text('{"hidden_size": 768}')  # as a model of Hugging Face
    with pytest.raises(ValueError, match=f"holds {name} but no run .*empty folder"):
        prepare(config, tmp_path)
    assert (tmp_path / name).read_text() == '{"hidden_size": 768}'
    (tmp_path / name).unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "store"]
    prepare(config, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_disk_without_room_for_the_checkpoints_is_refused(config, tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(
        ValueError, match=r"has 0.00 GB free, but this run keeps 2 checkpoints .*every_steps"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_run_cannot_go_on_with_fewer_steps_than_it_has(config, whole, tmp_path):
    workdir = whole.copy(tmp_path / "run")
    with pytest.raises(ValueError, match=r"a run of 13 steps, .* end after 11"):
        train(with_setting(config, "phases[1].steps", 2), workdir)
    assert train(with_setting(config, "phases[1].steps", 6), workdir)["steps"] == 15


@pytest.mark.fault(15, "a store of the same text with another vocabulary")
def test_a_store_with_another_vocabulary_is_refused(config, tiny_store, tmp_path):
    prepare(config, tmp_path / "run")
    flags = ["--train_vocab=wordpiece", "--vocab_size=190", "--sentences=lines", "--holdout=0.1"]
    store = build_store(tiny_store.parent / "text.txt", tmp_path / "store", *flags)
    other = with_setting(config, "data.store", str(store))
    with pytest.raises(ValueError, match=r"data.store \(digest of its contents\) = .* says"):
        train(other, tmp_path / "run")
