"""Account for the wall time of a run since its first start, over all attempts.

Goodput is the share of wall time spent in training steps whose result was kept. An attempt lasts
from the start of a process, or a restore after a roll-back, to the next one or the end. Each line
of attempts.jsonl records the seconds that an attempt had spent when it reached a step. Time spent
after the step from which the next attempt resumed counts as lost.
Decision 27 in docs/design/ has the definitions.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from bert_jax.logging.console import duration
from data_pipeline.io.jsonl import append_record, read_records
from data_pipeline.io.small_files import DamagedFile, parse_record

FILE = "attempts.jsonl"  # a file of the workdir

# The kinds of wall time; every moment since the first start belongs to exactly one.
STARTING, RESTORING, COMPILING = "starting", "restoring", "compiling"
TRAINING, WAITING = "training", "waiting_for_data"
EVALUATING, SAVING = "evaluating", "saving"
LOST, STOPPED = "lost", "stopped"
KINDS = {
    TRAINING: "in steps whose result was kept",
    WAITING: "in steps that waited for a batch",
    COMPILING: "",
    EVALUATING: "",
    SAVING: "devices idle during a save",
    RESTORING: "",
    STARTING: "everything else, without imports",
    LOST: "in steps that were repeated",
    STOPPED: "from the last line of an attempt to the next attempt",
}
_REPEATED = (TRAINING, WAITING, EVALUATING, SAVING)


# The bounds exclude NaN and Infinity, which a JSON file may contain.
_Secs = Annotated[float, -1e11, 1e11]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Hold the time that an attempt had spent when it reached a step: one line of the file."""

    began: _Secs  # start of the attempt, in seconds since 1970; identifies it
    written: _Secs  # time of writing, in seconds since 1970; "at" in the file
    step: int
    secs: Mapping[str, _Secs]  # seconds by kind since the attempt began


Attempt = Sequence[Entry]


def read_attempts(path: pathlib.Path) -> list[Attempt]:
    """Read the attempts in a file; return [] without a file. Skip incomplete lines.

    Raises:
      DamagedFile: a line is not a valid entry.
    """
    entries = []
    for number, line in enumerate(read_records(path), 1):
        name = f"{path}, entry {number}"
        content = {"written" if key == "at" else key: value for key, value in line.items()}
        entries.append(parse_record(content, Entry, name))
        if unknown := sorted(entries[-1].secs.keys() - KINDS.keys()):
            raise DamagedFile(f"{name} has the kind {unknown[0]!r}; delete that line")
    return [tuple(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.began)]


def sum_by_kind(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Sum the seconds of each kind over consecutive attempts.

    An attempt resumes from the step of its first line. Time that earlier attempts spent on later
    steps counts as lost; starting, restoring and compiling never do.
    """
    secs = dict.fromkeys(KINDS, 0.0)
    kept_step: float = float("inf")
    next_began: float | None = None
    for attempt in reversed(attempts):
        last = attempt[-1]
        kept = next((entry for entry in reversed(attempt) if entry.step <= kept_step), None)
        for kind, spent in last.secs.items():
            if kind in _REPEATED:
                of_kept_steps = kept.secs.get(kind, 0.0) if kept else 0.0
                secs[LOST] += spent - of_kept_steps
                spent = of_kept_steps
            secs[kind] += spent
        if next_began is not None:
            secs[STOPPED] += max(0.0, next_began - last.written)
        kept_step, next_began = min(kept_step, attempt[0].step), attempt[0].began
    return secs


class Ledger:
    """Count the wall time of this attempt by kind, and add it to earlier attempts' time."""

    def __init__(self, workdir: pathlib.Path, began: float, is_writer: bool) -> None:
        """Read earlier attempts; `began` is the start of setup, in seconds since 1970."""
        self.step = 0  # the last dispatched step
        self._path, self._is_writer = workdir / FILE, is_writer
        self._before = read_attempts(self._path) if is_writer else []
        self._began, self._secs = began, dict.fromkeys(KINDS, 0.0)
        self._first: Entry | None = None
        self._counts = True
        self._kinds = [STARTING]  # nested kinds; the last one is being counted
        self._since = time.perf_counter() - max(0.0, time.time() - began)

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Count the time inside the context as this kind, excluding nested contexts."""
        self._count()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._count()
            self._kinds.pop()

    def move_to_waiting(self, secs: float) -> None:
        """Count `secs` of training as waiting for input instead."""
        self._secs[TRAINING] -= secs
        self._secs[WAITING] += secs

    def resume_from(self, step: int, is_finished: bool = False) -> None:
        """Record that the state of this step was restored or initialized.

        After a roll-back this starts another attempt, as later steps are repeated. An attempt that
        starts after the run is finished does not count: the final timings of the run are kept.
        """
        self._counts = not (is_finished and self._before)
        if self._first is not None:
            self.write()
            self._before = read_attempts(self._path) if self._is_writer else []
            self._began, self._secs = time.time(), dict.fromkeys(KINDS, 0.0)
        self.step = step
        self._first = self._entry()
        self.write()

    def write(self) -> None:
        """Append a line with the time spent up to the current step."""
        if self._is_writer and self._counts:
            entry = dataclasses.asdict(self._entry())
            entry["at"] = entry.pop("written")
            entry["secs"] = {kind: round(secs, 3) for kind, secs in entry["secs"].items() if secs}
            append_record(self._path, entry)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Append the last line; a write error does not mask the error that ended the run."""
        with contextlib.nullcontext() if error is None else contextlib.suppress(OSError):
            self.write()

    def _count(self) -> None:
        now = time.perf_counter()
        self._secs[self._kinds[-1]] += now - self._since
        self._since = now

    def _entry(self) -> Entry:
        self._count()
        return Entry(self._began, time.time(), self.step, dict(self._secs))

    def _attempts(self) -> list[Attempt]:
        if not self._counts:
            return self._before
        now = self._entry()
        return [*self._before, (self._first or now, now)]

    @property
    def goodput(self) -> float:
        """Return the share of wall time since the first start spent on kept training steps."""
        secs = sum_by_kind(self._attempts())
        return max(0.0, secs[TRAINING]) / max(sum(secs.values()), 1e-9)

    def summary(self) -> dict[str, Any]:
        """Return goodput, seconds by kind and the number of attempts, for summary.json."""
        attempts = self._attempts()
        secs = sum_by_kind(attempts)
        return {"goodput": self.goodput, "wall_secs": secs, "attempts": len(attempts)}

    def opening_rows(self) -> list[tuple[str, str]]:
        """Return the screen's row about earlier attempts; [] if none or this one is not counted."""
        if not self._before or not self._counts:
            return []
        since = duration(self._began - self._before[0][0].began)
        return [("attempts", f"this is number {len(self._before) + 1}, {since} after the first")]


def list_closing_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the closing table from a summary: each kind that took time."""
    secs = summary["wall_secs"]
    whole = max(sum(secs.values()), 1e-9)
    rows = [("all", f"{duration(whole):>12}")]
    for kind, words in KINDS.items():
        if secs[kind] > 0:
            text = f"{duration(secs[kind]):>12}  {secs[kind] / whole:6.1%}"
            rows.append((kind.replace("_", " "), f"{text}  {words}".rstrip()))
    return rows
