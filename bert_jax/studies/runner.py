"""Check a study, run what of it is not finished, and collect the scores of its runs."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from bert_jax.config import Config, flatten, recorded
from bert_jax.config.study import StudyConfig, StudyRow
from bert_jax.finetuning import grid_runs
from bert_jax.reporting.console import BAD, Screen
from bert_jax.studies.kinds import KINDS, PER_SEED, Cost, RowKind, check_task
from data_pipeline.cli import child_process
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import open_store

IDENTITY = "study_settings.json"  # of rows, tasks and the store, by which runs compare
SCORES = "study_scores.json"  # of a run, in its folder: what was computed after training


@dataclasses.dataclass
class Result:
    """Hold the scores of a row by measure and seed, why it lacks some, and its errors."""

    row: StudyRow
    seeds: set[int] = dataclasses.field(default_factory=set)  # of runs that were trained
    scores: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)  # measure -> why
    errors: list[str] = dataclasses.field(default_factory=list)


class Study:
    """Know the runs of a study and where they are kept."""

    def __init__(self, config: StudyConfig, folder: pathlib.Path) -> None:
        """Check everything that can be refused; write nothing."""
        self.config, self.folder = config, folder
        check_fields(config, "config")
        names = [row.name for row in config.rows] + [task.name for task in config.tasks]
        for name in names:
            if names.count(name) > 1 or not name or "/" in name:
                raise ValueError(f"a row or task is called {name!r}; give each a name of its own")
        if not config.rows or not config.store:
            missing = "store" if config.rows else "rows"
            raise ValueError(f"config.{missing} is empty; a study compares rows on one store")
        vocab_size = open_store(config.store).vocab_size
        self.costs = list[Cost]()
        rows = {}
        for row in config.rows:
            with _naming("row", row.name):
                kind = kind_of(row)
                rows[row.name] = kind.check(row, config.store)
                self.costs.append(kind.cost(row, config.store, vocab_size))
        for task in config.tasks:
            with _naming("task", task.name):
                check_task(task)
        self._check_equal()
        self._identity: dict[str, Any] = {
            "store": str(pathlib.Path(config.store).resolve()),
            "seq_len": config.seq_len,
            "rows": rows,
            "tasks": {task.name: [task.config, task.flags] for task in config.tasks},
        }
        self._check_folder()

    def _check_equal(self) -> None:
        values = [getattr(cost, self.config.equal) for cost in self.costs]
        for row, value in zip(self.config.rows, values, strict=True):
            if abs(value / values[0] - 1) > self.config.tolerance:
                raise ValueError(
                    f"row {row.name} takes {value:.4g} {self.config.equal}, row "
                    f"{self.config.rows[0].name} {values[0]:.4g}; they must be equal within "
                    f"config.tolerance={self.config.tolerance:g}: multiply its steps by "
                    f"{values[0] / value:.3f}"
                )

    def _check_folder(self) -> None:
        """Refuse the folder of a study whose runs would not compare with these."""
        path = self.folder / IDENTITY
        if not path.is_file():
            return
        before = small_files.read_object(path, self.folder)
        for key in ("store", "seq_len"):
            if before.get(key) != self._identity[key]:
                raise ValueError(
                    f"--workdir={self.folder} holds a study with {key} {before.get(key)}, not "
                    f"{self._identity[key]}; give another --workdir"
                )
        defaults = flatten(recorded(Config()))
        for name, settings in self._identity["rows"].items():
            if name not in before["rows"]:
                continue
            earlier = defaults | before["rows"][name]  # which may lack settings added since
            for key in sorted(earlier.keys() | settings.keys()):
                was, now = earlier.get(key), settings.get(key, defaults.get(key))
                if was != now and key not in PER_SEED:
                    raise ValueError(
                        f"--workdir={self.folder} holds a study whose row {name} has "
                        f"{key}={was!r}, not {now!r}; give the row another name, or another "
                        "--workdir"
                    )
        for name, task in self._identity["tasks"].items():
            if before["tasks"].get(name, task) != task:
                raise ValueError(
                    f"--workdir={self.folder} holds a study whose task {name} is "
                    f"{' '.join(before['tasks'][name])}; give the task another name, or another "
                    "--workdir"
                )
        for part in ("rows", "tasks"):  # those of before are remembered beside the new ones
            self._identity[part] = before[part] | self._identity[part]

    def folder_of(self, row: StudyRow, seed: int) -> pathlib.Path:
        """Return the folder of a run."""
        return self.folder / f"{row.name}-seed{seed}"

    def run(self, screen: Screen) -> list[Result]:
        """Run what is not finished, every row once before any a second time, and read all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / IDENTITY, self._identity)
        results = [Result(row) for row in self.config.rows]
        with child_process.exit_on_sigterm():
            for seed in range(self.config.seeds):
                for result in results:
                    try:
                        error = self._run(screen, result, seed)
                    except (OSError, RuntimeError, ValueError) as unreadable:
                        # Of scores or of what a run left; the others go on.
                        error = f"{type(unreadable).__name__}: {unreadable}"
                    if error:
                        result.errors.append(f"seed {seed}: {error}")
                        screen.print(f"{result.row.name}, seed {seed} failed: {error}", BAD)
        return results

    def _run(self, screen: Screen, result: Result, seed: int) -> str:
        """Train, score and fine-tune a run, as far as it is not done; return "" or the error."""
        row, folder = result.row, self.folder_of(result.row, seed)
        kind = kind_of(row)
        if not kind.is_finished(folder):
            command = kind.command(row, seed, self.config.store, folder)
            label = f"{row.name}, seed {seed}"
            if error := grid_runs.run_command(screen, label, command, folder):
                return error
        result.seeds.add(seed)
        for measure, value in self._scores(screen, kind, folder).items():
            if isinstance(value, str):
                result.missing[measure] = value
            else:
                result.scores.setdefault(measure, {})[seed] = value
        errors = [self._learn(screen, result, seed, number) for number in range(self._tasks)]
        return "; ".join(filter(None, errors))

    @property
    def _tasks(self) -> int:
        return len(self.config.tasks)

    def _scores(self, screen: Screen, kind: RowKind, folder: pathlib.Path) -> dict[str, Any]:
        path = folder / SCORES
        if not path.is_file():
            scores = kind.scores(folder, self.config.store, self.config.seq_len, screen)
            write_json(path, dict(scores))
        return small_files.read_object(path, self.folder)

    def _learn(self, screen: Screen, result: Result, seed: int, number: int) -> str:
        task, run = self.config.tasks[number], self.folder_of(result.row, seed)
        folder = self.folder / f"{run.name}-{task.name}"
        if grid_runs.read_scores(folder) is None:
            command = kind_of(result.row).task_command(task, seed, run, folder)
            label = f"{result.row.name}, seed {seed}, {task.name}"
            if error := grid_runs.run_command(screen, label, command, folder):
                return f"{task.name}: {error}"
        left = grid_runs.read_scores(folder)
        if left is None:
            return f"{task.name}: {folder} has no summary"
        score = grid_runs.deciding_score(*left)
        result.scores.setdefault(f"{task.name}_{score}", {})[seed] = left[0][score]
        return ""


def kind_of(row: StudyRow) -> RowKind:
    """Return the kind of a row; ValueError if there is none of that name."""
    if row.kind not in KINDS:
        raise ValueError(f"its kind is {row.kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[row.kind]


@contextlib.contextmanager
def _naming(part: str, name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{part} {name}: {error}") from error
