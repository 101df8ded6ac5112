"""What a run is made of, checked before anything is compiled."""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import optax

from bert_jax import (
    bad_steps,
    config_check,
    fresh_start,
    initial_weights,
    left_out,
    optim,
    profiling,
    receipt,
    record_files,
    wall_time,
    wandb_writer,
)
from bert_jax import config as config_lib
from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import workdir as workdir_lib
from bert_jax.changes import Change
from bert_jax.checkpoint_folder import check_space
from bert_jax.checkpoint_reading import newest_run, newest_step
from bert_jax.config import Config
from bert_jax.corpus_rows import corpus_rows
from bert_jax.feed import Feed, open_store
from bert_jax.log import BAD_STEPS, METRICS
from bert_jax.models import bert
from bert_jax.objectives import Objective
from bert_jax.phase_facts import facts_of
from bert_jax.profiling import Window
from bert_jax.run_config import RunConfig
from bert_jax.run_feed import RunFeed, RunPhase
from bert_jax.screen import Screen
from bert_jax.state import TrainState
from bert_jax.workdir import Workdir
from data_pipeline.store import Store


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is made of, checked; nothing in it changes."""

    config: RunConfig
    objective: Objective
    storage: Workdir
    feed: RunFeed
    phases: Sequence[RunPhase]
    mesh: jax.sharding.Mesh
    model: bert.Model
    tx: optax.GradientTransformationExtraArgs
    where: TrainState
    screen: Screen
    fresh_params: Callable[[], bert.Params]  # what a run without a checkpoint begins with
    data_rows: Sequence[tuple[str, str]]  # what the batches are, for the first block on the screen
    profiled: Window | None  # steps to trace
    began: float  # when the process began to prepare, in seconds since 1970
    changes: tuple[Change, ...]  # settings that an earlier start of the run had otherwise
    store: Store | None = None  # whose files are verified beside the first steps

    @property
    def workdir(self) -> pathlib.Path:
        """The folder for the small files of the run; checkpoints may be elsewhere."""
        return self.storage.home


@dataclasses.dataclass(frozen=True)
class Learned:
    """What a run learns and from what: what differs between pre-training and a task."""

    feed: RunFeed
    objective: Objective
    heads: bert.Heads
    # Opens what the batches come from: what is known of each phase, and labelled lines about them.
    opened: Callable[[], tuple[Sequence[RunPhase], Sequence[tuple[str, str]]]]
    # Given the model on the run's mesh, the parameters that it begins with.
    fresh_params: Callable[[bert.Model, jax.sharding.Mesh], bert.Params]
    store: Store | None = None  # what it reads while it trains, where it is not in memory


def prepare(
    config: Config,
    objective: Objective,
    workdir: Workdir | pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
    began: float | None = None,
) -> Setup:
    """Check all of a pre-training run that can be checked before compiling, and build its parts.

    Runs on all devices unless some are given, and traces the steps of `profiled`. Claims the
    workdir, where a folder stands for itself, and leaves a receipt of the run there.
    `began` is the time since which its wall time counts, now if not given.

    Raises:
      ValueError, OSError: one sentence about the first thing that does not fit.
    """
    began = time.time() if began is None else began
    config_check.check(config)
    storage = workdir if isinstance(workdir, Workdir) else workdir_lib.local(workdir)
    screen = Screen(is_writer=jax.process_index() == 0)
    with screen.copying(config.data.store) as advance:
        store = open_store(config.data, advance)
    config, weights = initial_weights.of_run(config, storage, store, screen)
    config = config_lib.with_vocab_size(config, store.vocab_size)
    saved = functools.partial(newest_run, storage.checkpoints)
    feed = Feed(store, receipt.with_kept_predictions(storage.home, config, saved))

    def opened() -> tuple[Sequence[RunPhase], Sequence[tuple[str, str]]]:
        with screen.spinning("counting the examples of the store"):
            feed.check()
            phases = [facts_of(feed, index, objective) for index in range(len(config.phases))]
        rows = corpus_rows(feed.config, store, phases)
        return phases, rows if weights is None else [("weights", weights.in_words()), *rows]

    def fresh_params(model: bert.Model, mesh: jax.sharding.Mesh) -> bert.Params:
        if config.init:  # not read before where a run was resumed that now begins anew
            begin_with = weights or initial_weights.read(config, store, screen)
            return begin_with.placed(model, mesh, config.seed)
        return model.init(jax.random.key(config.seed))

    learned = Learned(feed, objective, bert.PRETRAINING, opened, fresh_params, store)
    return assembled(learned, storage, screen, began, devices, profiled)


def assembled(
    learned: Learned,
    storage: Workdir,
    screen: Screen,
    began: float,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
) -> Setup:
    """The parts of a run, checked against its workdir, its devices and its other processes."""
    feed, config = learned.feed, learned.feed.config
    secs = config.hosts.stuck_secs
    receipt.check_place(storage.home, feed)
    if config.log.wandb and jax.process_index() == 0:
        wandb_writer.check_package(config.log.wandb)
    begins_anew = fresh_start.is_due(storage, config.checkpoint.fresh, secs)
    record, problem = None, ""
    if not begins_anew:
        record, problem = receipt.find(storage.home, lambda: newest_run(storage.checkpoints))
        receipt.check(storage.home, feed, record)
        _check_records(storage.home)
    total = config_lib.total_steps(config)
    done = None if begins_anew else _done_steps(storage, total, profiled)
    mesh_lib.check(config, jax.device_count() if devices is None else len(devices))
    if jax.process_count() > 1:
        receipt.check_processes_agree(feed)
    phases, data_rows = learned.opened()
    mesh = mesh_lib.make(config.mesh, devices)
    jax.set_mesh(mesh)
    backend, model_size = jax.default_backend(), mesh.shape["model"]
    model = bert.build(config.model, backend, model_size, config.compute, learned.heads)
    if done is None or done < total:
        check_space(storage.checkpoints, config.checkpoint, model, total)
    tx = optim.optimizer(config.optim)
    where = state_lib.layout(model, tx, mesh, config.mesh)
    changes = receipt.changes(record, config, done or 0)
    storage.claim(is_writer=jax.process_index() == 0)
    if begins_anew:
        fresh_start.set_aside(storage, feed.vocab_path.name, secs, screen.say)
    if jax.process_index() == 0:
        if problem:
            _say_restored(storage, problem, screen)
        for name in (METRICS, BAD_STEPS, wall_time.FILE):
            record_files.mend_end(storage.home / name, screen.say)
        receipt.write(storage.home, feed, changes, learned.objective.untrained)
    return Setup(
        config=config,
        objective=learned.objective,
        storage=storage,
        feed=feed,
        phases=phases,
        mesh=mesh,
        model=model,
        tx=tx,
        where=where,
        screen=screen,
        fresh_params=functools.partial(learned.fresh_params, model, mesh),
        data_rows=data_rows,
        profiled=profiled,
        began=began,
        changes=tuple(changes),
        store=learned.store,
    )


def _check_records(home: pathlib.Path) -> None:
    """Raise if the run could not go on writing a record.

    Raises:
      DamagedFile: names what is wrong there.
    """
    record_files.read_metrics(home / METRICS)
    bad_steps.read(home)
    wall_time.read(home / wall_time.FILE)
    left_out.read(home)


def _say_restored(storage: Workdir, problem: str, screen: Screen) -> None:
    path = storage.home / receipt.FILE
    kept = ""
    if path.exists() or path.is_symlink():
        path.replace(path.with_name(path.name + record_files.DAMAGED))
        kept = f"; the old one is {path.name}{record_files.DAMAGED}"
    screen.say(f"{problem}: written again from the receipt of the newest checkpoint{kept}")


def _done_steps(storage: Workdir, total: int, profiled: Window | None) -> int | None:
    """Steps of the newest checkpoint in the workdir, None without any.

    Raises:
      ValueError: they are more than there are now, or too many for the steps to be traced.
    """
    done = newest_step(storage.checkpoints)
    if done is not None and done > total:
        raise ValueError(
            f"{storage.address} holds a run of {done:,} steps, the phases of this config end after "
            f"{total:,}; give the last phase more steps, or another --workdir"
        )
    if profiled is not None:
        profiling.check(profiled, done or 0, total)
    return done
