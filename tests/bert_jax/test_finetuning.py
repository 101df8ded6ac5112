"""Fine-tuning in process: it learns, goes on where it was cut off, ends the same on any mesh."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from bert_jax import finetuning, loop, predictions, pretrained, receipt
from bert_jax.checkpoint_reading import read_arrays
from bert_jax.config import CheckpointConfig, EvalConfig, MeshConfig, ModelConfig, OptimConfig
from bert_jax.finetune_config import FinetuneConfig, TaskOptions, with_length
from bert_jax.models.bert import Heads
from bert_jax.task_feed import TaskFeed
from tests.bert_jax.small_checkpoints import tensors, write

WORDS = {"yes": ("a", "cat", "sees"), "no": ("a", "dog", "sees")}


def table(folder, name, rows, seed):
    """Texts of cats that see are of class yes, of dogs no."""
    rng = np.random.default_rng(seed)
    lines = ["text,label"]
    for _ in range(rows):
        label = rng.choice(["yes", "no"])
        words = rng.choice(WORDS[label], rng.integers(2, 9))
        lines.append(f"{' '.join(words)},{label}")
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    table(folder, "train.csv", 210, seed=1)
    table(folder, "dev.csv", 61, seed=2)
    checkpoint = write(folder / "checkpoint", tensors(has_heads=False))
    return FinetuneConfig(
        init=f"hf:{checkpoint}",
        data=TaskOptions(
            task="table",
            dir=str(folder),
            train_file="train.csv",
            dev_file="dev.csv",
            text_column="text",
            label_column="label",
            max_seq_length=19,
        ),
        epochs=8.0,
        batch_size=16,
        model=ModelConfig(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
        optim=OptimConfig(name="adamw", learning_rate=2e-2, warmup_steps=0),
        checkpoint=CheckpointConfig(every_steps=20, keep=3),
        log_every_steps=10,
    )


def run(config, workdir, devices=1):
    setup = finetuning.prepare(config, workdir, jax.devices()[:devices])
    return setup, loop.train(setup)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    return (*run(config, workdir), workdir)


def lines(workdir, split):
    text = (workdir / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["split"] == split]


def test_it_learns_and_says_how_far(finished):
    setup, summary, workdir = finished
    assert summary["steps"] == int(210 / 16 * 8.0) == 105
    scores = lines(workdir, "heldout")
    assert [line["step"] for line in scores] == [*range(14, 105, 14), 105]
    last = scores[-1]
    assert last["dev_accuracy"] > last["majority_dev_accuracy"] + 0.1
    assert summary["heldout_dev_accuracy"] == last["dev_accuracy"]
    assert lines(workdir, "train")[-1]["task_loss"] < lines(workdir, "train")[0]["task_loss"]
    assert setup.config.optim.warmup_steps == 10


def test_predictions_are_of_the_last_checkpoint_and_score_as_the_run_says(finished, config):
    setup, summary, workdir = finished
    (path,) = predictions.write(setup, summary["steps"])
    assert path.parent == workdir / "predictions"
    given = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    dev = pathlib.Path(setup.config.data.dir, "dev.csv").read_text()
    labels = [line.rpartition(",")[2] for line in dev.splitlines()[1:]]
    assert len(given) == len(labels) == 61
    right = np.mean([one == other for one, other in zip(given, labels, strict=True)])
    assert right == pytest.approx(summary["heldout_dev_accuracy"])
    text = path.read_bytes()
    path.unlink()
    fresh = finetuning.prepare(config, workdir, jax.devices()[:1])
    assert predictions.write(fresh, summary["steps"]) == [path] and path.read_bytes() == text

    def full(split, logits, folder):
        (folder / "half.tsv").write_text("half")
        raise OSError("no space left")

    fresh.feed.task = dataclasses.replace(fresh.feed.task, write_predictions=full)
    with pytest.raises(OSError, match="no space left"):
        predictions.write(fresh, summary["steps"])
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == text


def test_a_run_that_was_cut_off_ends_as_one_that_was_not(finished, config, tmp_path, monkeypatch):
    _, summary, whole = finished
    save = loop._Run._save

    def save_once_and_die(self):
        save(self)
        if self.step == 40:
            raise RuntimeError("cut off")

    monkeypatch.setattr(loop._Run, "_save", save_once_and_die)
    with pytest.raises(RuntimeError, match="cut off"):
        run(config, tmp_path)
    monkeypatch.undo()
    run(config, tmp_path)
    left, right = (read_arrays(of / "checkpoints", summary["steps"]) for of in (whole, tmp_path))
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


@pytest.mark.long  # of the losses it is seen in tests/bert_jax/tasks, of the update in test_step.py
def test_four_devices_end_where_one_does(config, tmp_path):
    optim = dataclasses.replace(config.optim, learning_rate=1e-3)
    few = dataclasses.replace(config, epochs=0.2, batch_size=6, optim=optim)
    _, summary = run(few, tmp_path / "one")
    run(dataclasses.replace(few, mesh=MeshConfig(preset="zero1")), tmp_path / "four", devices=4)
    one, four = (
        read_arrays(tmp_path / of / "checkpoints", summary["steps"]) for of in ("one", "four")
    )
    for name, array in one.items():
        if name.startswith("params/"):
            np.testing.assert_allclose(four[name], array, atol=1e-5, err_msg=name)


def test_the_receipt_names_the_task_and_refuses_another(finished, config):
    setup, _, workdir = finished
    shown = json.loads((workdir / "config.json").read_text())
    assert shown["learns"] == setup.feed.learns
    assert shown["task"]["kind"] == "classify" and shown["task"]["labels"] == ["no", "yes"]
    other = dataclasses.replace(config.data, order_seed=1)
    with pytest.raises(ValueError, match=r"holds a run with config\.data\.order_seed = 0, this"):
        finetuning.prepare(dataclasses.replace(config, data=other), workdir, jax.devices()[:1])
    with pytest.raises(ValueError, match="fine-tun"):
        receipt.read(workdir)


def test_a_test_file_given_after_the_end_gets_its_predictions(finished, config, tmp_path):
    _, summary, workdir = finished
    again = shutil.copytree(workdir, tmp_path / "run")
    # As earlier versions left it: the name of the test file among what the run must keep.
    shown = json.loads((again / "config.json").read_text())
    shown["fixed"]["data.test_file"] = "old.csv"
    (again / "config.json").write_text(json.dumps(shown))
    shutil.copy(pathlib.Path(config.data.dir, "dev.csv"), pathlib.Path(config.data.dir, "new.csv"))
    data = dataclasses.replace(config.data, test_file="new.csv")
    setup = finetuning.prepare(dataclasses.replace(config, data=data), again, jax.devices()[:1])
    assert loop.train(setup)["steps"] == summary["steps"]
    dev, test = predictions.write(setup, summary["steps"])
    assert (dev.name, test.name) == ("dev.tsv", "test.tsv")
    assert test.read_bytes() == dev.read_bytes()


def test_a_workdir_of_pre_training_is_refused_with_the_way_to_begin_with_it(
    finished, config, tmp_path
):
    again = shutil.copytree(finished[2], tmp_path / "run")
    shown = json.loads((again / "config.json").read_text())
    del shown["task"]
    (again / "config.json").write_text(json.dumps(shown | {"learns": "pre-training"}))
    with pytest.raises(ValueError, match="holds a run of pre-training") as refused:
        finetuning.prepare(config, again, jax.devices()[:1])
    assert f"--config.init=orbax:{again}" in str(refused.value) and len(str(refused.value)) < 500


def test_the_receipt_keeps_the_units_of_what_is_predicted(finished, tmp_path):
    setup, _, workdir = finished
    task = dataclasses.replace(setup.feed.task, kind="regress", mean=300.0, deviation=40.0)
    of_numbers = TaskFeed(task, setup.feed.vocabulary, setup.config)
    shown = json.loads((workdir / "config.json").read_text()) | of_numbers.in_a_receipt()
    shutil.copy(workdir / "vocab.txt", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(shown))
    read = receipt.read_model(tmp_path).task
    assert read is not None and (read.kind, read.mean, read.deviation) == ("regress", 300.0, 40.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init": ""}, "config.init is ''; give the checkpoint"),
        ({"epochs": 0.01}, "210 examples, in config.epochs = 0.01 fewer than one batch"),
        ({"batch_size": 0}, "config.batch_size is 0; it must be 1 or more"),
        ({"warmup_share": 1.0}, "config.warmup_share is 1.0; from 0 to below 1"),
        ({"micro_batches": 3}, "config.micro_batches is 3; it must divide batch_size = 16"),
        ({"optim": OptimConfig(warmup_steps=5)}, "warmup_steps is 5; fine-tuning does not read it"),
        ({"eval": EvalConfig(every_steps=7)}, "every_steps is 7; .* set evaluations_per_epoch"),
        ({"eval": EvalConfig(examples=9)}, "config.eval.examples is 9; fine-tuning does not read"),
        ({"model": ModelConfig(hidden_size=96)}, "config.model.hidden_size is 96, but .* has 14"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(config, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        finetuning.prepare(dataclasses.replace(config, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_longer_than_the_positions_and_unknown_tasks_are_refused(config, tmp_path):
    data = dataclasses.replace(config.data, max_seq_length=20)
    with pytest.raises(ValueError, match=r"max_seq_length is 20, and .* has 19 positions"):
        finetuning.prepare(dataclasses.replace(config, data=data), tmp_path)
    data = dataclasses.replace(config.data, task="tabel")
    with pytest.raises(ValueError, match=r"config.data.task is 'tabel'; it must be one of "):
        finetuning.prepare(dataclasses.replace(config, data=data), tmp_path)


def test_the_length_is_that_of_the_checkpoint_where_nobody_says_it(config, tmp_path):
    open_length = dataclasses.replace(config.data, max_seq_length=0)
    setup = finetuning.prepare(dataclasses.replace(config, data=open_length), tmp_path)
    assert setup.feed.config.data.max_seq_length == 19  # the positions of the checkpoint
    shown = json.loads((tmp_path / "config.json").read_text())
    assert shown["config"]["data"]["max_seq_length"] == 19
    usual = [with_length(TaskOptions(task=name), 512).max_seq_length for name in ("rte", "squad")]
    assert usual == [128, 384]


def test_a_fine_tuned_model_is_read_back_and_may_be_fine_tuned_again(finished, config, tmp_path):
    _, summary, workdir = finished
    read = pretrained.load(str(workdir))
    assert read.heads == Heads(mlm=False, nsp=False, classes=2)
    again = dataclasses.replace(config, init=str(workdir), seed=3)
    fresh = finetuning.prepare(again, tmp_path, jax.devices()[:1]).fresh_params()
    held = read_arrays(workdir / "checkpoints", summary["steps"])
    word = "embeddings/word/embedding"
    np.testing.assert_array_equal(
        fresh["embeddings"]["word"]["embedding"][:23], held[f"params/{word}"]
    )
    assert np.any(fresh["classifier"]["kernel"] != held["params/classifier/kernel"])
