"""Goes through the runs of a grid, says what came of each, and shows the whole at the end."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from bert_jax import compile_cache, grid_report, grid_runs
from bert_jax.exit_codes import DONE, FAILED, Refused
from bert_jax.grid_runs import Outcome, Run
from bert_jax.screen import BAD, FAINT, Screen, duration
from data_pipeline import small_files, terminal_console
from data_pipeline.exit_code import REFUSED
from data_pipeline.small_files import DamagedFile


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is to be run, and where."""

    folder: pathlib.Path
    runs: Sequence[Run]
    command: Sequence[str]  # of a run; what sets it apart and its folder are added
    task: str
    fixed: dict[str, Any]  # settings that all runs share, by their keys
    score: str = ""  # what decides; "": the task's own

    def check(self) -> None:
        """Raise if the folder holds something else.

        Raises:
          ValueError: a grid of other settings, whose runs would not compare; a run of something
            else.
        """
        path = self.folder / grid_report.NUMBERS
        if path.is_file():
            try:
                numbers = small_files.read_object(path, self.folder)
                before = small_files.field(numbers, "config", dict, path)
            except DamagedFile as error:
                raise DamagedFile(
                    f"{error}; delete it if this is the grid of these settings, and it is written "
                    "again, or give another --workdir"
                ) from None
            other = [key for key in self.fixed | before if self.fixed.get(key) != before.get(key)]
            if other:
                was = ", ".join(f"config.{key}={before.get(key)!r}" for key in other)
                raise ValueError(
                    f"--workdir={self.folder} holds a grid with {was}; runs of other settings do "
                    "not compare: set it so again, or give another --workdir"
                )
        outcomes = self.outcomes()
        if self.score and any(one.is_finished for one in outcomes):
            grid_runs.main_score(outcomes, self.score)

    def outcomes(self) -> list[Outcome]:
        """What the runs have left so far."""
        return [grid_runs.outcome(self.folder, run) for run in self.runs]


def go_through(grid: Grid) -> int:
    """Run what is not finished, and show the table; the exit code.

    Raises:
      Refused: the first run was refused, as the others would be; the score is not one of theirs.
    """
    screen = Screen(is_writer=True)
    grid.folder.mkdir(parents=True, exist_ok=True)
    outcomes = grid.outcomes()
    finished = sum(one.is_finished for one in outcomes)
    before = f", {finished} of them finished before" if finished else ""
    screen.say(f"{len(outcomes)} runs in {grid.folder}{before}")
    with grid_runs.ends_on_sigterm():
        for number, one in enumerate(outcomes):
            if one.is_finished:
                continue
            outcomes[number] = _run(screen, grid, number)
            _check_first(outcomes, number)
            score = _score(grid, outcomes)
            grid_report.write_numbers(grid.folder, outcomes, score, grid.fixed)
            _say(screen, outcomes[number], f"{number + 1}/{len(outcomes)}", score)
    return _show(screen, grid, outcomes)


def _run(screen: Screen, grid: Grid, number: int) -> Outcome:
    """Fine-tune once."""
    run, began = grid.runs[number], time.monotonic()
    place = grid.folder / run.name
    what = f"run {number + 1} of {len(grid.runs)}: {run.in_words()}"
    with screen.spinning(what) as show:

        def tell() -> None:
            step = grid_runs.last_step(place)
            at = f", step {step:,}" if step else ""
            show(f"{what}{at}, {duration(time.monotonic() - began)}")

        error = grid_runs.carry_out(
            [*grid.command, *run.flags, f"--workdir={place}"],
            grid.folder / f"{run.name}.log",
            # Runs differ in few programs: those that evaluate, and those of other seeds, are alike.
            {"JAX_COMPILATION_CACHE_DIR": str((grid.folder / compile_cache.FOLDER).resolve())},
            tell,
        )
    return grid_runs.outcome(grid.folder, run, error)


def _check_first(outcomes: Sequence[Outcome], number: int) -> None:
    """Raise if a run was refused before any was finished: what is wrong is common to all."""
    code, _, words = outcomes[number].error.partition(": ")
    if code == f"exit code {REFUSED}" and not any(one.is_finished for one in outcomes):
        raise Refused(words.removeprefix("error: "))


def _score(grid: Grid, outcomes: Sequence[Outcome]) -> str:
    if not any(one.is_finished for one in outcomes):
        return grid.score
    try:
        return grid_runs.main_score(outcomes, grid.score)
    except ValueError as error:
        raise Refused(str(error)) from error


def _say(screen: Screen, one: Outcome, place: str, score: str) -> None:
    if one.is_finished:
        screen.say(f"{place}  {one.run.in_words()}  {score} {one.scores[score]:.4f}")
    else:
        screen.say(f"{place}  {one.run.in_words()}  failed: {one.error}", BAD)


def _show(screen: Screen, grid: Grid, outcomes: Sequence[Outcome]) -> int:
    """The table and the picture; the exit code."""
    failed = sum(not one.is_finished for one in outcomes)
    if failed == len(outcomes):
        screen.say(f"no run came to its end; their logs are {grid.folder}/*.log", BAD)
        return FAILED
    from bert_jax import grid_plot  # here, as no start, help or refusal needs matplotlib

    score = _score(grid, outcomes)
    grid_report.write_numbers(grid.folder, outcomes, score, grid.fixed)
    title = f"{grid.task}: {score.replace('_', ' ')}"
    grid_plot.draw(grid.folder, outcomes, score, f"{title}, mean ± standard deviation over seeds")
    terminal_console.console(highlight=False).print(grid_report.table(outcomes, score))
    screen.table(title, grid_report.closing_rows(grid.folder, outcomes, score))
    if failed:
        screen.say(f"{failed} of {len(outcomes)} failed; the same command tries them again", FAINT)
    return FAILED if failed else DONE
