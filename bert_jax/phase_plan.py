"""What is expected of a phase on a slice: whether it fits, its step time, what would fit."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax import attention, flops, hlo_cost, kernel_prices
from bert_jax import mesh as mesh_lib
from bert_jax.config import Config
from bert_jax.hlo_cost import Cost, Machine
from bert_jax.models import bert
from bert_jax.slices import Slice
from bert_jax.tpu_step import Compiled, Memory, TooLarge
from data_pipeline.schema import row_shape

Compile = Callable[[Config, int], Compiled | TooLarge]


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Collectives of one kind in a step; of one chip."""

    kind: str
    path: str  # links, of the slice; network, between slices
    calls: int
    result_bytes: float
    wire_bytes: float
    secs: float
    exposed_secs: float  # of these, while the chip has nothing else to do


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The compiler's estimate of a step. Nothing of it was measured."""

    step_secs: float
    work_secs: float
    kernel_secs: float  # of these, in kernels
    exposed_secs: float  # waiting for collectives, beside the work
    cycles: float  # of work
    rows_per_sec_per_chip: float
    peak_share: float
    kernel_calls: dict[str, int]
    kernel_cycles: dict[str, float]  # of a call
    unpriced_kernels: dict[str, int]  # calls of kernels that count as nothing: no price is known
    collectives: list[Collectives]


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Other settings, compiled too."""

    settings: dict[str, Any]  # by the names of flags
    fits: bool
    memory_bytes: int  # of a chip; needed at least where it does not fit
    step_secs: float | None


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """A phase on a slice."""

    seq_len: int
    steps: int
    rows_per_step: int
    rows_per_chip: float
    micro_batches: int
    flops_per_row: float
    attention: str
    fits: bool
    available_bytes: int  # of a chip, to programs
    memory: Memory | None  # of a chip; None where it does not fit
    needed_bytes: int  # of a chip, at least
    estimate: Estimate | None
    alternatives: list[Alternative]
    compile_secs: float


def estimate(config: Config, index: int, of: Slice, compiled: Compiled) -> Estimate | None:
    """Price a compiled step of a phase; None where its text cannot be read."""
    if compiled.text is None:
        return None
    phase, per_chip, at = config.phases[index], of.chip.devices_per_chip, compiled.coordinates
    machine = Machine(
        clock_hz=of.chip.clock_hz,
        hbm_bytes_per_sec=of.chip.hbm_bytes_per_sec / per_chip,
        devices=of.devices // of.num_slices,
        ring=lambda devices: of.ring([at[device] for device in devices]),
        hop=lambda pairs: of.hop([(at[sender], at[receiver]) for sender, receiver in pairs]),
        num_slices=of.num_slices,
        network_bytes_per_sec=of.chip.network_bytes_per_sec,
    )
    kernels = _kernel_cycles(config, index, of, compiled)
    cost = hlo_cost.price(compiled.text, machine, kernels)
    secs = cost.secs(machine.clock_hz)
    rows_per_sec = phase.batch_size / secs
    return Estimate(
        step_secs=secs,
        work_secs=cost.cycles / machine.clock_hz,
        kernel_secs=cost.kernel_cycles / machine.clock_hz,
        exposed_secs=cost.exposed_secs,
        cycles=cost.cycles,
        rows_per_sec_per_chip=rows_per_sec / of.chips,
        peak_share=_flops_per_row(config, index)
        * rows_per_sec
        / (of.chips * of.chip.bf16_flops_per_sec),
        kernel_calls=dict(cost.kernel_calls),
        kernel_cycles=kernels if cost.kernel_calls else {},
        unpriced_kernels=dict(cost.unpriced_calls),
        collectives=_collectives(cost),
    )


def _flops_per_row(config: Config, index: int) -> float:
    phase = config.phases[index]
    shape = row_shape(config.data, phase.seq_len, phase.max_predictions_per_seq)
    return flops.train_flops_per_row(config.model, shape.seq_len, shape.predictions)


def attention_words(config: Config, index: int, of: Slice) -> str:
    """Which attention the phase takes on this slice, and why.

    Raises:
      ValueError: the config demands the kernel, which does not take this.
    """
    model = config.model
    return attention.choose(
        config.compute.attention,
        of.chip.name,
        config.phases[index].seq_len,
        model.num_attention_heads,
        model.hidden_size // model.num_attention_heads,
        bert.compute_dtype(model, "tpu"),
        mesh_lib.shape(config.mesh, of.devices)[-1],
    ).words


def _kernel_cycles(config: Config, index: int, of: Slice, compiled: Compiled) -> dict[str, float]:
    """Cycles of a call: it does the rows of a micro-batch on a device, with that device's heads."""
    phase, model = config.phases[index], config.model
    shards = compiled.mesh["data"] * compiled.mesh["fsdp"]
    rows = phase.batch_size / (shards * phase.micro_batches)
    shape = kernel_prices.Shape(
        chip=of.chip.name,
        seq_len=phase.seq_len,
        heads=model.num_attention_heads // compiled.mesh["model"],
        head_width=model.hidden_size // model.num_attention_heads,
        has_dropout=model.attention_probs_dropout_prob > 0,
    )
    return {name: rows * cycles for name, cycles in kernel_prices.cycles_per_row(shape).items()}


def _collectives(cost: Cost) -> list[Collectives]:
    return [
        Collectives(
            kind, path, one.calls, one.result_bytes, one.wire_bytes, one.secs, one.exposed_secs
        )
        for (kind, path), one in sorted(cost.traffic.items(), key=lambda item: -item[1].wire_bytes)
    ]


def plan_phase(
    config: Config, index: int, of: Slice, compile_step: Compile, tell: Callable[[str], None]
) -> tuple[PhasePlan, Compiled | None]:
    """Compile a phase; where it does not fit, try what is nearest to it until something does.

    tell is told what is compiled. The second result is the step, where it fits.
    """
    phase = config.phases[index]
    tell(f"{phase.batch_size:,} rows of {phase.seq_len}")
    found = compile_step(config, index)
    fits = isinstance(found, Compiled)
    alternatives = [] if fits else list(_alternatives(config, index, of, compile_step, tell))
    plan = PhasePlan(
        seq_len=phase.seq_len,
        steps=phase.steps,
        rows_per_step=phase.batch_size,
        rows_per_chip=phase.batch_size / of.chips,
        micro_batches=phase.micro_batches,
        flops_per_row=_flops_per_row(config, index),
        attention=attention_words(config, index, of),
        fits=fits,
        available_bytes=found.available if isinstance(found, TooLarge) else of.usable_bytes,
        memory=found.memory if isinstance(found, Compiled) else None,
        needed_bytes=found.needed if isinstance(found, TooLarge) else found.memory.total,
        estimate=estimate(config, index, of, found) if isinstance(found, Compiled) else None,
        alternatives=alternatives,
        compile_secs=found.compile_secs if isinstance(found, Compiled) else 0.0,
    )
    return plan, found if isinstance(found, Compiled) else None


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What can make a step fit, at the price of time."""

    preset: str
    remat: str
    micro_batches: int

    def applied(self, config: Config, index: int) -> Config:
        """The config with them."""
        phases = list(config.phases)
        phases[index] = dataclasses.replace(phases[index], micro_batches=self.micro_batches)
        return dataclasses.replace(
            config,
            phases=tuple(phases),
            mesh=dataclasses.replace(config.mesh, preset=self.preset),
            compute=dataclasses.replace(config.compute, remat=self.remat),
        )

    def as_flags(self, before: "_Settings", index: int) -> dict[str, Any]:
        """Those that differ, by the flags that set them."""
        named = {
            "config.mesh.preset": (self.preset, before.preset),
            "config.compute.remat": (self.remat, before.remat),
            f"config.phases[{index}].micro_batches": (self.micro_batches, before.micro_batches),
        }
        return {name: now for name, (now, then) in named.items() if now != then}


def _alternatives(
    config: Config, index: int, of: Slice, compile_step: Compile, tell: Callable[[str], None]
) -> Iterator[Alternative]:
    """Each setting alone, until it fits; where none does, all of them together."""
    now = _Settings(config.mesh.preset, config.compute.remat, config.phases[index].micro_batches)

    def tried(settings: _Settings) -> Alternative:
        changes = settings.as_flags(now, index)
        tell("does not fit; trying " + ", ".join(f"{name}={changes[name]}" for name in changes))
        changed = settings.applied(config, index)
        found = compile_step(changed, index)
        if isinstance(found, TooLarge):
            return Alternative(changes, False, found.needed, None)
        priced = estimate(changed, index, of, found)
        secs = None if priced is None else priced.step_secs
        return Alternative(changes, True, found.memory.total, secs)

    *alone, together = _ladders(config, index, of, now)
    something_fits = False
    for ladder in alone:
        for settings in ladder:
            alternative = tried(settings)
            yield alternative
            if alternative.fits:
                something_fits = True
                break
    for settings in together:
        if something_fits:
            return
        if settings in itertools.chain(*alone):
            continue
        alternative = tried(settings)
        yield alternative
        something_fits = alternative.fits


def _ladders(config: Config, index: int, of: Slice, now: _Settings) -> Iterator[list[_Settings]]:
    """Ways to need less memory, each a list that needs less and less."""
    sharded = now.preset
    if not {"zero1", "fsdp"} & set(mesh_lib.presets(config.mesh)):
        sharded = "zero1" if now.preset == "dp" else f"{now.preset}+zero1"
        yield [dataclasses.replace(now, preset=sharded)]
    data, fsdp, _ = mesh_lib.shape(config.mesh, of.devices)
    rows = config.phases[index].batch_size // (data * fsdp)
    parts = [n for n in range(now.micro_batches + 1, rows + 1) if rows % n == 0]
    doubled = [n for n in parts if math.log2(n / now.micro_batches).is_integer()] or parts
    yield [dataclasses.replace(now, micro_batches=n) for n in doubled]
    if now.remat == "none":
        yield [dataclasses.replace(now, remat="layer")]
    yield [_Settings(sharded, "layer", n) for n in (now.micro_batches, *doubled)]
