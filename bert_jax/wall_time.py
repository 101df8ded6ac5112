"""Where the wall time of a run went since its first start, over all its attempts.

Goodput is the share of it that went into training steps whose result was kept. An attempt is the
life of a process, or what lies between two restores in one. Its lines in attempts.jsonl say what it
had spent by a step: what comes after the step that the next one went on from is known to be lost.
docs/decisions/0027-goodput.md has the definitions.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.record_files import add_line, read_lines
from bert_jax.screen import duration
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

FILE = "attempts.jsonl"  # in the workdir

# Every moment since the first start belongs to one kind.
STARTING, RESTORING, COMPILING = "starting", "restoring", "compiling"
TRAINING, WAITING = "training", "waiting_for_data"
EVALUATING, SAVING = "evaluating", "saving"
LOST, STOPPED = "lost", "stopped"
KINDS = {
    TRAINING: "in steps whose result was kept",
    WAITING: "of steps, but no batch was there",
    COMPILING: "",
    EVALUATING: "",
    SAVING: "the devices stood still for a save",
    RESTORING: "",
    STARTING: "imports left out; and what is no other kind",
    LOST: "in steps that were done again",
    STOPPED: "from the last line of an attempt to the next attempt",
}
_DONE_AGAIN = (TRAINING, WAITING, EVALUATING, SAVING)


@dataclasses.dataclass(frozen=True)
class Entry:
    """What an attempt had spent when it was at a step: a line of the file."""

    began: float  # of the attempt, in seconds since 1970; tells attempts apart
    at: float  # the same of the line
    step: int
    secs: Mapping[str, float]  # by kind, since it began


Attempt = Sequence[Entry]


def read(path: pathlib.Path) -> list[Attempt]:
    """Read the attempts in a file, none where there is no file; half lines are skipped.

    Raises:
      DamagedFile: a line is not one of an attempt.
    """
    entries = []
    for number, line in enumerate(read_lines(path), 1):
        name = f"{path}, entry {number}"
        entries.append(small_files.build(Entry, line, name))
        small_files.field(line, "began", float, name)
        small_files.field(line, "at", float, name)
        secs = small_files.field(line, "secs", dict, name)
        for kind in secs:
            small_files.field(secs, kind, float, name)
        if unknown := sorted(secs.keys() - KINDS.keys()):
            raise DamagedFile(f"{name} has the kind {unknown[0]!r}; delete that line")
    return [tuple(of) for _, of in itertools.groupby(entries, key=lambda entry: entry.began)]


def totals(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Seconds of each kind over attempts that followed each other.

    An attempt goes on from the step of its first line; what earlier ones did after that is lost,
    but for starting, restoring and compiling, which no step was.
    """
    secs = dict.fromkeys(KINDS, 0.0)
    kept_step: float = float("inf")
    next_began: float | None = None
    for attempt in reversed(attempts):
        last = attempt[-1]
        kept = next((entry for entry in reversed(attempt) if entry.step <= kept_step), None)
        for kind, spent in last.secs.items():
            if kind in _DONE_AGAIN:
                of_kept_steps = kept.secs.get(kind, 0.0) if kept else 0.0
                secs[LOST] += spent - of_kept_steps
                spent = of_kept_steps
            secs[kind] += spent
        if next_began is not None:
            secs[STOPPED] += max(0.0, next_began - last.at)
        kept_step, next_began = min(kept_step, attempt[0].step), attempt[0].began
    return secs


class Ledger:
    """The wall time of this attempt, by kind, beside that of the attempts before it."""

    def __init__(self, workdir: pathlib.Path, began: float, is_writer: bool) -> None:
        """began is when the process began to prepare, in seconds since 1970."""
        self.step = 0  # the step that was last given to the devices
        self._path, self._is_writer = workdir / FILE, is_writer
        self._before = read(self._path) if is_writer else []
        self._began, self._secs = began, dict.fromkeys(KINDS, 0.0)
        self._first: Entry | None = None
        self._kinds = [STARTING]  # the one that counts is the last
        self._since = time.perf_counter() - max(0.0, time.time() - began)

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Time inside is of this kind, but for contexts within it."""
        self._count()
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._count()
            self._kinds.pop()

    def waited(self, secs: float) -> None:
        """Of the training so far, so many seconds more went by without a batch to train on."""
        self._secs[TRAINING] -= secs
        self._secs[WAITING] += secs

    def goes_on_from(self, step: int) -> None:
        """The state of this step is there: restored, or fresh.

        Within a run under way it begins another attempt: steps after this one are done again.
        """
        if self._first is not None:
            self.write()
            self._before = read(self._path) if self._is_writer else []
            self._began, self._secs = time.time(), dict.fromkeys(KINDS, 0.0)
        self.step = step
        self._first = self._entry()
        self.write()

    def write(self) -> None:
        """Add a line: what was spent up to this step."""
        if self._is_writer:
            entry = dataclasses.asdict(self._entry())
            entry["secs"] = {kind: round(secs, 3) for kind, secs in entry["secs"].items() if secs}
            add_line(self._path, entry)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Add the last line; a disk that refuses it does not hide what ended the run."""
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
        now = self._entry()
        return [*self._before, (self._first or now, now)]

    @property
    def goodput(self) -> float:
        """The share of the time since the first start that went into training that is kept."""
        secs = totals(self._attempts())
        return max(0.0, secs[TRAINING]) / max(sum(secs.values()), 1e-9)

    def summary(self) -> dict[str, Any]:
        """For summary.json: goodput, seconds by kind, how many attempts."""
        attempts = self._attempts()
        secs = totals(attempts)
        return {"goodput": self.goodput, "wall_secs": secs, "attempts": len(attempts)}

    def opening_rows(self) -> list[tuple[str, str]]:
        """What the opening block says of the attempts before this one; nothing of a first one."""
        if not self._before:
            return []
        since = duration(self._began - self._before[0][0].began)
        return [("attempts", f"this is number {len(self._before) + 1}, {since} after the first")]


def closing_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The table at the end of a run, from its summary: every kind that took time."""
    secs = summary["wall_secs"]
    whole = max(sum(secs.values()), 1e-9)
    rows = [("all", f"{duration(whole):>12}")]
    for kind, words in KINDS.items():
        if secs[kind] > 0:
            shown = f"{duration(secs[kind]):>12}  {secs[kind] / whole:6.1%}"
            rows.append((kind.replace("_", " "), f"{shown}  {words}".rstrip()))
    return rows
