"""Measure how fast a store gives training batches, by stage and through tf.data."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import rich.console

from data_pipeline.cli.flags import Command, flag, section
from data_pipeline.cli.main import run_main
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console, make_table
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.io import Refused
from data_pipeline.io.atomic import check_file_paths, write_json
from data_pipeline.sampling.batches import train_batches
from data_pipeline.sampling.masking import mask_rows
from data_pipeline.sampling.rows import gather_text, make_rows, pack_rows
from data_pipeline.sampling.stream import ExampleSource, PretrainSource, open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store


@dataclasses.dataclass(frozen=True)
class Stage:
    """Hold the time that one stage of making rows takes by itself, in NumPy on one core."""

    name: str
    microseconds_a_sequence: float


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Hold the rates of tf.data on some number of cores."""

    cores: int
    sequences_per_sec: float
    rows_per_sec: float
    tokens_per_sec: float  # padding not counted
    measured_secs: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Hold a measurement and its settings, the keys of --json_out; a sequence is one example."""

    sequences_per_sec: float  # the rate with the most cores
    tokens_per_sec: float
    numpy_sequences_per_sec: float  # a plain loop over rows, on one core
    by_cores: tuple[Throughput, ...]
    stages: tuple[Stage, ...]
    open_secs: float  # opening the store and counting its walks, or reading their saved counts
    first_batch_secs: float  # building a walk and importing TensorFlow
    seq_len: int
    max_predictions_per_seq: int
    segments: str
    masking: str
    packed_examples: int
    sequences_in_row: float
    text_share: float  # share of the positions of rows that are not padding
    batch_size: int
    store_tokens: int
    store_digest: str


def print_measurement(measured: Measurement, console: rich.console.Console) -> None:
    """Print the stages and the output of tf.data."""
    packing = f", up to {measured.packed_examples} in a row" if measured.packed_examples > 1 else ""
    console.print(
        f"{measured.segments} examples of {measured.seq_len} tokens, masked by "
        f"{measured.masking}{packing}; {measured.store_tokens:,} tokens in the store"
    )
    console.print(
        f"  opened in {measured.open_secs:.2f} s, first batch {measured.first_batch_secs:.2f} s "
        f"later\n  {measured.sequences_in_row:.2f} examples per row, {measured.text_share:.1%} of "
        "its positions are text"
    )
    rates = [(stage.name, 1e6 / stage.microseconds_a_sequence) for stage in measured.stages]
    rates.append(("all stages, as a plain loop", measured.numpy_sequences_per_sec))
    heads: Sequence[str] = ("on one core, in NumPy", "us per sequence", "sequences/s")
    rows = [(name, f"{1e6 / rate:.2f}", f"{rate:,.0f}") for name, rate in rates]
    console.print(make_table(heads, rows))
    heads = ("through tf.data", "sequences/s", "tokens/s", "rows/s", "vs. NumPy")
    lines = [
        (
            f"{line.cores} core{'' if line.cores == 1 else 's'}",
            f"{line.sequences_per_sec:,.0f}",
            f"{line.tokens_per_sec:,.0f}",
            f"{line.rows_per_sec:,.0f}",
            f"{line.sequences_per_sec / measured.numpy_sequences_per_sec:.0%}",
        )
        for line in measured.by_cores
    ]
    console.print(make_table(heads, lines))


_WARM_UP_GROUPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreBenchmarkFlags:
    """Declare the flags; `options` has some of PretrainOptions' flags."""

    store: str = flag(
        "", "folder that python -m data_pipeline.build wrote", metavar="STORE", is_required=True
    )
    seq_len: int = flag(128, "tokens in a sequence")
    batch_size: int = flag(256, "rows in a batch", minimum=1, maximum=1 << 20)
    max_predictions_per_seq: int = flag(
        0, "most masked tokens per sequence; 0: 15% of seq_len, rounded up"
    )
    cores: int = flag(0, "CPU cores to use; 0 measures 1, 2, 4, ... up to all")
    secs: float = flag(
        10.0, "seconds to measure per number of cores", minimum=0.001, maximum=86_400.0
    )
    json_out: str = flag("", "file to write the measurement to", metavar="FILE")
    options: PretrainOptions = section(
        "examples", ("segments", "masking", "packed_examples", "group_sequences")
    )

    def __post_init__(self) -> None:
        self.options.check_flags()


COMMAND = Command(
    "data_pipeline.benchmark",
    __doc__,
    StoreBenchmarkFlags,
    "python -m data_pipeline.benchmark --store=stores/corpus --seq_len=128 --packed_examples=8",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    return run_main(COMMAND, _measure_and_print, argv, hides_libraries=True)


def _measure_and_print(_: LibraryLog, flags: StoreBenchmarkFlags) -> None:
    check_file_paths(json_out=flags.json_out)
    measurement = measure(flags)
    print_measurement(measurement, make_console(highlight=False))
    if flags.json_out:
        write_json(pathlib.Path(flags.json_out), dataclasses.asdict(measurement))


def measure(flags: StoreBenchmarkFlags) -> Measurement:
    """Time each stage, a plain NumPy loop, and tf.data on 1 core, 2, 4, ... up to flags.cores.

    Raises:
      Refused, OSError: the store cannot be read, or has no rows for these flags.
    """
    core_counts = _choose_core_counts(flags.cores)
    slots = flags.max_predictions_per_seq or math.ceil(0.15 * flags.seq_len)
    options = dataclasses.replace(flags.options, store=flags.store)
    started = time.perf_counter()
    store = open_store(flags.store)
    source = open_examples(store, store.train, options, flags.seq_len, slots)
    opened = time.perf_counter()
    batches = _open_batches(source, flags.batch_size)
    next(batches)
    first_batch = time.perf_counter()
    batches.close()
    with _pin_to_cores(1):
        # Ready-made examples have no stages: one step reads them.
        stages: tuple[Stage, ...] = ()
        if isinstance(source, PretrainSource):
            stages = tuple(_time_stages(source, flags.secs / 8))
        numpy_rate = _time_rows(source, flags.secs / 4)
    # Measured on the first rows of epoch 0.
    first_rows = source.rows(np.arange(min(4096, source.rows_in_epoch(0))))
    text_share = float(first_rows["input_mask"].mean())
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


def _count_rows_per_call(source: ExampleSource) -> int:
    return max(1, round(source.options.group_sequences / source.mean_examples_in_row))


def _time_calls(call: Callable[[], object], secs: float) -> tuple[int, float]:
    """Repeat a call for `secs` seconds, at least once; return the calls made and the seconds."""
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < secs or not calls:
        call()
        calls += 1
    return calls, time.perf_counter() - start


def _time_stages(source: PretrainSource, secs: float) -> Iterator[Stage]:
    """Time each stage, from row numbers to arrays, on the output of the stage before it."""
    index_B = np.arange(min(_count_rows_per_call(source), source.rows_in_epoch(0)))
    drawn, rules = source.draw(0, index_B), source.mask_rules
    gathered = drawn.spans, source.split.token_ids, source.shape.seq_len, rules.vocab_size
    gather = functools.partial(gather_text, *gathered, source.special_ids)
    text = gather()
    masked = text.ids_BS, text.is_text_BS, drawn.spans.length_B, drawn.keys_M
    mask = functools.partial(mask_rows, *masked, rules)
    masks = mask()  # the calls below mask it again
    stages: dict[str, Callable[[], object]] = {
        "which text": lambda: source.draw(0, index_B),
        "text": gather,
        "masks": mask,
    }
    if source.shape.examples == 1:
        stages["fields"] = lambda: make_rows(text, masks, drawn.spans)
    else:
        packing = drawn.examples_in_row_B, source.shape, source.special_ids["pad"]
        stages["packing"] = lambda: pack_rows(text, masks, drawn.spans, *packing)
    for name, stage in stages.items():
        calls, took = _time_calls(stage, secs)
        yield Stage(name, took / calls / len(drawn.keys_M) * 1e6)


def _time_rows(source: ExampleSource, secs: float) -> float:
    """Return the sequences per second of a plain loop over rows, without tf.data."""
    group = _count_rows_per_call(source)
    numbers = itertools.count()

    def make_group() -> None:
        start = next(numbers) * group
        source.rows(np.arange(start, start + group))

    calls, took = _time_calls(make_group, secs)
    return calls * group * source.mean_examples_in_row / took


def _open_batches(
    source: ExampleSource, batch_size: int
) -> Generator[dict[str, np.ndarray], None, None]:
    return train_batches(
        source,
        batch_size=batch_size,
        first_row=0,
        first_step=0,
        last_step=2**40,
        rows=np.arange(batch_size),
    )


def _time_batches(
    source: ExampleSource, flags: StoreBenchmarkFlags, cores: int, text_share: float
) -> Throughput:
    """Draw batches through tf.data for flags.secs seconds, after a warm-up."""
    groups = max(1, source.options.group_sequences // flags.batch_size)
    with _pin_to_cores(cores):
        batches = _open_batches(source, flags.batch_size)
        for _ in range(_WARM_UP_GROUPS * groups):
            next(batches)
        steps, measured_secs = _time_calls(lambda: next(batches), flags.secs)
        batches.close()
    rows_per_sec = steps * flags.batch_size / measured_secs
    return Throughput(
        cores=cores,
        sequences_per_sec=rows_per_sec * source.mean_examples_in_row,
        rows_per_sec=rows_per_sec,
        tokens_per_sec=rows_per_sec * flags.seq_len * text_share,
        measured_secs=measured_secs,
    )


def _choose_core_counts(cores: int) -> list[int]:
    """Return 1, 2, 4, ... up to the cores that this process may use; only `cores` if not 0."""
    allowed = count_cores()
    if sys.platform != "linux":  # macOS cannot bind a process to cores
        if cores:
            raise Refused(f"--cores is {cores}; only Linux can bind a process to cores")
        return [allowed]
    if not 0 <= cores <= allowed:
        raise Refused(f"--cores is {cores}; this process may use 1 to {allowed}, 0 for each")
    if cores:
        return [cores]
    return [*(1 << power for power in range(allowed.bit_length()) if 1 << power < allowed), allowed]


@contextlib.contextmanager
def _pin_to_cores(cores: int) -> Iterator[None]:
    """Bind this thread, and the threads that it starts, to the first `cores` cores."""
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


if __name__ == "__main__":
    sys.exit(main())
