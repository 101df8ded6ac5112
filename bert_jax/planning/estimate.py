"""Estimate a phase on a slice: whether it fits, its step time, or else settings that would fit."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import RELATION_DISTILLATION, Config, ModelConfig
from bert_jax.model import attention, bert, flops
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import chip_prices, hlo_cost
from bert_jax.planning.aot_compile import Compiled, Memory, TooLarge
from bert_jax.planning.hlo_cost import Traffic
from bert_jax.planning.slices import Slice
from bert_jax.train_step.objectives.rtd import GENERATOR_SCOPE
from bert_jax.train_step.step import TEACHER_SCOPE

# Compiles a phase of a config; the words for the screen name it.
Compile = Callable[[Config, str], Compiled | TooLarge]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Hold an unmeasured estimate of a step, from the compiler."""

    step_secs: float
    work_secs: float
    kernel_secs: float  # the part of work_secs in kernels
    exposed_secs: float  # waiting for collectives, added to the work
    cycles: float  # cycles of work_secs
    rows_per_sec_per_chip: float
    peak_share: float
    kernel_calls: dict[str, int]
    kernel_cycles: dict[str, float]  # cycles per call
    unpriced_kernels: dict[str, int]  # calls of kernels without a known price, counted as 0
    collectives: list[Traffic]


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Hold other settings for a phase, with the result of their compile."""

    settings: dict[str, Any]  # flag -> value
    fits: bool
    memory_bytes: int  # one chip's; the minimum needed if it does not fit
    step_secs: float | None


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """Hold the plan of a phase on a slice."""

    seq_len: int
    steps: int
    rows_per_step: int
    rows_per_chip: float
    micro_batches: int
    flops_per_row: float
    attention: str
    fits: bool
    available_bytes: int  # one chip's memory for programs
    memory: Memory | None  # one chip's; None if the phase does not fit
    needed_bytes: int  # the minimum on one chip
    estimate: Estimate | None
    alternatives: list[Alternative]
    compile_secs: float


def estimate_step(
    config: Config,
    index: int,
    tpu_slice: Slice,
    compiled: Compiled,
    teacher: ModelConfig | None = None,
) -> Estimate:
    """Price a compiled step of a phase."""
    kernels = _find_kernel_cycles(config, index, tpu_slice, compiled, teacher)
    cost = hlo_cost.price(compiled.text, tpu_slice, compiled.coordinates, kernels)
    priced = {words: cycles for words, cycles in kernels.items() if cycles is not None}
    chip = tpu_slice.chip
    secs = cost.secs(chip.clock_hz)
    rows_per_sec_per_chip = config.phases[index].batch_size / secs / tpu_slice.chips
    flops_per_sec_per_chip = count_row_flops(config, index, teacher) * rows_per_sec_per_chip
    return Estimate(
        step_secs=secs,
        work_secs=cost.cycles / chip.clock_hz,
        kernel_secs=cost.kernel_cycles / chip.clock_hz,
        exposed_secs=cost.exposed_secs,
        cycles=cost.cycles,
        rows_per_sec_per_chip=rows_per_sec_per_chip,
        peak_share=flops_per_sec_per_chip / chip.bf16_flops_per_sec,
        kernel_calls=dict(cost.kernel_calls),
        kernel_cycles=priced if cost.kernel_calls else {},
        unpriced_kernels=dict(cost.unpriced_calls),
        collectives=sorted(cost.traffic.values(), key=lambda traffic: -traffic.wire_bytes),
    )


def count_row_flops(config: Config, index: int, teacher: ModelConfig | None = None) -> float:
    """Count the operations of a row in a phase: forward, backward, and forward in a teacher."""
    phase, shape = config.phases[index], config_lib.shape_in_phase(config, index)
    name = phase.objective or config.objective
    sizes = phase.seq_len, 0 if name == RELATION_DISTILLATION else shape.predictions
    model = config_lib.model_in_phase(config, index)
    own = flops.count_train_flops(model, *sizes)
    if teacher is None:
        return own
    return own + flops.count_teacher_flops(teacher, config.distill, name, *sizes)


def count_step_flops(config: Config, index: int) -> float:
    """Count the operations of a step in a phase, without a teacher."""
    return config.phases[index].batch_size * count_row_flops(config, index)


def describe_attention(config: Config, index: int, tpu_slice: Slice) -> str:
    """Describe which attention the phase takes on this slice, and why.

    Raises:
      Refused: the config demands the kernel, which does not support this phase.
    """
    return attention.choose(
        config.compute.attention,
        tpu_slice.chip.name,
        config.phases[index].seq_len,
        config_lib.model_in_phase(config, index),
        bert.resolve_dtype(config.compute, "tpu"),
        mesh_lib.mesh_shape(config.mesh, tpu_slice.devices)[-1],
    ).words


def _find_kernel_cycles(
    config: Config, index: int, tpu_slice: Slice, compiled: Compiled, teacher: ModelConfig | None
) -> dict[str, float | None]:
    """Return the cycles per call of each kernel, by words in its name; None without a price.

    A call computes the rows of a micro-batch on one device, with the heads on this device. Kernels
    of a teacher or generator have a scope in their names, and come first.
    """
    frozen = teacher and dataclasses.replace(teacher, attention_probs_dropout_prob=0.0)
    cycles: dict[str, float | None] = {}
    for scope, model in ((TEACHER_SCOPE, frozen), (GENERATOR_SCOPE, config.model.generator)):
        if model is not None:
            priced = _price_kernels(config, index, tpu_slice, compiled, model)
            cycles |= {f"{scope} {words}": price for words, price in priced.items()} | {scope: None}
    cycles |= _price_kernels(config, index, tpu_slice, compiled, config.model)
    phase = config.phases[index]
    shards = math.prod(compiled.mesh[axis] for axis in mesh_lib.BATCH_AXES)
    rows = phase.batch_size / (shards * phase.micro_batches)
    return {words: price and rows * price for words, price in cycles.items()}


def _price_kernels(
    config: Config, index: int, tpu_slice: Slice, compiled: Compiled, model: ModelConfig
) -> dict[str, float]:
    """Return the cycles per row of the kernels that a model may call, by words in their names.

    Kernels with a window come first, as their names include all words of those without a window.
    """
    shape = chip_prices.KernelShape(
        chip=tpu_slice.chip.name,
        seq_len=config.phases[index].seq_len,
        heads=model.num_attention_heads // compiled.mesh["model"],
        head_width=model.hidden_size // model.num_attention_heads,
        has_dropout=model.attention_probs_dropout_prob > 0,
    )
    flash = dataclasses.replace(shape, kernel="flash", has_dropout=False)
    window = dataclasses.replace(flash, window=model.local_attention)
    shapes = [shape, *([window] if window.window else []), flash]
    return {
        words: cycles
        for each in shapes
        for words, cycles in chip_prices.look_up_cycles(each).items()
    }


def plan_phase(
    config: Config,
    index: int,
    tpu_slice: Slice,
    compile_step: Compile,
    teacher: ModelConfig | None = None,
) -> tuple[PhasePlan, Compiled | None]:
    """Compile a phase; if it does not fit, try the nearest settings until one does.

    The second result is the step, None if it does not fit. `teacher` has the sizes of
    config.teacher, which compile_step compiles too.
    """
    phase = config.phases[index]
    result = compile_step(config, f"{phase.batch_size:,} rows of {phase.seq_len}")
    step = result if isinstance(result, Compiled) else None
    alternatives: list[Alternative] = []
    if isinstance(result, TooLarge):
        available, needed = result.available, result.needed
        alternatives = _try_alternatives(config, index, tpu_slice, compile_step, teacher)
    else:
        available, needed = tpu_slice.usable_bytes, result.memory.total
    plan = PhasePlan(
        seq_len=phase.seq_len,
        steps=phase.steps,
        rows_per_step=phase.batch_size,
        rows_per_chip=phase.batch_size / tpu_slice.chips,
        micro_batches=phase.micro_batches,
        flops_per_row=count_row_flops(config, index, teacher),
        attention=describe_attention(config, index, tpu_slice),
        fits=step is not None,
        available_bytes=available,
        memory=step.memory if step else None,
        needed_bytes=needed,
        estimate=estimate_step(config, index, tpu_slice, step, teacher) if step else None,
        alternatives=alternatives,
        compile_secs=step.compile_secs if step else 0.0,
    )
    return plan, step


def _try_alternatives(
    config: Config,
    index: int,
    tpu_slice: Slice,
    compile_step: Compile,
    teacher: ModelConfig | None,
) -> list[Alternative]:
    """Try each setting alone until the step fits; if none does, all of them together."""

    def compile_changed(settings: Mapping[str, Any]) -> Alternative:
        changed = config_lib.set_fields(config, settings)
        flags = {f"config.{key}": value for key, value in settings.items()}
        named = ", ".join(f"{name}={value}" for name, value in flags.items())
        result = compile_step(changed, f"does not fit; trying {named}")
        if isinstance(result, TooLarge):
            return Alternative(flags, False, result.needed, None)
        estimate = estimate_step(changed, index, tpu_slice, result, teacher)
        return Alternative(flags, True, result.memory.total, estimate.step_secs)

    def climb(ladder: Iterable[Mapping[str, Any]]) -> Iterator[Alternative]:
        for settings in filter(None, ladder):
            alternative = compile_changed(settings)
            yield alternative
            if alternative.fits:
                return

    *alone, together = _list_ladders(config, index, tpu_slice)
    tried = [alternative for ladder in alone for alternative in climb(ladder)]
    if not any(alternative.fits for alternative in tried):
        known = list(itertools.chain(*alone))
        tried += climb(settings for settings in together if settings not in known)
    return tried


def _list_ladders(config: Config, index: int, tpu_slice: Slice) -> list[list[dict[str, Any]]]:
    """List ladders of settings that save memory but cost time, each from most to least memory.

    {} stands for a config that already has the settings.
    """
    phase, preset = config.phases[index], config.mesh.preset
    sharded = {"mesh.preset": "zero1" if preset == "dp" else f"{preset}+zero1"}
    if {"zero1", "fsdp"} & set(mesh_lib.parse_preset(config.mesh)):
        sharded = {}
    recomputed = {"compute.remat": "layer"} if config.compute.remat == "none" else {}
    rows = phase.batch_size // mesh_lib.batch_unit(config.mesh, tpu_slice.devices, 1)
    counts = [n for n in range(phase.micro_batches + 1, rows + 1) if rows % n == 0]
    doubled = [n for n in counts if math.log2(n / phase.micro_batches).is_integer()] or counts
    parts: list[dict[str, Any]] = [{f"phases[{index}].micro_batches": n} for n in doubled]
    together = [sharded | recomputed | part for part in ({}, *parts)]
    return [[sharded], parts, [recomputed], together]
