"""Two processes of one device each begin a run and are stopped; one goes on as if it were alone."""

import dataclasses
import signal

import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import Config, settings_from
from bert_jax.interop import load
from data_pipeline.cli.main import BY_SIGNAL
from tests.bert_jax.small_runs import compiled_once, train
from tests.faults import one_phase
from tests.faults.runs import ONE_PHASE, lines_of, saved_steps, training

pytestmark = pytest.mark.slow

__all__ = ["compiled_once"]  # a fixture


def losses_of(workdir):
    names = ("mlm_loss", "unigram_mlm_loss", "majority_nsp_accuracy")
    return {
        (line["step"], line["split"], name): line[name]
        for line in lines_of(workdir)
        for name in names
        if name in line
    }


@pytest.mark.fault(8, "SIGTERM to one of two processes in training; one alone then goes on")
def test_two_processes_train_as_one_on_packed_rows(tiny_store, tmp_path, capsys):
    data = {"store": str(tiny_store), "packed_examples": 2, "short_seq_prob": 0.5}
    phase = {"seq_len": 48, "max_predictions_per_seq": 7}
    flags = [*ONE_PHASE, "--config.mesh.preset=zero1", "--config.log_every_steps=5"]
    flags += [f"--config.data.{name}={value}" for name, value in data.items()]
    flags += [f"--config.phases[0].{name}={value}" for name, value in phase.items()]
    two = tmp_path / "two"
    with training(*flags, workdir=two, processes=2) as run:
        run.wait_for_step(5)
        run.signal(signal.SIGTERM, 1)
        said = run.finish(BY_SIGNAL + signal.SIGTERM)
        assert "process 1" not in said and "pre-training in" not in run.output(1)
    step = saved_steps(two)[-1]
    assert step < 40 and f"stopped and saved at step {step}; to resume:" in said
    config = settings_from(Config, one_phase.get_config())
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, **data),
        phases=(dataclasses.replace(config.phases[0], **phase),),
        mesh=dataclasses.replace(config.mesh, preset="zero1"),
        log_every_steps=5,
    )
    train(config, two)
    assert f"resuming at step {step} of 40" in capsys.readouterr().out
    train(config, tmp_path / "one")
    assert losses_of(two) == pytest.approx(losses_of(tmp_path / "one"), rel=1e-4)
    assert saved_steps(two)[-1] == 40


@pytest.mark.long  # devices of one process: tests/bert_jax/finetuning/test_setup.py
def test_two_processes_fine_tune_as_one(forked, small, tmp_path):
    data = [f"--config.data.{name}" for name in ("text_column=text", "label_column=is_long")]
    data.append(f"--config.data.dir={small}")
    flags = ["--config=configs/finetune/table.py", *data, "--config.epochs=2"]
    flags += [f"--config.init=hf:{small / 'bare'}", "--config.batch_size=8"]
    flags.append("--config.compute.compute_dtype=float32")
    one, two = tmp_path / "one", tmp_path / "two"
    forked("bert_jax.finetune", *flags, f"--workdir={one}")
    with training(*flags, workdir=two, processes=2, module="bert_jax.finetune") as run:
        run.finish()
    weights = [name_leaves(load.load_fine_tuned(str(each))[0].params) for each in (one, two)]
    start = name_leaves(load.load(f"hf:{small / 'bare'}").params)
    assert weights[0].keys() == weights[1].keys()
    for path, ours in weights[0].items():
        np.testing.assert_allclose(weights[1][path], ours, rtol=1e-4, atol=1e-5, err_msg=path)
    moved = [np.abs(weights[0][path] - start[path]).max() for path in start if path in weights[0]]
    assert max(moved) > 5e-4
