"""Estimate what a study takes before it runs: time on this machine, time and price of TPU chips."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import rich.box
import rich.table

from bert_jax import config as config_lib
from bert_jax.baselines.training import measure_steps
from bert_jax.config import Config
from bert_jax.config.study import StudyRow
from bert_jax.interop import warm_start
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.perf import measure, synthetic
from bert_jax.perf.prices import Prices, format_dollars
from bert_jax.perf.slices import Slice
from bert_jax.reporting.console import Screen, duration
from bert_jax.studies.baselines import build_steps
from bert_jax.studies.pretrained import load_row
from bert_jax.studies.row_kind import Cost
from bert_jax.train_step import objectives
from data_pipeline.store import open_store

# Of the chips' peak, at which operations are priced: about what Base and Large reach by the
# compiler's estimate (docs/results.md), small models do not.
PEAK_SHARE = 0.4
_PRODUCT_WIDTH, _PRODUCTS = 512, 40  # of the matrix product whose speed prices the operations
_LONGEST_STEP_SECS = 2.0  # by its operations, that is measured
_MEASURED = measure.Length(0, 0.5)


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """What all runs of a row take."""

    name: str
    cost: Cost  # of all seeds
    secs: float | None = None  # of all seeds, here; None if it was not asked
    is_measured: bool = False  # else secs is a lower bound

    def in_words(self) -> str:
        """Write the time here."""
        if not self.secs:
            return "-"
        return duration(self.secs) if self.is_measured else f"at least {duration(self.secs)}"


def plan_rows(rows: Sequence[StudyRow], costs: Sequence[Cost], seeds: int) -> list[RowPlan]:
    """Add up what the runs of each row take; no device is used."""
    return [
        RowPlan(f"{row.name} x {seeds}", Cost(cost.tokens * seeds, cost.operations * seeds))
        for row, cost in zip(rows, costs, strict=True)
    ]


def time_rows(
    plans: Sequence[RowPlan],
    rows: Sequence[StudyRow],
    seeds: int,
    store: str,
    screen: Screen | None = None,
) -> list[RowPlan]:
    """Estimate the time of each row here; with a screen, steps that are short are measured."""
    rate = count_operations_per_sec()
    timed = []
    for plan, row in zip(plans, rows, strict=True):
        secs = None
        if screen is not None and row.kind in _MEASURES:
            with screen.spinning(f"measuring steps of {row.name}"):
                run = Cost(plan.cost.tokens / seeds, plan.cost.operations / seeds)
                secs = _MEASURES[row.kind](row, store, rate * _LONGEST_STEP_SECS, run)
        total = plan.cost.operations / rate if secs is None else secs * seeds
        timed.append(dataclasses.replace(plan, secs=total, is_measured=secs is not None))
    return timed


def measure_run(row: StudyRow, store: str, most_operations: float, cost: Cost) -> float | None:
    """Measure a step of each phase of a row, and return the seconds of all steps of a run.

    None if a step has more operations than this: it would take long to measure.
    """
    config = config_lib.with_vocab_size(load_row(row, store), open_store(store).vocab_size)
    steps = config_lib.total_steps(config_lib.resolve_phases(config))
    if cost.operations / steps > most_operations:
        return None
    return sum(
        _measure_phase(config, index) * phase.steps for index, phase in enumerate(config.phases)
    )


def measure_baseline(row: StudyRow, store: str, most_operations: float, cost: Cost) -> float | None:
    """Do the same of a baseline, on the store's own rows."""
    steps = build_steps(row, store)
    if cost.operations / steps.count > most_operations:
        return None
    return measure_steps(steps, _MEASURED.secs)


# By the kind of a row that trains a run.
_MEASURES = {"pretrain": measure_run, "skipgram": measure_baseline, "bilm": measure_baseline}


def _measure_phase(config: Config, index: int) -> float:
    """Return the median seconds of a step, on synthetic rows without padding."""
    shards = mesh_lib.batch_shards(mesh_lib.make_mesh(config.mesh))
    phase = config.phases[index]
    phase = measure.set_rows(phase, phase.batch_size, jax.default_backend(), shards)
    config = config_lib.resolve_phases(dataclasses.replace(config, phases=(phase,)))
    (objective,) = objectives.find_each(config)
    teacher = warm_start.read_teacher_sizes(config)
    program = measure.compile_step(config, objective, teacher=teacher)
    sizes = program.row_shape, program.phase.batch_size, program.config.model.vocab_size
    batch = synthetic.make_synthetic_batch(*sizes, token_share=1.0, seed=0)
    return measure.measure(program, [batch], _MEASURED).step_secs.median


def make_table(
    plans: Sequence[RowPlan], tpu_slice: Slice | None, table: Prices | None
) -> rich.table.Table:
    """Build the table of a study's plan, with a column for the slice if one is given."""
    is_timed = any(plan.secs is not None for plan in plans)
    heads = ["row", "tokens", "operations"]
    heads += (["here"] if is_timed else []) + ([tpu_slice.name] if tpu_slice else [])
    grid = rich.table.Table(*heads, box=rich.box.SIMPLE)
    for plan in plans:
        cells = [plan.name, f"{plan.cost.tokens:,.0f}", f"{plan.cost.operations:.3g}"]
        on_slice = [describe_slice([plan], tpu_slice, table)] if tpu_slice else []
        grid.add_row(*cells, *([plan.in_words()] if is_timed else []), *on_slice)
    return grid


def describe_slice(plans: Sequence[RowPlan], tpu_slice: Slice, table: Prices | None) -> str:
    """Write hours and dollars of a slice at PEAK_SHARE of its peak, one run after another."""
    operations = sum(plan.cost.operations for plan in plans)
    if not operations:
        return "-"
    secs = operations / (tpu_slice.chips * tpu_slice.chip.bf16_flops_per_sec * PEAK_SHARE)
    price = table.by_chip.get(tpu_slice.chip.name) if table else None
    hours = tpu_slice.chips * secs / 3600
    cost = "" if price is None else f", {format_dollars(hours * price.usd_on_demand)}"
    return f"{duration(secs)}{cost}"


def describe_total(
    plans: Sequence[RowPlan], tpu_slice: Slice | None, table: Prices | None
) -> list[str]:
    """Write the sum of all rows, and what is not in it."""
    secs = sum(plan.secs or 0.0 for plan in plans)
    least = "" if all(plan.is_measured or not plan.secs for plan in plans) else "at least "
    lines = [
        f"training takes {least}{duration(secs)} here, as busy as the machine is now; tasks, "
        "evaluations and the start of each run are not counted"
    ]
    if tpu_slice:
        lines.append(
            f"on {tpu_slice.name} {describe_slice(plans, tpu_slice, table)}: an estimate by "
            f"operations at {PEAK_SHARE:.0%} of the peak, which models smaller than Base do not "
            "reach; python -m bert_jax.plan compiles a row's step"
        )
    return lines


def count_operations_per_sec() -> float:
    """Time matrix products on one of this machine's devices."""
    square = jax.numpy.ones((_PRODUCT_WIDTH, _PRODUCT_WIDTH))

    @jax.jit
    def multiply(left: jax.Array) -> jax.Array:
        for _ in range(_PRODUCTS):
            left = left @ square / _PRODUCT_WIDTH
        return left

    jax.block_until_ready(multiply(square))
    began = time.perf_counter()
    jax.block_until_ready(multiply(square))
    return 2.0 * _PRODUCTS * _PRODUCT_WIDTH**3 / (time.perf_counter() - began)
