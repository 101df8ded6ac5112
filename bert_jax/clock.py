"""How long steps took, and the plain numbers of a run that its checkpoints carry."""

import dataclasses
import time
from collections.abc import Callable


@dataclasses.dataclass
class Progress:
    """Saved with each checkpoint, so that a resumed run writes the same records as one unbroken."""

    interval: dict[str, float] = dataclasses.field(default_factory=dict)  # sums since the last line
    train_secs: float = 0.0  # wall time in steps; compiling, evaluation and saving left out
    timed_sequences: float = 0.0  # examples trained on in that time
    input_wait_secs: float = 0.0  # of that time, the devices had nothing to do for want of a batch
    skipped_steps: int = 0  # bad steps, which changed nothing
    bad_in_a_row: int = 0  # of these, those since the last good step
    left_out_steps: int = 0  # passed over after going back to a checkpoint
    evaluated_step: int = 0  # the last one; a stop leaves out what is due after its step


class Clock:
    """Measure the wall time of a phase's steps: begun after a compile, an evaluation or a save.

    Only steps that the devices have ended count. Those under way when an interval is noted belong
    to the next one: after a resume the first line may come while the first timed step has hardly
    begun, and would show many times the true pace.
    """

    def __init__(
        self,
        progress: Progress,
        batch_size: int,
        examples_per_row: float,
        on_wait: Callable[[float], None] = lambda secs: None,
    ) -> None:
        """batch_size counts rows; examples_per_row is their mean, 1 where rows are not packed.

        on_wait is told the seconds of each wait too: those of a whole run are counted elsewhere.
        """
        self.rows_per_sec: float | None = None  # of the last interval that was timed
        self.input_wait_share = 0.0  # of that interval, spent waiting for batches
        self._progress, self._batch_size = progress, batch_size
        self._examples_per_row, self._on_wait = examples_per_row, on_wait
        self._rows, self._since_secs, self._input_wait_secs = 0, 0.0, 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._rows, self._since_secs, self._input_wait_secs = 0, time.perf_counter(), 0.0

    def step(self) -> None:
        """A step was given to the device."""
        self._rows += self._batch_size

    def waited(self, secs: float) -> None:
        """The devices had nothing to do for so long because a batch was not there."""
        self._input_wait_secs += secs
        self._on_wait(secs)

    def note(self, steps_under_way: int = 0) -> None:
        """Add the time since the start, or the last note, to the run's.

        The last steps_under_way steps given to the devices have not ended. Without one that has,
        the interval goes on.
        """
        rows_under_way = min(self._rows, steps_under_way * self._batch_size)
        rows = self._rows - rows_under_way
        if rows == 0:
            return
        secs = time.perf_counter() - self._since_secs
        self.rows_per_sec = rows / secs
        # Ends are seen late: a wait may belong to the interval before, and be longer than this one.
        self.input_wait_share = min(1.0, self._input_wait_secs / secs)
        self._progress.train_secs += secs
        self._progress.timed_sequences += rows * self._examples_per_row
        self._progress.input_wait_secs += self._input_wait_secs
        self.start()
        self._rows = rows_under_way

    def secs_for(self, rows: int) -> float | None:
        """Seconds that so many rows take at the last pace, None before there is one."""
        return None if self.rows_per_sec is None else rows / self.rows_per_sec
