"""Check the parts of a machine: software, losses, links, step, input and storage."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import time
import timeit
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax.benchmarking import measure, measure_report
from bert_jax.config import Config, ModelConfig, Phase, resolve
from bert_jax.model.attention import verify
from bert_jax.parallel import chips
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import aot_compile, estimate, slices
from bert_jax.planning.aot_compile import TooLarge
from bert_jax.runtime.code_version import describe_code
from bert_jax.train_step import metrics
from bert_jax.trainer.compile import choose_attention, find_kernels_of
from bert_jax.trainer.feed import StoreFeed
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.io.address import is_address, make_install_command
from data_pipeline.io.bucket import Bucket
from data_pipeline.io.errors import explain_errors

FINE, WRONG, SKIPPED = "fine", "wrong", "skipped"
# Device files of TPUs and of NVIDIA's cards. /dev/vfio/vfio and /dev/accel are on other hosts too.
_DEVICE_FILES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*", "dev/nvidia[0-9]*")
_MEGABYTE = 10**6


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """Hold the result of a part: fine, wrong or skipped, a sentence, and the numbers behind it."""

    outcome: str
    sentence: str
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def find_accelerators(root: pathlib.Path = pathlib.Path("/")) -> list[pathlib.Path]:
    """Return the device files of this host's accelerators; needs no JAX."""
    return [path for files in _DEVICE_FILES for path in sorted(root.glob(files))]


def check_software(root: pathlib.Path = pathlib.Path("/")) -> CheckResult:
    """List versions, devices and memory; wrong if jax leaves an accelerator of this host unused."""
    code, devices = describe_code(), jax.devices()
    kind, platform = devices[0].device_kind, devices[0].platform
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    host_bytes, cores = measure.count_host_bytes(), count_cores()
    numbers = {
        **code,
        "platform": platform,
        "device_kind": kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "device_bytes": limit,
        "host_bytes": host_bytes,
        "cores": cores,
    }
    memory = f" with {limit / 2**30:.1f} GiB each" if limit else ""
    sentence = (
        f"Python {code['python']}, jax {jax.__version__}; {len(devices)} x {kind}{memory}; "
        f"{cores} cores and {host_bytes / 2**30:.0f} GiB for this process"
        f"{_describe_load()}"
    )
    unused = [str(path) for path in find_accelerators(root)]
    if platform == "cpu" and unused and not os.environ.get("JAX_PLATFORMS"):
        extra = "gpu" if "nvidia" in unused[0] else "tpu"
        return CheckResult(
            WRONG,
            f"this host has {unused[0]}, but jax runs on its CPU: {make_install_command(extra)}",
            numbers,
        )
    return CheckResult(FINE, sentence, numbers)


def _describe_load() -> str:
    """Return a warning if more processes want to run than this host has cores."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= cores:
        return ""
    return f"; the machine is busy (load {load:.0f} on {cores} cores): times are not reliable"


_STEPS = 20
_SMALL = ModelConfig(
    vocab_size=256,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=128,
)


def check_losses(devices: Sequence[jax.Device], reference: Sequence[jax.Device]) -> CheckResult:
    """Compare twenty training losses of a small model on these devices with one CPU device's.

    Dropout is on: its masks are the same everywhere.
    """
    if list(devices) == list(reference):
        return CheckResult(SKIPPED, "nothing to compare with: a CPU is the reference")
    rows = -(-8 // len(devices)) * len(devices)  # losses compare on the same rows
    losses = [_train_small(each, rows) for each in (devices, reference)]
    gaps = [abs(ours / other - 1) for ours, other in zip(*losses, strict=True)]
    numbers = {"losses": losses[0], "reference": losses[1]}
    first, worst = gaps[0], max(gaps)
    words = (
        f"{_STEPS} training losses differ from a CPU's by {worst:.1e} at most, the first by "
        f"{first:.1e}"
    )
    # bfloat16 has 8 bits: a mean of thousands of losses is off by far less, and drifts in 20 steps.
    if not (first < 2e-3 and worst < 2e-2):
        return CheckResult(WRONG, f"{words}; 2e-2 and 2e-3 are allowed", numbers)
    return CheckResult(FINE, words, numbers)


def _train_small(devices: Sequence[jax.Device], rows: int) -> list[float]:
    phase = Phase(seq_len=128, steps=10**9, batch_size=rows)
    config = resolve(Config(model=_SMALL, phases=(phase,)))
    program = measure.compile_step(config, devices)
    state, losses = program.first_state(), []
    for batch in measure.make_batches(program, None, _STEPS):
        state, sums = program.take(state, mesh_lib.place_batch(batch, program.mesh))
        means = metrics.compute_means(metrics.add_step({}, metrics.flatten(sums)))
        losses.append(means["mlm_loss"])
    return losses


def check_collectives(mesh: Mesh, megabytes: int = 64) -> CheckResult:
    """Time an all-gather and a sum over the batch axes, in bytes per second per device."""
    count = mesh_lib.batch_shards(mesh)
    if count == 1:
        return CheckResult(SKIPPED, "a batch has one shard")
    size = megabytes * _MEGABYTE // 2 // count * count
    rates = {}
    with jax.set_mesh(mesh):
        spread = jax.device_put(jnp.zeros((size,), jnp.bfloat16), mesh_lib.batch_sharding(mesh, 1))
        axes = mesh_lib.BATCH_AXES
        for name, exchange, sent in (
            ("all_gather", lambda x: jax.lax.all_gather(x, axes, tiled=True), size * 2),
            ("psum", lambda x: jax.lax.psum(x, axes), 2 * size // count * 2),
        ):
            program = jax.jit(
                jax.shard_map(
                    lambda x, exchange=exchange: jnp.sum(exchange(x).astype(jnp.float32))[None],
                    in_specs=PartitionSpec(axes),
                    out_specs=PartitionSpec(axes),
                    check_vma=False,
                )
            )
            secs = _time(program, spread)
            rates[name] = sent * (count - 1) / count / secs
    chip = chips.find_chip(mesh.devices.flat[0].device_kind)
    words = ", ".join(f"{name} {rate / 1e9:.2f} GB/s" for name, rate in rates.items())
    sentence = f"each of {mesh.size} devices sends {words}"
    if chip is None:
        return CheckResult(FINE, f"{sentence}; no data sheet of this device", rates)
    peak = min(2, chip.links) * chip.link_bytes_per_sec
    words = "two links have" if chip.links > 1 else "its links have"  # a GPU's count as one
    outcome = FINE if rates["all_gather"] > 0.25 * peak else WRONG
    return CheckResult(outcome, f"{sentence}; {words} {peak / 1e9:.0f} GB/s", rates)


def _time(program: Any, array: jax.Array) -> float:
    def run() -> None:
        jax.block_until_ready(program(array))

    run()
    return min(timeit.repeat(run, number=1))


def check_kernel(mesh: Mesh, model: ModelConfig, seq_len: int) -> CheckResult:
    """Compare each kernel for these devices with the reference, as a run does before it starts."""
    dtype = jnp.dtype("bfloat16")
    kernels = find_kernels_of("auto", mesh, seq_len, model, dtype)
    if not kernels:
        words = choose_attention("auto", mesh, seq_len, model, dtype).words
        return CheckResult(SKIPPED, words)
    made = [verify.check_kernel(kernel, shape, mesh) for kernel, shape in kernels]
    numbers = {
        check.kernel: {"errors": check.errors, "wrong_mask_bits": check.wrong_mask_bits}
        for check in made
    }
    wrong = [check for check in made if not check.is_sound]
    sentence = "; ".join(check.describe() for check in wrong or made)
    if wrong:
        advice = "a run takes another implementation; report it with this file"
        return CheckResult(WRONG, f"{sentence}; {advice}", numbers)
    return CheckResult(FINE, f"{sentence}; dropout masks are equal to the bit", numbers)


def find_slice_of(devices: Sequence[Any], num_slices: int) -> slices.Slice | None:
    """Return the slice, or joined slices, of TPU devices; None if Google offers no such slice."""
    chip = chips.find_chip(devices[0].device_kind)
    if chip is None or chip.name not in slices.SHAPES:
        return None
    axes = slices.SHAPES[chip.name][0].count("x") + 1
    dims = [max(device.coords[axis] for device in devices) + 1 for axis in range(axes)]
    name = f"{chip.name}:{'x'.join(map(str, dims))}"
    try:
        tpu_slice = slices.find_slice(name, num_slices)
    except ValueError:
        return None
    return tpu_slice if tpu_slice.devices == len(devices) else None


def check_step(config: Config, secs: float, teacher: ModelConfig | None = None) -> CheckResult:
    """Time the step of the first phase; on a TPU compare it with plan's estimate for the slice.

    `teacher` has the sizes of config.teacher, if the run has one.
    """
    program = measure.compile_step(config, teacher=teacher)
    batches = measure.make_batches(program, None, 2)
    timed = measure.measure(program, batches, measure.Length(0, secs))
    report = measure_report.make_report(program, batches, measure_report.SYNTHETIC, timed)
    median = timed.step_secs.median
    numbers: dict[str, Any] = {
        "step_secs": dataclasses.asdict(timed.step_secs),
        "rows_per_sec": report.rows_per_sec,
        "peak_share": report.utilization,
        "peak_memory_bytes": report.peak_memory_bytes,
        "compile_secs": program.compile_secs,
    }
    rows = f"{program.phase.batch_size:,} rows of {program.phase.seq_len}"
    sentence = f"{rows} take {describe_pace(median, report.rows_per_sec)}"
    if report.utilization:
        sentence += f", {report.utilization:.0%} of the peak"
    sentence += f"; compiled in {program.compile_secs:.0f} s"
    expected = _estimate_step(config, teacher)
    if expected is None:
        sentence += "; there is no estimate to compare it with"
        return CheckResult(FINE, sentence, numbers)
    numbers["estimated_step_secs"] = expected
    sentence += f"; plan estimates {1e3 * expected:,.1f} ms"
    return CheckResult(FINE if median < 1.5 * expected else WRONG, sentence, numbers)


def describe_pace(step_secs: float, rows_per_sec: float) -> str:
    """Write the time of a step and its rows per second, readable on slow machines too."""
    step = f"{1e3 * step_secs:,.1f} ms" if step_secs < 10 else f"{step_secs:,.1f} s"
    rows = f"{rows_per_sec:,.0f}" if rows_per_sec >= 10 else f"{rows_per_sec:.2g}"
    return f"{step}, {rows} rows per second"


def _estimate_step(config: Config, teacher: ModelConfig | None) -> float | None:
    devices = jax.devices()
    if devices[0].platform != "tpu":
        return None
    tpu_slice = find_slice_of(devices, config.mesh.num_slices)
    if tpu_slice is None:
        return None
    compiled = aot_compile.compile_step(config, 0, tpu_slice, devices, teacher)
    if isinstance(compiled, TooLarge):
        return None
    priced = estimate.estimate_step(config, 0, tpu_slice, compiled, teacher)
    return None if priced.unpriced_kernels else priced.step_secs


def check_input(
    config: Config, source: StoreFeed | None, step_rows_per_sec: float | None, secs: float
) -> CheckResult:
    """Compare the rate of the input pipeline on this host with the rate of the step."""
    if source is None:
        return CheckResult(SKIPPED, "no store is given: --config.data.store=STORE")
    rows = np.arange(config.phases[0].batch_size)
    batches = source.train_batches(0, 0, rows)
    try:
        next(batches)
        start, count = time.perf_counter(), 0
        for _ in batches:
            count += len(rows)
            if time.perf_counter() - start >= secs:
                break
        rate = count / (time.perf_counter() - start)
    finally:
        batches.close()
    numbers = {"rows_per_sec": rate}
    sentence = f"{rate:,.0f} rows per second from the store on this host"
    if step_rows_per_sec is None:
        return CheckResult(FINE, sentence, numbers)
    times = rate / step_rows_per_sec
    outcome = FINE if times > 1.5 else WRONG
    return CheckResult(outcome, f"{sentence}, {times:.1f} times what the step takes", numbers)


def check_storage(address: str, state_bytes: int, megabytes: int = 64) -> CheckResult:
    """Write, read and delete a file where checkpoints will be; wrong if two checkpoints do not fit.

    Raises:
      OSError: the place cannot be written or read.
    """
    data = np.random.default_rng(0).bytes(megabytes * _MEGABYTE)
    name = f"doctor-{uuid.uuid4().hex}"
    numbers: dict[str, Any] = {"checkpoint_bytes": state_bytes}
    with explain_errors(address, f"writing and reading {megabytes} MB as a test"):
        start = time.perf_counter()
        if is_address(address):
            bucket = Bucket(address)
            bucket.write(name, data)
            middle = time.perf_counter()
            try:
                is_same = bucket.read(name) == data
                end = time.perf_counter()
            finally:
                bucket.delete(name)
        else:
            folder = pathlib.Path(address)
            new = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            numbers["free_bytes"] = shutil.disk_usage(folder).free
            path = folder / name
            try:
                with path.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                middle = time.perf_counter()
                is_same = path.read_bytes() == data
                end = time.perf_counter()
            finally:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # a file of another worker is in it
                    for each in new:
                        each.rmdir()
    write, read = (len(data) / each for each in (middle - start, end - middle))
    numbers |= {"write_bytes_per_sec": write, "read_bytes_per_sec": read}
    if not is_same:
        return CheckResult(WRONG, f"{address} returns other bytes than were written", numbers)
    sentence = (
        f"{address} takes {write / 1e6:,.0f} MB/s and gives {read / 1e6:,.0f} MB/s (perhaps from "
        f"memory); a checkpoint has {state_bytes / 1e9:,.2f} GB"
    )
    free = numbers.get("free_bytes")
    if free is not None and free < 2 * state_bytes:
        return CheckResult(WRONG, f"{sentence}, and {free / 1e9:,.2f} GB are free", numbers)
    return CheckResult(FINE, sentence, numbers)
