"""The records of a run: metrics.jsonl, TensorBoard events, summary.json."""

import json
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import tensorboardX.summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from bert_jax.record_files import (
    cut_lines_after,
    in_a_sentence,
    read_metrics,
    write_whole,
)
from bert_jax.wandb_writer import WandbWriter
from data_pipeline import small_files

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PREDICTIONS = "predictions"  # a folder, of fine-tuning
EVENTS = "tensorboard"
CURVES = "curves.png"  # written by curves.py
BAD_STEPS = "bad_steps.jsonl"  # by bad_steps.py
LEFT_OUT = "left_out.json"  # by left_out.py


class Records:
    """Writes where the process is the first one, and nowhere otherwise."""

    def __init__(
        self,
        workdir: pathlib.Path,
        first_step: int,
        is_writer: bool,
        wandb: WandbWriter | None = None,
    ) -> None:
        """Cut the lines of steps after first_step off, which a resumed run will do again."""
        self._workdir = workdir
        self._is_writer = is_writer
        self._wandb = wandb
        if not is_writer:
            return
        with in_a_sentence(workdir):
            (workdir / SUMMARY).unlink(missing_ok=True)  # of the run as it ended before
            self._open(first_step)

    def _open(self, last_step: int) -> None:
        """Go on after this step, as if no line of a later one had been written."""
        cut_lines_after(self._workdir / METRICS, last_step, read_metrics)
        lines = small_files.open_to_write(self._workdir / METRICS, os.O_WRONLY | os.O_APPEND)
        self._lines = os.fdopen(lines, "a", encoding="utf-8")
        self._events = _events(self._workdir / EVENTS, last_step)

    def go_back(self, last_step: int) -> None:
        """Cut the lines of later steps off, of a run that rolled back."""
        if self._is_writer:
            with in_a_sentence(self._workdir):
                self._lines.close()
                self._events.close()
                self._open(last_step)

    def write(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics; split is "train" or "heldout"."""
        if not self._is_writer:
            return
        with in_a_sentence(self._workdir):
            self._lines.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
            self._lines.flush()
            named = {f"{split}/{name}": value for name, value in numbers.items()}
            for name, value in named.items():
                shown = tensorboardX.summary.scalar(name, value)
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=shown))
            self._events.flush()
        if self._wandb is not None:
            self._wandb.write(step, named)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Close the files; a run that came to its end leaves a summary."""
        if not self._is_writer:
            return
        if self._wandb is not None:
            self._wandb.end(is_whole=summary is not None)
        with in_a_sentence(self._workdir):
            self._lines.close()
            self._events.close()
            if summary is not None:
                text = json.dumps(summary, indent=2) + "\n"
                write_whole(self._workdir / SUMMARY, text.encode())


def _events(folder: pathlib.Path, first_step: int) -> EventsWriter:
    """A file of TensorBoard events, which hides those of later steps in earlier files.

    Not tensorboardX's SummaryWriter: it writes in a thread, where a full disk is an error that
    nobody is told, and a run then waits for ever for the thread to take the next event.
    """
    folder.mkdir(exist_ok=True)
    events = EventsWriter(str(folder / "events"), f".{time.time_ns()}")  # not twice in a second
    if first_step:
        log = SessionLog(status=SessionLog.START)
        events.write_event(Event(wall_time=time.time(), step=first_step + 1, session_log=log))
    return events
