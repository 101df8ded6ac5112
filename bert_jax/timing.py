"""Compiles the training step of a phase, takes it many times, and says how long that lasted.

It is the step that bert_jax.loop takes: optimiser and dropout included, the state donated. Batches
lie on the devices beforehand, so what makes them is not part of it. Steps are timed in groups: the
host gives a group to the devices, then waits for the end of the group before, so that they are
never idle while it looks at the clock.
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import mesh as mesh_lib
from bert_jax import optim, state, step
from bert_jax.config import Config, Phase
from bert_jax.models import bert
from bert_jax.objectives import Objective
from data_pipeline.schema import RowShape, row_shape

GROUPS, LEAST_STEPS = 20, 5  # quartiles want some groups, and a group a step at least
_WARM_UP_STEPS = 2  # after the first one, before it is known how many steps make a group


@dataclasses.dataclass(frozen=True)
class Length:
    """How long to measure: so many steps, or, where steps is 0, about so many seconds."""

    steps: int
    secs: float

    def groups(self, step_secs: float) -> tuple[int, int]:
        """How many groups, and how many steps in each, when a step takes about so long."""
        steps = self.steps or max(LEAST_STEPS, round(self.secs / max(step_secs, 1e-9)))
        groups = min(steps, GROUPS)
        return groups, steps // groups


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled step, and what a state and batches for it are made of."""

    config: Config
    model: bert.Model
    mesh: jax.sharding.Mesh
    first_state: Callable[[], state.TrainState]
    take: Callable[[state.TrainState, Any], tuple[state.TrainState, Any]]
    compile_secs: float
    memory_bytes: int  # on a device at most, by the compiler's own account

    @property
    def phase(self) -> Phase:
        return self.config.phases[0]

    @property
    def row_shape(self) -> RowShape:
        """What a row of its batches holds at most."""
        return row_shape(self.config.data, self.phase.seq_len, self.phase.max_predictions_per_seq)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Least, quartiles and most of some numbers."""

    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """Of one number or more; between two of them it lies on the line that joins them."""
        return cls(*(float(at) for at in np.percentile(numbers, (0, 25, 50, 75, 100))))


@dataclasses.dataclass(frozen=True)
class Timed:
    """What steps took."""

    first_step_secs: float  # already compiled
    group_steps: int
    group_step_secs: tuple[float, ...]  # the mean of each group
    step_secs: Spread  # of these means
    peak_memory_bytes: int | None  # of the process on one device; None where that is not told


def compile_step(
    config: Config, objective: Objective, devices: Sequence[jax.Device] | None = None
) -> Program:
    """Compile the step of the only phase of a config, on all devices unless some are given.

    Raises:
      ValueError: the batch or the model does not divide over the devices.
      MemoryError: the step needs more memory than a device has.
    """
    mesh_lib.check(config, jax.device_count() if devices is None else len(devices))
    mesh = mesh_lib.make(config.mesh, devices)
    jax.set_mesh(mesh)
    (phase,) = config.phases
    model = bert.build(config.model, jax.default_backend(), mesh.shape["model"], config.compute)
    tx = optim.optimizer(config.optim)
    where = state.layout(model, tx, mesh, config.mesh)
    take = step.train_step(model, objective, tx, config, phase, where)
    arguments = state.abstract(model, tx, where), step.abstract_batch(config, phase, mesh)
    start = time.perf_counter()
    try:
        compiled = take.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        raise _as_memory_error(error, config) from error
    compile_secs = time.perf_counter() - start
    used: Any = compiled.memory_analysis()  # CPUs, GPUs and TPUs all have one
    memory_bytes = (
        used.argument_size_in_bytes
        + used.output_size_in_bytes
        - used.alias_size_in_bytes
        + used.temp_size_in_bytes
    )
    _check_fits(memory_bytes, config)
    return Program(
        config=config,
        model=model,
        mesh=mesh,
        first_state=lambda: state.init(model, tx, where, config.seed),
        take=compiled,
        compile_secs=compile_secs,
        memory_bytes=memory_bytes,
    )


def measure(
    program: Program,
    batches: Sequence[dict[str, np.ndarray]],
    length: Length,
    tell: Callable[[str], None] = lambda words: None,
) -> Timed:
    """Take steps on these batches, over and over, and time them in groups.

    `tell` is told now and then how far it is.

    Raises:
      MemoryError: state, batches and step together do not fit.
    """
    try:
        placed = [mesh_lib.place(batch, program.mesh) for batch in batches]
        return _measure(program, itertools.cycle(placed), length, tell)
    except jax.errors.JaxRuntimeError as error:
        raise _as_memory_error(error, program.config) from error


def _measure(
    program: Program, batches: Iterator[Any], length: Length, tell: Callable[[str], None]
) -> Timed:
    now = program.first_state()
    jax.block_until_ready(now)

    def give(steps: int) -> Any:
        """Give steps to the devices; what to wait for to know that they are done."""
        nonlocal now
        for batch in itertools.islice(batches, steps):
            now, sums = program.take(now, batch)
        return sums

    start = time.perf_counter()
    jax.block_until_ready(give(1))
    first_step_secs = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(give(_WARM_UP_STEPS))
    groups, group_steps = length.groups((time.perf_counter() - start) / _WARM_UP_STEPS)

    ends = [time.perf_counter()]
    coming = give(group_steps)
    for group in range(1, groups + 1):
        before = coming
        if group < groups:
            coming = give(group_steps)
        jax.block_until_ready(before)
        ends.append(time.perf_counter())
        tell(f"timed {group * group_steps:,} of {groups * group_steps:,} steps")
    group_step_secs = tuple(float(secs) / group_steps for secs in np.diff(ends))
    return Timed(
        first_step_secs=first_step_secs,
        group_steps=group_steps,
        group_step_secs=group_step_secs,
        step_secs=Spread.of(group_step_secs),
        peak_memory_bytes=_peak_memory_bytes(program.mesh.local_devices),
    )


def _peak_memory_bytes(devices: Sequence[jax.Device]) -> int | None:
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    known = [int(peak) for peak in peaks if peak is not None]
    return max(known, default=None)


def device_memory_bytes(device: jax.Device) -> int | None:
    """The memory that a program may use on a device; None where the platform does not tell.

    Devices of a CPU share the machine's.
    """
    if device.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // jax.local_device_count()
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def _check_fits(memory_bytes: int, config: Config) -> None:
    limit = device_memory_bytes(jax.devices()[0])
    if limit is not None and memory_bytes > limit:
        raise MemoryError(
            f"{_asked_for(config)} needs {memory_bytes / 1e9:.1f} GB on a device by the compiler's "
            f"account, and {jax.devices()[0].device_kind} has {limit / 1e9:.1f} GB; {_WAY_OUT}"
        )


_WAY_OUT = (
    "take a smaller batch, or more config.phases[0].micro_batches of it, or cut the state over "
    "more devices (config.mesh.preset)"
)


def _asked_for(config: Config) -> str:
    phase = config.phases[0]
    return f"a step of {phase.batch_size:,} rows of {phase.seq_len}"


def _as_memory_error(error: jax.errors.JaxRuntimeError, config: Config) -> Exception:
    """The error as one sentence if memory is what lacks; itself if not."""
    said = " ".join(str(error).split())
    if not any(words in said for words in ("RESOURCE_EXHAUSTED", "Out of memory", "HbmOom")):
        return error
    return MemoryError(
        f"{_asked_for(config)} does not fit in the memory of {jax.devices()[0].device_kind} "
        f"({said[:200]}); {_WAY_OUT}"
    )
