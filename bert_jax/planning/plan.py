"""Plan a run on a TPU slice: compile the step of each phase, price it, and add the phases up.

`build_plan` gives the numbers, `plan_report` the words for the screen.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from bert_jax.config import Config, ModelConfig, ResolvedRun
from bert_jax.logging.console import Screen
from bert_jax.planning import aot_compile, estimate, slices
from bert_jax.planning.aot_compile import Compiled, TooLarge
from bert_jax.planning.chip_prices import Prices
from bert_jax.planning.estimate import Estimate, PhasePlan
from bert_jax.planning.slices import Slice
from bert_jax.runtime.code_version import package_versions
from bert_jax.train_step.schedule import sample_rates
from bert_jax.trainer import setup

RATE_POINTS = 200  # points of the learning rate in a plan


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Hold facts about the data per phase; None if they require a store and there is none."""

    epochs: list[float] | None  # passes over the training split
    sequences_per_row: list[float] | None  # a mean if rows are packed


@dataclasses.dataclass(frozen=True)
class RunTotals(Corpus):
    """Hold totals of all phases; None if a phase does not fit, or a price or a store is missing.

    Preemptions of spot chips are not counted.
    """

    steps: int
    secs: float | None
    days: float | None
    usd: float | None  # price on demand
    usd_per_chip_hour: float | None
    price_read: str
    price_region: str
    price_source: str
    usd_spot: float | None
    usd_spot_per_chip_hour: float | None


@dataclasses.dataclass(frozen=True)
class ScaleRow:
    """Hold the first phase on a slice of another size, with the same rows per chip."""

    topology: str
    chips: int
    rows_per_step: int
    learning_rate: float  # scaled by the square root of the batch (You et al. 2020)
    fits: bool
    needed_bytes: int
    estimate: Estimate | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Hold a plan. Fields are public keys of --json_out; see docs/reference/files.md."""

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
    run: RunTotals
    learning_rate: dict[str, list[float]]
    scale: list[ScaleRow]
    versions: dict[str, str]
    notes: list[str]


def _add_up(request: "PlanRequest", phases: list[PhasePlan]) -> RunTotals:
    """Add up the time and the cost of all phases."""
    secs = [phase.steps * phase.estimate.step_secs for phase in phases if phase.estimate]
    total = sum(secs) if len(secs) == len(phases) else None
    price = request.prices.by_chip.get(request.tpu_slice.chip.name)
    chip_hours = None if total is None else request.tpu_slice.chips * total / 3600
    on_demand, spot = (price.usd_on_demand, price.usd_spot) if price else (None, None)
    return RunTotals(
        **vars(request.corpus),
        steps=sum(phase.steps for phase in phases),
        secs=total,
        days=None if total is None else total / 86_400,
        usd=_multiply(chip_hours, on_demand),
        usd_per_chip_hour=on_demand,
        price_read=price.read if price else "",
        price_region=price.region if price else "",
        price_source=price.source if price else "",
        usd_spot=_multiply(chip_hours, spot),
        usd_spot_per_chip_hour=spot,
    )


def _multiply(chip_hours: float | None, usd: float | None) -> float | None:
    return None if chip_hours is None or usd is None else chip_hours * usd


@dataclasses.dataclass(frozen=True)
class PlanRequest:
    """Hold a run to plan: its config, the slice, and the other slices to compare with."""

    config: Config
    tpu_slice: Slice
    prices: Prices
    other_slices: list[Slice]
    corpus: Corpus
    vocabulary_from: str  # store, config or assumed
    teacher: ModelConfig | None = None  # sizes of config.teacher


def scale_config(config: Config, tpu_slice: Slice, other: Slice) -> Config:
    """Keep only the first phase, with the same rows per chip on another slice as on this one."""
    phase = config.phases[0]
    rows = phase.batch_size * other.chips // tpu_slice.chips
    return dataclasses.replace(config, phases=(dataclasses.replace(phase, batch_size=rows),))


def name_vocabulary_origin(config: Config) -> str:
    """Name the origin of an unresolved config's vocabulary size: store, config or assumed."""
    if config.data.store:
        return "store"
    return "config" if config.init or config.model.vocab_size else "assumed"


def read_corpus(config: ResolvedRun, screen: Screen) -> Corpus:
    """Read epochs and packing from the config's store, if the config names one."""
    source = setup.open_feed(config, screen)
    if source is None:
        is_packed = config.data.packed_examples > 1
        return Corpus(None, None if is_packed else [1.0] * len(config.phases))
    rows = [source.open_source(index) for index in range(len(config.phases))]
    epochs = [
        phase.steps * phase.batch_size / of_phase.mean_rows_per_epoch
        for phase, of_phase in zip(config.phases, rows, strict=True)
    ]
    return Corpus(epochs, [of_phase.mean_examples_in_row for of_phase in rows])


def build_plan(request: PlanRequest, screen: Screen) -> tuple[Plan, Compiled | None]:
    """Compile and price every phase, and the first phase on the other slices.

    Returns the plan, and the first step that fits.
    """
    config, tpu_slice = request.config, request.tpu_slice
    phases: list[PhasePlan] = []
    first: Compiled | None = None
    for index in range(len(config.phases)):
        phase, compiled = _plan_phase(request, config, index, tpu_slice, f"phase {index}: ", screen)
        phases.append(phase)
        first = first or compiled
    steps, rates = sample_rates(config, RATE_POINTS)
    plan = Plan(
        topology=tpu_slice.name,
        accelerator_type=tpu_slice.accelerator_type,
        num_slices=tpu_slice.num_slices,
        chips=tpu_slice.chips,
        devices=tpu_slice.devices,
        chip=dataclasses.asdict(tpu_slice.chip),
        mesh=first.mesh if first else None,
        config=dataclasses.asdict(config),
        parameters=first.parameters if first else None,
        vocabulary_size=config.model.vocab_size,
        vocabulary_from=request.vocabulary_from,
        matmul_dtype=first.matmul_dtype if first else None,
        phases=phases,
        run=_add_up(request, phases),
        learning_rate={"steps": steps.tolist(), "rates": rates.tolist()},
        scale=list(_scale(request, phases[0], screen)),
        versions=package_versions(("jax", "jaxlib", "libtpu")),
        notes=_write_notes(tpu_slice),
    )
    return plan, first


def _plan_phase(
    request: PlanRequest,
    config: Config,
    index: int,
    tpu_slice: Slice,
    label: str,
    screen: Screen,
) -> tuple[PhasePlan, Compiled | None]:
    devices, teacher = slices.open_devices(tpu_slice), request.teacher

    def compile_step(changed: Config, words: str) -> Compiled | TooLarge:
        doing = f"{label}{words}, compiling for {tpu_slice.name}"
        screen.print_without_line(doing)
        with screen.spinning(doing):
            return aot_compile.compile_step(
                changed, index, tpu_slice, devices, teacher, aot_compile.STEP_CACHE
            )

    return estimate.plan_phase(config, index, tpu_slice, compile_step, teacher)


def _scale(request: PlanRequest, first: PhasePlan, screen: Screen) -> Iterator[ScaleRow]:
    """Plan the first phase on slices of other sizes, with the same rows per chip."""
    for other in request.other_slices:
        config, plan = scale_config(request.config, request.tpu_slice, other), first
        if other != request.tpu_slice:
            plan, _ = _plan_phase(request, config, 0, other, "scale: ", screen)
        growth = other.chips / request.tpu_slice.chips
        yield ScaleRow(
            topology=other.name,
            chips=other.chips,
            rows_per_step=config.phases[0].batch_size,
            learning_rate=request.config.optim.learning_rate * math.sqrt(growth),
            fits=plan.fits,
            needed_bytes=plan.needed_bytes,
            estimate=plan.estimate,
        )


def _write_notes(tpu_slice: Slice) -> list[str]:
    notes, chip = [], tpu_slice.chip
    if chip.name in ("v2", "v3"):
        notes.append(
            f"compiled, never run: whether today's libtpu drives a {chip.name} is not known"
        )
    if tpu_slice.num_slices > 1 and not chip.network_bytes_per_sec:
        notes.append(
            f"the network's rate of a {chip.name} is not published: traffic between slices counts "
            "no time"
        )
    return notes
