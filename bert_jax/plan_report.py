"""A plan as numbers for a file and as words for the screen."""

import dataclasses
from typing import Any

from bert_jax import budget
from bert_jax.budget import Prices
from bert_jax.phase_plan import Alternative, Estimate, PhasePlan
from bert_jax.screen import duration
from bert_jax.slices import Slice
from bert_jax.tpu_step import Memory

NEVER_RUN = "compiled, never run: whether today's libtpu drives a {chip} is not known"

Rows = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Run:
    """What all phases come to; None where one does not fit, or a price or a store is missing."""

    steps: int
    secs: float | None
    days: float | None
    usd: float | None
    usd_per_chip_hour: float | None
    price_read: str
    epochs: list[float] | None  # of each phase, over the training split
    sequences_per_row: list[float] | None  # of each phase: mean where rows are packed


@dataclasses.dataclass(frozen=True)
class ScaleRow:
    """The first phase on a slice of another size, with as many rows a chip."""

    topology: str
    chips: int
    rows_per_step: int
    learning_rate: float  # by the square root of the batch, as You et al. 2020 scale it
    fits: bool
    needed_bytes: int
    estimate: Estimate | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan. Fields are the keys of --json_out and public; docs/plan.md says what they mean."""

    topology: str
    accelerator_type: str
    num_slices: int
    chips: int
    devices: int
    chip: dict[str, Any]
    mesh: dict[str, int] | None
    config: dict[str, Any]
    parameters: int | None
    vocabulary_size: int
    vocabulary_from: str  # store, config or assumed
    matmul_dtype: str | None
    phases: list[PhasePlan]
    run: Run
    learning_rate: dict[str, list[float]]
    scale: list[ScaleRow]
    versions: dict[str, str]
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What is known of the data; numbers are of each phase, None where only a store could tell."""

    vocabulary_from: str  # store, config or assumed
    epochs: list[float] | None
    sequences_per_row: list[float] | None


def run_of(of: Slice, phases: list[PhasePlan], prices: Prices, corpus: Corpus) -> Run:
    """Add the phases up."""
    secs = [one.steps * one.estimate.step_secs for one in phases if one.estimate]
    total = sum(secs) if len(secs) == len(phases) else None
    price = prices.usd_per_chip_hour.get(of.chip.name)
    usd = None
    if total is not None and price is not None:
        usd = budget.cost_usd(of.chips, total, price)
    return Run(
        steps=sum(one.steps for one in phases),
        secs=total,
        days=None if total is None else total / 86_400,
        usd=usd,
        usd_per_chip_hour=price,
        price_read=prices.read,
        epochs=corpus.epochs,
        sequences_per_row=corpus.sequences_per_row,
    )


def opening(plan: Plan, of: Slice) -> Rows:
    """The slice, the model, the mesh."""
    chip, shape = of.chip, plan.config["model"]
    joined = f"{of.num_slices} x " if of.num_slices > 1 else ""
    cores = f" of {chip.devices_per_chip} devices" if chip.devices_per_chip > 1 else ""
    rows = [
        (
            "slice",
            f"{joined}{of.name} (gcloud: {of.accelerator_type}), {of.chips:,} chips{cores}: "
            f"{chip.bf16_flops_per_sec / 1e12:,.0f} TFLOP/s and {_gib(of.usable_bytes)} a chip, "
            f"{of.links} links of {chip.link_bytes_per_sec / 1e9:.0f} GB/s at a corner",
        ),
        (
            "model",
            f"{_count(plan.parameters)}{shape['num_hidden_layers']} layers of "
            f"{shape['hidden_size']}; matmuls in {plan.matmul_dtype or 'bfloat16'}",
        ),
        ("vocabulary", _vocabulary(plan)),
        ("mesh", _mesh(plan)),
    ]
    return rows + [("note", note) for note in plan.notes]


def _count(parameters: int | None) -> str:
    return "" if parameters is None else f"{parameters:,} parameters: "


def _vocabulary(plan: Plan) -> str:
    size = f"{plan.vocabulary_size:,} pieces"
    return {
        "store": f"{size}, the store's",
        "config": f"{size}, as the config says; no --store to compare with",
        "assumed": f"{size}, BERT's: neither --store nor config.model.vocab_size says",
    }[plan.vocabulary_from]


def _mesh(plan: Plan) -> str:
    preset = f"preset {plan.config['mesh']['preset']}"
    if plan.mesh is None:
        return preset
    return f"{preset}: " + " x ".join(f"{name} {size}" for name, size in plan.mesh.items())


NO_TEXT = "none: this jaxlib cannot print the program that libtpu made for this chip"


def phase_title(plan: PhasePlan, index: int) -> str:
    """Steps and rows of a phase."""
    parts = f" in {plan.micro_batches} parts" if plan.micro_batches > 1 else ""
    return (
        f"phase {index}: {plan.steps:,} steps of {plan.rows_per_step:,} rows{parts} of "
        f"{plan.seq_len}, {plan.rows_per_chip:g} a chip"
    )


def phase_rows(plan: PhasePlan, sequences_per_row: float | None) -> Rows:
    """Memory, time and collectives of a phase, or what would fit."""
    if plan.memory is None:
        return [*_too_large(plan), *_alternatives(plan), ("attention", plan.attention)]
    held = _memory(plan.memory, plan.available_bytes)
    if plan.estimate is None:
        return [*held, ("estimate", NO_TEXT), ("attention", plan.attention)]
    time = _time(plan.estimate, sequences_per_row)
    return [*held, *time, ("attention", plan.attention), *_collectives(plan.estimate)]


def _memory(held: Memory, available: int) -> Rows:
    share = held.total / available
    return [
        ("memory", f"fits: {_gib(held.total)} of {_gib(available)} a chip, {share:.0%}"),
        (
            "",
            f"parameters {_gib(held.parameters)}, optimiser {_gib(held.optimizer)}, batch "
            f"{_gib(held.batch)}, activations {_gib(held.temporaries)}, program "
            f"{_gib(held.program)}",
        ),
    ]


def _time(of: Estimate, sequences_per_row: float | None) -> Rows:
    pace = f"{of.rows_per_sec_per_chip:,.0f} rows/s a chip"
    if sequences_per_row:
        pace = f"{sequences_per_row * of.rows_per_sec_per_chip:,.0f} sequences/s a chip"
    kernels = f", of which kernels {_ms(of.kernel_secs)}" if of.kernel_calls else ""
    rows = [
        (
            "estimate",
            f"{_ms(of.step_secs)} a step, {pace}, {of.peak_share:.1%} of peak (compiler estimate)",
        ),
        (
            "",
            f"work {_ms(of.work_secs)} = {of.cycles / 1e6:,.2f}M cycles{kernels}; waiting for "
            f"collectives {_ms(of.exposed_secs)}",
        ),
    ]
    for name, calls in of.unpriced_kernels.items():
        rows.append(
            (
                "too low by",
                f"{calls} calls of the kernel {name}, which has no price for this shape and counts "
                "as nothing: price it with python -m benchmarks.kernel_price",
            )
        )
    return rows


def _collectives(of: Estimate) -> Rows:
    rows = [
        (
            "" if number else "collectives",
            f"{one.kind:18} {one.calls:4} x  {_megabytes(one.wire_bytes):>10} over the "
            f"{one.path:7}  {_ms(one.secs):>9}, waited for {_ms(one.exposed_secs)}",
        )
        for number, one in enumerate(of.collectives)
    ]
    return rows or [("collectives", "none")]


def _too_large(plan: PhasePlan) -> Rows:
    return [
        (
            "memory",
            f"does not fit: it needs {_gib(plan.needed_bytes)} or more, and a chip has "
            f"{_gib(plan.available_bytes)}",
        )
    ]


def _alternatives(plan: PhasePlan) -> Rows:
    rows = [
        ("" if number else "tried", _tried(one)) for number, one in enumerate(plan.alternatives)
    ]
    if not any(one.fits for one in plan.alternatives):
        rows.append(("", "nothing tried fits: take a larger slice or fewer rows"))
    return rows


def _tried(one: Alternative) -> str:
    flags = " ".join(f"--{name}={value}" for name, value in one.settings.items())
    if not one.fits:
        return f"{flags}: does not fit, {_gib(one.memory_bytes)} or more"
    pace = "" if one.step_secs is None else f", {_ms(one.step_secs)} a step"
    return f"{flags}: fits, {_gib(one.memory_bytes)}{pace}"


def run_rows(plan: Plan, prices: Prices, curve: list[str], warnings: Rows) -> Rows:
    """Steps, epochs, time, money and the learning rate."""
    run, chip = plan.run, plan.chip["name"]
    rows = [("steps", f"{run.steps:,}"), ("epochs", _epochs(run)), *warnings]
    if run.secs is None:
        rows.append(("time", "not known before every phase fits and has an estimate"))
    else:
        rows.append(
            (
                "time",
                f"{duration(run.secs)} (compiler estimate), {run.days:.2f} days; reading, "
                "evaluating and saving come on top",
            )
        )
    if run.usd_per_chip_hour is None:
        rows.append(("cost", prices.missing(chip)))
    elif run.usd is not None:
        price = f"{budget.dollars(run.usd_per_chip_hour)} a chip and hour"
        rows.append(("cost", f"{budget.dollars(run.usd)} at {price}"))
        rows.append(("", f"{prices.path.name}: {prices.read}"))
    rates = plan.learning_rate["rates"]
    peak = f"{max(rates):.2e} at step {plan.learning_rate['steps'][rates.index(max(rates))]:,.0f}"
    steps = f"0{run.steps:>{len(curve[0]) - 1},}"
    labels = [f"highest {peak}, at the end {rates[-1]:.2e}", *curve, steps]
    return rows + [("" if i else "rate", text) for i, text in enumerate(labels)]


def _epochs(run: Run) -> str:
    if run.epochs is None:
        return "not known without --store"
    each = ", ".join(f"{epochs:,.1f}" for epochs in run.epochs)
    return f"{sum(run.epochs):,.1f} over the training split" + (
        f" ({each})" if len(run.epochs) > 1 else ""
    )


def scale_rows(rows: list[ScaleRow]) -> Rows:
    """A line for each slice size."""
    return [(f"{row.chips:,} chips", _scaled(row)) for row in rows]


def _scaled(row: ScaleRow) -> str:
    text = f"{row.topology:10} {row.rows_per_step:8,} rows, rate {row.learning_rate:.2e}: "
    if not row.fits:
        return f"{text}does not fit, {_gib(row.needed_bytes)} or more"
    if row.estimate is None:
        return f"{text}fits; estimate {NO_TEXT}"
    of = row.estimate
    return (
        f"{text}{_ms(of.step_secs)} a step, waiting {_ms(of.exposed_secs)}, "
        f"{of.rows_per_sec_per_chip:,.0f} rows/s a chip, {of.peak_share:.1%} of peak"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _ms(secs: float) -> str:
    return f"{1e3 * secs:,.2f} ms"
