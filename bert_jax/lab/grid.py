"""Fine-tune with every combination of learning rates, epochs and seeds, and compare the settings.

A run that has left its summary and its predictions is finished and never started again, so a
stopped grid resumes where it was.
"""

import dataclasses
import decimal
import functools
import itertools
import operator
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table
import rich.text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bert_jax import config as config_lib
from bert_jax.config import FinetuneConfig, overrides, validate
from bert_jax.lab import runs as runs_lib
from bert_jax.lab.runs import Lane, parse_list
from bert_jax.logging import plots
from bert_jax.logging.console import BAD, FAINT, GOOD, Screen
from bert_jax.logging.statistics import describe_mean, summarize_values
from bert_jax.runtime import workdir_lock
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.main import DONE, FAILED, REFUSED
from data_pipeline.cli.terminal import make_console, make_table
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.small_files import DamagedFile

NUMBERS, PICTURE = "grid.json", "grid.png"  # grid.json also has the settings and every run
# The settings that a grid varies, and the flags that do so.
_VARIED = {
    "optim.learning_rate": "learning_rates",
    "epochs": "epochs",
    "seed": "seeds",
    "data.order_seed": "seeds",
}
_NAMED_TIES = 3
_MARKERS = "osD^vP"
_SHIFT = 0.012  # share of the axis between lines, so that their error bars do not overlap


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
    error: str = ""  # why it has no scores; "" if it has

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
        parse_list("seeds", seeds, int, f"whole {words}"),
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
    """Name the score that decides; before a run is finished, the requested one, which may be ""."""
    for outcome in outcomes:
        if outcome.is_finished:
            return runs_lib.choose_score(outcome.scores, outcome.baseline, requested)
    return requested


@dataclasses.dataclass(frozen=True)
class GridSetting:
    """Hold the finished runs of a learning rate and a number of epochs, over their seeds."""

    learning_rate: float
    epochs: float
    outcomes: tuple[GridOutcome, ...]
    planned: int  # runs of this setting, finished or not
    score: str  # name of the deciding score

    @property
    def name(self) -> str:
        return describe_setting(self.learning_rate, self.epochs)

    @property
    def values(self) -> list[float]:
        return [outcome.scores[self.score] for outcome in self.outcomes]

    @property
    def mean(self) -> float:
        return summarize_values(self.values)[0]

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation of a sample (divided by N - 1); None of a single run."""
        return summarize_values(self.values)[1]

    def describe(self, score: str) -> str:
        """Describe the mean and the spread of a score."""
        return f"{score} {describe_mean([o.scores[score] for o in self.outcomes], 4)}"

    def numbers(self) -> dict[str, Any]:
        """Return its row of grid.json."""
        return {
            "learning_rate": self.learning_rate,
            "epochs": self.epochs,
            "runs": len(self.values),
            "mean": self.mean,
            "standard_deviation": self.deviation,
            "lowest": min(self.values),
            "highest": max(self.values),
        }


class GridComparison:
    """Compare the settings of a grid by the score that decides."""

    def __init__(self, outcomes: Sequence[GridOutcome], score: str) -> None:
        """Group the finished runs by falling learning rate, then rising epochs."""
        self.outcomes, self.score = outcomes, score

        def get_setting(outcome: GridOutcome) -> tuple[float, float]:
            return -outcome.run.learning_rate, outcome.run.epochs

        self.settings = list[GridSetting]()
        for (rate, epochs), runs in itertools.groupby(
            sorted(outcomes, key=get_setting), get_setting
        ):
            planned = list(runs)
            if finished := tuple(outcome for outcome in planned if outcome.is_finished):
                setting = GridSetting(-rate, epochs, finished, len(planned), score)
                self.settings.append(setting)
        # The score without reading the text, if a run has recorded one.
        self.baseline = next((o.baseline[score] for o in outcomes if score in o.baseline), None)

    @functools.cached_property
    def best(self) -> GridSetting:
        """Return the setting of the highest mean, among those with the most seeds."""
        most = max(len(setting.outcomes) for setting in self.settings)
        complete = [setting for setting in self.settings if len(setting.outcomes) == most]
        return max(complete, key=lambda setting: setting.mean)

    @property
    def beats_baseline(self) -> bool:
        return self.baseline is None or self.best.mean > self.baseline

    @property
    def ties(self) -> list[GridSetting]:
        """List the settings with as many seeds whose mean is within a deviation of the best.

        The larger of the two deviations counts; single runs tie only if their scores are equal.
        """
        best = self.best
        return [
            setting
            for setting in self.settings
            if setting is not best
            and len(setting.outcomes) == len(best.outcomes)
            and best.mean - setting.mean <= max(best.deviation or 0.0, setting.deviation or 0.0)
        ]

    @property
    def best_run(self) -> GridOutcome:
        outcomes = [outcome for outcome in self.outcomes if outcome.is_finished]
        return max(outcomes, key=lambda outcome: outcome.scores[self.score])


def build_table(grid: GridComparison) -> rich.table.Table:
    """Build a table of the settings; the best is marked if it is above the baseline."""
    heads = ("learning rate", "epochs", "runs", "mean", "spread", "lowest", "highest")
    table = make_table(heads, (), left=())
    for setting in grid.settings:
        rate, epochs, count, *scores = setting.numbers().values()
        runs = rich.text.Text(f"{count}")
        if setting.planned > count:
            runs = rich.text.Text(f"{count} of {setting.planned}", BAD)
        table.add_row(
            *(format_rate(rate), f"{epochs:g}", runs),
            *("" if score is None else f"{score:.4f}" for score in scores),
            style=f"bold {GOOD}" if grid.beats_baseline and setting is grid.best else "",
        )
    if grid.baseline is not None:
        table.add_row("baseline", "", "", f"{grid.baseline:.4f}", style=FAINT)
    return table


def list_closing_rows(folder: pathlib.Path, grid: GridComparison) -> list[tuple[str, str]]:
    """Return labels and texts: the best setting with all its scores, the best run, the files."""
    best, first, score = grid.best, grid.best_run, grid.score
    seeds = f"{len(best.outcomes)} seed{'s' * (len(best.outcomes) > 1)}"
    result = best.describe(score)
    if grid.beats_baseline:
        rows = [("best", f"{best.name}, the mean of {seeds}"), ("", result)]
    else:
        rows = [
            ("best", f"none: no mean is above the baseline, {grid.baseline:.4f}"),
            ("highest", f"{result}: {best.name}, {seeds}"),
        ]
    if tied := grid.ties:
        names = "; ".join(setting.name for setting in tied[:_NAMED_TIES])
        more = f"; and {len(tied) - _NAMED_TIES} more" if len(tied) > _NAMED_TIES else ""
        rows.append(("", f"no better than its seeds differ: {names}{more}"))
    rows += [
        ("", best.describe(name))
        for name in best.outcomes[0].scores
        if name != score and not name.endswith("_loss")
    ]
    return [
        *rows,
        ("best run", f"{score} {first.scores[score]:.4f}: {first.run.in_words()}"),
        ("", str(folder / first.run.name)),
        ("picture", str(folder / PICTURE)),
        ("numbers", str(folder / NUMBERS)),
    ]


def write_numbers(folder: pathlib.Path, grid: GridComparison, config: dict[str, Any]) -> None:
    """Write grid.json; before a run is finished it has no settings and no best one."""
    has_best = bool(grid.settings)
    runs = [
        {
            "name": outcome.run.name,
            **dataclasses.asdict(outcome.run),
            "scores": dict(outcome.scores),
            "error": outcome.error,
        }
        for outcome in grid.outcomes
    ]
    numbers = {
        "score": grid.score,
        "baseline": grid.baseline,
        "settings": [setting.numbers() for setting in grid.settings],
        "best": grid.best.numbers() if has_best else None,
        "best_beats_baseline": grid.beats_baseline if has_best else None,
        "ties_with_best": [tie.numbers() for tie in grid.ties] if has_best else [],
        "best_run": grid.best_run.run.name if has_best else None,
        "runs": runs,
        "config": config,
    }
    write_json(folder / NUMBERS, numbers)


def show(folder: pathlib.Path, grid: GridComparison, task: str, screen: Screen) -> None:
    """Write grid.png, and show the table, the best setting and the files."""
    title = f"{task}: {grid.score.replace('_', ' ')}"
    spread = f"{title}, mean ± standard deviation over seeds"
    plots.save(folder / PICTURE, lambda: draw_figure(grid, spread))
    make_console(highlight=False).print(build_table(grid))
    screen.table(title, list_closing_rows(folder, grid))


def draw_figure(grid: GridComparison, title: str) -> Figure:
    """Draw means with their spread over the learning rate, and a line for each number of epochs.

    Each run is a dot, and the baseline is a line where the task has one. With a single learning
    rate the axis shows the epochs, in one line.
    """
    over_epochs = len({setting.learning_rate for setting in grid.settings}) == 1
    axis, other = ("epochs", "learning_rate") if over_epochs else ("learning_rate", "epochs")
    get_x, get_line = operator.attrgetter(axis), operator.attrgetter(other)
    picture = Figure(figsize=(7.2, 4.2), layout="constrained")
    ax = picture.add_subplot(label=grid.score)
    xs = sorted({get_x(setting) for setting in grid.settings})
    lines = sorted({get_line(setting) for setting in grid.settings})
    for number, line in enumerate(lines):
        shift = _SHIFT * (number - (len(lines) - 1) / 2) * len(xs)
        settings = [setting for setting in grid.settings if get_line(setting) == line]
        points = {xs.index(get_x(setting)) + shift: setting for setting in settings}
        label = f"rate {format_rate(line)}" if over_epochs else f"{line:g} epoch{'s' * (line != 1)}"
        _draw_line(ax, dict(sorted(points.items())), number, label)
    if grid.baseline is not None:
        look: dict[str, Any] = {"color": plots.GRAY, "linewidth": 1.1, "linestyle": (0, (5, 3))}
        ax.axhline(grid.baseline, label="baseline", **look)
    ax.set_xticks(range(len(xs)), [f"{x:g}" if over_epochs else format_rate(x) for x in xs])
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlim(-0.4, len(xs) - 0.6)
    ax.set_xlabel(axis.replace("_", " "), color=plots.GRAY)
    handles, labels = ax.get_legend_handles_labels()
    plots.add_legend(picture, dict(zip(labels, handles, strict=True)), title)
    return picture


def _draw_line(ax: Axes, points: Mapping[float, GridSetting], number: int, label: str) -> None:
    """Draw a line through the means of settings, by their places on the axis, and a dot per run."""
    color = plots.COLORS[number % len(plots.COLORS)]
    ax.errorbar(
        list(points),
        [setting.mean for setting in points.values()],
        [setting.deviation or 0.0 for setting in points.values()],
        label=label,
        color=color,
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=5.0,
        linewidth=1.4,
        elinewidth=1.1,
        capsize=3.0,
    )
    for place, setting in points.items():
        if len(values := setting.values) > 1:
            xs = [place] * len(values)
            ax.scatter(xs, values, s=14.0, color=color, alpha=0.45, linewidths=0.0, zorder=1.9)


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
        outcomes = self._read_outcomes()
        finished = sum(outcome.is_finished for outcome in outcomes)
        before = f", {finished} of them finished before" if finished else ""
        screen.print(f"{len(outcomes)} runs in {self.folder}{before}")

        def compare() -> GridComparison:
            """Compare what is finished, and write the numbers."""
            comparison = GridComparison(outcomes, choose_score(outcomes, self.score))
            write_numbers(self.folder, comparison, self.fixed)
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
                if is_new:  # the others would be refused too; no run began with these settings
                    (self.folder / NUMBERS).unlink(missing_ok=True)
                raise Refused(message.removeprefix("error: "))
            score = compare().score
            label = f"{number + 1}/{len(outcomes)}  {self.runs[number].in_words()}"
            if error:
                screen.print(f"{label}  failed: {error}", BAD)
            else:
                screen.print(f"{label}  {score} {outcomes[number].scores[score]:.4f}")

        is_new = not (self.folder / NUMBERS).exists()
        compare()  # keeps the settings: a killed run must not resume with others
        reads = {i: () for i, outcome in enumerate(outcomes) if not outcome.is_finished}
        runs_lib.run_all(reads, work, report, runs_lib.open_lanes(screen, parallel))
        failed = sum(not outcome.is_finished for outcome in outcomes)
        if failed == len(outcomes):
            screen.print(f"no run came to its end; their logs are {self.folder}/*.log", BAD)
            return FAILED
        show(self.folder, compare(), self.fixed["data.task"], screen)
        if failed:
            screen.print(
                f"{failed} of {len(outcomes)} failed; the same command tries them again", FAINT
            )
        return FAILED if failed else DONE
