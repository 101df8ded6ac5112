"""Write the metrics of a run: metrics.jsonl, TensorBoard events, summary.json."""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.jsonl import read_lines, truncate_records

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PREDICTIONS = "predictions"  # a folder, of fine-tuning
EVENTS = "tensorboard"
CURVES = "curves.png"  # written by reporting/plots.py
BAD_STEPS = "bad_steps.jsonl"  # written by trainer/bad_steps.py
PROBE_SCORES = "probe.jsonl"  # a file of a probe's folder
LEFT_OUT = "left_out.json"  # written by trainer/bad_steps.py
VERIFIED = "data_verified.json"  # written by trainer/feed.py


class Listener(Protocol):
    """Follow a run; the loop calls each listener of its list in order, on process 0."""

    def on_start(self, step: int) -> None:
        """Continue after a step as if no later one was recorded; a roll-back calls it again."""

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step; split is "train" or "heldout"."""

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """End; a finished run has a summary, to which a listener may add.

        Listeners are closed in reverse order.
        """


def _explain_errors(workdir: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return explain_errors(str(workdir), "writing the records of the run")


class MetricsFile:
    """Write metrics.jsonl, and summary.json at the end: a Listener."""

    def __init__(self, workdir: pathlib.Path) -> None:
        self._workdir = workdir
        self._lines: TextIO | None = None

    def on_start(self, step: int) -> None:
        """Cut off the lines of later steps, and the summary of an earlier end of the run."""
        with _explain_errors(self._workdir):
            self._close()
            (self._workdir / SUMMARY).unlink(missing_ok=True)
            truncate_records(self._workdir / METRICS, step, read_lines)
            lines = small_files.open_to_write(self._workdir / METRICS, os.O_WRONLY | os.O_APPEND)
            self._lines = os.fdopen(lines, "a", encoding="utf-8")

    def read_lines(self) -> list[dict[str, Any]]:
        """Read the lines written so far."""
        return read_lines(self._workdir / METRICS)

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics."""
        self.write_lines([{"step": step, "split": split, **numbers}])

    def write_lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines."""
        if self._lines is None:
            raise ValueError("on_start was not called")
        with _explain_errors(self._workdir):
            for line in lines:
                self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """Close the file, and write the summary of a finished run."""
        with _explain_errors(self._workdir):
            self._close()
            if summary is not None:
                write_json(self._workdir / SUMMARY, summary)

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None


class EventsFile:
    """Write TensorBoard events: a Listener.

    Not tensorboardX's SummaryWriter: it writes in a thread, where the error of a full disk is lost
    and the run then waits forever for the thread to take the next event.
    """

    # tensorboardX is imported inside the functions that write events: it loads every installed
    # cloud client, a twelfth of the import time of a command that writes none.

    def __init__(self, workdir: pathlib.Path) -> None:
        self._workdir = workdir
        self._events: Any = None

    def on_start(self, step: int) -> None:
        """Open a new file, which hides the events of later steps in earlier files."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = self._workdir / EVENTS
        with _explain_errors(self._workdir):
            self._close()
            folder.mkdir(exist_ok=True)
            name = f".{time.time_ns()}"  # names differ within a second
            self._events = EventsWriter(str(folder / "events"), name)
            if step:
                log = SessionLog(status=SessionLog.START)
                self._events.write_event(
                    Event(wall_time=time.time(), step=step + 1, session_log=log)
                )

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add the numbers as scalars, named SPLIT/NAME."""
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        with _explain_errors(self._workdir):
            for name, value in numbers.items():
                scalar = summary.scalar(f"{split}/{name}", value)
                event = Event(wall_time=time.time(), step=step, summary=scalar)
                self._events.write_event(event)
            self._events.flush()

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """Close the file."""
        del summary
        with _explain_errors(self._workdir):
            self._close()

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
