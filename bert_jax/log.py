"""The records of a run: metrics.jsonl, TensorBoard events, summary.json."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorboardX

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
        (workdir / SUMMARY).unlink(missing_ok=True)  # of the run as it ended before
        self._open(first_step)

    def _open(self, last_step: int) -> None:
        """Go on after this step, as if no line of a later one had been written."""
        cut_lines_after(self._workdir / METRICS, last_step)
        self._lines = (self._workdir / METRICS).open("a", encoding="utf-8")
        self._events = tensorboardX.SummaryWriter(
            str(self._workdir / EVENTS), purge_step=last_step + 1 if last_step else None
        )

    def go_back(self, last_step: int) -> None:
        """Cut the lines of later steps off, of a run that rolled back."""
        if self._is_writer:
            self._lines.close()
            self._events.close()
            self._open(last_step)

    def write(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics; split is "train" or "heldout"."""
        if not self._is_writer:
            return
        self._lines.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        self._lines.flush()
        for name, value in numbers.items():
            self._events.add_scalar(f"{split}/{name}", value, step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Close the files; a run that came to its end leaves a summary."""
        if not self._is_writer:
            return
        self._lines.close()
        self._events.close()
        if summary is not None:
            text = json.dumps(summary, indent=2) + "\n"
            (self._workdir / SUMMARY).write_text(text, encoding="utf-8")


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
