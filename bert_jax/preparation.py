"""What a run is made of, checked before anything is compiled."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax
import optax

from bert_jax import config as config_lib
from bert_jax import config_check, optim, profiling, receipt
from bert_jax import mesh as mesh_lib
from bert_jax import state as state_lib
from bert_jax import workdir as workdir_lib
from bert_jax.changes import Change
from bert_jax.checkpoint_folder import check_space
from bert_jax.checkpoint_reading import newest_step
from bert_jax.config import Config
from bert_jax.feed import Feed, open_store
from bert_jax.models import bert
from bert_jax.objectives import Objective
from bert_jax.phase_facts import PhaseFacts, facts_of
from bert_jax.profiling import Window
from bert_jax.screen import Screen
from bert_jax.state import TrainState
from bert_jax.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is made of, checked; nothing in it changes."""

    config: Config
    objective: Objective
    storage: Workdir
    feed: Feed
    phases: tuple[PhaseFacts, ...]
    mesh: jax.sharding.Mesh
    model: bert.Model
    tx: optax.GradientTransformation
    where: TrainState
    screen: Screen
    profiled: Window | None  # steps to trace
    began: float  # when the process began to prepare, in seconds since 1970
    changes: tuple[Change, ...]  # settings that an earlier start of the run had otherwise

    @property
    def workdir(self) -> pathlib.Path:
        """The folder for the small files of the run; checkpoints may be elsewhere."""
        return self.storage.home


def prepare(
    config: Config,
    objective: Objective,
    workdir: Workdir | pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
    began: float | None = None,
) -> Setup:
    """Check all that can be checked before compiling, and build what the run is made of.

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
    config = config_lib.with_vocab_size(config, store.vocab_size)
    receipt.check(storage.home, config, store)
    total = config_lib.total_steps(config)
    done = _done_steps(storage, total, profiled)
    mesh_lib.check(config, jax.device_count() if devices is None else len(devices))
    if jax.process_count() > 1:
        receipt.check_processes_agree(config, store)
    feed = Feed(store, config)
    with screen.spinning("counting the examples of the store"):
        feed.check()
        phases = tuple(facts_of(feed, index, objective) for index in range(len(config.phases)))
    mesh = mesh_lib.make(config.mesh, devices)
    jax.set_mesh(mesh)
    model = bert.build(config.model, jax.default_backend(), mesh.shape["model"], config.compute)
    if done is None or done < total:
        check_space(storage.checkpoints, config.checkpoint, model, total)
    tx = optim.optimizer(config.optim)
    where = state_lib.layout(model, tx, mesh, config.mesh)
    changes = receipt.changes(storage.home, config, done or 0)
    storage.claim(is_writer=jax.process_index() == 0)
    if jax.process_index() == 0:
        receipt.write(storage.home, config, store, changes)
    of_run = config, objective, storage, feed, phases, mesh, model, tx, where, screen, profiled
    return Setup(
        *of_run,
        began=began,
        changes=tuple(changes),
    )


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
