"""Describe a plan for the screen, as rows of a label and a text."""

from collections.abc import Sequence

from bert_jax.logging.console import Rows, duration
from bert_jax.parallel.mesh import describe_axes
from bert_jax.planning.aot_compile import Memory
from bert_jax.planning.chip_prices import Prices, format_dollars
from bert_jax.planning.estimate import Alternative, Estimate, PhasePlan
from bert_jax.planning.plan import Plan, RunTotals, ScaleRow
from bert_jax.planning.slices import Slice

_HOUR = 3600.0  # seconds


def format_slice(plan: Plan, tpu_slice: Slice) -> Rows:
    """Describe the slice, the model and the mesh: labels and texts."""
    chip, shape = tpu_slice.chip, plan.config["model"]
    joined = f"{tpu_slice.num_slices} x " if tpu_slice.num_slices > 1 else ""
    cores = f" of {chip.devices_per_chip} devices" if chip.devices_per_chip > 1 else ""
    count = "" if plan.parameters is None else f"{plan.parameters:,} parameters: "
    rows = [
        (
            "slice",
            f"{joined}{tpu_slice.name} (gcloud: {tpu_slice.accelerator_type}), "
            f"{tpu_slice.chips:,} chips{cores}: "
            f"{chip.bf16_flops_per_sec / 1e12:,.0f} TFLOP/s and "
            f"{_gib(tpu_slice.usable_bytes)} per chip, {tpu_slice.links} links of "
            f"{chip.link_bytes_per_sec / 1e9:.0f} GB/s at a corner",
        ),
        (
            "model",
            f"{count}{shape['num_hidden_layers']} layers of "
            f"{shape['hidden_size']}; matmuls in {plan.matmul_dtype or 'bfloat16'}",
        ),
        ("vocabulary", _vocabulary(plan)),
        (
            "mesh",
            f"preset {plan.config['mesh']['preset']}"
            + (f": {describe_axes(plan.mesh)}" if plan.mesh else ""),
        ),
    ]
    return rows + [("note", note) for note in plan.notes]


def _vocabulary(plan: Plan) -> str:
    size = f"{plan.vocabulary_size:,} pieces"
    return {
        "store": f"{size}, the store's",
        "config": f"{size}, as the config says; no config.data.store to compare with",
        "assumed": f"{size}, BERT's: neither config.data.store nor config.model.vocab_size says",
    }[plan.vocabulary_from]


def format_phase_title(plan: PhasePlan, index: int) -> str:
    """Describe steps and rows of a phase in one line."""
    parts = f" in {plan.micro_batches} parts" if plan.micro_batches > 1 else ""
    return (
        f"phase {index}: {plan.steps:,} steps of {plan.rows_per_step:,} rows{parts} of "
        f"{plan.seq_len}, {plan.rows_per_chip:g} per chip"
    )


def format_phase(plan: PhasePlan, sequences_per_row: float | None) -> Rows:
    """Describe memory, time and collectives of a phase, or the settings that would fit."""
    if plan.memory is None or plan.estimate is None:
        needed, available = _gib(plan.needed_bytes), _gib(plan.available_bytes)
        words = f"does not fit: it needs {needed} or more, and a chip has {available}"
        return [("memory", words), *_alternatives(plan), ("attention", plan.attention)]
    memory = _memory(plan.memory, plan.available_bytes)
    time = _time(plan.estimate, sequences_per_row)
    return [*memory, *time, ("attention", plan.attention), *_collectives(plan.estimate)]


def _memory(memory: Memory, available: int) -> Rows:
    share = memory.total / available
    parts = {"parameters": memory.parameters, "optimizer": memory.optimizer, "batch": memory.batch}
    parts |= {"activations": memory.temporaries, "program": memory.program}
    parts |= {"teacher": memory.teacher} if memory.teacher else {}
    return [
        ("memory", f"fits: {_gib(memory.total)} of {_gib(available)} per chip, {share:.0%}"),
        ("", ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())),
    ]


def _time(estimate: Estimate, sequences_per_row: float | None) -> Rows:
    pace = f"{estimate.rows_per_sec_per_chip:,.0f} rows/s per chip"
    if sequences_per_row:
        pace = f"{sequences_per_row * estimate.rows_per_sec_per_chip:,.0f} sequences/s per chip"
    step = f"{_ms(estimate.step_secs)} per step, {pace}, {estimate.peak_share:.1%} of peak"
    kernels = f", of which kernels {_ms(estimate.kernel_secs)}" if estimate.kernel_calls else ""
    work = f"work {_ms(estimate.work_secs)} = {estimate.cycles / 1e6:,.2f}M cycles{kernels}"
    missing = [
        f"{calls} call{'' if calls == 1 else 's'} of {name}"
        for name, calls in estimate.unpriced_kernels.items()
    ]
    counts = "counts" if sum(estimate.unpriced_kernels.values()) == 1 else "count"
    low = f"; too low: {' and '.join(missing)} {counts} as 0 ms (this shape has no price)"
    rows = [
        ("estimate", f"{step} (compiler estimate){low if missing else ''}"),
        ("", f"{work}; waiting for collectives {_ms(estimate.exposed_secs)}"),
    ]
    if missing:
        rows.append(("", "price such a kernel with python -m benchmarks.kernel_price"))
    return rows


def _collectives(estimate: Estimate) -> Rows:
    texts = [
        f"{traffic.kind:18} {traffic.calls:4} x  {traffic.wire_bytes / 1e6:>7,.1f} MB over the "
        f"{traffic.path:7}  {_ms(traffic.secs):>9}, waited for {_ms(traffic.exposed_secs)}"
        for traffic in estimate.collectives
    ]
    return _label("collectives", texts or ["none"])


def _alternatives(plan: PhasePlan) -> Rows:
    rows = _label("tried", [_tried(alternative) for alternative in plan.alternatives])
    if not any(alternative.fits for alternative in plan.alternatives):
        rows.append(("", "nothing tried fits: take a larger slice or fewer rows"))
    return rows


def _tried(alternative: Alternative) -> str:
    flags = " ".join(f"--{name}={value}" for name, value in alternative.settings.items())
    if alternative.step_secs is None:
        return f"{flags}: does not fit, {_gib(alternative.memory_bytes)} or more"
    pace = f"{_ms(alternative.step_secs)} per step"
    return f"{flags}: fits, {_gib(alternative.memory_bytes)}, {pace}"


def format_run(plan: Plan, prices: Prices, curve: list[str], warnings: Rows) -> Rows:
    """Describe steps, epochs, time, money and the learning rate of all phases."""
    run, chip = plan.run, plan.chip["name"]
    rows = [("steps", f"{run.steps:,}"), ("epochs", _epochs(run)), *warnings]
    if run.secs is None:
        rows.append(("time", "not known before every phase fits and has an estimate"))
    else:
        estimates = [phase.estimate for phase in plan.phases if phase.estimate]
        low = ", too low" if any(each.unpriced_kernels for each in estimates) else ""
        days = f", {run.days:.2f} days" if run.secs >= _HOUR else ""
        length = f"{_length(run.secs)} (compiler estimate{low}){days}"
        rows.append(("time", f"{length}; reading, evaluating and saving come on top"))
    rows += _cost(run, prices, chip)
    rates = plan.learning_rate["rates"]
    peak = f"{max(rates):.2e} at step {plan.learning_rate['steps'][rates.index(max(rates))]:,.0f}"
    steps = f"0{run.steps:>{len(curve[0]) - 1},}"
    return rows + _label("rate", [f"highest {peak}, at the end {rates[-1]:.2e}", *curve, steps])


def _cost(run: RunTotals, prices: Prices, chip: str) -> Rows:
    """Describe what the run costs on demand and on spot chips, and where the prices are from."""
    if run.usd_per_chip_hour is None:
        return [("cost", prices.missing(chip))]
    if run.usd is None:
        return []
    place = f" in {run.price_region}" if run.price_region else ""
    price = f"{format_dollars(run.usd_per_chip_hour)} per chip-hour"
    rows = [("cost", f"{format_dollars(run.usd)} on demand, at {price}{place}")]
    if run.usd_spot is None or run.usd_spot_per_chip_hour is None:
        rows.append(("", prices.missing(chip, "spot")))
    else:
        price = f"{format_dollars(run.usd_spot_per_chip_hour)} per chip-hour"
        words = f"{format_dollars(run.usd_spot)} on spot chips, at {price}"
        rows.append(("", f"{words}; what preemptions repeat comes on top"))
    rows.append(("", f"{prices.path.name}{run.price_read and f': read {run.price_read}'}"))
    return rows + ([("", run.price_source)] if run.price_source else [])


def _epochs(run: RunTotals) -> str:
    if run.epochs is None:
        return "not known without config.data.store"
    each = ", ".join(f"{epochs:,.1f}" for epochs in run.epochs)
    of_phases = f" ({each})" if len(run.epochs) > 1 else ""
    return f"{sum(run.epochs):,.1f} over the training split{of_phases}"


def format_scaled(row: ScaleRow) -> str:
    """Describe a slice of another size in one line."""
    text = f"{row.topology:10} {row.rows_per_step:8,} rows, rate {row.learning_rate:.2e}: "
    estimate = row.estimate
    if estimate is None:
        return f"{text}does not fit, {_gib(row.needed_bytes)} or more"
    return (
        f"{text}{_ms(estimate.step_secs)} per step, waiting {_ms(estimate.exposed_secs)}, "
        f"{estimate.rows_per_sec_per_chip:,.0f} rows/s per chip, {estimate.peak_share:.1%} of peak"
    )


def _label(label: str, texts: Sequence[str]) -> Rows:
    """Make rows of texts, the first with a label."""
    return [("" if number else label, text) for number, text in enumerate(texts)]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.1f} MiB"


def _length(secs: float) -> str:
    """Format seconds: below a minute as 59 s, then as hours, minutes and seconds."""
    return f"{secs:.0f} s" if 1 <= secs < 59.5 else "under 1 s" if secs < 1 else duration(secs)


def _ms(secs: float) -> str:
    return f"{1e3 * secs:,.2f} ms"
