"""Build a run and check it before anything is compiled; restore or initialize its state.

`build_setup` is for pre-training; finetuning/setup.py has its counterpart. Both use check_start and
claim_workdir.
"""

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.checkpoint.directory import NoIntactCheckpoint, check_space
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.checkpoint.reader import find_newest_step, find_run
from bert_jax.config import Config, ResolvedRun, RunConfig, StoreFacts, resolve
from bert_jax.logging import metrics_writer
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import BAD_STEPS, METRICS
from bert_jax.model import bert
from bert_jax.monitoring.rules import Finding
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel import processes
from bert_jax.runtime import goodput, history, profiler, resume, run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.profiler import Window
from bert_jax.runtime.run_record import Change, Provenance
from bert_jax.runtime.workdir import Workdir
from bert_jax.train_step import mup
from bert_jax.train_step import state as state_lib
from bert_jax.train_step.objectives import find_each
from bert_jax.train_step.state import TrainState
from bert_jax.trainer import bad_steps, fresh_start
from bert_jax.trainer.compile import StepParts, build_parts, settle_kernels
from bert_jax.trainer.feed import Feed, RunPhase, StoreFeed, open_stores, read_facts
from bert_jax.trainer.fresh_start import Trunk
from bert_jax.trainer.heldout import count_phase, describe_corpus, find_in_data
from bert_jax.trainer.readings import Progress
from data_pipeline.io import Refused, jsonl
from data_pipeline.io.small_files import parse_record
from data_pipeline.store import Store

VOCAB_SIZE = 30_522  # BERT's, where neither a store nor the config gives one


@dataclasses.dataclass(frozen=True)
class Setup:
    """Hold a run that was checked and is ready to start."""

    parts: StepParts
    feed: Feed
    input_advice: str  # what to do if the input pipeline is too slow
    phases: Sequence[RunPhase]
    initial_params: Callable[[], bert.Params]  # parameters of a run without a checkpoint
    storage: Workdir
    screen: Screen
    data_rows: Sequence[tuple[str, str]]  # (label, text) about the batches, for the first block
    profiled: Window | None  # steps to trace
    began: float  # start of setup, in seconds since 1970
    changes: Sequence[Change] = ()  # settings that differ from an earlier start of the run
    frozen: tuple[bert.Params, ...] = ()  # parameters of the teacher, if there is one
    findings: Sequence[Finding] = ()  # what looks wrong about the data
    stores: Sequence[Store] = ()  # their files are verified during the first steps
    trunk: Trunk | None = None  # the checkpoint that the run branches from
    # (state, phase index) -> state with the phase's sizes; None if all phases have the same.
    resize: Callable[[TrainState, int], TrainState] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """Return the run record's entries about untrained parts, kernel checks and the trunk."""
        record: dict[str, Any] = {run_record.UNTRAINED: list(self.parts.untrained)}
        if self.parts.kernels:
            record[run_record.KERNELS] = dict(self.parts.kernels)
        if self.trunk is not None:
            record[run_record.BRANCH] = dataclasses.asdict(self.trunk)
        return record

    @property
    def config(self) -> RunConfig:
        """Return the resolved settings of the run."""
        return self.parts.config

    @property
    def workdir(self) -> pathlib.Path:
        """Return the local folder for the run's small files; checkpoints may be elsewhere."""
        return self.storage.home


def build_setup(
    config: Config,
    workdir: Workdir | pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
    began: float | None = None,
    trunk: Trunk | None = None,
) -> Setup:
    """Build a pre-training run, and check all that can be checked before compiling.

    Claims the workdir and writes the run record there. Wall time is counted from `began`, in
    seconds since 1970, by default now. A new run begins with `trunk`, a checkpoint of another run,
    if given. The first check that fails raises Refused or OSError.
    """
    began = time.time() if began is None else began
    if config.init or config.teacher:
        # Imported here: only these runs begin with other weights, or have a teacher.
        from bert_jax.interop import pretrained, warm_start
        from bert_jax.interop import teacher as teacher_lib
    storage = workdir if isinstance(workdir, Workdir) else workdir_lib.open_local_workdir(workdir)
    screen = Screen(is_writer=jax.process_index() == 0)
    facts, sizes, checkpoint = read_facts(config.data), None, None
    if config.init:
        sizes, checkpoint = warm_start.read_init(config, storage, screen)
    run = config_lib.resolve(config, sizes, facts)
    objectives = find_each(run)
    stores = open_stores(run.data, screen)
    store = stores[0]  # the vocabulary is the same in all
    weights = teacher = None
    identity, digests = {}, dict[str, str]()
    if checkpoint is not None:
        weights = warm_start.fit_weights(checkpoint, run, store)
        digests["init's weights"] = pretrained.hash_for_others(weights.checkpoint)
    if run.teacher:
        teacher = teacher_lib.read_teacher(run, store, screen)
        identity = teacher_lib.identify_teacher(teacher)
    feed = StoreFeed(stores, run, identity)
    start = check_start(run, feed.provenance, storage, devices, profiled, digests, trunk)
    if start.unlike_trunk:
        words = f"{start.trunk} was trained with {'; '.join(start.unlike_trunk)}"
        screen.finding("branch", words, "its bits may differ from a run made alone")
    with screen.spinning("counting the examples of the store") as show:
        feed.check()
        phases = [count_phase(feed, index, each, show) for index, each in enumerate(objectives)]
        findings = find_in_data(feed, phases) if jax.process_index() == 0 else []
    rows = describe_corpus(feed, phases)
    theirs = None if teacher is None else teacher.config
    build = functools.partial(build_parts, run, objectives, devices=devices, teacher=theirs)
    parts, wrong_kernels = settle_kernels(build, start.record, screen)
    jax.set_mesh(parts.mesh)
    frozen: tuple[bert.Params, ...] = ()
    if teacher is not None and parts.teacher is not None:
        shardings = state_lib.shard_params(parts.teacher, parts.mesh, run.mesh)
        frozen = (teacher_lib.place_teacher(teacher, parts.teacher, parts.mesh, shardings),)
        rows = [("teacher", f"{teacher.parameter_count:,} from {teacher.address}"), *rows]

    def initial_params() -> bert.Params:
        if run.init:  # not yet loaded if the run was to resume but starts over
            initial = weights or warm_start.fit_weights(warm_start.read_checkpoint(run), run, store)
            return pretrained.place_params(initial.checkpoint, parts.model, parts.mesh, run.seed)[0]
        return mup.scale_initial(run, parts.model.init(jax.random.key(run.seed)))

    setup = Setup(
        parts=parts,
        feed=feed,
        input_advice=feed.advise_on_speed(),
        phases=phases,
        initial_params=initial_params,
        storage=storage,
        screen=screen,
        data_rows=rows if weights is None else [("weights", weights.describe()), *rows],
        profiled=profiled,
        began=began,
        frozen=frozen,
        findings=[*findings, *wrong_kernels],
        stores=stores,
        trunk=start.trunk,
    )
    return claim_workdir(start, setup)


@dataclasses.dataclass(frozen=True)
class RunStart:
    """Describe how a run starts in its workdir: new, resumed, or replacing a lost run."""

    begins_anew: bool  # whether records of a lost run must first be moved to before-fresh-N/
    record: Mapping[str, Any] | None = None  # the record of the run to resume
    problem: str = ""  # the damage to run.json, "" if none
    done_steps: int | None = None  # the step of the newest checkpoint, None if there is none
    trunk: Trunk | None = None  # the checkpoint that the run began or begins with
    # Differences of code and devices between a new branch and its trunk.
    unlike_trunk: Sequence[str] = ()


def check_start(
    config: RunConfig,
    provenance: Provenance,
    storage: Workdir,
    devices: Sequence[jax.Device] | None,
    profiled: Window | None,
    digests: Mapping[str, str],
    trunk: Trunk | None = None,
) -> RunStart:
    """Check a run against its workdir, devices and other processes; change nothing.

    `digests` maps names to digests of inputs that must be equal on all processes, but which a
    resumed run may change. `trunk` is the checkpoint of another run that this run branches from.

    The first check that fails raises Refused or OSError.
    """
    resume.check_place(storage.home, provenance.origins)
    workdir_lib.check_entries(storage.home)
    if config.log.wandb and jax.process_index() == 0:
        metrics_writer.check_package(config.log.wandb)
    secs, total = config.hosts.stuck_secs, config_lib.total_steps(config)
    begins_anew = fresh_start.is_due(storage, config.checkpoint.fresh, secs)
    record, problem, done = None, "", None
    unlike_trunk: Sequence[str] = ()
    if not begins_anew:
        # Other processes' local copies of a workdir in a bucket may be stale.
        find = functools.partial(find_run, storage.home, storage.checkpoints)
        text = processes.ask_first("what the record says", lambda: json.dumps(find()), secs)
        record, problem = json.loads(text)
        trunk = fresh_start.find_branch(record, trunk, storage.address)
        if resume.can_resume(storage, config, provenance, record):
            # Raise now if a record cannot be read and continued.
            jsonl.read_metrics(storage.home / METRICS)
            bad_steps.read(storage.home)
            goodput.read_attempts(storage.home / goodput.FILE)
            bad_steps.read_left_out(storage.home)
        done = _find_done_steps(storage, total)
    if trunk is not None and done is None:
        own = run_record.build_record(config, provenance)
        unlike_trunk = fresh_start.check_branch(trunk, config, own)
    if profiled is not None:
        profiler.check_window(profiled, total)
    mesh_lib.check_divides(config, jax.device_count() if devices is None else len(devices))
    resume.check_processes_agree(config, provenance, digests)
    return RunStart(begins_anew, record, problem, done, trunk, unlike_trunk)


def claim_workdir(start: RunStart, setup: Setup) -> Setup:
    """Claim the workdir and write the run record; return the setup with its changed settings.

    Raises Refused or OSError if another run holds the workdir, or its disk is too small.
    """
    config, storage, screen = setup.config, setup.storage, setup.screen
    provenance, is_writer = setup.feed.provenance, jax.process_index() == 0
    total = config_lib.total_steps(config)
    done = start.done_steps or (start.trunk.step if start.trunk else 0)
    if start.done_steps is None or done < total:
        check_space(storage.checkpoints, config.checkpoint, setup.parts.models[0], done, total)
    changes = resume.list_changes(start.record, config, start.done_steps or 0)
    storage.claim(is_writer=is_writer)
    if start.begins_anew:
        secs = config.hosts.stuck_secs
        fresh_start.quarantine(storage, provenance.vocabulary["file"], secs, screen.print)
    if is_writer:
        if start.problem:
            _replace_damaged(storage, start.problem, screen)
        for name in (METRICS, BAD_STEPS, goodput.FILE):
            jsonl.repair_end(storage.home / name, screen.print)
        run_record.write(storage.home, config, provenance, changes, setup.record)
    return dataclasses.replace(setup, changes=changes)


def _replace_damaged(storage: Workdir, problem: str, screen: Screen) -> None:
    """Rename a damaged run.json, which is about to be rewritten."""
    path = storage.home / run_record.FILE
    kept = ""
    if path.exists() or path.is_symlink():
        path.replace(path.with_name(path.name + jsonl.DAMAGED))
        kept = f"; the old one is {path.name}{jsonl.DAMAGED}"
    screen.print(f"{problem}: written again from the receipt of the newest checkpoint{kept}")


def _find_done_steps(storage: Workdir, total: int) -> int | None:
    """Find the newest checkpoint's step, None without one; refuse a step past the end."""
    done = find_newest_step(storage.checkpoints)
    if done is not None and done > total:
        raise Refused(
            f"{storage.address} holds a run of {done:,} steps, but the phases of this config end "
            f"after {total:,}; give the last phase more steps, or another --workdir"
        )
    return done


def open_checkpoints(
    setup: Setup, report: Callable[[OSError], None] = lambda error: None
) -> Checkpoints:
    """Open the checkpoints of a run, to be closed by the caller. Raises OSError.

    `report` is called with the error of a failed save, to notify the other processes.
    """
    run = run_record.build_record(setup.config, setup.feed.provenance, setup.changes, setup.record)
    return Checkpoints(
        setup.storage.checkpoints, setup.config.checkpoint, setup.parts.model, run, report
    )


def restore_or_initialize(setup: Setup, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
    """Restore the newest intact checkpoint, or save the first one, at step 0 or the trunk's step.

    Raises Refused if no existing checkpoint can be restored or only records of an earlier run
    exist, and OSError if a checkpoint cannot be read or the initial state cannot be saved.
    """
    restored = checkpoints.restore(setup.parts.state_at, setup.screen.print)
    if restored is not None:
        state, numbers = restored
        return state, parse_record(numbers, Progress, "the receipt of the checkpoint")
    fresh, trunk = setup.config.checkpoint.fresh, setup.trunk
    if fresh_start.is_due(setup.storage, fresh, setup.config.hosts.stuck_secs):
        raise NoIntactCheckpoint(
            f"{setup.storage.checkpoints}: the checkpoints of this run are gone"
        )
    if trunk is None:
        shardings = setup.parts.shard_phase(0)
        state = state_lib.make_state(setup.initial_params(), setup.parts.tx, shardings)
        progress = Progress()
    else:
        state, progress = _restore_trunk(setup, trunk, checkpoints)
    jax.block_until_ready(state)
    setup.storage.publish()
    checkpoints.save(int(state.step), state, dataclasses.asdict(progress))
    checkpoints.wait()  # report a failed save before the first step
    return state, progress


def _restore_trunk(
    setup: Setup, trunk: Trunk, checkpoints: Checkpoints
) -> tuple[TrainState, Progress]:
    """Restore the state that a branch begins with, and copy the trunk's records up to its step.

    The guard's count of good steps is recomputed, as the branch's phase may begin at another step.
    With bad steps the count is kept: both runs have the same phases (see runtime/history.py).
    """
    path = trunk.checkpoints / str(trunk.step)
    state, numbers = checkpoints.restore_other(path, setup.parts.state_in_phase(-1))
    progress = parse_record(numbers, Progress, f"the receipt of {path}")
    if not progress.skipped_steps and not progress.left_out_steps:
        steps = jnp.int32(history.count_phase_steps(setup.config, trunk.step))
        count = jax.device_put(steps, setup.parts.shardings.guard.count)
        state = dataclasses.replace(state, guard=dataclasses.replace(state.guard, count=count))
    if jax.process_index() == 0:
        fresh_start.copy_records(trunk, setup.workdir)
    return state, progress


def resolve_alone(config: Config) -> ResolvedRun:
    """Resolve a config outside a run: no workdir is needed.

    Without a store, the vocabulary size comes from the config, from its init or from BERT.
    """
    from bert_jax.interop import warm_start

    sizes = warm_start.read_sizes(config)
    if config.data.store:
        return resolve(config, sizes, read_facts(config.data))
    vocab_size = config.model.vocab_size or (sizes.vocab_size if sizes else VOCAB_SIZE)
    return resolve(config, sizes, StoreFacts(vocab_size))


def open_feed(run: ResolvedRun, screen: Screen) -> StoreFeed | None:
    """Open the store that a run names; None if it names none.

    Raises:
      Refused: the store is damaged, or cannot supply a phase's rows.
    """
    if not run.data.store:
        return None
    source = StoreFeed(open_stores(run.data, screen), run)
    with screen.spinning("counting the examples of the store"):
        source.check()
    return source
