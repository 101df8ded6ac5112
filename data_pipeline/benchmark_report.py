"""What a benchmark of a store found, and how it is shown."""

import dataclasses

import rich.box
import rich.console
import rich.table


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step in the making of rows, alone, in plain NumPy on one core."""

    name: str
    microseconds_a_sequence: float


@dataclasses.dataclass(frozen=True)
class Throughput:
    """What comes out of tf.data on so many cores."""

    cores: int
    sequences_per_sec: float
    rows_per_sec: float
    tokens_per_sec: float  # padding not counted
    measured_secs: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured and on what; the keys of --json_out. A sequence is one example."""

    sequences_per_sec: float  # on the most cores that were measured
    tokens_per_sec: float
    numpy_sequences_per_sec: float  # a plain loop over rows, on one core
    by_cores: tuple[Throughput, ...]
    stages: tuple[Stage, ...]
    open_secs: float  # opening the store and counting its walks, or reading the sidecar
    first_batch_secs: float  # one walk, and tensorflow's import
    seq_len: int
    max_predictions_per_seq: int
    segments: str
    masking: str
    packed_examples: int
    sequences_in_row: float
    text_share: float  # of the positions of a row, those that are not padding
    batch_size: int
    store_tokens: int
    store_digest: str


def print_measurement(measured: Measurement, console: rich.console.Console) -> None:
    """Print the stages and what comes out of tf.data."""
    packed = f", up to {measured.packed_examples} in a row" if measured.packed_examples > 1 else ""
    console.print(
        f"{measured.segments} examples of {measured.seq_len} tokens, masked by "
        f"{measured.masking}{packed}; {measured.store_tokens:,} tokens in the store"
    )
    console.print(
        f"  opened in {measured.open_secs:.2f} s, first batch {measured.first_batch_secs:.2f} s "
        f"later\n  {measured.sequences_in_row:.2f} examples a row, {measured.text_share:.1%} of "
        "its positions are text"
    )
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column("on one core, in NumPy")
    table.add_column("us a sequence", justify="right")
    table.add_column("sequences/s", justify="right")
    for stage in measured.stages:
        rate = 1e6 / stage.microseconds_a_sequence
        table.add_row(stage.name, f"{stage.microseconds_a_sequence:.2f}", f"{rate:,.0f}")
    rate = measured.numpy_sequences_per_sec
    table.add_row("all, rows in any order", f"{1e6 / rate:.2f}", f"{rate:,.0f}")
    console.print(table)
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column("through tf.data")
    for name in ("sequences/s", "tokens/s", "rows/s", "of NumPy's"):
        table.add_column(name, justify="right")
    for line in measured.by_cores:
        table.add_row(
            f"{line.cores} core{'' if line.cores == 1 else 's'}",
            f"{line.sequences_per_sec:,.0f}",
            f"{line.tokens_per_sec:,.0f}",
            f"{line.rows_per_sec:,.0f}",
            f"{line.sequences_per_sec / rate:.0%}",
        )
    console.print(table)
