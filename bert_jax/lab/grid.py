"""Run a grid of fine-tunings one after another, report each, and summarize them at the end."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from bert_jax.lab import grid_runs
from bert_jax.lab.grid_runs import GridOutcome, GridRun
from bert_jax.logging.console import BAD, FAINT, Screen
from bert_jax.runtime.exit_codes import DONE, FAILED
from bert_jax.runtime.resume import differing_settings
from data_pipeline.cli.main import REFUSED
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile


@dataclasses.dataclass(frozen=True)
class Grid:
    """Describe which runs a grid has, how each is started, and where they are kept."""

    folder: pathlib.Path
    runs: Sequence[GridRun]
    command: Sequence[str]  # of a run; the run's own flags and its workdir are added
    task: str
    fixed: dict[str, Any]  # the settings that all runs share, by their keys
    score: str = ""  # the score that decides; "": the task's own

    def check(self) -> None:
        """Refuse a folder whose runs would not compare with these, or a damaged grid.json."""
        path = self.folder / grid_runs.NUMBERS
        if path.is_file():
            try:
                numbers = small_files.read_object(path, self.folder)
                before = small_files.field(numbers, "config", dict, path)
            except DamagedFile as error:
                raise DamagedFile(
                    f"{error}; delete it if this is the grid of these settings, and it is written "
                    "again, or give another --workdir"
                ) from None
            differing = differing_settings(before, self.fixed)
            if differing:
                was = ", ".join(f"config.{key}={was!r}" for key, (was, _) in differing.items())
                raise Refused(
                    f"--workdir={self.folder} holds a grid with {was}; runs of other settings do "
                    "not compare: set it so again, or give another --workdir"
                )
        outcomes = self.read_outcomes()
        if self.score and any(outcome.is_finished for outcome in outcomes):
            grid_runs.main_score(outcomes, self.score)

    def read_outcomes(self) -> list[GridOutcome]:
        """Read what each run has left so far."""
        return [grid_runs.read_outcome(self.folder, run) for run in self.runs]


def run_grid(grid: Grid) -> int:
    """Run what is not finished, show the table and return the exit code."""
    # Here, so that a refusal or --help does not wait for matplotlib.
    from bert_jax.lab import grid_report

    screen = Screen(is_writer=True)
    grid.folder.mkdir(parents=True, exist_ok=True)
    outcomes = grid.read_outcomes()
    finished = sum(outcome.is_finished for outcome in outcomes)
    before = f", {finished} of them finished before" if finished else ""
    screen.print(f"{len(outcomes)} runs in {grid.folder}{before}")
    for number, outcome in enumerate(outcomes):
        if outcome.is_finished:
            continue
        outcome = outcomes[number] = _run(screen, grid, number)
        code, _, message = outcome.error.partition(": ")
        if code == f"exit code {REFUSED}" and not any(o.is_finished for o in outcomes):
            # The others would be refused too.
            raise Refused(message.removeprefix("error: "))
        score = _score(grid, outcomes)
        comparison = grid_report.GridComparison(outcomes, score)
        grid_report.write_numbers(grid.folder, comparison, grid.fixed)
        label = f"{number + 1}/{len(outcomes)}  {outcome.run.in_words()}"
        if outcome.is_finished:
            screen.print(f"{label}  {score} {outcome.scores[score]:.4f}")
        else:
            screen.print(f"{label}  failed: {outcome.error}", BAD)
    failed = sum(not outcome.is_finished for outcome in outcomes)
    if failed == len(outcomes):
        screen.print(f"no run came to its end; their logs are {grid.folder}/*.log", BAD)
        return FAILED
    score = _score(grid, outcomes)
    comparison = grid_report.GridComparison(outcomes, score)
    grid_report.write_numbers(grid.folder, comparison, grid.fixed)
    title = f"{grid.task}: {score.replace('_', ' ')}"
    picture_title = f"{title}, mean ± standard deviation over seeds"
    grid_report.write_picture(grid.folder, comparison, picture_title)
    make_console(highlight=False).print(grid_report.build_table(comparison))
    screen.table(title, grid_report.closing_rows(grid.folder, comparison))
    if failed:
        screen.print(
            f"{failed} of {len(outcomes)} failed; the same command tries them again", FAINT
        )
    return FAILED if failed else DONE


def _run(screen: Screen, grid: Grid, number: int) -> GridOutcome:
    run = grid.runs[number]
    workdir = grid.folder / run.name
    label = f"run {number + 1} of {len(grid.runs)}: {run.in_words()}"
    command = [*grid.command, *run.flags, f"--workdir={workdir}"]
    error = grid_runs.run_command(screen, label, command, workdir)
    return grid_runs.read_outcome(grid.folder, run, error)


def _score(grid: Grid, outcomes: Sequence[GridOutcome]) -> str:
    if not any(outcome.is_finished for outcome in outcomes):
        return grid.score
    return grid_runs.main_score(outcomes, grid.score)
