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
from bert_jax.lab.baselines.training import measure_steps
from bert_jax.lab.row_kinds.baseline_rows import build_steps
from bert_jax.lab.row_kinds.pretrained import load_row
from bert_jax.lab.row_kinds.row_kind import RowCost
from bert_jax.lab.study_config import StudyConfig, StudyRow
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


def show(
    config: StudyConfig,
    costs: Sequence[RowCost],
    screen: Screen,
    is_timed: bool,
    is_measured: bool,
) -> None:
    """Print the cost of each row over its seeds, and how long it takes here if is_timed.

    Steps are measured only then, since the runs of a study need the accelerator.
    """
    rate = count_operations_per_sec() if is_timed else None
    measuring = screen if is_measured else None
    plans = [
        plan_row(config, row, cost, rate, measuring)
        for row, cost in zip(config.rows, costs, strict=True)
    ]
    make_console(highlight=False).print(build_table(plans))
    if is_timed:
        screen.print(describe_total(plans))


def plan_row(
    config: StudyConfig, row: StudyRow, cost: RowCost, rate: float | None, screen: Screen | None
) -> StudyRowPlan:
    """Add up the cost of a row's runs; with a rate, in operations per second, estimate their time.

    With a screen, steps that are short enough are measured; without one, none are.
    """
    total = RowCost(cost.tokens * config.seeds, cost.operations * config.seeds)
    plan = StudyRowPlan(f"{row.name} x {config.seeds}", total)
    if rate is None:
        return plan
    secs = None
    if screen is not None and row.kind in _MEASURES:
        with screen.spinning(f"measuring steps of {row.name}"):
            secs = _MEASURES[row.kind](row, config.store, rate * _MAX_STEP_SECS, cost)
    if secs is None:
        return dataclasses.replace(plan, secs=total.operations / rate)
    return dataclasses.replace(plan, secs=secs * config.seeds, is_measured=True)


def measure_run(row: StudyRow, store: str, most_operations: float, cost: RowCost) -> float | None:
    """Measure a step of each phase of a row, and return the seconds of a whole run.

    None if a step has more than most_operations, so that measuring it would take long.
    """
    config = setup.resolve_alone(load_row(row, store))
    steps = config_lib.total_steps(config)
    if cost.operations / steps > most_operations:
        return None
    return sum(
        _measure_phase(config, index) * phase.steps for index, phase in enumerate(config.phases)
    )


def measure_baseline(
    row: StudyRow, store: str, most_operations: float, cost: RowCost
) -> float | None:
    """Measure the steps of a baseline like measure_run, on rows of the store."""
    steps = build_steps(row, store)
    if cost.operations / steps.count > most_operations:
        return None
    return measure_steps(steps, _MEASURED.secs)


# For each kind of row that trains a run.
_MEASURES = {
    "pretrain": measure_run,
    "rung": measure_run,
    "skipgram": measure_baseline,
    "bilm": measure_baseline,
}


def _measure_phase(config: ResolvedRun, index: int) -> float:
    """Return the median seconds of a step, on synthetic rows without padding."""
    phase = measure.take_alone(config.phases[index])
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
