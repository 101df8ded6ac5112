"""Where a run begins: at its newest whole checkpoint, or at fresh weights, saved as step 0."""

import dataclasses

import jax

from bert_jax import fresh_start, receipt
from bert_jax import state as state_lib
from bert_jax.checkpoint import Checkpoints
from bert_jax.checkpoint_choice import NoneIsWhole
from bert_jax.clock import Progress
from bert_jax.preparation import Setup
from bert_jax.state import TrainState
from data_pipeline import small_files


def checkpoints_of(setup: Setup) -> Checkpoints:
    """The checkpoints of a run; they must be closed.

    Raises:
      OSError: their folder cannot be made or read.
    """
    made = receipt.of_run(setup.feed, setup.changes, setup.objective.untrained)
    return Checkpoints(setup.storage.checkpoints, setup.config.checkpoint, setup.model, made)


def start(setup: Setup, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
    """The state to go on from: of the newest whole checkpoint, or fresh and saved as step 0.

    Raises:
      Refused: there are checkpoints, and none to go on from; or records of a run without any.
      OSError: what is there cannot be read, or the fresh state not be saved.
    """
    abstract = state_lib.abstract(setup.model, setup.tx, setup.where)
    restored = checkpoints.restore(abstract, setup.screen.say)
    if restored is not None:
        state, numbers = restored
        for name, value in numbers.items():
            kind: type = dict if name == "interval" else float
            small_files.field({name: value}, name, kind, "the receipt of the checkpoint")
        progress = small_files.build(Progress, numbers, "the receipt of the checkpoint")
        return state, progress
    config = setup.config
    if fresh_start.is_due(setup.storage, config.checkpoint.fresh, config.hosts.stuck_secs):
        raise NoneIsWhole(f"{setup.storage.checkpoints}: the checkpoints of this run are gone")
    state = state_lib.fresh(setup.fresh_params(), setup.tx, setup.where)
    jax.block_until_ready(state)
    setup.storage.publish()
    checkpoints.save(0, state, dataclasses.asdict(Progress()))
    checkpoints.wait()  # what cannot be saved is found before the first step
    return state, Progress()


def begin_anew(setup: Setup) -> Setup:
    """Set the records of a run aside whose checkpoints cannot be restored; the run at step 0."""
    config, feed, storage = setup.config, setup.feed, setup.storage
    fresh_start.set_aside(storage, feed.vocab_path.name, config.hosts.stuck_secs, setup.screen.say)
    if jax.process_index() == 0:
        receipt.write(storage.home, feed, untrained=setup.objective.untrained)
    return dataclasses.replace(setup, changes=())
