"""Fine-tune with every combination of learning rates, epochs and seeds, and compare the settings.

A run that has left its summary and its predictions is finished and never started again, so a
stopped grid resumes where it was.
"""

import dataclasses
import decimal
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import FinetuneConfig, overrides, validate
from bert_jax.lab import runs as runs_lib
from bert_jax.lab.runs import Lane, parse_list
from bert_jax.logging.console import BAD, FAINT, Screen
from bert_jax.runtime import workdir_lock
from bert_jax.runtime.cli import GivenConfig
from bert_jax.runtime.exit_codes import DONE, FAILED
from data_pipeline.cli.main import REFUSED
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile

NUMBERS = "grid.json"  # the grid's table and its settings
# The settings that a grid varies, and the flags that do so.
_VARIED = {
    "optim.learning_rate": "learning_rates",
    "epochs": "epochs",
    "seed": "seeds",
    "data.order_seed": "seeds",
}


@dataclasses.dataclass(frozen=True)
class GridRun:
    """Name a fine-tuning run of the grid by the settings that differ between runs."""

    learning_rate: float
    epochs: float
    seed: int  # decides the task's layer, dropout and the order of examples

    @property
    def name(self) -> str:
        """Return the name of its folder in the grid's."""
        return f"rate{format_rate(self.learning_rate)}_epochs{self.epochs:.15g}_seed{self.seed}"

    @property
    def flags(self) -> list[str]:
        """Return its flags that differ between runs."""
        return [
            f"--config.optim.learning_rate={self.learning_rate!r}",
            f"--config.epochs={self.epochs!r}",
            f"--config.seed={self.seed}",
            f"--config.data.order_seed={self.seed}",
        ]

    def in_words(self) -> str:
        """Describe it for the screen."""
        return f"{describe_setting(self.learning_rate, self.epochs)}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class GridOutcome:
    """Hold the scores of a finished run, or why it has none."""

    run: GridRun
    scores: Mapping[str, float]  # development scores by name; empty where it failed
    baseline: Mapping[str, float]  # the same names: scores without reading the text
    error: str = ""  # why it failed, or was not run yet

    @property
    def is_finished(self) -> bool:
        return bool(self.scores)


def list_runs(rates: str, epochs: str, seeds: str) -> list[GridRun]:
    """Return every combination of numbers joined by commas; seeds of a setting follow each other.

    Raises:
      Refused: a list has something else, nothing, or a number twice.
    """
    words = "numbers separated by commas"
    values = (
        parse_list("learning_rates", rates, float, words),
        parse_list("epochs", epochs, float, words),
        parse_list("seeds", seeds, int, words),
    )
    return [GridRun(*each) for each in itertools.product(*values)]


def fix_settings(given: GivenConfig[FinetuneConfig], runs: Sequence[GridRun]) -> dict[str, Any]:
    """Return the settings that all runs share, by their keys, after checking every run.

    Raises:
      Refused: a setting of a run is not allowed, or the command line sets one that is varied.
    """
    for override in given.overrides:
        if override.path in _VARIED:
            flag = _VARIED[override.path]
            raise Refused(f"--config.{override.path} is varied by the grid; give --{flag}")
    for run in runs:
        own, _ = overrides.take(run.flags, FinetuneConfig)
        run_config = dataclasses.replace(given, overrides=(*given.overrides, *own)).load()
        validate.check_finetune(run_config)
    settings = config_lib.flatten(config_lib.recorded(given.load()))
    return {key: value for key, value in settings.items() if key not in _VARIED}


def format_rate(rate: float) -> str:
    """Write 0.00005 as 5e-5, with all digits: folders are named by it."""
    return f"{decimal.Decimal(repr(rate)).normalize():e}".replace("+", "")


def describe_setting(learning_rate: float, epochs: float) -> str:
    """Write a setting as "rate 5e-5, 3 epochs"."""
    return f"rate {format_rate(learning_rate)}, {epochs:g} epoch{'s' * (epochs != 1)}"


def read_outcome(folder: pathlib.Path, run: GridRun, error: str = "not run yet") -> GridOutcome:
    """Read what a run has left in the grid's folder; error is why it may not be finished."""
    left = runs_lib.read_scores(folder / run.name)
    return GridOutcome(run, {}, {}, error) if left is None else GridOutcome(run, *left)


def choose_score(outcomes: Sequence[GridOutcome], requested: str = "") -> str:
    """Name the score that decides; the requested one, even "", before a run is finished."""
    for outcome in outcomes:
        if outcome.is_finished:
            return runs_lib.choose_score(outcome.scores, outcome.baseline, requested)
    return requested


@dataclasses.dataclass(frozen=True)
class Grid:
    """Describe which runs a grid has, how each is started, and where they are kept."""

    folder: pathlib.Path
    runs: Sequence[GridRun]
    command: Sequence[str]  # a run's, to which its own flags and its workdir are added
    fixed: dict[str, Any]  # the settings that all runs share, by their keys
    score: str = ""  # the score that decides; "": the task's own

    def claim(self) -> None:
        """Lock the folder; refuse one whose runs would not compare, or a damaged grid.json."""
        path = self.folder / NUMBERS
        if path.is_file():
            try:
                numbers = small_files.read_object(path, self.folder)
                before = small_files.field(numbers, "config", dict, path)
            except DamagedFile as error:
                raise DamagedFile(
                    f"{error}; if this is the grid of these settings, delete it to have it "
                    "written again; otherwise give another --workdir"
                ) from None
            runs_lib.refuse_others(f"--workdir={self.folder} holds a grid", before, self.fixed)
        choose_score(self._read_outcomes(), self.score)
        workdir_lock.lock_folder(self.folder)

    def _read_outcomes(self) -> list[GridOutcome]:
        return [read_outcome(self.folder, run) for run in self.runs]

    def run(self, screen: Screen, parallel: int = 1) -> int:
        """Run what is not finished, report each run, show the table and return the exit code."""
        # Here, so that a refusal or --help does not wait for matplotlib.
        from bert_jax.lab import grid_report

        outcomes = self._read_outcomes()
        finished = sum(outcome.is_finished for outcome in outcomes)
        before = f", {finished} of them finished before" if finished else ""
        screen.print(f"{len(outcomes)} runs in {self.folder}{before}")

        def compare() -> grid_report.GridComparison:
            """Compare what is finished, and write the numbers."""
            comparison = grid_report.GridComparison(outcomes, choose_score(outcomes, self.score))
            grid_report.write_numbers(self.folder, comparison, self.fixed)
            return comparison

        def work(number: int, lane: Lane) -> str:
            run = self.runs[number]
            label = f"run {number + 1} of {len(self.runs)}: {run.in_words()}"
            workdir = self.folder / run.name
            command = [*self.command, *run.flags, f"--workdir={workdir}"]
            error = lane.run(label, command, workdir) or "it left no summary and predictions"
            outcomes[number] = read_outcome(self.folder, run, error)
            return outcomes[number].error

        def report(number: int, error: str) -> None:
            code, _, message = error.partition(": ")
            if code == f"exit code {REFUSED}" and not any(o.is_finished for o in outcomes):
                # The others would be refused too; no run began with these settings.
                (self.folder / NUMBERS).unlink(missing_ok=True)
                raise Refused(message.removeprefix("error: "))
            score = compare().score
            label = f"{number + 1}/{len(outcomes)}  {self.runs[number].in_words()}"
            if error:
                screen.print(f"{label}  failed: {error}", BAD)
            else:
                screen.print(f"{label}  {score} {outcomes[number].scores[score]:.4f}")

        compare()  # keeps the settings: a killed run must not resume with others
        reads = {i: () for i, outcome in enumerate(outcomes) if not outcome.is_finished}
        runs_lib.run_all(reads, work, report, runs_lib.open_lanes(screen, parallel))
        failed = sum(not outcome.is_finished for outcome in outcomes)
        if failed == len(outcomes):
            screen.print(f"no run came to its end; their logs are {self.folder}/*.log", BAD)
            return FAILED
        grid_report.show(self.folder, compare(), self.fixed["data.task"], screen)
        if failed:
            screen.print(
                f"{failed} of {len(outcomes)} failed; the same command tries them again", FAINT
            )
        return FAILED if failed else DONE
