"""Measures how fast a store gives training batches: python -m data_pipeline.benchmark --help."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable

from data_pipeline.examples import open_examples
from data_pipeline.exit_code import exit_code_of, on_stderr
from data_pipeline.library_log import LibraryLog
from data_pipeline.options import PretrainOptions
from data_pipeline.pretrain import train_batches
from data_pipeline.store import open_store

_WARM_UP_GROUPS = 3


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured and on what; the keys of --json_out."""

    sequences_per_sec: float
    tokens_per_sec: float
    open_secs: float  # opening the store and counting its pairs, or reading the sidecar
    first_batch_secs: float  # one walk, and tensorflow's import
    seq_len: int
    max_predictions_per_seq: int
    batch_size: int
    cores: int
    measured_secs: float
    store_digest: str


def main(argv: list[str] | None = None, say: Callable[[str], None] = on_stderr) -> int:
    """Measure and print; 0, or 2 after one line that says what is wrong."""
    flags = _parser().parse_args(argv)
    return exit_code_of(lambda: _measure_and_print(flags), say)


def _measure_and_print(flags: argparse.Namespace) -> None:
    measurement = measure(flags)
    if flags.json_out:
        record = json.dumps(dataclasses.asdict(measurement), indent=2)
        pathlib.Path(flags.json_out).write_text(record + "\n", encoding="utf-8")
    print(
        f"{measurement.sequences_per_sec:,.0f} sequences/s of {measurement.seq_len} tokens on "
        f"{measurement.cores} core(s); opened in {measurement.open_secs:.2f} s, first batch after "
        f"{measurement.first_batch_secs:.2f} s"
    )


def measure(flags: argparse.Namespace) -> Measurement:
    """Draw batches through tf.data for flags.secs seconds, after a warm-up.

    Raises:
      ValueError, OSError: the store, or a flag that it cannot be read with.
    """
    cores = _pin_to_cores(flags.cores)
    slots = flags.max_predictions_per_seq or math.ceil(0.15 * flags.seq_len)
    options = PretrainOptions(store=flags.store, group_sequences=flags.group_sequences)
    started = time.perf_counter()
    store = open_store(flags.store)
    source = open_examples(store, store.train, options, flags.seq_len, slots)
    opened = time.perf_counter()
    batches = train_batches(
        source, batch_size=flags.batch_size, first_row=0, first_step=0, last_step=2**40
    )
    next(batches)
    first_batch = time.perf_counter()
    for _ in range(_WARM_UP_GROUPS * max(1, options.group_sequences // flags.batch_size)):
        next(batches)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < flags.secs:
        next(batches)
        steps += 1
    measured_secs = time.perf_counter() - start
    batches.close()
    rate = steps * flags.batch_size / measured_secs
    return Measurement(
        sequences_per_sec=rate,
        tokens_per_sec=rate * flags.seq_len,
        open_secs=opened - started,
        first_batch_secs=first_batch - opened,
        seq_len=flags.seq_len,
        max_predictions_per_seq=slots,
        batch_size=flags.batch_size,
        cores=cores,
        measured_secs=measured_secs,
        store_digest=store.digest,
    )


def _pin_to_cores(cores: int) -> int:
    """Keep this process on its first `cores` cores; 0 leaves all. Returns how many it may use."""
    if sys.platform == "linux":
        allowed = sorted(os.sched_getaffinity(0))
        if not 0 <= cores <= len(allowed):
            raise ValueError(
                f"--cores is {cores}; this process may use 1 to {len(allowed)}, 0 for all"
            )
        if cores:
            os.sched_setaffinity(0, allowed[:cores])
        return cores or len(allowed)
    else:  # macOS has neither function
        if cores:
            raise ValueError(f"--cores is {cores}; only Linux can hold a process to some cores")
        return os.cpu_count() or 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_pipeline.benchmark",
        description="Measures how fast a store gives training batches through tf.data.",
    )
    parser.add_argument("store", help="folder that python -m data_pipeline.build wrote")
    parser.add_argument("--seq_len", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--batch_size", type=int, default=256, help="sequences in a batch")
    parser.add_argument(
        "--max_predictions_per_seq", type=int, default=0, help="0: 15%% of seq_len, rounded up"
    )
    parser.add_argument(
        "--group_sequences",
        type=int,
        default=PretrainOptions.group_sequences,
        help="sequences made by one call into NumPy",
    )
    parser.add_argument("--cores", type=int, default=0, help="CPU cores to use; 0 for all")
    parser.add_argument("--secs", type=float, default=10.0, help="seconds to measure")
    parser.add_argument("--json_out", default="", help="file to write the measurement to")
    return parser


if __name__ == "__main__":
    with LibraryLog() as log:
        log.hold()  # tensorflow greets
        exit_code = main(say=log.say)
    sys.exit(exit_code)
