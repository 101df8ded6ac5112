"""Turn timed steps into rates, the share of a chip's peak, and memory: as numbers and in words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.benchmarking.measure import BY_DEVICE, Program, Timed
from bert_jax.logging.console import Rows
from bert_jax.model import flops
from bert_jax.parallel import chips
from bert_jax.planning.estimate import count_row_flops

SYNTHETIC, STORE = "made up", "store"  # values in --json_out


@dataclasses.dataclass(frozen=True)
class StepReport(Timed):
    """Hold a measurement; fields are public keys of --json_out, and rates are at the median."""

    device_kind: str
    platform: str  # cpu, gpu or tpu
    devices: int
    mesh: dict[str, int]
    jax: str  # version
    config: dict[str, Any]  # resolved, with the one phase that was timed
    parameters: int
    matmul_dtype: str
    seq_len: int
    rows_per_step: int
    predictions_per_row: int  # slots; each costs the same
    batches: str  # made up, or store
    examples_per_step: float  # mean of the batches; as many as rows where these are not packed
    tokens_per_step: float  # the same, padding not counted
    token_share: float  # their share of a step's positions
    compile_secs: float
    steps: int  # timed
    rows_per_sec: float
    sequences_per_sec: float  # examples
    tokens_per_sec: float  # padding not counted
    flops_per_row: float
    peak_flops_per_sec: float | None  # bfloat16, of a device; None: not known for this kind
    utilization: float | None  # flops_per_row * rows_per_sec / (devices * peak_flops_per_sec)


def make_report(
    program: Program, batches: Sequence[dict[str, np.ndarray]], batches_from: str, timed: Timed
) -> StepReport:
    """Compute rates, utilization and memory from timed steps."""
    shape, rows = program.row_shape, program.phase.batch_size
    devices = program.mesh.devices
    kind = devices.flat[0].device_kind
    chip = chips.find_chip(kind)
    peak = None if chip is None else chip.device_bf16_flops_per_sec
    rows_per_sec = rows / timed.step_secs.median
    examples = float(np.mean([_count_examples(batch) for batch in batches]))
    tokens = float(np.mean([int(batch["input_mask"].sum()) for batch in batches]))
    teacher = None if program.teacher is None else program.teacher.config
    row_flops = count_row_flops(program.config, 0, teacher)
    return StepReport(
        **vars(timed),
        device_kind=kind,
        platform=devices.flat[0].platform,
        devices=devices.size,
        mesh=dict(program.mesh.shape),
        jax=jax.__version__,
        config=dataclasses.asdict(program.config),
        parameters=program.model.parameter_count,
        matmul_dtype=str(program.model.dtype),
        seq_len=shape.seq_len,
        rows_per_step=rows,
        predictions_per_row=shape.predictions,
        batches=batches_from,
        examples_per_step=examples,
        tokens_per_step=tokens,
        token_share=tokens / (rows * shape.seq_len),
        compile_secs=program.compile_secs,
        steps=timed.group_steps * len(timed.group_step_secs),
        rows_per_sec=rows_per_sec,
        sequences_per_sec=examples / timed.step_secs.median,
        tokens_per_sec=tokens / timed.step_secs.median,
        flops_per_row=row_flops,
        peak_flops_per_sec=peak,
        utilization=peak and row_flops * rows_per_sec / (devices.size * peak),
    )


def _count_examples(batch: dict[str, np.ndarray]) -> int:
    """Count the examples of a batch: each row's are numbered from 1."""
    if "example_ids" not in batch:
        return len(batch["input_ids"])
    return int(batch["example_ids"].max(axis=1).sum())


def format_report(result: StepReport) -> Rows:
    """Describe a measurement: labels and texts for the screen."""
    ms = {name: 1e3 * secs for name, secs in dataclasses.asdict(result.step_secs).items()}
    groups = len(result.group_step_secs)
    spread = (
        f"{ms['median']:,.2f} ms, the middle half from {ms['lower_quartile']:,.2f} to "
        f"{ms['upper_quartile']:,.2f}, all from {ms['least']:,.2f} to {ms['most']:,.2f}"
    )
    compiled = f"{result.compile_secs:,.1f} s; the first step took {result.first_step_secs:,.2f} s"
    pace = f"{result.sequences_per_sec:,.1f} sequences, {result.tokens_per_sec:,.0f} tokens"
    memory = f"{result.peak_memory_bytes / 1e9:,.2f} GB on a device"
    if result.peak_memory_by == BY_DEVICE:
        memory += " at most since the start, as the device counts it"
    else:
        memory += " in the step by the compiler's own account: this platform does not count it"
    return [
        ("compiled in", compiled),
        ("a step", spread),
        ("", f"{result.steps:,} steps in {groups} groups, by the mean step of each"),
        ("a second", f"{pace} without padding"),
        *_utilization(result),
        ("memory", memory),
    ]


def _utilization(result: StepReport) -> Rows:
    spent = f"{result.flops_per_row / 1e9:,.2f} GFLOP a row x {result.rows_per_sec:,.1f} rows/s"
    formula = ("", f"FLOP of a row: {flops.FORMULA}")
    if result.peak_flops_per_sec is None or result.utilization is None:
        done = result.flops_per_row * result.rows_per_sec / 1e12
        return [
            ("utilization", f"left out: the peak of {result.device_kind!r} is not known"),
            ("", f"{spent} = {done:,.3f} TFLOP/s"),
            formula,
        ]
    rate = f"{result.peak_flops_per_sec / 1e12:,.1f} TFLOP/s"
    peak = f"{result.devices} x {rate}, the bfloat16 peak of {result.device_kind}"
    return [("utilization", f"{result.utilization:.1%} = {spent} / ({peak})"), formula]
