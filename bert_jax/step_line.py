"""The live line while steps run: the step, the pace and the time left."""

import collections
import time
from collections.abc import Callable

from bert_jax.screen import Screen
from data_pipeline.live_line import LINE, duration

_EVERY_SECS = 0.2  # at most; a person reads no faster
_WINDOW_SECS = 20.0  # of the steps whose pace is shown


class StepLine:
    """Shows the steps that the devices have ended; does nothing without a terminal."""

    def __init__(
        self, screen: Screen, total_steps: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._screen, self._total_steps, self._clock = screen, total_steps, clock
        self._seen: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)

    def restart(self, step: int) -> None:
        """Show that this step has ended, and forget the pace: a save, say, is no part of it."""
        self._seen.clear()
        self._screen.show(self._words(step))

    def show(self, step: int, rows_per_step: float, steps_left: float) -> None:
        """Show that this step has ended.

        rows_per_step are examples; steps_left is the rest of the run in steps as long as this one.
        """
        if not LINE.is_on:
            return
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < _EVERY_SECS:
            return
        self._seen.append((now, step))
        while now - self._seen[0][0] > _WINDOW_SECS and len(self._seen) > 2:
            self._seen.popleft()
        words = self._words(step)
        since, first = self._seen[0]
        if step > first:
            secs = (now - since) / (step - first)
            words += f"  {rows_per_step / secs:,.0f} seq/s  {duration(secs * steps_left)} left"
        self._screen.show(words)

    def _words(self, step: int) -> str:
        return f"step {step:,}/{self._total_steps:,}"
