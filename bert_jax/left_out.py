"""The steps that a run leaves out after rolling back, in left_out.json, and where it goes on.

A run that rolls back starts again from its newest checkpoint, as one that was killed does, and its
step's number passes over the steps up to the bad one. All that this takes stands in the file before
the next step: a run that is killed then goes on in the same way.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from bert_jax import processes
from bert_jax.bad_steps import BadSteps, RollBack
from bert_jax.clock import Progress
from bert_jax.log import LEFT_OUT as FILE
from bert_jax.log import Records
from bert_jax.record_files import write_whole
from bert_jax.run_config import RunConfig
from bert_jax.state import TrainState
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

if TYPE_CHECKING:  # preparation reads this file's records before it has a Setup
    from bert_jax.preparation import Setup


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """The steps after that of a checkpoint, up to and including a bad one."""

    after_step: int
    through_step: int
    reason: str


def read(workdir: pathlib.Path) -> list[LeftOut]:
    """What the run in workdir left out so far, oldest first.

    Raises:
      ValueError: the file is not one of ours.
    """
    path = workdir / FILE
    if not path.exists() and not path.is_symlink():
        return []
    try:
        return _parse(small_files.read_bytes(path, workdir), path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; put the one of this run back, or give another --workdir"
        ) from None


def _parse(data: bytes, path: object) -> list[LeftOut]:
    content = small_files.parse_json(data, path)
    if not isinstance(content, list):
        raise DamagedFile(f"{path} holds {small_files.kind_in_words(content)}, not a list")
    found = []
    for entry in content:
        if not isinstance(entry, dict):
            raise DamagedFile(f"{path} lists {small_files.kind_in_words(entry)}, not an object")
        for key, kind in (("after_step", int), ("through_step", int), ("reason", str)):
            small_files.field(entry, key, kind, path)
        found.append(small_files.build(LeftOut, entry, path))
    return found


def _as_json(all_of_it: Sequence[LeftOut]) -> str:
    return json.dumps([dataclasses.asdict(one) for one in all_of_it], indent=2)


def to_the_end(
    setup: "Setup",
    records: Records,
    run_from: Callable[[TrainState, Progress, BadSteps], dict[str, Any]],
    restore: Callable[[], tuple[TrainState, Progress]],
    state: TrainState,
    progress: Progress,
) -> dict[str, Any]:
    """Run from a checkpoint's state, and where the guard rolls back, from the newest one again.

    `run_from` returns the summary of a run that came to its end; it must have let go of its state
    when it raises RollBack, for `restore` needs the memory.
    """
    left_out = LeftOuts(setup.workdir, setup.config)
    while True:
        state = left_out.passed_over(state, progress, setup.where)
        bad_steps = BadSteps(
            setup.workdir, setup.storage.address, setup.feed, setup.screen, progress
        )
        bad_steps.cut_after(int(state.step))
        try:
            return run_from(state, progress, bad_steps)
        except RollBack as roll:
            rolled = roll
        state, progress = restore()
        left_out.add(int(state.step), rolled, bad_steps)
        setup.storage.publish()  # before a step is taken, as is written above
        records.go_back(int(state.step))


class LeftOuts:
    """What a run has left out so far; the same in all its processes, and written by one."""

    def __init__(self, workdir: pathlib.Path, config: RunConfig) -> None:
        """Take what stands in workdir from the process that writes it there.

        Of a run in a bucket its folder may be newer than what the others have fetched.
        """
        self._workdir, self._most = workdir, config.guard.most_in_a_row
        mine = read(workdir) if processes.number() == 0 else []
        told = processes.agree(f"what {FILE} says", _as_json(mine), config.hosts.start_secs)
        self._all = _parse(told[0].encode(), FILE)

    def passed_over(self, state: TrainState, progress: Progress, where: TrainState) -> TrainState:
        """The state of a checkpoint to go on from, its step's number past what is left out."""
        step = int(state.step)
        through = [one.through_step for one in self._all if one.after_step == step]
        last = max([step, *through])
        progress.left_out_steps += last - step
        return dataclasses.replace(state, step=jax.device_put(jnp.int32(last), where.step))

    def add(self, after_step: int, roll: RollBack, bad_steps: BadSteps) -> None:
        """Write down what is left out after the checkpoint that was restored.

        Raises:
          FloatingPointError: the run came back to this checkpoint too often.
        """
        rolls = 1 + sum(one.after_step == after_step for one in self._all)
        if rolls >= self._most:
            why = (
                f"it is roll back number {rolls} to step {after_step} "
                f"(config.guard.most_in_a_row is {self._most})"
            )
            raise bad_steps.stop(roll.step, 1, roll.reason, why)
        self._all.append(LeftOut(after_step, roll.step, roll.reason))
        if processes.number() == 0:
            write_whole(self._workdir / FILE, f"{_as_json(self._all)}\n".encode())
        bad_steps.rolled_back(after_step, roll.step)
