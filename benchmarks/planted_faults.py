"""Plant faults in runs of configs/quickstart.py, for training to find.

    make quickstart
    python -m benchmarks.planted_faults --store=runs/quickstart/store --output=DIR
    python -m bert_jax.report DIR/*-0

Each fault is a run of its own in DIR/FAULT-SEED, stopped after --steps of its steps; it breaks
a setting or the rows that the pipeline makes, of training and held-out examples alike. `sound` has
none; wrong_vocabulary and duplicated_corpus are faults of the store that --store names.
"""

import argparse
import functools
import os
import pathlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.families import claim
from bert_jax.logging import metrics_writer
from data_pipeline.sampling import stream

Rows = dict[str, np.ndarray]
CONFIG = "configs/quickstart.py:model=bert"
RATE = 3e-3  # CONFIG's learning rate


def shuffle_labels(rows: Rows, random: np.random.Generator) -> Rows:
    """Give each prediction the token of another one of the batch."""
    ids_BP, is_used_BP = rows["masked_lm_ids"].copy(), rows["masked_lm_weights"] > 0
    ids_BP[is_used_BP] = random.permutation(ids_BP[is_used_BP])
    return rows | {"masked_lm_ids": ids_BP}


def invert_next(rows: Rows, random: np.random.Generator) -> Rows:
    """Swap the next-sentence labels."""
    return rows | {"next_sentence_labels": 1 - rows["next_sentence_labels"]}


# What each fault changes: flags, and a function of the rows.
FAULTS: dict[str, tuple[tuple[str, ...], Callable[..., Rows] | None]] = {
    "sound": ((), None),
    "labels_shuffled": ((), shuffle_labels),
    "masks_off": (
        ("--config.data.mask_token_share=0.0", "--config.data.random_token_share=0.0"),
        None,
    ),
    "rate_times_10": ((f"--config.optim.learning_rate={10 * RATE}",), None),
    "rate_by_10": ((f"--config.optim.learning_rate={RATE / 10}",), None),
    "no_warmup": (("--config.optim.warmup_steps=0",), None),
    "wrong_vocabulary": ((), None),
    "unshuffled": ((), None),
    "next_inverted": ((), invert_next),
    "dropout_0.9": (
        (
            "--config.model.hidden_dropout_prob=0.9",
            "--config.model.attention_probs_dropout_prob=0.9",
        ),
        None,
    ),
    "duplicated_corpus": ((), None),
}


def main() -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted_faults")
    parser.add_argument("--store", required=True)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=380, help="after which a run is stopped")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--worker", help="the fault of this process")
    given, flags = parser.parse_known_args()  # flags of the run: --config...
    if given.worker:
        train(given.worker, given.steps, given.store, given.output, flags)
        return
    claim(given.output, store=given.store, steps=given.steps, flags=flags)
    for fault in given.faults.split(","):
        for seed in range(given.seeds):
            folder = given.output / f"{fault}-{seed}"
            if (folder / "metrics.jsonl").exists():
                continue
            command = [sys.executable, "-m", "benchmarks.planted_faults", f"--worker={fault}"]
            command += [f"--store={given.store}", f"--output={folder}", f"--steps={given.steps}"]
            subprocess.run([*command, f"--config.seed={seed}", *flags])


def train(fault: str, steps: int, store: str, folder: pathlib.Path, more: Sequence[str]) -> None:
    """Train with a fault in this process, for `steps` steps at most."""
    flags, change = FAULTS[fault]
    if change is not None:
        plain = stream.PretrainSource.make_rows_of_part
        random = np.random.default_rng(0)

        @functools.wraps(plain)
        def make_rows(source: Any, *numbers: Any) -> Rows:
            return change(plain(source, *numbers), random)

        stream.PretrainSource.make_rows_of_part = make_rows  # type: ignore[method-assign]
    if fault == "unshuffled":
        stream.hashing.permute = lambda key, index_B, size: index_B  # type: ignore[assignment]
    write = metrics_writer.MetricsFile.on_record

    def write_and_stop(records: Any, step: int, split: str, numbers: Any) -> None:
        write(records, step, split, numbers)
        if step >= steps:
            os.kill(os.getpid(), signal.SIGTERM)

    metrics_writer.MetricsFile.on_record = write_and_stop  # type: ignore[method-assign]
    command = [f"--config={CONFIG}", f"--config.data.store={store}", f"--workdir={folder}"]
    sys.argv = ["bert_jax.train", *command, *flags, *more]
    runpy.run_module("bert_jax.train", run_name="__main__")


if __name__ == "__main__":
    main()
