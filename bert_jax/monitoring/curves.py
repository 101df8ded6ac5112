"""Read metrics.jsonl as curves of bounded size.

Damaged lines are skipped and counted, such as a line that a kill cut off.
"""

import array
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from data_pipeline.io import small_files
from data_pipeline.io.jsonl import FINDING

MAX_POINTS = 2000  # default per curve
_MAX_CURVES = 1000  # limit per file; a run has some dozens
_MAX_FINDINGS = 200

Key = tuple[str, str]  # split and measure, such as ("heldout", "mlm_loss")
Points = tuple[np.ndarray, np.ndarray]  # steps and values, float64, steps rising
_NOTHING = np.zeros(0)


@dataclasses.dataclass(frozen=True)
class Curves:
    """Hold the curves of a run by split and measure."""

    points: Mapping[Key, Points]
    last_step: int  # 0 without a line
    findings: tuple[Mapping[str, Any], ...]  # logged ones: rule, step, sentence, try
    damaged_lines: int  # skipped; a line cut off at the end of the file is not counted

    def select(self, split: str, measure: str) -> Points:
        """Return steps and values of a measure; empty arrays if the run has none."""
        return self.points.get((split, measure), (_NOTHING, _NOTHING))

    def list_newest(self, split: str) -> dict[str, float]:
        """Return the newest value of each measure of a split, in the order of their first lines."""
        return {
            measure: float(values[-1])
            for (name, measure), (_, values) in self.points.items()
            if name == split
        }


def read_curves(path: pathlib.Path, most_points: int = MAX_POINTS) -> Curves:
    """Read a metrics.jsonl; no curves if the file is missing or empty.

    A step that is repeated after a resume or a roll-back replaces its earlier line, and drops the
    later ones of its split. Values that are not finite are skipped.

    Raises:
      DamagedFile: it is a folder, a pipe, or a link that leads out of its folder.
      OSError: it cannot be read now.
    """
    curves: dict[Key, tuple[array.array[float], array.array[float]]] = {}
    last: dict[str, int] = {}
    findings: list[Mapping[str, Any]] = []
    damaged_lines = 0
    for record in _read_lines(path):
        if not isinstance(record, dict):
            damaged_lines += 1
            continue
        if record.get("split") == FINDING:
            findings = [*findings, record][-_MAX_FINDINGS:]
            continue
        step, split = record.pop("step", None), record.pop("split", None)
        is_step = type(step) is int and step >= 0
        if not is_step or not isinstance(split, str) or not _are_numbers((step, *record.values())):
            damaged_lines += 1
            continue
        if step <= last.get(split, -1):
            _go_back(curves, step, split)
        last[split] = step
        for measure, value in record.items():
            if math.isfinite(value) and ((split, measure) in curves or len(curves) < _MAX_CURVES):
                empty = array.array("d"), array.array("d")
                steps, values = curves.setdefault((split, measure), empty)
                steps.append(step)
                values.append(value)
    points = {
        key: thin(np.asarray(steps), np.asarray(values), max(most_points, 8))
        for key, (steps, values) in curves.items()
        if steps
    }
    return Curves(points, max(last.values(), default=0), tuple(findings), damaged_lines)


def _go_back(
    curves: Mapping[Key, tuple["array.array[float]", "array.array[float]"]], step: int, split: str
) -> None:
    for (name, _), (steps, values) in curves.items():
        if name == split:
            kept = int(np.searchsorted(steps, step))
            del steps[kept:], values[kept:]


def _read_lines(path: pathlib.Path) -> Iterator[Any]:
    """Yield the parsed lines, None for a damaged one; leave out an incomplete last line."""
    if not path.exists() and not path.is_symlink():
        return
    with small_files.open_regular(path, path.parent) as file:
        # A longer line is none of a run: its parts are no JSON.
        for line in iter(lambda: file.readline(small_files.MAX_BYTES), b""):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    yield None


def _are_numbers(values: Iterable[Any]) -> bool:
    """Return whether values are floats, or integers that a float can hold exactly."""
    return all(
        type(value) is float or (type(value) is int and abs(value) <= 1 << 53) for value in values
    )


def thin(steps_N: np.ndarray, values_N: np.ndarray, most: int) -> Points:
    """Keep at most `most` points: the first, last, lowest and highest of each span of steps.

    The spans have equal widths, so that thinning twice favors no part of the curve. `most` is 4
    or more; the steps ascend.
    """
    if len(steps_N) <= most:
        return steps_N, values_N
    edges = np.linspace(steps_N[0], steps_N[-1], most // 4 + 1)
    firsts_S = np.unique(np.searchsorted(steps_N, edges[:-1]))
    span_N = np.repeat(np.arange(len(firsts_S)), np.diff(firsts_S, append=len(steps_N)))
    chosen = [firsts_S, np.append(firsts_S[1:], len(steps_N)) - 1]
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(values_N == extreme.reduceat(values_N, firsts_S)[span_N])
        chosen.append(hits[np.unique(span_N[hits], return_index=True)[1]])  # the first of equals
    chosen_M = np.unique(np.concatenate(chosen))
    return steps_N[chosen_M], values_N[chosen_M]
