"""Report what a grid found: mean and spread of each setting as a table, numbers and a picture."""

import dataclasses
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

from bert_jax.lab.grid import NUMBERS, GridOutcome, describe_setting, format_rate
from bert_jax.logging import plots
from bert_jax.logging.console import BAD, FAINT, GOOD, Screen
from bert_jax.logging.statistics import describe_mean, summarize_values
from data_pipeline.cli.terminal import make_console, make_table
from data_pipeline.io.atomic import write_json

PICTURE = "grid.png"
_NAMED_TIES = 3


@dataclasses.dataclass(frozen=True)
class GridSetting:
    """Hold the finished runs of a learning rate and a number of epochs, over their seeds."""

    learning_rate: float
    epochs: float
    outcomes: tuple[GridOutcome, ...]
    planned: int  # runs of this setting, finished or not
    score: str  # the one that decides

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
        """Write the mean and the spread of a score."""
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
        runs, values = rich.text.Text(f"{len(setting.values)}"), setting.values
        if setting.planned > len(values):
            runs = rich.text.Text(f"{len(values)} of {setting.planned}", BAD)
        numbers = (setting.mean, setting.deviation, min(values), max(values))
        table.add_row(
            *(format_rate(setting.learning_rate), f"{setting.epochs:g}", runs),
            *("" if number is None else f"{number:.4f}" for number in numbers),
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


_MARKERS = "osD^vP"
_SHIFT = 0.012  # share of the axis between lines, so that their error bars do not overlap


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
        dashes = {"linewidth": 1.1, "linestyle": (0, (5, 3))}
        ax.axhline(grid.baseline, label="baseline", color=plots.GRAY, **dashes)
    ax.set_xticks(range(len(xs)), [f"{x:g}" if over_epochs else format_rate(x) for x in xs])
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlim(-0.4, len(xs) - 0.6)
    ax.set_xlabel(axis.replace("_", " "), color=plots.GRAY)
    handles, labels = ax.get_legend_handles_labels()
    plots.add_legend(picture, dict(zip(labels, handles, strict=True)), title)
    return picture


def _draw_line(ax: Axes, points: Mapping[float, GridSetting], number: int, label: str) -> None:
    """Draw a line of settings by their places on the axis, and dots of their runs."""
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
