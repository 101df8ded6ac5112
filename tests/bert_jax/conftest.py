"""Train one model, shared by the tests of several files and processes."""

import dataclasses
import fcntl
import os
import pathlib

import jax
import pytest

from bert_jax.config import CheckpointConfig, Config, EvalConfig, OptimConfig, Phase
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL


def _config(store: pathlib.Path) -> Config:
    return Config(
        model=dataclasses.replace(
            MODEL,
            vocab_size=0,
            num_hidden_layers=1,
            initializer_range=0.15,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        phases=(Phase(seq_len=24, steps=250, batch_size=16, max_predictions_per_seq=4),),
        optim=OptimConfig(name="adamw", learning_rate=1e-2, warmup_steps=10, beta2=0.98),
        data=PretrainOptions(store=str(store)),
        eval=EvalConfig(every_steps=1000, examples=64),
        checkpoint=CheckpointConfig(every_steps=1000),
        log_every_steps=100,
    )


@pytest.fixture(scope="session")
def learned(tiny_store: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the workdir of a finished run on one device; tests must not write there.

    The first pytest process that asks for the model trains it; the others wait or find it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    workdir = folder / "learned"
    with (folder / "learned.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (workdir / "summary.json").exists():
            one = jax.devices()[:1]
            loop.train(build_setup(_config(tiny_store), workdir, one))
    return workdir
