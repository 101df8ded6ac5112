"""A trace of some steps of a run, for Perfetto, xprof or TensorBoard."""

import dataclasses
import pathlib
import re
from typing import Any

import jax

FOLDER = "profile"  # in the workdir
HOW_TO_OPEN = (
    "to look at it, drop that file on https://ui.perfetto.dev; for XLA's operations by cost, "
    "`pip install xprof` and `xprof --logdir=` with the folder profile"
)
_STEPS = re.compile(r"(\d{1,15}):(\d{1,15})")


@dataclasses.dataclass(frozen=True)
class Window:
    """The steps to trace, both ends included, numbered from 1 as in the records."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def read_window(text: str) -> Window:
    """Read "100:105".

    Raises:
      ValueError: it is not of that form, begins before step 1, or ends before it begins.
    """
    found = _STEPS.fullmatch(text)
    window = Window(int(found[1]), int(found[2])) if found else Window(0, 0)
    if not 1 <= window.first <= window.last:
        raise ValueError(
            f"--profile_steps={text} is not FIRST:LAST, the numbers of two steps from 1 on, such "
            "as --profile_steps=100:105"
        )
    return window


def check(window: Window, done_steps: int, total_steps: int) -> None:
    """Raise if a run that goes on after done_steps of total_steps does not reach all the steps.

    Raises:
      ValueError: says which steps can be traced.
    """
    if done_steps < window.first and window.last <= total_steps:
        return
    if done_steps >= total_steps:
        raise ValueError(
            f"--profile_steps={window}: the run has all its {total_steps:,} steps already; trace "
            "one in another --workdir, or give the last phase more steps"
        )
    begin = f"goes on at step {done_steps + 1:,}" if done_steps else "begins at step 1"
    raise ValueError(
        f"--profile_steps={window} lies outside the run, which {begin} and ends with step "
        f"{total_steps:,}; give steps from {done_steps + 1} to {total_steps}"
    )


class Profiler:
    """Traces the window of a run, if it has one. Must be closed, as a run may end within it."""

    def __init__(self, window: Window | None, folder: pathlib.Path) -> None:
        self._window, self._folder = window, folder
        self._is_tracing = False

    def before(self, step: int, state: Any) -> None:
        """Begin if this is the first step of the window, once all before it have ended."""
        if self._window is not None and step == self._window.first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True

    def is_last(self, step: int) -> bool:
        """Whether the trace ends with this step: to be closed once that has ended."""
        return self._is_tracing and self._window is not None and step == self._window.last

    def close(self) -> str | None:
        """Write what was traced, if anything was; returns where."""
        if not self._is_tracing:
            return None
        self._is_tracing = False
        jax.profiler.stop_trace()
        written = self._folder.rglob("*.trace.json.gz")
        return str(max(written, key=lambda path: path.stat().st_mtime, default=self._folder))
