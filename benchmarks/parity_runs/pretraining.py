"""Pre-train once with our command and once with Hugging Face's model: same weights, same batches.

Ours is `python -m bert_jax.train` as a person starts it, from weights that theirs initialized.
Theirs is hf_pretrain_worker.py, which gets the batches that our feed deals out.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import rich.console

from benchmarks.parity_runs.pairs import run_command
from benchmarks.step.cases import NOT_PREDICTED, hf_batch
from benchmarks.step.workers import Worker
from bert_jax.config import Config, overrides, resolve
from bert_jax.logging.metrics_writer import METRICS, SUMMARY
from bert_jax.logging.statistics import compare_paired
from bert_jax.runtime.cli import find_config
from bert_jax.trainer.feed import HostBatch, StoreFeed, open_stores, read_facts

SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
    "initializer_range": 256**-0.5,
}
MAX_STEPS = 2000
BUDGET_SECS = 3600.0  # all runs with dropout together
SIDES = ("ours", "theirs")
_DROPOUT = 0.1
_CONFIG = "benchmarks/parity_runs/pretrain_config.py"
TERMS = ("mlm", "nsp")


@dataclasses.dataclass(frozen=True)
class Case:
    """Describe a pair of runs."""

    steps: int
    dropout_rate: float
    seed: int  # weights, batches and, drawn by each side in its own way, dropout
    log_every_steps: int


@dataclasses.dataclass(frozen=True)
class Ran:
    """Hold the result of one side's run."""

    losses: list[float]  # nats, every logged step
    heldout: dict[str, float]  # nats; masked words, next sentences
    step_secs: float  # mean, without compiling, evaluating and saving
    wall_secs: float  # whole process, compiling included
    unigram_loss: float = 0.0  # held-out loss of masked words without context, by our side


def compare_losses(
    python: pathlib.Path, store: str, steps: int, console: rich.console.Console
) -> dict[str, Any]:
    """Compare the loss of every step on both sides, without dropout."""
    case = Case(steps, 0.0, seed=0, log_every_steps=1)
    with tempfile.TemporaryDirectory() as compiled:
        ran = _run_pair(python, store, case, pathlib.Path(compiled), console)
    apart = np.abs(np.subtract(ran["ours"].losses, ran["theirs"].losses))
    console.print(f"pre-training: {steps} losses differ by {apart.max():.1e} nats at most")
    return {
        "case": dataclasses.asdict(case),
        "largest_difference": float(apart.max()),
        **{side: dataclasses.asdict(done) for side, done in ran.items()},
    }


def choose_steps(seeds: int, losses: dict[str, Any]) -> int:
    """Return the steps that fit in BUDGET_SECS at the pace of the run without dropout."""
    secs_a_step = seeds * sum(losses[side]["step_secs"] for side in SIDES)
    overhead_secs = seeds * sum(
        losses[side]["wall_secs"] - losses["case"]["steps"] * losses[side]["step_secs"]
        for side in SIDES
    )
    return max(2, min(MAX_STEPS, int((BUDGET_SECS - overhead_secs) / secs_a_step)))


def compare_seeds(
    python: pathlib.Path, store: str, steps: int, seeds: int, console: rich.console.Console
) -> dict[str, Any]:
    """Train on both sides with dropout, a pair per seed; the sides take turns to go first."""
    runs = []
    with tempfile.TemporaryDirectory() as compiled:
        for seed in range(seeds):
            case = Case(steps, _DROPOUT, seed, log_every_steps=max(1, steps // 10))
            ran = _run_pair(python, store, case, pathlib.Path(compiled), console)
            here, elsewhere = (sum(ran[side].heldout.values()) for side in SIDES)
            console.print(f"seed {seed}: held-out loss {here:.4f} here, {elsewhere:.4f} there")
            runs.append({"seed": seed} | {side: dataclasses.asdict(ran[side]) for side in SIDES})
    results: dict[str, Any] = {"steps": steps, "dropout_rate": _DROPOUT, "runs": runs}
    if seeds > 1:
        losses = ([run[side]["heldout"]["mlm"] for run in runs] for side in SIDES)
        difference = compare_paired(*losses)
        results["mlm_difference"] = dataclasses.asdict(difference)
        results["is_beyond_chance"] = bool(difference.is_beyond_chance)
    return results


def _run_pair(
    python: pathlib.Path,
    store: str,
    case: Case,
    compiled: pathlib.Path,
    console: rich.console.Console,
) -> dict[str, Ran]:
    """Initialize the weights, then train from them on each side, ours first for even seeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        place = (
            f"{_CONFIG}:steps={case.steps},dropout={case.dropout_rate},"
            f"log_every={case.log_every_steps}"
        )
        flags = [
            f"--config.data.store={store}",
            f"--config.init=hf:{folder / 'weights'}",
            f"--config.seed={case.seed}",
            f"--config.data.random_seed={case.seed}",
        ]
        feed = _open_feed(place, flags)
        worker = Worker(python, "benchmarks.parity_runs.hf_pretrain_worker")
        try:
            worker.ask(
                "initialize",
                sizes={"vocab_size": feed.config.model.vocab_size, **SIZES},
                dropout_rate=case.dropout_rate,
                seed=case.seed,
                folder=str(folder / "weights"),
            )
            shutil.copy(feed.stores[0].vocab_path, folder / "weights")
            ran: dict[str, Ran] = {}
            for side in SIDES if case.seed % 2 == 0 else SIDES[::-1]:
                with console.status(f"pre-training, seed {case.seed}, {case.steps} steps: {side}"):
                    if side == "ours":
                        ran[side] = _train_ours([f"--config={place}", *flags], folder, compiled)
                    else:
                        ran[side] = _train_theirs(worker, feed, folder)
        finally:
            worker.close()
    return ran


def _open_feed(place: str, flags: Sequence[str]) -> StoreFeed:
    """Open the feed that our command opens for this config and these flags."""
    given, _ = overrides.take(flags, Config)
    config = overrides.load(Config, place, find_config, given)
    run = resolve(config, store=read_facts(config.data))
    return StoreFeed(open_stores(run.data), run)


def _train_ours(flags: Sequence[str], folder: pathlib.Path, compiled: pathlib.Path) -> Ran:
    """Train by the command; the runs of all seeds share a folder of compiled programs.

    Raises:
      RuntimeError: it failed; its output is in the message.
    """
    workdir = folder / "run"
    command = [sys.executable, "-m", "bert_jax.train", *flags, f"--workdir={workdir}"]
    start = time.perf_counter()
    run_command(command, compiled)
    wall_secs = time.perf_counter() - start
    lines = [json.loads(line) for line in (workdir / METRICS).read_text().splitlines()]
    summary = json.loads((workdir / SUMMARY).read_text())
    return Ran(
        losses=[line["loss"] for line in lines if line["split"] == "train"],
        heldout={term: summary[f"heldout_{term}_loss"] for term in TERMS},
        step_secs=summary["train_secs"] / summary["steps"],
        wall_secs=wall_secs,
        unigram_loss=summary["unigram_mlm_loss"],
    )


def _train_theirs(worker: Worker, feed: StoreFeed, folder: pathlib.Path) -> Ran:
    """Train by Hugging Face's model on the batches of the feed.

    Raises:
      RuntimeError: it ended.
    """
    config = feed.config
    (phase,) = config.phases
    with contextlib.closing(feed.train_batches(0, 0, np.arange(phase.batch_size))) as training:
        write_batches(training, folder / "train.npz")
    write_batches(feed.make_heldout_batches(0), folder / "heldout.npz")
    optim = dataclasses.asdict(config.optim)
    wanted = ("learning_rate", "warmup_steps", "weight_decay", "beta1", "beta2", "epsilon")
    start = time.perf_counter()
    trained = worker.ask(
        "train",
        batches_file=str(folder / "train.npz"),
        optim={name: optim[name] for name in (*wanted, "clip_norm")},
    )
    heldout = worker.ask("evaluate", batches_file=str(folder / "heldout.npz"))
    wall_secs = time.perf_counter() - start
    return Ran(trained["losses"], heldout, trained["step_secs"], wall_secs)


def write_batches(batches: Iterable[HostBatch], path: pathlib.Path) -> None:
    """Write batches in their fields, each stacked over the batches.

    Rows of zero weight, which fill a last batch, have no label of either kind.
    """
    fields: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        theirs = hf_batch(batch)
        is_real_B = batch["next_sentence_weights"] > 0
        labels_B = theirs.pop("next_sentence_labels")
        theirs["next_sentence_label"] = np.where(is_real_B, labels_B, NOT_PREDICTED)
        for name, array in theirs.items():
            fields.setdefault(name, []).append(array)
    np.savez(path, **{name: np.stack(arrays) for name, arrays in fields.items()})
