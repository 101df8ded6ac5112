"""Check a study, run what is not finished, and collect the scores of its runs."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

from bert_jax.lab import identity
from bert_jax.lab.identity import Identity
from bert_jax.lab.row_kinds.kinds import find_kind
from bert_jax.lab.row_kinds.row_kind import RowCost, RowKind, Run, load_task, split_names
from bert_jax.lab.runs import Lane, ScheduledRun, choose_score, read_scores, run_all
from bert_jax.lab.study_config import StudyConfig, StudyRow, StudyTask
from bert_jax.logging.console import BAD, Screen
from bert_jax.runtime import workdir_lock
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import open_store

SCORES = "scores.json"  # RUN-scores.json: scores computed after training


@dataclasses.dataclass
class RowResult:
    """Hold the scores of a row by measure and seed, reasons for missing ones, and its errors."""

    row: StudyRow
    seeds: set[int] = dataclasses.field(default_factory=set)  # seeds of trained runs
    scores: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)  # measure -> reason
    errors: list[str] = dataclasses.field(default_factory=list)


class Study:
    """Hold a checked study, and run it in a folder."""

    def __init__(
        self,
        config: StudyConfig,
        folder: pathlib.Path,
        shared: Sequence[pathlib.Path] = (),
        score_command: Sequence[str] = (),
    ) -> None:
        """Check everything that can be refused, and write nothing.

        shared          folders of other studies, whose finished runs are used if they are equal
        score_command   argv of this study; with --score=RUN added, it scores a run in a process of
                        its own. Without it, this process scores and keeps the accelerator.

        Raises:
          Refused: a setting, row or task is wrong, rows are not equal, or a folder holds another
            study.
        """
        self._score_command = score_command
        self.config, self.folder = config, folder
        check_fields(config, "config")
        names = [row.name for row in config.rows] + [task.name for task in config.tasks]
        for name in names:
            if names.count(name) > 1 or not name or "/" in name:
                raise Refused(
                    f"a row or task is called {name!r}; give each a unique name without /"
                )
        if not config.rows or not config.store:
            missing = "store" if config.rows else "rows"
            raise Refused(f"config.{missing} is empty; set rows and the store that they train on")
        if config.compare_with not in ("", *(row.name for row in config.rows)):
            raise Refused(
                f"config.compare_with is {config.compare_with!r}, which is no row; choose from "
                f"{', '.join(row.name for row in config.rows)}, or leave it empty for the first"
            )
        store = open_store(config.store)
        self.costs = list[RowCost]()
        rows = {}
        for number, row in enumerate(config.rows):
            with _prefix_errors("row", row.name):
                kind = find_kind(row)
                rows[row.name] = identity.describe_settings(kind.check(row, config.store))
                self._check_reads(row, config.rows[:number])
                self.costs.append(kind.cost(row, config.store, store.vocab_size))
        tasks = {}
        self._check_equal()
        for task in config.tasks:
            with _prefix_errors("task", task.name):
                tasks[task.name] = identity.describe_task(task, store)
            for row in config.rows:
                with _prefix_errors("row", row.name):
                    load_task(task, row.finetune)
        place = str(pathlib.Path(config.store).resolve())
        self._identity = Identity(place, store.digest, config.seq_len, rows, tasks)
        self._before = identity.read(folder)
        if self._before is not None:
            identity.check_same(folder, self._before, self._identity)
        self._shared = {other: self._open_shared(other) for other in shared}

    def _open_shared(self, folder: pathlib.Path) -> Identity:
        """Read the identity of a study whose runs may be shared."""
        other = identity.read(folder)
        if other is None:
            raise Refused(f"--share={folder} holds no study; give the workdir of a study")
        if other.store_digest != self._identity.store_digest:
            raise Refused(
                f"--share={folder} is a study of the store {other.store}, not "
                f"{self._identity.store}; its runs do not compare with these: leave it out"
            )
        return other

    def _check_reads(self, row: StudyRow, earlier: Sequence[StudyRow]) -> None:
        """Refuse a row whose `reads` are not earlier rows of the kinds that its kind reads."""
        kinds = [
            find.kind for name in split_names(row.reads) for find in earlier if find.name == name
        ]
        wanted = find_kind(row).reads
        if tuple(kinds) != wanted:
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

    def locate_run(self, row: StudyRow, seed: int) -> pathlib.Path:
        """Return the folder of a run."""
        return self.folder / f"{row.name}-seed{seed}"

    def claim(self) -> None:
        """Lock the folder until this process ends.

        Raises:
          Refused: another study runs there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        workdir_lock.lock_folder(self.folder)

    def run(self, screen: Screen, parallel: int = 1) -> list[RowResult]:
        """Run what is not finished, all rows with one seed before the next, and read all scores.

        `parallel` runs take place at once.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        identity.write(self.folder, self._identity, self._before)
        results = [RowResult(row) for row in self.config.rows]

        def report(result: RowResult, seed: int, error: str) -> None:
            if error:
                result.errors.append(f"seed {seed}: {error}")
                screen.print(f"{result.row.name}, seed {seed} failed: {error}", BAD)

        # Rows that wait come last: they block no run that could begin.
        ordered = sorted(results, key=lambda result: bool(result.row.reads))
        run_all(
            [
                ScheduledRun(
                    self.locate_run(result.row, seed).name,
                    [f"{name}-seed{seed}" for name in split_names(result.row.reads)],
                    functools.partial(self._run, result, seed),
                    functools.partial(report, result, seed),
                )
                for seed in range(self.config.seeds)
                for result in ordered
            ],
            screen,
            parallel,
        )
        return results

    def _run(self, result: RowResult, seed: int, lane: Lane) -> str:
        """Train, score and fine-tune a run, except for what is done; return "" or the error."""
        row, folder = result.row, self.locate_run(result.row, seed)
        kind = find_kind(row)
        run = self._find_run(row, seed)
        self._link_equal_run(lane.screen, row, seed)
        if kind.command is None:
            folder.mkdir(exist_ok=True)
        if kind.command is not None and not kind.is_finished(folder):
            label = f"{row.name}, seed {seed}"
            if error := lane.run(label, kind.command(run), folder):
                return error
        result.seeds.add(seed)
        if not self._scores_path(run).is_file() and (error := self._score(lane, kind, run)):
            return error
        for measure, value in small_files.read_object(self._scores_path(run), self.folder).items():
            if isinstance(value, str):
                result.missing[measure] = value
            else:
                result.scores.setdefault(measure, {})[seed] = value
        errors = [self._learn(lane, result, run, task) for task in self.config.tasks]
        return "; ".join(filter(None, errors))

    def _link_equal_run(self, screen: Screen, row: StudyRow, seed: int) -> None:
        """Link the folder of a run to the folder of a finished, equal run of a shared study.

        A kind that trains nothing is linked too, so that its tasks are found.
        """
        folder, kind = self.locate_run(row, seed), find_kind(row)
        if folder.is_symlink() and not folder.exists():
            raise Refused(f"{folder} is a link to a run that was deleted; delete the link")
        if folder.exists():
            return
        for other, known in self._shared.items():
            for name in known.find_equal_rows(self._identity, row.name):
                origin = (other / f"{name}-seed{seed}").absolute()
                is_done = origin.is_dir() if kind.command is None else kind.is_finished(origin)
                if is_done:
                    folder.symlink_to(origin)
                    screen.print(f"{row.name}, seed {seed}: taken from {origin}")
                    return

    def _link_equal_task(self, run: Run, task: StudyTask, folder: pathlib.Path) -> None:
        """Link a task of a shared run to the same, finished task of the study it came from."""
        if folder.exists() or not run.folder.is_symlink():
            return
        origin = run.folder.readlink()
        known = next((k for f, k in self._shared.items() if f.absolute() == origin.parent), None)
        names = known.find_equal_tasks(self._identity.tasks[task.name]) if known else []
        for name in names:
            learned = origin.parent / f"{origin.name}-{name}"
            if _read_task(learned) is not None:
                folder.symlink_to(learned)
                return

    def _find_run(self, row: StudyRow, seed: int) -> Run:
        """Return a run of a row; raise Refused if a run that it reads is not finished."""
        rows = {known.name: known for known in self.config.rows}
        sources = []
        for name in split_names(row.reads):
            sources.append(self.locate_run(rows[name], seed))
            if not find_kind(rows[name]).is_finished(sources[-1]):
                raise Refused(f"it reads the run of {name}, which is not finished")
        folder = self.locate_run(row, seed)
        return Run(row, seed, self.config.store, folder, tuple(sources))

    def _scores_path(self, run: Run) -> pathlib.Path:
        return self.folder / f"{run.folder.name}-{SCORES}"

    def _score(self, lane: Lane, kind: RowKind, run: Run) -> str:
        """Score a run, in a process of its own if that uses a device; return "" or the error."""
        if kind.scores_on_device and self._score_command:
            command = [*self._score_command, f"--score={run.folder.name}"]
            label = f"{run.row.name}, seed {run.seed}, scores"
            return lane.run(label, command, run.folder)
        self.score(run, lane.screen)
        return ""

    def find_run(self, name: str) -> Run:
        """Return the finished run whose folder has this name.

        Raises:
          Refused: the study has no such run, or it is not finished.
        """
        for seed in range(self.config.seeds):
            for row in self.config.rows:
                if self.locate_run(row, seed).name == name:
                    run, kind = self._find_run(row, seed), find_kind(row)
                    if kind.command is not None and not kind.is_finished(run.folder):
                        raise Refused(
                            f"--score is {name}, which is not finished; run the study first"
                        )
                    return run
        raise Refused(f"--score is {name}, which is no run of this study; give ROW-seedN")

    def score(self, run: Run, screen: Screen) -> None:
        """Score a finished run in this process, and write its scores."""
        scores = find_kind(run.row).scores(run, self.config.seq_len, screen)
        write_json(self._scores_path(run), dict(scores))

    def _learn(self, lane: Lane, result: RowResult, run: Run, task: StudyTask) -> str:
        """Learn a task from a run unless it is already learned; return "" or the error."""
        folder = self.folder / f"{run.folder.name}-{task.name}"
        command = find_kind(run.row).task_command(run, task, folder)
        if isinstance(command, str):
            result.missing[task.name] = command
            return ""
        self._link_equal_task(run, task, folder)
        if _read_task(folder) is None:
            label = f"{run.row.name}, seed {run.seed}, {task.name}"
            if error := lane.run(label, command, folder):
                return f"{task.name}: {error}"
        learned = _read_task(folder)
        if learned is None:
            return f"{task.name}: {folder} has no summary"
        score = choose_score(*learned)
        result.scores.setdefault(f"{task.name}_{score}", {})[run.seed] = learned[0][score]
        return ""


def _read_task(folder: pathlib.Path) -> tuple[dict[str, float], dict[str, float]] | None:
    """Read the scores of a task and their baselines; the folder may be a link."""
    return read_scores(folder.resolve())


@contextlib.contextmanager
def _prefix_errors(part: str, name: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(f"{part} {name}: {error}") from error
