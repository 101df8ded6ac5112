"""Measure training speed (StepClock), and define the counters saved with checkpoints (Progress)."""

import dataclasses
import time
from collections.abc import Callable


@dataclasses.dataclass
class Progress:
    """Hold the counters saved with each checkpoint, from which a resumed run continues."""

    # Sums of metrics since the last line:
    interval: dict[str, float] = dataclasses.field(default_factory=dict)
    train_secs: float = 0.0  # wall time of steps, excluding compiling, evaluation and saving
    timed_sequences: float = 0.0  # examples trained on in that time
    input_wait_secs: float = 0.0  # part of that time in which devices waited for a batch
    skipped_steps: int = 0  # bad steps, whose updates were discarded
    bad_in_a_row: int = 0  # bad steps since the last good one
    left_out_steps: int = 0  # steps skipped after roll-backs
    evaluated_step: int = 0  # step of the last evaluation; a stop postpones one that is due


class StepClock:
    """Measure the wall time of a phase's steps, started after each compile, evaluation or save.

    Only finished steps count; steps in flight at the end of an interval count in the next one.
    Otherwise the first line after a resume could show many times the true speed.
    """

    def __init__(
        self,
        progress: Progress,
        batch_size: int,
        examples_per_row: float,
        on_wait: Callable[[float], None] = lambda secs: None,
    ) -> None:
        """Measure steps of batch_size rows with a mean of examples_per_row examples each.

        `on_wait` receives the seconds of each wait for a batch, for the goodput ledger.
        """
        self.rows_per_sec: float | None = None  # speed in the last timed interval
        self.input_wait_share = 0.0  # share of that interval spent waiting for batches
        self._progress, self._batch_size = progress, batch_size
        self._examples_per_row, self._on_wait = examples_per_row, on_wait
        self._rows, self._since_secs, self._input_wait_secs = 0, 0.0, 0.0

    def start(self) -> None:
        """Start measuring."""
        self._rows, self._since_secs, self._input_wait_secs = 0, time.perf_counter(), 0.0

    def count_step(self) -> None:
        """Count a dispatched step."""
        self._rows += self._batch_size

    def add_wait(self, secs: float) -> None:
        """Add seconds in which the devices waited for a batch."""
        self._input_wait_secs += secs
        self._on_wait(secs)

    def end_interval(self, steps_under_way: int = 0) -> None:
        """Add the interval's time to the run's totals, and start a new interval.

        `steps_under_way` is the number of dispatched steps that have not finished. If no step has
        finished, the interval continues.
        """
        rows_under_way = min(self._rows, steps_under_way * self._batch_size)
        rows = self._rows - rows_under_way
        if rows == 0:
            return
        secs = time.perf_counter() - self._since_secs
        self.rows_per_sec = rows / secs
        # Finished steps are noticed late: a wait may stem from the previous interval and exceed
        # this one.
        self.input_wait_share = min(1.0, self._input_wait_secs / secs)
        self._progress.train_secs += secs
        self._progress.timed_sequences += rows * self._examples_per_row
        self._progress.input_wait_secs += self._input_wait_secs
        self.start()
        self._rows = rows_under_way

    def secs_for(self, rows: int) -> float | None:
        """Estimate the seconds for `rows` rows at the last measured speed; None if not measured."""
        return None if self.rows_per_sec is None else rows / self.rows_per_sec
