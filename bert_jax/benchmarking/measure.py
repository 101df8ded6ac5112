"""Compile the training step of a phase, take it many times, and measure how long that lasts.

It is the step that bert_jax.trainer.loop takes: optimizer and dropout included, the state donated.
Batches are on the devices beforehand, so making them is not part of it. Steps are timed in
groups: the host gives a group to the devices, then waits for the end of the group before, so that
they are never idle while it looks at the clock.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.config import Config, ModelConfig, Phase, shape_in_phase
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel import processes
from bert_jax.train_step import schedule, state
from bert_jax.train_step.objectives import find_each
from bert_jax.trainer.compile import StepParts, build_parts, lower_step
from bert_jax.trainer.feed import StoreFeed
from data_pipeline.io import Refused
from data_pipeline.spec.schema import MIN_EXAMPLE_TOKENS, RowShape

Batch = dict[str, np.ndarray]

BY_DEVICE, BY_COMPILER = "device", "compiler"  # who counted the memory
GROUPS, MIN_STEPS = 20, 5  # most groups, and fewest steps timed
_WARM_UP_STEPS = 2  # steps after the first, before the size of a group is known
_AGREE_SECS = 600.0  # time limit to wait for process 0 after these steps


@dataclasses.dataclass(frozen=True)
class Length:
    """Hold how long to measure: so many steps, or about so many seconds if steps is 0."""

    steps: int
    secs: float

    def groups(self, step_secs: float) -> tuple[int, int]:
        """Return the number of groups, at most GROUPS, and the steps per group.

        step_secs is about the time of a step; a smaller last group is left out.
        """
        steps = self.steps or max(MIN_STEPS, round(self.secs / max(step_secs, 1e-9)))
        group_steps = -(-steps // GROUPS)
        return steps // group_steps, group_steps


@dataclasses.dataclass(frozen=True)
class Program:
    """Hold a compiled step, with its config and the functions that make its first state."""

    config: Config
    model: bert.Model
    mesh: jax.sharding.Mesh
    first_state: Callable[[], state.TrainState]
    # (state, batch, frozen parameters) -> the next state, sums of metrics
    take: Callable[..., tuple[state.TrainState, Any]]
    compile_secs: float
    memory_bytes: int  # most on a device, by the compiler's own account
    teacher: bert.Model | None = None
    first_frozen: Callable[[], tuple[bert.Params, ...]] = tuple  # parameters of the teacher

    @property
    def phase(self) -> Phase:
        return self.config.phases[0]

    @property
    def row_shape(self) -> RowShape:
        """Return the sizes of a row of its batches."""
        return shape_in_phase(self.config, 0)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Hold the minimum, quartiles and maximum of some numbers."""

    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """Summarize one number or more; quantiles are interpolated linearly."""
        return cls(*(float(value) for value in np.percentile(numbers, (0, 25, 50, 75, 100))))


@dataclasses.dataclass(frozen=True)
class Timed:
    """Hold the times of steps, and their peak memory on a device."""

    first_step_secs: float  # already compiled
    group_steps: int  # steps per group
    group_step_secs: tuple[float, ...]  # the mean step of each group
    step_secs: Spread  # spread of group_step_secs
    peak_memory_bytes: int
    peak_memory_by: str  # device: the process's most, start included; compiler: the step's account


def compile_step(
    config: Config,
    devices: Sequence[jax.Device] | None = None,
    teacher: ModelConfig | None = None,
) -> Program:
    """Compile the step of the only phase of a config, on all devices unless some are given.

    `teacher` has the sizes of config.teacher, if the run has one; its weights are random.

    Raises:
      MemoryError: the step needs more memory than a device has.
    """
    parts = build_parts(config, find_each(config), devices=devices, teacher=teacher)
    jax.set_mesh(parts.mesh)
    (phase,) = config.phases
    shape = shape_in_phase(config, 0)
    start = time.perf_counter()
    with _explain_memory(config):
        compiled = lower_step(parts, 0, shape.arrays(phase.batch_size)).compile()
    compile_secs = time.perf_counter() - start
    used: Any = compiled.memory_analysis()  # CPUs, GPUs and TPUs all have one
    memory_bytes = (
        used.argument_size_in_bytes
        + used.output_size_in_bytes
        - used.alias_size_in_bytes
        + used.temp_size_in_bytes
    )
    device = parts.mesh.local_devices[0]  # no process can ask another one's
    limit = _device_memory_bytes(device)
    if limit is not None and memory_bytes > limit:
        raise MemoryError(
            f"{_describe_step(config)} needs {memory_bytes / 1e9:.1f} GB on a device by the "
            f"compiler's account, and {device.device_kind} has {limit / 1e9:.1f} GB; {_HOW_TO_FIX}"
        )
    # All steps cost the same, and a config to be measured may have any number of them.
    pace = schedule.Pace(np.float32(config.optim.learning_rate), np.bool_(False))
    return Program(
        config=config,
        model=parts.model,
        mesh=parts.mesh,
        first_state=lambda: state.init_state(parts.model, parts.tx, parts.shardings, config.seed),
        take=lambda state, batch, *frozen: compiled(state, batch, pace, *frozen),
        compile_secs=compile_secs,
        memory_bytes=memory_bytes,
        teacher=parts.teacher,
        first_frozen=lambda: _init_frozen(parts),
    )


def _init_frozen(parts: StepParts) -> tuple[bert.Params, ...]:
    """Initialize the parameters of a teacher, () without one."""
    if parts.teacher is None:
        return ()
    params = parts.teacher.init(jax.random.key(parts.config.seed))
    shardings = state.shard_params(parts.teacher, parts.mesh, parts.config.mesh)
    return (jax.device_put(params, shardings),)


def measure(
    program: Program,
    batches: Sequence[dict[str, np.ndarray]],
    length: Length,
    report: Callable[[str], None] = lambda words: None,
) -> Timed:
    """Take steps on these batches, over and over, and time them in groups.

    Raises:
      MemoryError: state, batches and step together do not fit.
    """
    with _explain_memory(program.config):
        placed = [mesh_lib.place_batch(batch, program.mesh) for batch in batches]
        return _measure(program, itertools.cycle(placed), length, report)


def _measure(
    program: Program, batches: Iterator[Any], length: Length, report: Callable[[str], None]
) -> Timed:
    train_state = program.first_state()
    frozen = program.first_frozen()
    jax.block_until_ready((train_state, frozen))

    def dispatch(steps: int) -> Any:
        """Give steps to the devices; return an array to wait for."""
        nonlocal train_state
        for batch in itertools.islice(batches, steps):
            train_state, sums = program.take(train_state, batch, *frozen)
        return sums

    start = time.perf_counter()
    jax.block_until_ready(dispatch(1))
    first_step_secs = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(dispatch(_WARM_UP_STEPS))
    step_secs = (time.perf_counter() - start) / _WARM_UP_STEPS
    # A process that took more steps than the others would wait for them forever.
    agreed = processes.ask_first("how long a step takes", lambda: str(step_secs), _AGREE_SECS)
    groups, group_steps = length.groups(float(agreed))

    ends = [time.perf_counter()]
    pending = dispatch(group_steps)
    for group in range(1, groups + 1):
        waited_for = pending
        if group < groups:
            pending = dispatch(group_steps)
        jax.block_until_ready(waited_for)
        ends.append(time.perf_counter())
        report(f"timed {group * group_steps:,} of {groups * group_steps:,} steps")
    group_step_secs = tuple(float(secs) / group_steps for secs in np.diff(ends))
    stats = [device.memory_stats() or {} for device in program.mesh.local_devices]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    return Timed(
        first_step_secs=first_step_secs,
        group_steps=group_steps,
        group_step_secs=group_step_secs,
        step_secs=Spread.of(group_step_secs),
        peak_memory_bytes=max(peaks, default=program.memory_bytes),
        peak_memory_by=BY_DEVICE if peaks else BY_COMPILER,
    )


def count_host_bytes(limits: pathlib.Path = pathlib.Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may use: the host's, or the limit of its container."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2 and v1
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            sizes.append(int((limits / name).read_text()))
    return min(sizes)


def _device_memory_bytes(device: jax.Device) -> int | None:
    """Return the bytes that a program may use on a device; None if the platform does not tell.

    Devices of a CPU share the machine's.
    """
    if device.platform == "cpu":
        return count_host_bytes() // jax.local_device_count()
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


_HOW_TO_FIX = (
    "use a smaller batch, more config.phases[0].micro_batches, or shard the state over more "
    "devices (config.mesh.preset)"
)


def _describe_step(config: Config) -> str:
    phase = config.phases[0]
    return f"a step of {phase.batch_size:,} rows of {phase.seq_len}"


@contextlib.contextmanager
def _explain_memory(config: Config) -> Iterator[None]:
    """Turn an error about memory into one sentence; leave any other as it is."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())
        if not any(words in reason for words in ("RESOURCE_EXHAUSTED", "Out of memory", "HbmOom")):
            raise
        raise MemoryError(
            f"{_describe_step(config)} does not fit in the memory of "
            f"{jax.devices()[0].device_kind} ({reason[:200]}); {_HOW_TO_FIX}"
        ) from error


def make_batches(
    program: Program, source: StoreFeed | None, count: int, token_share: float = 1.0
) -> list[Batch]:
    """Read batches for a program, or without a store make them of synthetic tokens.

    A store with fewer rows repeats them. token_share is as in make_synthetic_batch.
    """
    rows = program.phase.batch_size
    if source is None:
        sizes = program.row_shape, rows, program.config.model.vocab_size
        return [make_synthetic_batch(*sizes, token_share, seed) for seed in range(count)]
    arrays = source.first_rows(0, count * rows)
    numbers = np.arange(count * rows) % len(arrays["input_ids"])
    return [
        {name: array[chosen] for name, array in arrays.items()}
        for chosen in np.split(numbers, count)
    ]


# How often a packed row holds 1, 2 or 3 examples: 1.75 on average, as Wikipedia's pairs at 512.
_EXAMPLES_OF_A_ROW = (0.5, 0.25, 0.25)


def make_synthetic_batch(
    shape: RowShape, rows: int, vocab_size: int, token_share: float, seed: int
) -> Batch:
    """Make a batch whose rows are filled with tokens to this share of their length.

    Masked positions are 15% of an example's tokens, as many as there are slots at most; each
    example has a next-sentence label.
    """
    rng = np.random.default_rng(seed)
    used = max(MIN_EXAMPLE_TOKENS, round(token_share * shape.seq_len))
    batch = shape.zeros(rows)
    batch["input_ids"][:, :used] = rng.integers(1, vocab_size, (rows, used))
    batch["input_mask"][:, :used] = 1
    for row in range(rows):
        ends = _choose_ends(rng, used, shape.examples)
        _fill_row(batch, row, ends, shape, rng)
    batch["masked_lm_ids"] = np.where(
        batch["masked_lm_weights"] > 0,
        rng.integers(1, vocab_size, batch["masked_lm_ids"].shape),
        0,
    ).astype(np.int32)
    return batch


def _choose_ends(rng: np.random.Generator, used: int, most_examples: int) -> list[int]:
    """Choose where the examples of a row end."""
    most = min(most_examples, len(_EXAMPLES_OF_A_ROW), used // MIN_EXAMPLE_TOKENS)
    chances = np.array(_EXAMPLES_OF_A_ROW[:most])
    examples = int(rng.choice(most, p=chances / chances.sum())) + 1
    spare = used - examples * MIN_EXAMPLE_TOKENS
    cuts = np.sort(rng.integers(0, spare + 1, examples - 1))
    extra = np.diff(cuts, prepend=0, append=spare)
    return [int(end) for end in np.cumsum(extra + MIN_EXAMPLE_TOKENS)]


def _fill_row(
    batch: Batch, row: int, ends: list[int], shape: RowShape, rng: np.random.Generator
) -> None:
    """Write segments, masks, labels and, in a packed row, positions of its examples."""
    start, slot = 0, 0
    for number, end in enumerate(ends):
        length = end - start
        batch["segment_ids"][row, start + length // 2 : end] = 1
        masks = min(max(1, round(0.15 * length)), shape.predictions - slot, length - 1)
        slots = np.s_[row, slot : slot + masks]
        batch["masked_lm_positions"][slots] = (
            start + 1 + np.sort(rng.choice(length - 1, masks, replace=False))
        )
        batch["masked_lm_weights"][slots] = 1.0
        label = row if shape.examples == 1 else (row, number)
        batch["next_sentence_labels"][label] = rng.integers(0, 2)
        batch["next_sentence_weights"][label] = 1.0
        if shape.examples > 1:
            batch["example_ids"][row, start:end] = number + 1
            batch["position_ids"][row, start:end] = np.arange(length)
            batch["cls_positions"][row, number] = start
        start, slot = end, slot + masks


# Positions of a step on one device, where neither the user nor a recipe for TPU says: 16 rows of
# 128 keep two cores busy for a fraction of a second, 64 fill a GPU.
DEFAULT_POSITIONS = {"cpu": 2048, "gpu": 8192}


def choose_phase(config: Config, seq_len: int) -> Phase:
    """Return the phase of this length, or the first with its length changed; 0: the first.

    Raises:
      Refused: the config has no phase.
    """
    if not config.phases:
        raise Refused("config.phases is (); a run needs at least one phase")
    for phase in config.phases:
        if seq_len in (0, phase.seq_len):
            return phase
    return dataclasses.replace(config.phases[0], seq_len=seq_len, max_predictions_per_seq=0)


def drop_restart(phase: Phase) -> Phase:
    """Return a phase that restarts no schedule, as a first phase has to."""
    names = [field.name for field in dataclasses.fields(Phase) if field.name.startswith("restart_")]
    return dataclasses.replace(phase, **{name: getattr(Phase, name) for name in names})


def isolate(phase: Phase) -> Phase:
    """Return a phase that restarts no schedule, and is too long for a measurement to end it."""
    return dataclasses.replace(drop_restart(phase), steps=10**9)


def set_rows(config: Config, phase: Phase, rows: int) -> Config:
    """Return a config that measures a phase alone, with this many rows per step.

    0 keeps the phase's rows on a TPU; on other devices it means a default for the device.

    Raises:
      Refused: the rows or the model do not divide over the devices.
    """
    phase, platform = isolate(phase), jax.default_backend()
    if rows:
        phase = dataclasses.replace(phase, batch_size=rows)
    elif platform in DEFAULT_POSITIONS:
        shards = mesh_lib.batch_unit(config.mesh, jax.device_count(), micro_batches=1)
        on_device = max(1, DEFAULT_POSITIONS[platform] // phase.seq_len)
        phase = dataclasses.replace(phase, batch_size=on_device * shards, micro_batches=1)
    config = dataclasses.replace(config, phases=(phase,))
    mesh_lib.check_divides(config, jax.device_count())
    return config
