"""The real training step of a phase, compiled for a TPU slice on a machine without one."""

import dataclasses
import math
import re
import time
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import mesh as mesh_lib
from bert_jax import optim, state, step
from bert_jax.config import Config
from bert_jax.models import bert
from bert_jax.objectives import Objective
from bert_jax.slices import Slice

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TOO_LARGE = (
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a step holds in the memory of one chip, in bytes."""

    parameters: int
    optimizer: int
    batch: int
    temporaries: int  # activations, gradients, what is gathered
    program: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.program


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step that fits."""

    text: (
        str | None
    )  # of the compiled program, with its schedule; None where jaxlib cannot print it
    memory: Memory
    mesh: dict[str, int]
    coordinates: list[tuple[int, ...]]  # of the chip of each device of a slice, as the text counts
    parameters: int
    matmul_dtype: str
    compile_secs: float


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """A step that does not fit, as the compiler says; bytes of one chip."""

    needed: int
    available: int


def compile_step(
    config: Config, index: int, objective: Objective, of: Slice, devices: Sequence[Any]
) -> Compiled | TooLarge:
    """Compile the step of a phase; devices are those of the slice.

    Raises:
      ValueError: the batch or the model does not divide over the devices.
    """
    mesh_lib.check(config, len(devices))
    mesh = mesh_lib.make(config.mesh, devices)
    phase = config.phases[index]
    start = time.perf_counter()
    with jax.set_mesh(mesh):
        model = bert.build(config.model, "tpu", mesh.shape["model"], config.compute)
        tx = optim.optimizer(config.optim)
        where = state.layout(model, tx, mesh, config.mesh)
        first = state.abstract(model, tx, where)
        batch = step.abstract_batch(config, phase, mesh)
        take: Any = step.train_step(model, objective, tx, config, phase, where)
        try:
            compiled = take.lower(first, batch).compile()
        except jax.errors.JaxRuntimeError as error:
            return _too_large(error, of.chip.devices_per_chip)
    used = compiled.memory_analysis()
    per_chip = of.chip.devices_per_chip
    memory = Memory(
        parameters=per_chip * _held_bytes(first.params),
        optimizer=per_chip * _held_bytes((first.step, first.opt_state)),
        batch=per_chip * _held_bytes(batch),
        temporaries=per_chip
        * (used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes),
        program=per_chip * used.generated_code_size_in_bytes,
    )
    in_a_slice = list(mesh.devices.flat)[: len(devices) // of.num_slices]
    return Compiled(
        text=_text(compiled),
        memory=memory,
        mesh=dict(mesh.shape),
        coordinates=[tuple(device.coords[: len(of.dims)]) for device in in_a_slice],
        parameters=model.parameter_count,
        matmul_dtype=str(model.dtype),
        compile_secs=time.perf_counter() - start,
    )


def _text(compiled: jax.stages.Compiled) -> str | None:
    """The compiled text; jaxlib 0.10 and 0.12 refuse the asynchronous updates of some chips'."""
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        if "async-update" not in str(error):
            raise
        return None


def _held_bytes(tree: Any) -> int:
    """Bytes that one device holds of abstract arrays."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _too_large(error: jax.errors.JaxRuntimeError, devices_per_chip: int) -> TooLarge:
    """What the compiler says of memory; another error is raised again."""
    for pattern in _TOO_LARGE:
        if found := pattern.search(str(error)):
            needed, needed_unit, available, available_unit = found.groups()
            return TooLarge(
                round(float(needed) * _UNITS[needed_unit]) * devices_per_chip,
                round(float(available) * _UNITS[available_unit]) * devices_per_chip,
            )
    raise error
