"""Profile a range of steps, for Perfetto, xprof or TensorBoard."""

import dataclasses
import pathlib
import re
from typing import Any

import jax

from data_pipeline.io import Refused

FOLDER = "profile"  # a folder of the workdir
HOW_TO_OPEN = (
    "to look at it, drop that file on https://ui.perfetto.dev; for XLA's operations by cost, "
    "`pip install xprof` and `xprof --logdir=` with the folder profile"
)
_STEPS = re.compile(r"(\d{1,15}):(\d{1,15})")


@dataclasses.dataclass(frozen=True)
class Window:
    """Hold the range of steps to profile, both ends included, counted from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def read_window(text: str) -> Window:
    """Parse a window such as "100:105"; raise Refused for any other form or order."""
    match = _STEPS.fullmatch(text)
    window = Window(int(match[1]), int(match[2])) if match else Window(0, 0)
    if not 1 <= window.first <= window.last:
        raise Refused(
            f"--profile_steps={text} is not FIRST:LAST, the numbers of two steps from 1 on, such "
            "as --profile_steps=100:105"
        )
    return window


def check_window(window: Window, total_steps: int) -> None:
    """Raise Refused if the run ends before the window does.

    A window that has passed is accepted, because the same command must resume the run.
    """
    if window.last > total_steps:
        raise Refused(
            f"--profile_steps={window} lies outside the run, which ends with step {total_steps:,}; "
            f"give steps from 1 to {total_steps}"
        )


class Profiler:
    """Profile the window of a run, if any. Must be closed, as a run may end within the window."""

    def __init__(self, window: Window | None, folder: pathlib.Path) -> None:
        self._window, self._folder = window, folder
        self._is_tracing = False

    def before(self, step: int, state: Any) -> None:
        """Start the trace at the first step of the window, after waiting for earlier steps."""
        if self._window is not None and step == self._window.first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True

    def is_last(self, step: int) -> bool:
        """Return whether this is the window's last step; the caller then closes the profile."""
        return self._is_tracing and self._window is not None and step == self._window.last

    def close(self) -> str | None:
        """Write the trace and return its path; None if there is no trace."""
        if not self._is_tracing:
            return None
        self._is_tracing = False
        jax.profiler.stop_trace()
        written = self._folder.rglob("*.trace.json.gz")
        return str(max(written, key=lambda path: path.stat().st_mtime, default=self._folder))
