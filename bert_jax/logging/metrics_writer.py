"""Write the metrics of a run: metrics.jsonl, TensorBoard events, summary.json."""

import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bert_jax.logging.wandb_writer import WandbWriter
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.errors import explain_errors
from data_pipeline.io.jsonl import FINDING, read_lines, truncate_records

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PREDICTIONS = "predictions"  # a folder, of fine-tuning
EVENTS = "tensorboard"
CURVES = "curves.png"  # written by reporting/plots.py
BAD_STEPS = "bad_steps.jsonl"  # by trainer/bad_steps.py
PROBE_SCORES = "probe.jsonl"  # in the folder of a probe
LEFT_OUT = "left_out.json"  # by trainer/bad_steps.py
VERIFIED = "data_verified.json"  # written by trainer/feed.py


class Watcher(Protocol):
    """Read the lines of metrics, and return findings to write behind them."""

    def restart(self, lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Go on behind the lines of a metrics.jsonl."""

    def add(self, line: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Take a new line."""


class Records:
    """Write on the first process, and nothing on the others."""

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int,
        is_writer: bool,
        wandb: WandbWriter | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """Cut off the lines of steps after first_step, which a resumed run repeats."""
        self._workdir = workdir
        self._is_writer = is_writer
        self._wandb = wandb
        self._watcher = watcher
        if not is_writer:
            return
        with explain_errors(str(workdir), "writing the records of the run"):
            (workdir / SUMMARY).unlink(missing_ok=True)  # of an earlier end of the run
            self._open(first_step)

    def _open(self, last_step: int) -> None:
        """Continue after this step, as if no later line had been written."""
        truncate_records(self._workdir / METRICS, last_step, read_lines)
        lines = small_files.open_to_write(self._workdir / METRICS, os.O_WRONLY | os.O_APPEND)
        self._lines = os.fdopen(lines, "a", encoding="utf-8")
        self._events = _open_events(self._workdir / EVENTS, last_step)
        if self._watcher is not None:
            self._write_findings(self._watcher.restart(read_lines(self._workdir / METRICS)))

    def _write_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        for finding in findings:
            self._lines.write(json.dumps({**finding, "split": FINDING}) + "\n")
        self._lines.flush()

    def go_back(self, last_step: int) -> None:
        """Cut off the lines of later steps, after a roll-back."""
        if self._is_writer:
            with explain_errors(str(self._workdir), "writing the records of the run"):
                self._lines.close()
                self._events.close()
                self._open(last_step)

    def write(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics; split is "train" or "heldout"."""
        if not self._is_writer:
            return
        line = {"step": step, "split": split, **numbers}
        with explain_errors(str(self._workdir), "writing the records of the run"):
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()
            if self._watcher is not None:
                self._write_findings(self._watcher.add(line))
            named = {f"{split}/{name}": value for name, value in numbers.items()}
            _write_scalars(self._events, step, named)
        if self._wandb is not None:
            self._wandb.write(step, named)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Close the files; a finished run also writes its summary."""
        if not self._is_writer:
            return
        if self._wandb is not None:
            self._wandb.end(is_whole=summary is not None)
        with explain_errors(str(self._workdir), "writing the records of the run"):
            self._lines.close()
            self._events.close()
            if summary is not None:
                write_json(self._workdir / SUMMARY, summary)


# tensorboardX is imported inside the functions that write events: it loads every installed cloud
# client, which is a twelfth of the import time of a command that writes none.
def _write_scalars(events: Any, step: int, numbers: Mapping[str, float]) -> None:
    from tensorboardX import summary
    from tensorboardX.proto.event_pb2 import Event

    for name, value in numbers.items():
        scalar = summary.scalar(name, value)
        events.write_event(Event(wall_time=time.time(), step=step, summary=scalar))
    events.flush()


def _open_events(folder: pathlib.Path, first_step: int) -> Any:
    """Open a file of TensorBoard events that hides those of later steps in earlier files.

    Not tensorboardX's SummaryWriter: it writes in a thread, where the error of a full disk is lost
    and the run then waits forever for the thread to take the next event.
    """
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(exist_ok=True)
    events = EventsWriter(str(folder / "events"), f".{time.time_ns()}")  # not twice in a second
    if first_step:
        log = SessionLog(status=SessionLog.START)
        events.write_event(Event(wall_time=time.time(), step=first_step + 1, session_log=log))
    return events
