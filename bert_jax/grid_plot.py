"""The picture of a grid: the score of each setting over the learning rate, with its spread."""

import io
import pathlib
from collections.abc import Sequence

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from bert_jax import curves
from bert_jax.grid_report import PICTURE, Setting, baseline_of, settings
from bert_jax.grid_runs import Outcome, in_short
from bert_jax.record_files import write_whole

# Okabe and Ito's, those of the curves first.
_COLOURS = (curves.TRAIN, curves.HELDOUT, "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^vP"
_SHIFT = 0.012  # of the axis: lines side by side, or their spreads would hide one another


def draw(folder: pathlib.Path, outcomes: Sequence[Outcome], score: str, title: str) -> None:
    """Write grid.png: the score over the learning rate, a line a number of epochs."""
    picture = io.BytesIO()
    with style.context(["default", curves.LOOK]):
        figure(outcomes, score, title).savefig(picture, format="png")
    write_whole(folder / PICTURE, picture.getvalue())


def figure(outcomes: Sequence[Outcome], score: str, title: str) -> Figure:
    """Means with their spread, and each run as a dot; the baseline where the task has one.

    Over the epochs, a line a rate, where there is only one rate.
    """
    found = settings(outcomes)
    over_epochs = len({one.learning_rate for one in found}) == 1
    picture = Figure(figsize=(7.2, 4.2), layout="constrained")
    ax = picture.add_subplot(label=score)
    xs = sorted({one.epochs if over_epochs else one.learning_rate for one in found})
    lines = sorted({one.learning_rate if over_epochs else one.epochs for one in found})
    for number, line in enumerate(lines):
        of_line = [
            one for one in found if (one.learning_rate if over_epochs else one.epochs) == line
        ]
        shift = _SHIFT * (number - (len(lines) - 1) / 2)
        places = [xs.index(one.epochs if over_epochs else one.learning_rate) for one in of_line]
        label = f"rate {in_short(line)}" if over_epochs else f"{line:g} epoch{'s' * (line != 1)}"
        _draw_line(ax, [place + shift * len(xs) for place in places], of_line, score, number, label)
    baseline = baseline_of(outcomes, score)
    if baseline is not None:
        dashes = (0, (5, 3))
        ax.axhline(baseline, label="baseline", color=curves.GREY, linewidth=1.1, linestyle=dashes)
    _set_axes(ax, xs, over_epochs)
    picture.legend(
        *ax.get_legend_handles_labels(),
        title=title,
        title_fontproperties={"size": "large", "weight": "bold"},
        loc="outside upper left",
        alignment="left",
        ncols=4,
        frameon=False,
    )
    return picture


def _draw_line(
    ax: Axes,
    places: Sequence[float],
    of_line: Sequence[Setting],
    score: str,
    number: int,
    label: str,
) -> None:
    """The settings of one line, in the order of their places on the axis."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    colour = _COLOURS[number % len(_COLOURS)]
    marker = _MARKERS[number % len(_MARKERS)]
    ax.errorbar(
        [places[i] for i in order],
        [of_line[i].mean(score) for i in order],
        [of_line[i].deviation(score) or 0.0 for i in order],
        label=label,
        color=colour,
        marker=marker,
        markersize=5.0,
        linewidth=1.4,
        elinewidth=1.1,
        capsize=3.0,
    )
    for i in order:
        values = of_line[i].values(score)
        if len(values) > 1:
            xs = [places[i]] * len(values)
            ax.scatter(xs, values, s=14.0, color=colour, alpha=0.45, linewidths=0.0, zorder=1.9)


def _set_axes(ax: Axes, xs: Sequence[float], over_epochs: bool) -> None:
    ax.xaxis.set_major_locator(FixedLocator(range(len(xs))))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(
        FuncFormatter(
            lambda place, _: f"{xs[round(place)]:g}" if over_epochs else in_short(xs[round(place)])
        )
    )
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlim(-0.4, len(xs) - 0.6)
    ax.set_xlabel("epochs" if over_epochs else "learning rate", color=curves.GREY)
