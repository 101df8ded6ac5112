"""Where a run begins: at its newest whole checkpoint, or at fresh weights, saved as step 0."""

import dataclasses

import jax

from bert_jax import receipt
from bert_jax import state as state_lib
from bert_jax.checkpoint import Checkpoints
from bert_jax.clock import Progress
from bert_jax.preparation import Setup
from bert_jax.state import TrainState


def checkpoints_of(setup: Setup) -> Checkpoints:
    """The checkpoints of a run; they must be closed.

    Raises:
      OSError: their folder cannot be made or read.
    """
    made = receipt.of_run(setup.feed)
    return Checkpoints(setup.storage.checkpoints, setup.config.checkpoint, setup.model, made)


def start(setup: Setup, checkpoints: Checkpoints) -> tuple[TrainState, Progress]:
    """The state to go on from: of the newest whole checkpoint, or fresh and saved as step 0.

    Raises:
      Refused: there are checkpoints, and none to go on from.
      OSError: what is there cannot be read, or the fresh state not be saved.
    """
    abstract = state_lib.abstract(setup.model, setup.tx, setup.where)
    restored = checkpoints.restore(abstract, setup.screen.say)
    if restored is not None:
        state, numbers = restored
        return state, Progress(**numbers)
    state = state_lib.fresh(setup.fresh_params(), setup.tx, setup.where)
    jax.block_until_ready(state)
    setup.storage.publish()
    checkpoints.save(0, state, dataclasses.asdict(Progress()))
    checkpoints.wait()  # what cannot be saved is found before the first step
    return state, Progress()
