"""Begin, stop and read small training runs, for the tests of several files."""

import contextlib
import dataclasses
import io
import json
import pathlib
import shutil
import signal
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.config import CheckpointConfig, Config, EvalConfig, MeshConfig, OptimConfig, Phase
from bert_jax.inference import store_scores
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.logging.console import Screen
from bert_jax.runtime.preemption import Interrupted
from bert_jax.train_step.metrics import TIMINGS
from bert_jax.trainer import compile, loop
from bert_jax.trainer.feed import open_store
from bert_jax.trainer.setup import build_setup, open_checkpoints, restore_or_initialize
from bert_jax.verify_resume import compare_runs
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL


@contextlib.contextmanager
def compiled_programs_kept_in(workdir):
    """Keep compiled programs in the workdir, as a run does; restore jax's settings after it."""
    least = "jax_persistent_cache_min_compile_time_secs"
    least_secs = getattr(jax.config, least)
    compile.keep_in(workdir, is_writer=True)
    try:
        yield
    finally:
        jax.config.update(least, least_secs)
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Share compiled programs between the runs of a test module."""
    with compiled_programs_kept_in(tmp_path_factory.mktemp("compiled")):
        yield


def small_config(store, steps=9, **settings):
    """Return the config of a one-phase run of a one-layer model on a store."""
    plain = {
        "model": dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        "phases": (Phase(seq_len=16, steps=steps, batch_size=16, max_predictions_per_seq=3),),
        "optim": OptimConfig(warmup_steps=1),
        "data": PretrainOptions(store=str(store)),
        "eval": EvalConfig(every_steps=100, examples=21),
    }
    return Config(**plain | settings)


LOGGED_OFTEN = {
    "seed": 3,
    "optim": OptimConfig(learning_rate=3e-3, warmup_steps=2),
    "log_every_steps": 3,
}


@pytest.fixture(scope="module")
def config(tiny_store):
    first = Phase(seq_len=16, steps=9, batch_size=16, max_predictions_per_seq=3)
    return small_config(
        tiny_store,
        phases=(first, Phase(seq_len=24, steps=4, batch_size=8, max_predictions_per_seq=4)),
        eval=EvalConfig(every_steps=4, examples=21),
        checkpoint=CheckpointConfig(every_steps=5),
        **LOGGED_OFTEN,
    )


def prepare(config, workdir, devices=1, profiled=None):
    """Set up a run on the first `devices` devices."""
    return build_setup(config, workdir, jax.devices()[:devices], profiled)


def train(config, workdir, devices=1):
    return loop.train(prepare(config, workdir, devices))


def begun(setup):
    """Return the state that a run begins or resumes with, as NumPy arrays."""
    with contextlib.closing(open_checkpoints(setup)) as checkpoints:
        state, _ = restore_or_initialize(setup, checkpoints)
    return jax.tree.map(np.asarray, state)


def lines_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return list(map(without_timings, lines))


def without_timings(numbers):
    return {name: value for name, value in numbers.items() if name not in TIMINGS}


def score_heldout(config, checkpoint, seq_len=16, store=None, examples=21):
    """Score a loaded checkpoint on the held-out rows of a store, by default the config's."""
    asked = ScoredRows(
        store or open_store(config.data), "heldout", config.data, seq_len=seq_len, examples=examples
    )
    model = place_masked_lm(checkpoint, jax.devices()[:1])
    return store_scores.score_store(model, asked, 16, Screen(is_writer=False))


def final_state(workdir, config, devices=1):
    return begun(prepare(config, workdir, devices))


@dataclasses.dataclass(frozen=True)
class Whole:
    """Hold a finished run that was never stopped; its workdir is shared: resume only a copy.

    Attributes:
      screen: its output.
    """

    workdir: pathlib.Path
    summary: dict[str, Any]
    screen: str

    def copy(self, folder: pathlib.Path) -> pathlib.Path:
        return shutil.copytree(self.workdir, folder)


@pytest.fixture(scope="module")
def whole(config, compiled_once, tmp_path_factory):
    return whole_run(config, tmp_path_factory.mktemp("whole") / "run")


def whole_run(config, workdir, devices=1):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        summary = train(config, workdir, devices)
    return Whole(workdir, summary, said.getvalue())


@pytest.fixture(scope="module")
def stopped(config, compiled_once, tmp_path_factory):
    """Return the workdir of the run of `whole`, stopped at step 11, in its second phase."""
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    stop_in_turn(config, workdir, (11,), signal.SIGTERM)
    return workdir


def stop_in_turn(config, workdir, steps, number=signal.SIGINT):
    """Start a run once for each of these steps, and stop it there."""
    for step in steps:
        with pytest.MonkeyPatch.context() as patched:
            stop_at(patched, {step}, number)
            with pytest.raises(Interrupted) as stop:
                train(config, workdir)
            assert (stop.value.step, stop.value.signal_number) == (step, number)


def train_with_stops(config, workdir, steps):
    """Train with a stop and a restart after each of these steps; return the summary."""
    stop_in_turn(config, workdir, steps)
    return train(config, workdir)


def assert_stops_change_nothing(config, whole, workdir, steps):
    """Check that a run stopped after each of these steps ends with the result of `whole`."""
    train_with_stops(config, workdir, steps)
    assert compare_runs(whole, workdir).differences == ()


@pytest.fixture(scope="module")
def moved(config, stopped, tmp_path_factory):
    """Resume a copy of the stopped run on eight devices: vocabulary rows are padded and sharded."""
    workdir = shutil.copytree(stopped, tmp_path_factory.mktemp("moved") / "run")
    on = MeshConfig(preset="zero1+tp", model_size=4)
    return whole_run(dataclasses.replace(config, mesh=on), workdir, devices=8)


def stop_at(monkeypatch, steps, number=signal.SIGINT):
    """Patch the loop to raise a signal just after these steps are dispatched."""
    after_step = loop.TrainingRun._after_step

    def interrupted(self):
        if self.step in steps:
            signal.raise_signal(number)
        after_step(self)

    monkeypatch.setattr(loop.TrainingRun, "_after_step", interrupted)
