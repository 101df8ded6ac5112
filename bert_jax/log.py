"""The records of a run: metrics.jsonl, TensorBoard events, summary.json."""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorboardX.summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from bert_jax import storage_errors

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
EVENTS = "tensorboard"
CURVES = "curves.png"  # written by curves.py


class Records:
    """Writes where the process is the first one, and nowhere otherwise."""

    def __init__(self, workdir: pathlib.Path, first_step: int, is_writer: bool) -> None:
        """Cut the lines of steps after first_step off, which a resumed run will do again."""
        self._workdir = workdir
        self._is_writer = is_writer
        if not is_writer:
            return
        with _in_a_sentence(workdir):
            (workdir / SUMMARY).unlink(missing_ok=True)  # of the run as it ended before
            self._open(first_step)

    def _open(self, last_step: int) -> None:
        """Go on after this step, as if no line of a later one had been written."""
        cut_lines_after(self._workdir / METRICS, last_step)
        self._lines = (self._workdir / METRICS).open("a", encoding="utf-8")
        self._events = _events(self._workdir / EVENTS, last_step)

    def go_back(self, last_step: int) -> None:
        """Cut the lines of later steps off, of a run that rolled back."""
        if self._is_writer:
            with _in_a_sentence(self._workdir):
                self._lines.close()
                self._events.close()
                self._open(last_step)

    def write(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics; split is "train" or "heldout"."""
        if not self._is_writer:
            return
        with _in_a_sentence(self._workdir):
            self._lines.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
            self._lines.flush()
            for name, value in numbers.items():
                shown = tensorboardX.summary.scalar(f"{split}/{name}", value)
                self._events.write_event(Event(wall_time=time.time(), step=step, summary=shown))
            self._events.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Close the files; a run that came to its end leaves a summary."""
        if not self._is_writer:
            return
        with _in_a_sentence(self._workdir):
            self._lines.close()
            self._events.close()
            if summary is not None:
                text = json.dumps(summary, indent=2) + "\n"
                (self._workdir / SUMMARY).write_text(text, encoding="utf-8")


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


@contextlib.contextmanager
def _in_a_sentence(workdir: pathlib.Path) -> Iterator[None]:
    """Have what the disk refuses said with its place and the room that it has."""
    try:
        yield
    except OSError as error:
        said = storage_errors.explained(error, str(workdir), "writing the records of the run")
        raise error if said is None else said from error


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, none where there is no file.

    Raises:
      ValueError: a line before the last one is not a line of metrics.
    """
    if not path.exists():
        return []
    texts = path.read_text(encoding="utf-8").splitlines()
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):  # the last one may be the half line of a killed run
                raise ValueError(f"{path}, line {number} is not a line of metrics") from error
    return lines


def cut_lines_after(path: pathlib.Path, last_step: int) -> None:
    """Leave the lines of steps up to this one; a half line at the end goes."""
    kept = [line for line in read_lines(path) if line["step"] <= last_step]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    partial.replace(path)
