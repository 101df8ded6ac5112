"""Steps given to the devices and not ended yet: how many may be, and when each one ended.

A thread waits for the steps' ends, so that the loop itself waits for no result: only for room,
while the devices have work. Without a bound the loop would run ahead by as many steps as the
runtime queues up, each with its batch in memory, and a stop signal would have to wait for them all.
"""

import collections
import dataclasses
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

STEPS_AHEAD = 2  # steps that the devices have at a time: one they work on, one that follows it


@dataclasses.dataclass(frozen=True)
class _Step:
    end_secs: Future[float]
    asked_secs: float  # when the loop asked for its batch
    got_secs: float  # when it was there


def _end_secs(sums: Any) -> float:
    jax.block_until_ready(sums)
    return time.perf_counter()


class StepsInFlight:
    """The steps that the devices still have, oldest first. Must be closed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "steps")
        self._steps: collections.deque[_Step] = collections.deque()
        self._last_end_secs = 0.0

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self._steps)

    def add(self, sums: Any, asked_secs: float, got_secs: float) -> None:
        """A step was given to the devices; sums is what it returns beside the state."""
        self._steps.append(_Step(self._thread.submit(_end_secs, sums), asked_secs, got_secs))

    def make_room(self) -> float:
        """Wait until one more step may follow.

        Returns the seconds for which the devices had nothing to do for want of a batch, before the
        steps that have now ended. An error of such a step is raised here.
        """
        return self._ended_down_to(STEPS_AHEAD - 1)

    def all_ended(self) -> float:
        """Wait until no step is left; returns as make_room does."""
        return self._ended_down_to(0)

    def _ended_down_to(self, steps: int) -> float:
        starved_secs = 0.0
        while len(self._steps) > steps:
            step = self._steps.popleft()
            idle_since_secs = max(self._last_end_secs, step.asked_secs)
            starved_secs += max(0.0, step.got_secs - idle_since_secs)
            self._last_end_secs = step.end_secs.result()
        return starved_secs

    def close(self) -> None:
        """Wait for the steps that the devices still have."""
        self._thread.shutdown(wait=True)
