"""Compile the training step of a phase for a TPU slice, on a machine without one.

A cache keeps compiled steps, so that the next question about the same step needs no compile.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile
import time
import zlib
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax.config import Config, ModelConfig
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning.slices import Slice
from bert_jax.runtime.code_version import package_versions
from bert_jax.train_step.objectives import find_each
from bert_jax.trainer.compile import StepParts, build_parts, lower_step
from bert_jax.trainer.feed import BatchShape
from data_pipeline.io.atomic import write_file
from data_pipeline.io.small_files import parse_record

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TOO_LARGE = (
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Hold the memory that a step takes on one chip, in bytes."""

    parameters: int
    optimizer: int
    batch: int
    temporaries: int  # activations, gradients, gathered weights
    program: int
    teacher: int = 0  # parameters of a frozen teacher

    @property
    def total(self) -> int:
        """Return the sum of all parts."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Describe a compiled step that fits into memory."""

    text: str  # the compiled program, with the compiler's estimates of cycles
    memory: Memory
    mesh: dict[str, int]
    coordinates: list[tuple[int, ...]]  # each device's chip, in the text's order
    parameters: int
    matmul_dtype: str
    compile_secs: float


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """Describe a step that the compiler rejected for its memory, in bytes per chip."""

    needed: int
    available: int


@dataclasses.dataclass(frozen=True)
class StepCache:
    """Keep the newest compiled steps as files in a folder; ignore damaged files."""

    folder: pathlib.Path
    most: int = 32  # steps; one of BERT-Large takes 2 MB

    def key(self, lowered: str, tpu_slice: Slice) -> str:
        """Hash everything that the result depends on."""
        names = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
        parts = [
            lowered,
            f"{tpu_slice.name} x {tpu_slice.num_slices}",
            str(package_versions(("jax", "jaxlib", "libtpu"))),
            *(os.environ.get(name, "") for name in names),
            *(field.name for field in dataclasses.fields(Compiled)),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def read(self, key: str) -> Compiled | TooLarge | None:
        """Return the step stored under a key; None if its file is missing or damaged."""
        try:
            with gzip.open(self._path(key)) as file:
                content = file.read(_MAX_CACHED_BYTES + 1)
            if len(content) > _MAX_CACHED_BYTES:
                return None
            fields = json.loads(content)
            if "needed" in fields:
                return parse_record(fields, TooLarge, key)
            return parse_record(fields, Compiled, key)
        except (OSError, EOFError, RuntimeError, zlib.error, ValueError, TypeError):
            return None

    def write(self, key: str, step: Compiled | TooLarge) -> None:
        """Store a step and delete the oldest; do nothing if the folder is not writable."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, gzip.compress(json.dumps(dataclasses.asdict(step)).encode(), 1))
            kept = sorted(path.parent.glob("*.json.gz"), key=lambda each: each.stat().st_mtime)
            for each in kept[: -self.most]:
                each.unlink(missing_ok=True)

    def _path(self, key: str) -> pathlib.Path:
        return self.folder.expanduser() / f"{key}.json.gz"


_MAX_CACHED_BYTES = 512 << 20  # unpacked; a larger file counts as damaged
STEP_CACHE = StepCache(pathlib.Path("~/.cache/bert_jax/compiled_steps"))


def compile_step(
    config: Config,
    index: int,
    tpu_slice: Slice,
    devices: Sequence[Any],
    teacher: ModelConfig | None = None,
    cache: StepCache | None = None,
) -> Compiled | TooLarge:
    """Compile the step of a phase for the devices of a slice.

    `teacher` has the sizes of config.teacher, if the run has one. A step in `cache` is
    read from there; its compile_secs are the seconds of the original compile.

    Raises:
      Refused: the batch or the model does not divide over the devices.
    """
    start = time.perf_counter()
    objectives = find_each(config)
    parts = build_parts(config, objectives, devices=devices, backend="tpu", teacher=teacher)
    shape = config_lib.shape_in_phase(config, index)
    batch = shape.arrays(config.phases[index].batch_size)
    lowered = lower_step(parts, index, batch)
    key = cache.key(lowered.as_text(), tpu_slice) if cache else ""
    kept = cache.read(key) if cache else None
    if kept is None:
        kept = _compile(lowered, parts, batch, tpu_slice)
        if isinstance(kept, Compiled):
            kept = dataclasses.replace(kept, compile_secs=time.perf_counter() - start)
        if cache:
            cache.write(key, kept)
    return kept


def _compile(
    lowered: jax.stages.Lowered, parts: StepParts, batch: BatchShape, tpu_slice: Slice
) -> Compiled | TooLarge:
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, str | bool] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        try:
            compiled: Any = lowered.compile(options)
        except jax.errors.JaxRuntimeError as error:
            return _read_too_large(error, tpu_slice.chip.devices_per_chip)
        text = _read_text(compiled, pathlib.Path(folder))
    mesh, state, used = parts.mesh, parts.state_in_phase(-1), compiled.memory_analysis()
    device_bytes = {
        "parameters": _count_stored_bytes(state.params),
        "optimizer": _count_stored_bytes((state.step, state.opt_state)),
        "batch": _count_stored_bytes(mesh_lib.abstract_batch(batch, mesh)),
        "temporaries": used.temp_size_in_bytes
        + used.output_size_in_bytes
        - used.alias_size_in_bytes,
        "program": used.generated_code_size_in_bytes,
        "teacher": _count_stored_bytes(parts.abstract_frozen),
    }
    per_chip = tpu_slice.chip.devices_per_chip
    slice_devices = list(mesh.devices.flat)[: mesh.size // tpu_slice.num_slices]
    return Compiled(
        text=text,
        memory=Memory(**{part: per_chip * size for part, size in device_bytes.items()}),
        mesh=dict(mesh.shape),
        coordinates=[tuple(device.coords[: len(tpu_slice.dims)]) for device in slice_devices],
        parameters=parts.model.parameter_count,
        matmul_dtype=str(parts.model.dtype),
        compile_secs=0.0,
    )


def _read_text(compiled: jax.stages.Compiled, folder: pathlib.Path) -> str:
    """Return the compiled text as the compiler dumped it, or as jaxlib prints it.

    jaxlib 0.10 and 0.12 refuse to print asynchronous updates, which programs for v6e contain.
    """
    dumped = next(folder.glob("*.after_codegen.txt"), None)
    return compiled.as_text() or "" if dumped is None else dumped.read_text(encoding="utf-8")


def _count_stored_bytes(tree: Any) -> int:
    """Count the bytes of abstract arrays that one device stores."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _read_too_large(error: jax.errors.JaxRuntimeError, devices_per_chip: int) -> TooLarge:
    """Read the required memory from the compiler's error; raise any other error again."""
    for pattern in _TOO_LARGE:
        if match := pattern.search(str(error)):
            needed, needed_unit, available, available_unit = match.groups()
            sizes = (needed, needed_unit), (available, available_unit)
            return TooLarge(
                *(round(float(n) * _UNITS[unit]) * devices_per_chip for n, unit in sizes)
            )
    raise error
