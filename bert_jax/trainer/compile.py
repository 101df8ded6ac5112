"""Compile the training and evaluation steps of each phase, on demand or ahead in a thread.

`build_parts` builds mesh, model and optimizer; `lower_step` traces the step. Training,
bert_jax.benchmark and bert_jax.plan all compile through these two. Compiled programs are cached in
the workdir for later starts. `settle_kernels` checks the attention kernels of a run at their first
use, and turns off kernels that are wrong on these devices.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax.config import ModelConfig, RunConfig
from bert_jax.logging.console import Screen
from bert_jax.model import attention, bert
from bert_jax.model.attention import verify
from bert_jax.model.attention.verify import AttentionShape
from bert_jax.monitoring.rules import Finding
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.runtime.workdir import COMPILED
from bert_jax.train_step import mup, optimizers
from bert_jax.train_step import state as state_lib
from bert_jax.train_step import step as step_lib
from bert_jax.train_step.objectives import Objective
from bert_jax.train_step.schedule import Pace
from bert_jax.train_step.state import TrainState
from bert_jax.trainer.feed import BatchShape, Feed, HostBatch, RunPhase, find_shape
from bert_jax.trainer.prefetch import PlacedBatch
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address, use_one_driver

SOUND = "sound"  # result of a kernel's check if it is right
_KERNELS = (attention.KERNEL, attention.FLASH, attention.CUDNN)


@dataclasses.dataclass(frozen=True)
class StepParts:
    """Hold what the steps of all phases are compiled from."""

    config: RunConfig
    objectives: Sequence[Objective]  # one for each phase
    mesh: Mesh
    models: Sequence[bert.Model]  # one for each phase: the same parameters, fewer if pruned
    tx: optax.GradientTransformationExtraArgs
    teacher: bert.Model | None = None  # distillation objectives have one
    # Kernel and shape -> result of the check on these devices: SOUND or a difference.
    kernels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    attention: str = ""  # replaces config.compute.attention if a kernel is wrong; "" otherwise

    @property
    def model(self) -> bert.Model:
        """Return the model of the last phase."""
        return self.models[-1]

    @property
    def untrained(self) -> tuple[str, ...]:
        """Return the parts of the model that no phase trains."""
        first, *others = self.objectives
        return tuple(
            part for part in first.untrained if all(part in each.untrained for each in others)
        )

    @property
    def abstract_frozen(self) -> tuple[bert.Params, ...]:
        """Return shapes, dtypes and shardings of the teacher's parameters, () without one."""
        if self.teacher is None:
            return ()
        frozen = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.teacher.abstract_params,
            state_lib.shard_params(self.teacher, self.mesh, self.config.mesh),
        )
        return (frozen,)

    @property
    def shardings(self) -> TrainState:
        """Return a NamedSharding for each array of the last phase's state."""
        return self.shard_phase(-1)

    def shard_phase(self, index: int) -> TrainState:
        """Return a NamedSharding for each array of the state in a phase."""
        model, mesh = self.models[index], self.mesh
        with jax.set_mesh(mesh):  # the current mesh is thread-local
            return state_lib.make_shardings(model, self.tx, mesh, self.config.mesh)

    def state_in_phase(self, index: int) -> TrainState:
        """Return shapes, dtypes and shardings of the state in a phase, to compile for."""
        model, shardings = self.models[index], self.shard_phase(index)
        return state_lib.make_abstract_state(model, self.tx, shardings)

    def state_at(self, step: int) -> TrainState:
        """Return shapes, dtypes and shardings of the state after a step, to restore into."""
        return self.state_in_phase(config_lib.phase_of_step(self.config, step))


def build_parts(
    config: RunConfig,
    objectives: Sequence[Objective],
    heads: bert.Heads | None = None,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    teacher: ModelConfig | None = None,
    attention: str | None = None,
) -> StepParts:
    """Build mesh, model and optimizer, by default on all devices and for this process's platform.

    `objectives` has one per phase; heads default to the heads of the first. Of a teacher only the
    encoder is built, and the masked language model's head if an objective asks for it.
    `attention` replaces config.compute.attention.

    Raises Refused if the batch or the model does not divide evenly over the devices.
    """
    device_count = jax.device_count() if devices is None else len(devices)
    mesh_lib.check_divides(config, device_count, teacher)
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    backend = jax.default_backend() if backend is None else backend
    compute = config.compute
    if attention is not None:
        compute = dataclasses.replace(compute, attention=attention)
    with jax.set_mesh(mesh):
        heads = heads or objectives[0].heads
        models = [
            bert.build(
                config_lib.model_in_phase(config, index),
                backend,
                mesh.shape["model"],
                compute,
                heads,
            )
            for index in range(len(config.phases))
        ]
        teacher_model = None
        if teacher is not None:
            needs_mlm = any(objective.reads_teacher_mlm for objective in objectives)
            read = bert.Heads(mlm=needs_mlm, nsp=False, pooler=False)
            teacher_model = bert.build(teacher, backend, mesh.shape["model"], compute, read)
        ahead = objectives[0].ahead
        tx = optimizers.make_optimizer(
            config.optim, mup.find_scales(config), ahead.part if ahead else ""
        )
    return StepParts(config, objectives, mesh, models, tx, teacher_model)


def lower_step(parts: StepParts, index: int, batch: BatchShape) -> jax.stages.Lowered:
    """Lower the training step of a phase for batches of this shape; call .compile() on the result.

    See make_train_step in train_step/step.py for the arguments and results of the program.
    """
    shardings, state = parts.shard_phase(index), parts.state_in_phase(index)
    take_step = step_lib.make_train_step(
        parts.models[index],
        parts.objectives[index],
        parts.tx,
        parts.config,
        parts.config.phases[index],
        shardings,
        parts.teacher,
    )
    placed = mesh_lib.abstract_batch(batch, parts.mesh)
    whole = shardings.step  # a copy on each device
    pace = Pace(
        jax.ShapeDtypeStruct((), jnp.float32, sharding=whole),
        jax.ShapeDtypeStruct((), jnp.bool_, sharding=whole),
    )
    arguments = state, placed, pace, *parts.abstract_frozen
    with jax.set_mesh(parts.mesh):
        return take_step.lower(*arguments)


def compiles_ahead(mesh: Mesh) -> bool:
    """Return whether one phase may be compiled while another trains.

    False on GPUs, where concurrent steps distort XLA's timing of kernels, and on CPUs with several
    processes, where compiling blocks the threads that exchange gradients: a deadlock.
    """
    platform = mesh.devices.flat[0].platform
    return bool(platform == "tpu" or (platform == "cpu" and jax.process_count() == 1))


_Key = tuple[int, tuple[int, ...]]  # phase index, shape of a batch's input_ids


class Programs:
    """Compile and keep the steps and evaluations of a run, by phase index. Must be closed."""

    def __init__(self, parts: StepParts, feed: Feed, phases: Sequence[RunPhase]) -> None:
        self._parts, self._feed, self._phases = parts, feed, phases
        self._thread = ThreadPoolExecutor(1, "compiling")
        self._ahead: dict[int, Future[None]] = {}
        self._steps: dict[_Key, jax.stages.Compiled] = {}
        self._evaluations: dict[_Key, jax.stages.Compiled] = {}

    def begin(self, index: int) -> None:
        """Start compiling a phase in the background, once; do nothing if no such phase exists."""
        is_new = index < len(self._phases) and index not in self._ahead
        if is_new and compiles_ahead(self._parts.mesh):
            self._ahead[index] = self._thread.submit(self._compile, index)

    def is_ready(self, index: int) -> bool:
        """Return whether a phase's step was compiled ahead."""
        return index in self._ahead and self._ahead[index].done()

    def compile_steps(
        self, index: int, first_step: int, report: Callable[[str], object] = lambda words: None
    ) -> None:
        """Compile a phase's training steps, one per batch shape from the given step on.

        `report` receives a text for each shape if there are several. Errors of background compiles
        are raised here.
        """
        if index in self._ahead:
            self._ahead[index].result()
        shapes = self._feed.batch_shapes(index, first_step)
        for done, shape in enumerate(shapes):
            if len(shapes) > 1:
                report(f" for {shape['input_ids'][0][-1]} tokens ({done + 1} of {len(shapes)})")
            if (index, shape["input_ids"][0]) not in self._steps:
                self._compile_step(index, shape)

    def step(self, index: int, batch: PlacedBatch) -> jax.stages.Compiled:
        """Return the compiled train step for a batch of this shape; see lower_step."""
        return self._steps[index, batch["input_ids"].shape]

    def compile_evaluations(self, index: int) -> None:
        """Compile the evaluations of a phase, one per held-out batch shape."""
        if index in self._ahead:
            self._ahead[index].result()
        for batch in self._phases[index].heldout_batches:
            self._compile_evaluation(index, batch)

    def evaluation(self, index: int, batch: PlacedBatch) -> jax.stages.Compiled:
        """Return the compiled evaluation for a batch of this shape; see step.make_eval_step."""
        return self._evaluations[index, batch["input_ids"].shape]

    def _compile(self, index: int) -> None:
        for shape in self._feed.batch_shapes(index, first_step=0):
            self._compile_step(index, shape)
        for batch in self._phases[index].heldout_batches:
            self._compile_evaluation(index, batch)

    def _compile_step(self, index: int, shape: BatchShape) -> None:
        self._steps[index, shape["input_ids"][0]] = lower_step(self._parts, index, shape).compile()

    def _compile_evaluation(self, index: int, batch: HostBatch) -> None:
        parts, key = self._parts, (index, batch["input_ids"].shape)
        if key in self._evaluations:
            return
        placed = mesh_lib.abstract_batch(find_shape(batch), parts.mesh)
        params = parts.state_in_phase(index).params
        arguments = params, placed, *parts.abstract_frozen
        evaluate = step_lib.make_eval_step(
            parts.models[index], parts.objectives[index], parts.teacher
        )
        with jax.set_mesh(parts.mesh):  # the current mesh is thread-local
            self._evaluations[key] = evaluate.lower(*arguments).compile()

    def close(self) -> bool:
        """Start no further compile; return whether one is still running (it cannot be stopped)."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        return any(not future.done() for future in self._ahead.values())


MAX_BYTES = 4 * 2**30  # cache size enforced at each start; the oldest programs are deleted first


def keep_in(workdir: pathlib.Path, is_writer: bool) -> None:
    """Set jax's compilation cache to a folder in the workdir.

    Only the writer, process 0, deletes old programs, as jax writes the cache in that process alone.
    JAX_COMPILATION_CACHE_DIR overrides the folder, and may be a gs:// address;
    JAX_ENABLE_COMPILATION_CACHE=false disables it.
    """
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return
    if settings.jax_compilation_cache_dir:
        if is_address(settings.jax_compilation_cache_dir):
            use_one_driver()
        return
    folder = workdir / COMPILED
    if is_writer:
        _delete_oldest(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default jax caches no program that compiles in under a second. A restore compiles a
    # fingerprint program per array shape: uncached, over half of its time (docs/results/faults.md).
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # jax has already checked whether a cache is configured, and would not check again.
    compilation_cache.reset_cache()


def _delete_oldest(folder: pathlib.Path) -> None:
    programs = []
    for path in folder.glob("*-cache"):  # jax's names for cached programs
        with contextlib.suppress(FileNotFoundError):  # deleted by another run
            status = path.stat()
            programs.append((status.st_mtime_ns, status.st_size, path))
    kept_bytes = 0
    for _, size_bytes, path in sorted(programs, reverse=True):
        kept_bytes += size_bytes
        if kept_bytes > MAX_BYTES:
            path.unlink(missing_ok=True)


def settle_kernels(
    build: Callable[..., StepParts], record: Mapping[str, Any] | None, screen: Screen
) -> tuple[StepParts, list[Finding]]:
    """Check the attention kernels of a run, and build its parts without those that are wrong.

    `build` is build_parts with the arguments of the run, except `attention`.
    `record` is the record of the run to resume; kernels with a result there are not checked again.
    Every process must call this. Returns the parts, and a finding if a kernel was replaced.

    Raises:
      Refused: a kernel is wrong, and config.compute.attention requires it, or the rows are too
        long for plain attention.
    """
    parts, known = build(), dict((record or {}).get(run_record.KERNELS, {}))
    used = find_kernels(parts)
    for key, (kernel, shape) in used.items():
        if key not in known:
            with screen.spinning(f"checking {kernel} on these devices"):
                check = verify.check_kernel(kernel, shape, parts.mesh)
            known[key] = SOUND if check.is_sound else check.describe()
    wrong = {key: known[key] for key in used if known[key] != SOUND}
    if not wrong:
        return dataclasses.replace(parts, kernels=known), []
    reference = attention.find_reference(parts.model.config)
    longest = max(used[key][1].seq_len for key in wrong)
    problem = "; ".join(wrong.values())
    if parts.config.compute.attention == "kernel":
        raise Refused(
            f"config.compute.attention is 'kernel', but on these devices it differs from the "
            f"reference: {problem}; set it to auto, which takes {reference}"
        )
    if reference == attention.PLAIN and longest > attention.LONG_ROW:
        raise Refused(
            f"on these devices a kernel differs from the reference: {problem}; its rows of "
            f"{longest} tokens do not fit plain attention: set "
            "config.model.attention_probs_dropout_prob=0.0, so that block attention computes them, "
            "or config.compute.attention=plain to try"
        )
    finding = Finding(
        "kernel_differs",
        0,
        f"On these devices a kernel differs from the reference: {problem}.",
        f"This run takes {reference} instead, which is slower; report this with run.json.",
    )
    parts = dataclasses.replace(build(attention=reference), kernels=known, attention=reference)
    return parts, [finding]


def find_kernels(parts: StepParts) -> dict[str, tuple[str, AttentionShape]]:
    """Find the kernels that a run calls: description -> (kernel, shape of its rows)."""
    setting, device = parts.config.compute.attention, parts.mesh.devices.flat[0].device_kind
    teacher = parts.teacher.config if parts.teacher else None
    kernels = {}
    for index, phase in enumerate(parts.config.phases):
        encoder = config_lib.model_in_phase(parts.config, index)
        for model in filter(None, (encoder, encoder.generator, teacher)):
            rows = (phase.seq_len, model, parts.model.dtype)
            for kernel, shape in find_kernels_of(setting, parts.mesh, *rows):
                key = f"{kernel} on {device}, {shape.describe()}"
                if shape.rate or key not in kernels:  # dropout is checked in addition
                    kernels[key] = (kernel, shape)
    return kernels


def find_kernels_of(
    setting: str, mesh: Mesh, seq_len: int, model: ModelConfig, dtype: jnp.dtype
) -> list[tuple[str, AttentionShape]]:
    """Return the kernels that one encoder uses at one row length, each with its AttentionShape.

    Evaluation is included: it has no dropout and may use a kernel that training does not.
    """
    shapes: dict[tuple[str, int], AttentionShape] = {}
    for rate in (model.attention_probs_dropout_prob, 0.0):
        choice = choose_attention(setting, mesh, seq_len, model, dtype, has_dropout=rate > 0)
        kinds = [(choice.complete, 0)]
        if model.global_attn_every_n_layers > 1:
            kinds.append((choice.window, model.local_attention))
        for kernel, window in kinds:
            if kernel in _KERNELS:
                shape = _describe_shape(model, seq_len, window, rate)
                shapes.setdefault((kernel, window), shape)
    return [(kernel, shape) for (kernel, _), shape in shapes.items()]


def choose_attention(
    setting: str,
    mesh: Mesh,
    seq_len: int,
    model: ModelConfig,
    dtype: jnp.dtype,
    has_dropout: bool | None = None,
) -> attention.Choice:
    """Choose the implementations of attention on a mesh; see attention.choose."""
    device, model_size = mesh.devices.flat[0].device_kind, mesh.shape["model"]
    return attention.choose(setting, device, seq_len, model, dtype, model_size, has_dropout)


def _describe_shape(model: ModelConfig, seq_len: int, window: int, rate: float) -> AttentionShape:
    """Return the attention shape of the layers with this window; 0 is full attention."""
    theta = 0.0
    if model.position_embedding_type == "rotary":
        theta = model.local_rope_theta if window else model.global_rope_theta
    return AttentionShape(
        seq_len,
        model.num_attention_heads,
        model.hidden_size // model.num_attention_heads,
        window,
        model.is_causal,
        rate,
        theta,
    )
