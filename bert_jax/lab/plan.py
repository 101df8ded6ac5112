"""Estimate the cost of a study before it runs: tokens, operations, and time on this machine."""

import dataclasses
import time
from collections.abc import Sequence

import jax
import rich.table

from bert_jax import config as config_lib
from bert_jax.benchmarking import measure
from bert_jax.config import ResolvedRun
from bert_jax.interop.teacher import read_teacher_sizes
from bert_jax.lab.baselines.settings import BASELINES
from bert_jax.lab.baselines.training import measure_steps
from bert_jax.lab.kinds import build_steps, load_row
from bert_jax.lab.row_kind import RowCost
from bert_jax.lab.study import Study
from bert_jax.lab.study_config import PlannedRunsFlags, StudyConfig, StudyRow
from bert_jax.logging.console import Screen, duration
from bert_jax.trainer import setup
from data_pipeline.cli.terminal import make_console, make_table

_PRODUCT_WIDTH, _PRODUCTS = 512, 40  # sizes of the matrix products that time an operation
_MAX_STEP_SECS = 2.0  # a step that would take longer, by its operations, is not measured
_MEASURED = measure.Length(0, 0.5)


@dataclasses.dataclass(frozen=True)
class StudyRowPlan:
    """Hold the cost of all runs of a row, over its seeds."""

    name: str
    cost: RowCost
    secs: float | None = None  # time on this machine; None if not estimated
    is_measured: bool = False  # else secs is a lower bound

    def in_words(self) -> str:
        """Describe the time on this machine."""
        if not self.secs:
            return "-"
        return duration(self.secs) if self.is_measured else f"at least {duration(self.secs)}"


def show(study: Study, flags: PlannedRunsFlags, screen: Screen) -> None:
    """Print the cost of each row over its seeds, and with --plan how long it takes here.

    Without --plan no step is measured, since the runs of the study need the accelerator.
    """
    rate = count_operations_per_sec() if flags.plan else None
    plans = [
        plan_row(study.config, row, cost, rate, screen if flags.measure else None)
        for row, cost in zip(study.config.rows, study.costs, strict=True)
    ]
    make_console(highlight=False).print(build_table(plans))
    if flags.plan:
        screen.print(describe_total(plans))


def plan_row(
    config: StudyConfig, row: StudyRow, cost: RowCost, rate: float | None, screen: Screen | None
) -> StudyRowPlan:
    """Add up the cost of a row's runs; with a rate, in operations per second, estimate their time.

    With a screen, steps that are short enough are measured; without one, none are.
    """
    total = RowCost(cost.tokens * config.seeds, cost.operations * config.seeds)
    name, secs = f"{row.name} x {config.seeds}", None
    if rate is None:
        return StudyRowPlan(name, total)
    if screen is not None and cost.tokens:
        with screen.spinning(f"measuring steps of {row.name}"):
            secs = measure_run(row, config.store, rate * _MAX_STEP_SECS, cost)
    if secs is None:
        return StudyRowPlan(name, total, total.operations / rate)
    return StudyRowPlan(name, total, secs * config.seeds, is_measured=True)


def measure_run(row: StudyRow, store: str, most_operations: float, cost: RowCost) -> float | None:
    """Measure steps of each phase of a row, and return the seconds of a run.

    None if a step has more than most_operations and would take too long. A baseline reads rows of
    the store, other kinds read synthetic rows.
    """
    if row.kind in BASELINES:
        steps = build_steps(row, store)
        is_short = cost.operations / steps.count <= most_operations
        return measure_steps(steps, _MEASURED.secs) if is_short else None
    config = setup.resolve_alone(load_row(row, store))
    if cost.operations / config_lib.total_steps(config) > most_operations:
        return None
    return sum(
        _measure_phase(config, index) * phase.steps for index, phase in enumerate(config.phases)
    )


def _measure_phase(config: ResolvedRun, index: int) -> float:
    """Return the median seconds of a step, on synthetic rows without padding."""
    phase = measure.isolate(config.phases[index])
    config = dataclasses.replace(config, phases=(phase,))
    program = measure.compile_step(config, teacher=read_teacher_sizes(config))
    batches = measure.make_batches(program, None, 1)
    return measure.measure(program, batches, _MEASURED).step_secs.median


def build_table(plans: Sequence[StudyRowPlan]) -> rich.table.Table:
    """Build the table of a study's plan."""
    is_timed = any(plan.secs is not None for plan in plans)
    rows = []
    for plan in plans:
        cells = [plan.name, f"{plan.cost.tokens:,.0f}", f"{plan.cost.operations:.3g}"]
        rows.append(cells + [plan.in_words()] * is_timed)
    return make_table(["row", "tokens", "operations"] + ["here"] * is_timed, rows)


def describe_total(plans: Sequence[StudyRowPlan]) -> str:
    """Describe how long all rows take, and what that leaves out."""
    secs = sum(plan.secs or 0.0 for plan in plans)
    least = "" if all(plan.is_measured or not plan.secs for plan in plans) else "at least "
    return (
        f"training takes {least}{duration(secs)} here while the machine is as busy as now; tasks, "
        "evaluations and the start of each run are not counted; for the time and the price of a "
        "row on TPUs: python -m bert_jax.plan"
    )


def count_operations_per_sec() -> float:
    """Measure the operations per second of matrix products on one device of this machine."""
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
