"""Check a study, run what is not finished, and collect the scores of its runs.

WORKDIR/study_settings.json identifies the study by content, to resume it: the path and digest of
the store, the resolved settings of each row, and the settings of each task with the SHA-256 of its
encoded examples. Stores and task files may move: paths are not compared.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import flatten, recorded
from bert_jax.config.finetune_schema import with_length
from bert_jax.lab.kinds import find_kind
from bert_jax.lab.row_kind import RowCost, RowKind, Run, load_task, split_names
from bert_jax.lab.runs import (
    Lane,
    choose_score,
    is_finished,
    open_lanes,
    read_scores,
    refuse_others,
    run_all,
)
from bert_jax.lab.study_config import StudyConfig, StudyRow, StudyTask
from bert_jax.logging.console import BAD, Screen
from bert_jax.tasks.registry import open_task
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import Store, open_store

SCORES = "scores.json"  # RUN-scores.json: scores computed after training
FILE = "study_settings.json"  # what runs depend on: rows, tasks, the store
_PER_SEED = ("seed", "data.random_seed")  # settings that differ between the runs of a row
_PATHS = ("data.store", "data.dir", "init")  # settings that are identified by content instead
_TASK_POSITIONS = 512  # row length at which the files of a task are read

Settings = Mapping[str, Any]


@dataclasses.dataclass
class RowResult:
    """Hold the scores of a row by measure and seed, reasons for missing ones, and its errors."""

    row: StudyRow
    seeds: set[int] = dataclasses.field(default_factory=set)  # seeds of trained runs
    scores: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)  # measure -> reason
    errors: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Identity:
    """Hold what the runs of a study depend on."""

    store: str  # its path, for messages
    store_digest: str
    seq_len: int
    rows: Mapping[str, Settings]
    tasks: Mapping[str, Settings]


def _describe_settings(settings: Settings) -> Settings:
    """Return the settings that identify runs: without seeds, and places known by content."""
    return {key: value for key, value in settings.items() if key not in (*_PER_SEED, *_PATHS)}


def _keep_earlier(folder: pathlib.Path, now: Identity) -> Identity:
    """Add the rows and tasks of the folder's earlier study to the identity of this one.

    Raises:
      Refused: the store, seq_len, a row or a task differs; names it and both values.
    """
    path = folder / FILE
    if not path.is_file():
        return now
    before = small_files.read_record(path, Identity, folder)
    holds = f"--workdir={folder} holds a study"
    if before.store_digest != now.store_digest:
        raise Refused(
            f"{holds} of the store {before.store}, not {now.store}; give that store, or another "
            "--workdir"
        )
    rows, tasks = {**before.rows, **now.rows}, {**before.tasks, **now.tasks}
    earlier = {"row": {**now.rows, **before.rows}, "task": {**now.tasks, **before.tasks}}
    refuse_others(
        holds,
        {"config.seq_len": before.seq_len, **earlier},
        {"config.seq_len": now.seq_len, "row": rows, "task": tasks},
    )
    return dataclasses.replace(now, rows=rows, tasks=tasks)


def describe_task(task: StudyTask, store: Store) -> Settings:
    """Read the files of a task with the store's vocabulary, and return its identity.

    Raises:
      Refused: a setting is wrong, or a file is missing or cannot be read.
    """
    config = load_task(task)
    vocabulary = store.load_vocabulary()
    opened = open_task(with_length(config.data, _TASK_POSITIONS), vocabulary)
    sha256 = hashlib.sha256(repr(opened.labels).encode())
    for split, rows in opened.splits.items():
        sha256.update(split.encode())
        labels = {**rows.labels, **rows.token_labels}
        for array in (rows.token_ids, rows.offsets, rows.second_starts, *labels.values()):
            sha256.update(np.ascontiguousarray(array).tobytes())
    settings = _describe_settings(flatten(recorded(config)))
    return {"settings": settings, "examples": sha256.hexdigest()}


class Study:
    """Hold a checked study, and run it in a folder."""

    def __init__(
        self, config: StudyConfig, folder: pathlib.Path, score_command: Sequence[str] = ()
    ) -> None:
        """Check everything that can be refused, and write nothing.

        `score_command` is the argv of this study; with --score=RUN added, it scores a run in a
        process of its own. Without it, this process scores and keeps the accelerator.

        Raises:
          Refused: a setting, row or task is wrong, rows are not equal, or a folder holds another
            study.
        """
        self.config, self.folder, self._score_command = config, folder, score_command
        check_fields(config, "config")
        row_names = [row.name for row in config.rows]
        names = [*row_names, *(task.name for task in config.tasks)]
        for name in names:
            if names.count(name) > 1 or not name or "/" in name or not name.isprintable():
                raise Refused(
                    f"a row or task is called {name!r}; give each a unique printable name without /"
                )
        if not config.rows or not config.store:
            missing = "store" if config.rows else "rows"
            raise Refused(f"config.{missing} is empty; set rows and the store that they train on")
        if config.compare_with not in ("", *row_names):
            raise Refused(
                f"config.compare_with is {config.compare_with!r}, which is not a row; choose from "
                f"{', '.join(row_names)}, or leave it empty for the first"
            )
        self.runs = [
            self._make_run(row, seed) for seed in range(config.seeds) for row in config.rows
        ]
        store = open_store(config.store)
        self.costs = list[RowCost]()
        rows = {}
        for number, row in enumerate(config.rows):
            with _prefix_errors("row", row.name):
                kind = find_kind(row)
                rows[row.name] = _describe_settings(kind.identify(row, config.store))
                self._check_reads(row, config.rows[:number])
                self.costs.append(kind.cost(row, config.store, store.vocab_size))
        tasks = {}
        self._check_equal()
        for task in config.tasks:
            with _prefix_errors("task", task.name):
                tasks[task.name] = describe_task(task, store)
            for row in config.rows:
                with _prefix_errors("row", row.name):
                    load_task(task, row.finetune)
        place = str(pathlib.Path(config.store).resolve())
        identity = Identity(place, store.digest, config.seq_len, rows, tasks)
        self._identity = _keep_earlier(folder, identity)

    def _check_reads(self, row: StudyRow, earlier: Sequence[StudyRow]) -> None:
        """Refuse a row whose `reads` are not earlier rows of the kinds that its kind reads."""
        kinds = {each.name: each.kind for each in earlier}
        wanted = find_kind(row).reads
        if tuple(map(kinds.get, split_names(row.reads))) != wanted:
            raise Refused(
                f"its reads is {row.reads!r}; a row of kind {row.kind} reads "
                f"{' and '.join(f'an earlier row of kind {kind}' for kind in wanted) or 'no row'}"
            )

    def _check_equal(self) -> None:
        """Refuse trained rows that are not equal in config.equal (tokens or operations)."""
        if self.config.equal == "nothing":
            return
        rows = zip(self.config.rows, self.costs, strict=True)
        values = [(row, getattr(cost, self.config.equal)) for row, cost in rows if cost.tokens]
        for row, value in values:
            first, expected = values[0]
            if abs(value / expected - 1) > self.config.tolerance:
                raise Refused(
                    f"row {row.name} takes {value:.4g} {self.config.equal}, row "
                    f"{first.name} {expected:.4g}; they must be equal within "
                    f"config.tolerance={self.config.tolerance:g}: multiply its steps by "
                    f"{expected / value:.3f}"
                )

    def _make_run(self, row: StudyRow, seed: int) -> Run:
        names = (row.name, *split_names(row.reads))
        folder, *sources = (self.folder / f"{name}-seed{seed}" for name in names)
        return Run(row, seed, self.config.store, folder, tuple(sources))

    def run(self, screen: Screen, parallel: int = 1) -> list[RowResult]:
        """Run what is not finished, all rows with one seed before the next, and read all scores.

        `parallel` runs take place at once.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, dataclasses.asdict(self._identity))
        results = {row.name: RowResult(row) for row in self.config.rows}

        runs = {run.folder: run for run in self.runs}

        def work(folder: pathlib.Path, lane: Lane) -> str:
            return self._run(results[runs[folder].row.name], runs[folder], lane)

        def report(folder: pathlib.Path, error: str) -> None:
            run = runs[folder]
            if error:
                results[run.row.name].errors.append(f"seed {run.seed}: {error}")
                screen.print(f"{run.label} failed: {error}", BAD)

        reads = {run.folder: run.sources for run in self.runs}
        run_all(reads, work, report, open_lanes(screen, parallel))
        return list(results.values())

    def _run(self, result: RowResult, run: Run, lane: Lane) -> str:
        """Train, score and fine-tune a run, except for what is done; return "" or the error."""
        kind, folder = find_kind(run.row), run.folder
        _check_sources(run)
        if kind.command is None:
            folder.mkdir(exist_ok=True)
        elif not is_finished(folder) and (error := lane.run(run.label, kind.command(run), folder)):
            return error
        result.seeds.add(run.seed)
        path = _locate_scores(run)
        if not path.is_file() and (error := self._score(lane, kind, run)):
            return error
        for measure, value in small_files.read_object(path, self.folder).items():
            if isinstance(value, str):
                result.missing[measure] = value
            else:
                result.scores.setdefault(measure, {})[run.seed] = value
        errors = [self._learn(lane, result, run, task) for task in self.config.tasks]
        return "; ".join(filter(None, errors))

    def _score(self, lane: Lane, kind: RowKind, run: Run) -> str:
        """Score a run, in a process of its own if that uses a device; return "" or the error."""
        if kind.scores_on_device and self._score_command:
            command = [*self._score_command, f"--score={run.folder.name}"]
            return lane.run(f"{run.label}, scores", command, run.folder)
        self.score(run, lane.screen)
        return ""

    def find_run(self, name: str) -> Run:
        """Return the finished run whose folder has this name.

        Raises:
          Refused: the study has no such run, or it is not finished.
        """
        run = {run.folder.name: run for run in self.runs}.get(name)
        if run is None:
            raise Refused(f"--score is {name}, which is not a run of this study; give ROW-seedN")
        _check_sources(run)
        if find_kind(run.row).command is not None and not is_finished(run.folder):
            raise Refused(f"--score is {name}, which is not finished; run the study first")
        return run

    def score(self, run: Run, screen: Screen) -> None:
        """Score a finished run in this process, and write its scores."""
        scores = find_kind(run.row).scores(run, self.config.seq_len, screen)
        write_json(_locate_scores(run), dict(scores))

    def _learn(self, lane: Lane, result: RowResult, run: Run, task: StudyTask) -> str:
        """Learn a task from a run unless it is already learned; return "" or the error."""
        folder = self.folder / f"{run.folder.name}-{task.name}"
        command = find_kind(run.row).task_command(run, task, folder)
        if isinstance(command, str):
            result.missing[task.name] = command
            return ""
        error = (
            "" if read_scores(folder) else lane.run(f"{run.label}, {task.name}", command, folder)
        )
        learned = read_scores(folder)
        if error or learned is None:
            return f"{task.name}: {error or f'{folder} has no summary'}"
        score = choose_score(*learned)
        result.scores.setdefault(f"{task.name}_{score}", {})[run.seed] = learned[0][score]
        return ""


def _check_sources(run: Run) -> None:
    """Raise Refused if a run that this one reads is not finished."""
    for name, source in zip(split_names(run.row.reads), run.sources, strict=True):
        if not is_finished(source):
            raise Refused(f"it reads the run of {name}, which is not finished")


def _locate_scores(run: Run) -> pathlib.Path:
    return run.folder.with_name(f"{run.folder.name}-{SCORES}")


@contextlib.contextmanager
def _prefix_errors(part: str, name: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(f"{part} {name}: {error}") from error
