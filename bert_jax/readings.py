"""What finished steps returned, brought to the host a step late, and the lines made of it."""

import dataclasses
import time
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import metrics
from bert_jax.bad_steps import BadSteps
from bert_jax.clock import Clock, Progress
from bert_jax.config import Phase
from bert_jax.log import Records
from bert_jax.preparation import Setup
from bert_jax.run_feed import RunPhase
from bert_jax.wall_time import Ledger

INPUT_BOUND_SHARE = 0.1  # of an interval: from here on a line says that batches came too late
REMINDER_SECS = 1800.0  # at least, between two such lines


@dataclasses.dataclass(frozen=True)
class RunningPhase:
    """A phase under way: what stays the same over its steps, and its clock."""

    index: int
    phase: Phase
    facts: RunPhase
    start: int  # its first step, counted from the start of the run
    clock: Clock

    @property
    def end(self) -> int:
        """Its last step, likewise."""
        return self.start + self.phase.steps


class Readings:
    """The sums of steps that are still on the device, and the interval that they belong to."""

    def __init__(
        self,
        setup: Setup,
        records: Records,
        bad_steps: BadSteps,
        ledger: Ledger,
        progress: Progress,
    ) -> None:
        self._config, self._screen = setup.config, setup.screen
        self._feed = setup.feed
        self._records, self._bad_steps, self._progress = records, bad_steps, progress
        self._ledger = ledger
        self._unread: list[tuple[int, Any]] = []  # (step, sums on the device)
        self._end_is_told = False
        self._input_told_secs = float("-inf")

    def add(self, step: int, sums: Any) -> None:
        """Keep what a step returned; its copy to the host is begun where a line may need it."""
        for leaf in jax.tree.leaves(sums):
            leaf.copy_to_host_async()
        self._unread.append((step, sums))

    def read(self, running: RunningPhase, up_to_step: int) -> None:
        """Wait for the steps up to this one, and write a line where one is due.

        Raises:
          FloatingPointError, RollBack: a step was bad, and the run does not just go on.
        """
        finished = [(step, sums) for step, sums in self._unread if step <= up_to_step]
        self._unread = self._unread[len(finished) :]
        for step, sums in jax.device_get(finished):
            self._count(step, sums)
            if step % self._config.log_every_steps == 0:
                running.clock.note(len(self._unread))
                self._record_interval(running, step)
        if not self._unread:
            running.clock.note()

    def _count(self, step: int, sums: Any) -> None:
        numbers, interval = metrics.flat(sums), self._progress.interval
        if numbers["skipped"]:
            self._progress.interval = metrics.add_skipped(interval, numbers)
            self._bad_steps.bad(step, numbers, sums["guard"].usual)
        else:
            self._progress.interval = metrics.add(interval, numbers)
            self._bad_steps.good()

    def _record_interval(self, running: RunningPhase, step: int) -> None:
        line = metrics.read(self._progress.interval)
        self._progress.interval = {}
        pace, secs_left = running.clock.rows_per_sec, None
        if pace is not None:  # the step that was compiled for is not timed
            line["sequences_per_sec"] = pace * running.facts.examples_per_row
            line["input_wait_share"] = running.clock.input_wait_share
            secs_left = self.positions_left(running, step) / (pace * running.phase.seq_len)
        line["goodput"] = self._ledger.goodput
        self._ledger.write()
        self._records.write(step, "train", line)
        if "loss" in line:
            self._screen.training_line(step, config_lib.total_steps(self._config), line, secs_left)
        if secs_left is not None and not self._end_is_told:
            self._screen.expected_end(secs_left)
            self._end_is_told = True
        self._say_if_input_bound(running.clock.input_wait_share)

    def _say_if_input_bound(self, share: float) -> None:
        now_secs = time.monotonic()
        if share >= INPUT_BOUND_SHARE and now_secs - self._input_told_secs >= REMINDER_SECS:
            self._screen.input_bound(share, self._feed.advice())
            self._input_told_secs = now_secs

    def positions_left(self, running: RunningPhase, step: int) -> int:
        """Positions still to be trained on; one costs the same in every phase, about."""
        phases = (
            dataclasses.replace(running.phase, steps=running.end - step),
            *self._config.phases[running.index + 1 :],
        )
        return sum(phase.steps * phase.batch_size * phase.seq_len for phase in phases)
