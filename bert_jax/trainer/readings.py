"""Read the results of steps, one step late, and time the steps.

`Progress` holds the counters saved with checkpoints, `RunningPhase` times the steps of a phase,
`StepReader` logs one line of metrics for each interval of steps.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from bert_jax import config as config_lib
from bert_jax.config import RunConfig
from bert_jax.runtime.goodput import Ledger
from bert_jax.train_step import metrics

if TYPE_CHECKING:
    from bert_jax.trainer.bad_steps import BadSteps
    from bert_jax.trainer.feed import RunPhase
    from bert_jax.trainer.setup import Setup

INPUT_BOUND_SHARE = 0.1  # share of an interval spent waiting for input that triggers a warning
REMINDER_SECS = 1800.0  # minimum time between two such warnings

Record = Callable[[int, str, Mapping[str, float]], None]  # step, split, numbers


@dataclasses.dataclass
class Progress:
    """Hold the counters saved with each checkpoint, from which a resumed run continues."""

    # Sums of metrics since the last line of metrics.jsonl.
    interval: dict[str, float] = dataclasses.field(default_factory=dict)
    train_secs: float = 0.0  # wall time of steps, excluding compiling, evaluation and saving
    timed_sequences: float = 0.0  # examples trained on in that time
    input_wait_secs: float = 0.0  # part of that time in which devices waited for a batch
    skipped_steps: int = 0  # bad steps, whose updates were discarded
    bad_in_a_row: int = 0  # bad steps since the last good one
    left_out_steps: int = 0  # steps that roll-backs left out
    evaluated_step: int = 0  # step of the last evaluation; a stop postpones one that is due


class RunningPhase:
    """Hold the constants of the phase being trained, and measure the wall time of its steps.

    The clock restarts after each compile, evaluation or save. Only finished steps count; steps in
    flight at the end of an interval count in the next interval. Otherwise the first line after a
    resume could show many times the true speed.
    """

    def __init__(
        self,
        config: RunConfig,
        index: int,
        facts: "RunPhase",
        progress: Progress,
        on_wait: Callable[[float], None] = lambda secs: None,
    ) -> None:
        """Prepare a phase by its index; `on_wait` receives the seconds of each wait for a batch."""
        self.index, self.phase, self.facts = index, config.phases[index], facts
        self.start = config_lib.phase_start(config, index)  # number of steps before the phase
        self.end = self.start + self.phase.steps  # its last step, counted from 1 over the run
        self.rows_per_sec: float | None = None  # speed in the last timed interval
        self.input_wait_share = 0.0  # share of that interval spent waiting for batches
        self._progress, self._on_wait = progress, on_wait
        self.restart_clock()

    def restart_clock(self) -> None:
        """Start a new interval: no rows, no waits, from now on."""
        self._rows, self._since_secs, self._input_wait_secs = 0, time.perf_counter(), 0.0

    def count_step(self) -> None:
        """Count the rows of a dispatched step."""
        self._rows += self.phase.batch_size

    def add_wait(self, secs: float) -> None:
        """Add seconds in which the devices waited for a batch."""
        self._input_wait_secs += secs
        self._on_wait(secs)

    def end_interval(self, steps_under_way: int = 0) -> None:
        """Add the interval's time to the run's totals, and start a new interval.

        `steps_under_way` is the number of dispatched steps that have not finished. If no step has
        finished, the interval continues.
        """
        rows_under_way = min(self._rows, steps_under_way * self.phase.batch_size)
        rows = self._rows - rows_under_way
        if rows == 0:
            return
        secs = time.perf_counter() - self._since_secs
        self.rows_per_sec = rows / secs
        # A finished step is noticed late, so a wait may have begun in the previous interval and be
        # longer than this interval.
        self.input_wait_share = min(1.0, self._input_wait_secs / secs)
        self._progress.train_secs += secs
        self._progress.timed_sequences += rows * self.facts.examples_per_row
        self._progress.input_wait_secs += self._input_wait_secs
        self.restart_clock()
        self._rows = rows_under_way

    def secs_for(self, rows: int) -> float | None:
        """Estimate the seconds for `rows` rows at the last measured speed; None before any."""
        return None if self.rows_per_sec is None else rows / self.rows_per_sec


class StepReader:
    """Fetch the results of steps one step late, and log a line of metrics for each interval."""

    def __init__(
        self,
        setup: "Setup",
        record: Record,
        bad_steps: "BadSteps",
        ledger: Ledger,
        progress: Progress,
    ) -> None:
        self._config, self._screen, self._advice = setup.config, setup.screen, setup.input_advice
        self._record, self._bad_steps = record, bad_steps
        self._ledger, self._progress = ledger, progress
        self._unread: list[tuple[int, Any]] = []  # (step, sums on the device)
        self._end_was_shown = False
        self._input_warned_secs = float("-inf")

    def add(self, step: int, sums: Any) -> None:
        """Add the results of a step, and start copying them to the host."""
        for leaf in jax.tree.leaves(sums):
            leaf.copy_to_host_async()
        self._unread.append((step, sums))

    def read(self, running: RunningPhase, up_to_step: int) -> None:
        """Fetch the results up to a step, and log each line of metrics that is due.

        Raises FloatingPointError or RollBack at a bad step, if the guard asks for it.
        """
        finished = [(step, sums) for step, sums in self._unread if step <= up_to_step]
        self._unread = self._unread[len(finished) :]
        for step, sums in jax.device_get(finished):
            self._count(step, sums)
            if step % self._config.log_every_steps == 0 or self._ends_objective(running, step):
                running.end_interval(len(self._unread))
                self._record_interval(running, step)
        if not self._unread:
            running.end_interval()

    def record_ended(self, running: RunningPhase, step: int) -> None:
        """Log the metrics restored with a checkpoint if the next phase has another objective.

        Only a branch has such metrics: its trunk kept the objective past `step`, and had not logged
        them yet.
        """
        if self._progress.interval and self._ends_objective(running, step):
            self._record_interval(running, step)

    def _ends_objective(self, running: RunningPhase, step: int) -> bool:
        """Return whether the next phase has another objective, whose losses have other names."""
        following = self._config.phases[running.index + 1 :]
        return (
            step == running.end
            and bool(following)
            and following[0].objective != running.phase.objective
        )

    def _count(self, step: int, sums: Any) -> None:
        numbers, interval = metrics.flatten(sums), self._progress.interval
        if numbers["skipped"]:
            self._progress.interval = metrics.add_skipped(interval, numbers)
            self._bad_steps.report_bad(step, numbers, sums["guard"].usual)
        else:
            self._progress.interval = metrics.add_step(interval, numbers)
            self._progress.bad_in_a_row = 0

    def _record_interval(self, running: RunningPhase, step: int) -> None:
        line = metrics.compute_means(self._progress.interval)
        self._progress.interval = {}
        pace, secs_left = running.rows_per_sec, None
        if pace is not None:  # None until an interval was timed
            line["sequences_per_sec"] = pace * running.facts.examples_per_row
            line["input_wait_share"] = running.input_wait_share
            secs_left = self.positions_left(running, step) / (pace * running.phase.seq_len)
        line["goodput"] = self._ledger.goodput
        self._ledger.write()
        self._record(step, "train", line)
        if "loss" in line:
            self._screen.training_line(step, config_lib.total_steps(self._config), line, secs_left)
        if secs_left is not None and not self._end_was_shown:
            self._screen.expected_end(secs_left)
            self._end_was_shown = True
        self._warn_if_input_bound(running.input_wait_share)

    def _warn_if_input_bound(self, share: float) -> None:
        now_secs = time.monotonic()
        if share >= INPUT_BOUND_SHARE and now_secs - self._input_warned_secs >= REMINDER_SECS:
            self._screen.input_bound(share, self._advice)
            self._input_warned_secs = now_secs

    def positions_left(self, running: RunningPhase, step: int) -> int:
        """Count the token positions left to train on; one costs about the same in all phases."""
        phases = (
            dataclasses.replace(running.phase, steps=running.end - step),
            *self._config.phases[running.index + 1 :],
        )
        return sum(phase.steps * phase.batch_size * phase.seq_len for phase in phases)
