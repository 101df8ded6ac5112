"""Report a ladder: a table of its rungs, and a picture of loss against operations with the law."""

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
import rich.table
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_jax.lab.ladder import Forecast, Ladder, RungResult
from bert_jax.logging import plots
from bert_jax.logging.console import Screen
from bert_jax.planning.law import CONFIDENCE, LADDER, Law, count_in_words
from data_pipeline.cli.terminal import make_console, make_table

PICTURE = "ladder.png"


def build_table(ladder: Ladder) -> rich.table.Table:
    """Build the table of the rungs, with the law's loss next to theirs."""
    rows = []
    for each in ladder.outcomes:
        cells = [each.name, count_in_words(each.parameters), count_in_words(each.tokens)]
        cells += [f"{each.tokens / each.unique_tokens:.2g}", f"{each.operations:.3g}"]
        law = ["-", "-"]
        if ladder.law is not None and each.is_used:
            fitted = ladder.law.predict(*each.point[:3]).loss
            law = [f"{fitted:.3f}", f"{each.loss / fitted - 1:+.1%}"]
        rows.append([*cells, f"{each.loss:.3f}", *law])
    heads = ("rung", "size", "tokens", "epochs", "operations", "loss", "law", "off")
    return make_table(heads, rows)


def show(ladder: Ladder, folder: pathlib.Path, screen: Screen) -> None:
    """Write ladder.json and ladder.png; show the table, notes on the law, and the forecasts."""
    ladder.write(folder)
    plots.save(folder / PICTURE, lambda: draw_figure(ladder))
    make_console(highlight=False).print(build_table(ladder))
    for line in ladder.notes():
        screen.print(line)
    show_forecasts(ladder.forecasts, screen)
    screen.print(f"{folder / LADDER}, {PICTURE}")


def show_forecasts(forecasts: Sequence[Forecast], screen: Screen) -> None:
    """Print a sentence for each predicted run, and the command that trains it."""
    for each in forecasts:
        screen.print(
            f"{each.name}, {count_in_words(each.parameters)} parameters, "
            f"{count_in_words(each.tokens)} tokens, {each.operations:.3g} operations: predicted "
            f"loss {each.loss:.3f}, {CONFIDENCE:.0%} from {each.low:.3f} to {each.high:.3f}"
        )
        screen.command(each.command)


def draw_figure(ladder: Ladder) -> Figure:
    """Draw loss over operations: a color for each width, dots for runs, lines for the law.

    A run that was left out is a ring; one that is predicted has its interval.
    """
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    trained, asked = ({each.width for each in ladder.outcomes}, {f.width for f in ladder.forecasts})
    widths = sorted(trained | asked)
    for width, color in zip(widths, itertools.cycle(plots.COLORS), strict=False):
        _draw_width(axes, ladder, width, color)
    if any(not each.is_used for each in ladder.outcomes):
        last = ladder.outcomes[-1]
        _draw_line(axes, last.unigram_loss, "unigram")
        _draw_line(axes, last.ngram_loss, "n-gram")
    axes.set_xscale("log")
    axes.set_xlabel("operations of training", color=plots.GRAY)
    axes.set_title("Held-out masked LM loss (nats)", loc="left")
    look = {"frameon": False, "fontsize": 8, "title": "width", "title_fontsize": 8}
    figure.legend(loc="outside right upper", **look)  # inside it would cover points
    return figure


def _draw_line(axes: Axes, loss: float, name: str) -> None:
    axes.axhline(loss, color=plots.GRAY, linestyle=":", linewidth=1)
    axes.text(
        *(0.99, loss, name),
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=8,
        color=plots.GRAY,
    )


def _draw_width(axes: Axes, ladder: Ladder, width: int, color: str) -> None:
    every = [each for each in ladder.outcomes if each.width == width]
    own = [each for each in every if each.is_used]
    for is_used, face in ((True, color), (False, "none")):
        points = [(each.operations, each.loss) for each in every if each.is_used == is_used]
        if points:
            operations, losses = zip(*points, strict=True)
            axes.scatter(operations, losses, s=28, edgecolors=color, facecolors=face, zorder=3)
    if ladder.law is not None and own:
        axes.plot(*_follow(ladder.law, own), color=color, linewidth=1.3)
    for each in ladder.forecasts:
        if each.width == width:
            reach = [[each.loss - each.low], [each.high - each.loss]]
            place = each.operations, each.loss
            axes.errorbar(*place, reach, color=color, marker="D", capsize=3)
            axes.annotate(
                f"predicted\n{each.loss:.2f}",
                place,
                textcoords="offset points",
                xytext=(-8, 0),
                ha="right",
                va="center",
                fontsize=8,
                color=plots.GRAY,
            )
    axes.plot([], [], "o-", color=color, label=width)


def _follow(law: Law, own: Sequence[RungResult]) -> tuple[np.ndarray, list[float]]:
    """Return operations and the law's losses of a width, around its token counts."""
    first, counts = own[0], [each.tokens for each in own]
    tokens = np.geomspace(min(counts) / 1.3, max(counts) * 1.3, 40)
    losses = [
        law.predict(first.parameters, float(count), first.unique_tokens).loss for count in tokens
    ]
    return tokens * (first.operations / first.tokens), losses
