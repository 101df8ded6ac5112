"""Measures how fast a store gives training batches: python -m data_pipeline.benchmark --help."""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from data_pipeline import terminal_console
from data_pipeline.benchmark_report import Measurement, Stage, Throughput, print_measurement
from data_pipeline.example_source import ExampleSource
from data_pipeline.examples import PretrainSource, open_examples
from data_pipeline.exit_code import exit_code_of, on_stderr
from data_pipeline.flag_parser import FlagParser, check_range
from data_pipeline.library_log import LibraryLog
from data_pipeline.options import MASKING, SEGMENTS, PretrainOptions
from data_pipeline.pretrain import train_batches
from data_pipeline.rows import gather, mask, packed, unpacked
from data_pipeline.store import open_store
from data_pipeline.whole_file import check_place

_WARM_UP_GROUPS = 3
_LEAST_SECS, _MOST_SECS = 0.001, 86_400.0
_MOST_BATCH = 1 << 20


def main(argv: list[str] | None = None, say: Callable[[str], None] = on_stderr) -> int:
    """Measure and print; 0, or 2 after one line that says what is wrong."""
    return exit_code_of(lambda: _measure_and_print(sys.argv[1:] if argv is None else argv), say)


def _measure_and_print(argv: list[str]) -> None:
    flags = _parser().parse_args(argv)
    check_range("secs", flags.secs, _LEAST_SECS, _MOST_SECS)
    check_range("batch_size", flags.batch_size, 1, _MOST_BATCH)
    _options(flags).check_flags()
    if flags.json_out:
        check_place(pathlib.Path(flags.json_out), "--json_out")
    measurement = measure(flags)
    print_measurement(measurement, terminal_console.console(highlight=False))
    if flags.json_out:
        record = json.dumps(dataclasses.asdict(measurement), indent=2)
        pathlib.Path(flags.json_out).write_text(record + "\n", encoding="utf-8")


def measure(flags: argparse.Namespace) -> Measurement:
    """Time each stage, a plain NumPy loop, and tf.data on 1 core, 2, 4, ... up to flags.cores.

    Raises:
      ValueError, OSError: the store, or a flag that it cannot be read with.
    """
    core_counts = _core_counts(flags.cores)
    slots = flags.max_predictions_per_seq or math.ceil(0.15 * flags.seq_len)
    options = _options(flags)
    started = time.perf_counter()
    store = open_store(flags.store)
    source = open_examples(store, store.train, options, flags.seq_len, slots)
    opened = time.perf_counter()
    batches = train_batches(
        source, batch_size=flags.batch_size, first_row=0, first_step=0, last_step=1
    )
    next(batches)
    batches.close()
    first_batch = time.perf_counter()
    with _pinned_to(1):
        # Ready-made examples are read in one step.
        stages: tuple[Stage, ...] = ()
        if isinstance(source, PretrainSource):
            stages = tuple(_time_stages(source, flags.secs / 8))
        numpy_rate = _time_rows(source, flags.secs / 4)
    text_share = _text_share(source)
    by_cores = tuple(_time_batches(source, flags, cores, text_share) for cores in core_counts)
    return Measurement(
        sequences_per_sec=by_cores[-1].sequences_per_sec,
        tokens_per_sec=by_cores[-1].tokens_per_sec,
        numpy_sequences_per_sec=numpy_rate,
        by_cores=by_cores,
        stages=stages,
        open_secs=opened - started,
        first_batch_secs=first_batch - opened,
        seq_len=flags.seq_len,
        max_predictions_per_seq=slots,
        segments=options.segments,
        masking=options.masking,
        packed_examples=options.packed_examples,
        sequences_in_row=source.mean_examples_in_row,
        text_share=text_share,
        batch_size=flags.batch_size,
        store_tokens=int(store.train.token_counts.sum()),
        store_digest=store.digest,
    )


def _options(flags: argparse.Namespace) -> PretrainOptions:
    return PretrainOptions(
        store=flags.store,
        segments=flags.segments,
        masking=flags.masking,
        packed_examples=flags.packed_examples,
        group_sequences=flags.group_sequences,
    )


def _time_stages(source: PretrainSource, secs: float) -> Iterator[Stage]:
    """Each step of the way from numbers of rows to arrays, on what the step before it gave."""
    rows = max(1, round(source.options.group_sequences / source.mean_examples_in_row))
    index_B = np.arange(min(rows, source.rows_in_epoch(0)))
    drawn = source.draw(0, index_B)
    rules, token_ids = source.assembly.mask_rules, source.split.token_ids
    sequences = len(drawn.keys_M)

    def micros(call: Callable[[], object]) -> float:
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < secs or not calls:
            call()
            calls += 1
        return (time.perf_counter() - start) / calls / sequences * 1e6

    yield Stage("which text", micros(lambda: source.draw(0, index_B)))
    yield Stage("text", micros(lambda: gather(drawn.spans, token_ids, source.assembly)))
    text = gather(drawn.spans, token_ids, source.assembly)
    masks = mask(text, drawn.spans, drawn.keys_M, rules)  # from here on masks what is masked
    yield Stage("masks", micros(lambda: mask(text, drawn.spans, drawn.keys_M, rules)))
    if source.shape.examples == 1:
        yield Stage("fields", micros(lambda: unpacked(text, masks, drawn.spans)))
    else:
        in_row_B, pad_id = drawn.examples_in_row_B, source.special_ids["pad"]
        yield Stage(
            "packing",
            micros(lambda: packed(text, masks, drawn.spans, in_row_B, source.shape, pad_id)),
        )


def _time_rows(source: ExampleSource, secs: float) -> float:
    """Sequences a second of a plain loop over rows, without tf.data."""
    group = max(1, round(source.options.group_sequences / source.mean_examples_in_row))
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < secs or not calls:
        source.rows(np.arange(calls * group, (calls + 1) * group))
        calls += 1
    return calls * group * source.mean_examples_in_row / (time.perf_counter() - start)


def _time_batches(
    source: ExampleSource, flags: argparse.Namespace, cores: int, text_share: float
) -> Throughput:
    """Draw batches through tf.data for flags.secs seconds, after a warm-up."""
    groups = max(1, source.options.group_sequences // flags.batch_size)
    with _pinned_to(cores):
        batches = train_batches(
            source, batch_size=flags.batch_size, first_row=0, first_step=0, last_step=2**40
        )
        for _ in range(_WARM_UP_GROUPS * groups):
            next(batches)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < flags.secs:
            next(batches)
            steps += 1
        measured_secs = time.perf_counter() - start
        batches.close()
    rows_per_sec = steps * flags.batch_size / measured_secs
    return Throughput(
        cores=cores,
        sequences_per_sec=rows_per_sec * source.mean_examples_in_row,
        rows_per_sec=rows_per_sec,
        tokens_per_sec=rows_per_sec * flags.seq_len * text_share,
        measured_secs=measured_secs,
    )


def _text_share(source: ExampleSource) -> float:
    """Of the positions of rows, the share that is not padding: on the first 4,096 of epoch 0."""
    rows = source.rows(np.arange(min(4096, source.rows_in_epoch(0))))
    return float(rows["input_mask"].mean())


def _core_counts(cores: int) -> list[int]:
    """1, 2, 4, ... up to the cores that this process may use; only `cores` where it is given."""
    if sys.platform != "linux":  # macOS cannot hold a process to some cores
        if cores:
            raise ValueError(f"--cores is {cores}; only Linux can hold a process to some cores")
        return [os.cpu_count() or 1]
    allowed = len(os.sched_getaffinity(0))
    if not 0 <= cores <= allowed:
        raise ValueError(f"--cores is {cores}; this process may use 1 to {allowed}, 0 for each")
    if cores:
        return [cores]
    return [*(1 << power for power in range(allowed.bit_length()) if 1 << power < allowed), allowed]


@contextlib.contextmanager
def _pinned_to(cores: int) -> Iterator[None]:
    """Keep what starts here on the first `cores` cores; threads inherit it from who makes them."""
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m data_pipeline.benchmark",
        description="Measures how fast a store gives training batches, by stage and through "
        "tf.data.",
    )
    add = parser.add_argument
    add("store", metavar="STORE", help="folder that python -m data_pipeline.build wrote")
    add("--seq_len", type=int, default=128, help="tokens in a sequence")
    add("--batch_size", type=int, default=256, help="rows in a batch")
    add("--max_predictions_per_seq", type=int, default=0, help="0: 15%% of seq_len, rounded up")
    add("--segments", default="nsp", help=" | ".join(SEGMENTS))
    add("--masking", default="token", help=" | ".join(MASKING))
    add("--packed_examples", type=int, default=1, help="most examples in a row")
    add(
        "--group_sequences",
        type=int,
        default=PretrainOptions.group_sequences,
        help="sequences made by one call into NumPy",
    )
    add("--cores", type=int, default=0, help="CPU cores to use; 0: 1, 2, 4, ... up to all")
    add("--secs", type=float, default=10.0, help="seconds to measure each number of cores")
    add("--json_out", default="", metavar="FILE", help="file to write the measurement to")
    return parser


if __name__ == "__main__":
    with LibraryLog() as log:
        log.hold()  # tensorflow greets
        exit_code = main(say=log.say)
    sys.exit(exit_code)
