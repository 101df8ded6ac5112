"""Read metrics.jsonl, or take the numbers of a live run, as curves of bounded size.

A file of a million lines is read in blocks and thinned meanwhile. What a kill leaves behind, and
lines that are damaged, are skipped and counted.
"""

import collections
import contextlib
import dataclasses
import gc
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.io import small_files
from data_pipeline.io.jsonl import FINDING

MAX_POINTS = 2000  # default per curve
_MAX_CURVES = 1000  # limit per file; a run has some dozens
_MAX_FINDINGS = 200
_BLOCK_BYTES = 4 << 20  # read at once; a line that is longer is damaged

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

    def last(self, split: str, measure: str) -> float | None:
        """Return the newest value of a measure; None if the run has none."""
        _, values = self.select(split, measure)
        return float(values[-1]) if len(values) else None

    def list_measures(self, split: str) -> list[str]:
        """List the measures of a split, in the order in which the run logged them first."""
        return [measure for name, measure in self.points if name == split]


class CurvesBuilder:
    """Collect lines of metrics; memory is bounded by the number of curves.

    A step that is repeated after a resume or a roll-back replaces its earlier line, and drops the
    later ones of its split.
    """

    def __init__(self, most_points: int = MAX_POINTS) -> None:
        """Keep at most so many points of a curve, 8 or more."""
        self._most = max(most_points, 8)
        self._curves: dict[Key, tuple[list[float], list[float]]] = {}
        self._last: dict[str, int] = {}
        self._findings: list[Mapping[str, Any]] = []
        self.damaged_lines = 0

    def add(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics; values that are not finite are skipped."""
        if step <= self._last.get(split, -1):
            self._go_back(step, split)
        self._last[split] = step
        for measure, value in numbers.items():
            if math.isfinite(value):
                self._extend((split, measure), [step], [value])

    def _go_back(self, step: int, split: str) -> None:
        for (name, _), (steps, values) in self._curves.items():
            if name == split:
                kept = int(np.searchsorted(steps, step))
                del steps[kept:], values[kept:]

    def add_record(self, record: Any) -> None:
        """Add a parsed line of metrics.jsonl; any other line is counted as damaged."""
        if not isinstance(record, dict):
            self.damaged_lines += 1
            return
        if record.get("split") == FINDING:
            self._findings = [*self._findings, record][-_MAX_FINDINGS:]
            return
        step, split = record.pop("step", None), record.pop("split", None)
        is_step = type(step) is int and step >= 0
        if is_step and isinstance(split, str) and _are_numbers((step, *record.values())):
            self.add(step, split, record)
        else:
            self.damaged_lines += 1

    def add_records(self, records: Sequence[Any]) -> None:
        """Add parsed lines of metrics.jsonl, one split at a time if nothing is wrong."""
        splits: dict[str, list[Any]] = collections.defaultdict(list)
        for record in records:
            splits[str(record.get("split")) if isinstance(record, dict) else ""].append(record)
        for split, members in splits.items():
            if not self._add_table(split, members):
                for record in members:
                    self.add_record(record)

    def _add_table(self, split: str, records: Sequence[Any]) -> bool:
        """Add lines of a split; False, and nothing added, unless all have the same numbers."""
        names = tuple(records[0]) if isinstance(records[0], dict) else ()
        if names[:2] != ("step", "split") or any(tuple(record) != names for record in records):
            return False
        steps, splits, *columns = zip(*(record.values() for record in records), strict=True)
        if not all(map(_are_numbers, (steps, *columns))) or set(map(type, steps)) != {int}:
            return False
        steps_N = np.asarray(steps, np.float64)
        is_rising = steps_N[0] > self._last.get(split, -1) and (np.diff(steps_N) > 0).all()
        if not is_rising or set(map(type, splits)) != {str} or split == FINDING:
            return False
        self._last[split] = steps[-1]
        for measure, column in zip(names[2:], columns, strict=True):
            values_N = np.asarray(column, np.float64)
            are_finite = np.isfinite(values_N)
            points = thin(steps_N[are_finite], values_N[are_finite], self._most)
            self._extend((split, measure), points[0].tolist(), points[1].tolist())
        return True

    def _extend(self, key: Key, new_steps: Sequence[float], new_values: Sequence[float]) -> None:
        curve = self._curves.get(key)
        if curve is None:
            if len(self._curves) >= _MAX_CURVES or not new_steps:
                return
            curve = self._curves[key] = ([], [])
        steps, values = curve
        steps.extend(new_steps)
        values.extend(new_values)
        if len(steps) >= 4 * self._most:
            thinned = thin(np.asarray(steps), np.asarray(values), self._most)
            self._curves[key] = (thinned[0].tolist(), thinned[1].tolist())

    def build(self) -> Curves:
        """Return the curves of what has been added so far."""
        points = {
            key: thin(np.asarray(steps, np.float64), np.asarray(values, np.float64), self._most)
            for key, (steps, values) in self._curves.items()
            if steps
        }
        last_step = max(self._last.values(), default=0)
        return Curves(points, last_step, tuple(self._findings), self.damaged_lines)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether values are floats, or integers that a float can hold exactly."""
    kinds = set(map(type, values))
    if not kinds <= {int, float}:
        return False
    if int not in kinds:
        return True
    whole = values if kinds == {int} else [each for each in values if type(each) is int]
    return max(whole) <= 1 << 53 and min(whole) >= -(1 << 53)


def thin(steps_N: np.ndarray, values_N: np.ndarray, most: int) -> Points:
    """Keep at most `most` points: the first, last, lowest and highest of each span of steps.

    The spans are of one width, so that thinning twice favors no part of the curve. `most` is 4
    or more; the steps rise.
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


def read_curves(path: pathlib.Path, most_points: int = MAX_POINTS) -> Curves:
    """Read a metrics.jsonl; no curves if the file is missing or empty.

    Raises:
      DamagedFile: it is a folder, a pipe, or a link that leads out of its folder.
      OSError: it cannot be read now.
    """
    builder = CurvesBuilder(most_points)
    if path.exists() or path.is_symlink():
        with _without_collections():
            for lines in _read_blocks(path, builder):
                builder.add_records(_parse(lines, builder))
    return builder.build()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection: JSON has no cycles, and each collection walks all modules."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_blocks(path: pathlib.Path, builder: CurvesBuilder) -> Iterator[Sequence[bytes]]:
    """Yield lists of lines; the last line of the file only if it is complete."""
    rest, is_too_long = b"", False
    with small_files.open_regular(path, path.parent) as file:
        while block := file.read(_BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            if is_too_long and lines:  # the end of a line that has been counted
                del lines[0]
                is_too_long = False
            yield lines
            if is_too_long or len(rest) > _BLOCK_BYTES:
                builder.damaged_lines += not is_too_long
                rest, is_too_long = b"", True
    if rest and not is_too_long and rest.endswith(b"}") and _loads(rest) is not None:
        yield [rest]


def _loads(text: bytes) -> Any:
    """Parse JSON; None if it is damaged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse(lines: Sequence[bytes], builder: CurvesBuilder) -> Sequence[Any]:
    """Parse lines together, which is faster, or each by itself where some are damaged."""
    filled = [line for line in lines if line.strip()]
    together = _loads(b"[" + b",".join(filled) + b"]")
    if together is not None and len(together) == len(filled):
        return list(together)
    records = [_loads(line) for line in filled]
    builder.damaged_lines += sum(record is None for record in records)
    return [record for record in records if record is not None]
