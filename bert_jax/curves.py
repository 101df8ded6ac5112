"""The curves of a run as one picture, curves.png, from its metrics.jsonl and phases."""

import dataclasses
import io
import itertools
import logging
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Before matplotlib is imported, which else says on the screen that it indexes fonts or that the
# home folder is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import style  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: E402
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator  # noqa: E402

from bert_jax.config import Phase  # noqa: E402
from bert_jax.log import CURVES, METRICS  # noqa: E402
from bert_jax.record_files import read_metrics, write_whole  # noqa: E402

Line = Mapping[str, Any]  # of metrics.jsonl
Points = tuple[np.ndarray, np.ndarray]  # steps and values


@dataclasses.dataclass(frozen=True)
class End:
    """What is written where a curve ends."""

    value: float
    text: str
    colour: str


TITLES = {
    "mlm_loss": "Masked LM loss (nats)",
    "mlm_accuracy": "Masked LM accuracy",
    "nsp_loss": "Next sentence loss (nats)",
    "nsp_accuracy": "Next sentence accuracy",
    "learning_rate": "Learning rate",
    "sequences_per_sec": "Sequences per second",
}
# Metric -> what a model without context scores, and the word for it: see baselines.py.
BASELINES = {
    "mlm_loss": ("unigram_mlm_loss", "unigram"),
    "nsp_accuracy": ("majority_nsp_accuracy", "majority"),
}
# A panel shows at least so much: what two evaluations of some hundred examples differ by is noise.
LEAST_LOSS_SPAN, LEAST_ACCURACY_SPAN = 0.5, 0.2
MOST_POINTS = 200  # of a train curve: the noise of more hides where it goes
MOST_DOTS = 12  # a curve of so few points shows each
APART = 0.17  # of a panel's height: two values written under one another
NARROW, NARROWEST = 0.16, 0.05  # shares of the axis that "length 128" and "128" fit into

# Okabe and Ito's blue and vermilion: apart for colour-blind eyes, and in grey.
TRAIN, HELDOUT, GREY, FAINT = "#0072B2", "#D55E00", "#595959", "#D9D9D9"
LOOK = {
    "figure.dpi": 150,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.edgecolor": "#A6A6A6",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#EDEDED",
    "xtick.color": "#A6A6A6",
    "ytick.color": "#A6A6A6",
    "xtick.labelcolor": GREY,
    "ytick.labelcolor": GREY,
    "ytick.major.size": 0.0,
}


def draw(
    workdir: pathlib.Path, phases: Sequence[Phase], schedule: Points | None = None
) -> pathlib.Path | None:
    """Write curves.png into workdir; its path, or None while there is nothing to draw.

    schedule are steps, counted from 1, and their learning rates: closer than the logged ones, which
    miss its bends.

    Raises:
      ValueError: a line before the last one of metrics.jsonl is not a line of metrics.
    """
    lines = read_metrics(workdir / METRICS)
    if not panels(lines):
        return None
    picture = io.BytesIO()
    with style.context(["default", LOOK]):  # not what a matplotlibrc of the machine says
        figure(lines, phases, schedule).savefig(picture, format="png")
    write_whole(workdir / CURVES, picture.getvalue())
    return workdir / CURVES


def panels(lines: Sequence[Line]) -> list[str]:
    """The metrics that have a panel: what is learned, how well, learning rate, speed.

    Of pre-training loss and accuracy of each term; of a task its loss and its development scores.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    of_terms = [
        f"{term}_{kind}"
        for term in (name.removesuffix("_loss") for name in names if name.endswith("_loss"))
        if f"{term}_accuracy" in names  # baselines have one of the two
        for kind in ("loss", "accuracy")
    ]
    of_a_task = [name for name in names if name == "task_loss" or name.startswith("dev_")]
    of_the_run = [name for name in ("learning_rate", "sequences_per_sec") if name in names]
    return list(dict.fromkeys([*of_terms, *of_a_task, *of_the_run]))


def figure(
    lines: Sequence[Line], phases: Sequence[Phase], schedule: Points | None = None
) -> Figure:
    """The picture of lines that have a metric to draw; the label of each panel is its metric."""
    names = panels(lines)
    rows = math.ceil(len(names) / 2)
    last_step = max(line["step"] for line in lines)
    spaced = ConstrainedLayoutEngine(wspace=0.05, hspace=0.05)
    picture = Figure(figsize=(9.0, 0.8 + 2.1 * rows), layout=spaced)
    handles: dict[str, Artist] = {}
    for index, name in enumerate(names):
        ax = picture.add_subplot(rows, 2, index + 1, label=name)
        ends = _draw_curves(ax, lines, name, last_step, schedule)
        set_axes(ax, name, last_step, is_lowest=index + 2 >= len(names))
        draw_phases(ax, phases, last_step, is_highest=index < 2)
        write_ends(ax, ends)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    picture.legend(
        list(handles.values()),
        list(handles),
        title=_where(phases, last_step),
        title_fontproperties={"size": "large", "weight": "bold"},
        loc="outside upper left",
        alignment="left",
        ncols=4,
        frameon=False,
    )
    return picture


def series(lines: Sequence[Line], split: str, name: str) -> Points:
    """Steps and values of a metric; a value that is not finite has no place on an axis."""
    found = [
        (line["step"], line[name])
        for line in lines
        if line["split"] == split and math.isfinite(line.get(name, math.nan))
    ]
    pairs = np.asarray(found, np.float64).reshape(len(found), 2)
    return pairs[:, 0], pairs[:, 1]


def thinned(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Last steps, means, lows and highs of at most MOST_POINTS groups of neighbours.

    The first point is a group of its own; so is each where there are few.
    """
    steps_N, values_N = points
    count = len(steps_N)
    groups = min(count, MOST_POINTS)
    others = np.linspace(1, count, groups - 1, endpoint=False).astype(int)
    firsts = np.concatenate([[0], others])
    sizes = np.diff(firsts, append=count)
    return (
        steps_N[firsts + sizes - 1],
        np.add.reduceat(values_N, firsts) / sizes,
        np.minimum.reduceat(values_N, firsts),
        np.maximum.reduceat(values_N, firsts),
    )


def _draw_curves(
    ax: Axes, lines: Sequence[Line], name: str, last_step: int, schedule: Points | None
) -> list[End]:
    """Draw a panel's curves; what is to be written where they end."""
    ends = []
    train, heldout = series(lines, "train", name), series(lines, "heldout", name)
    if name == "learning_rate" and schedule is not None and _agree(train, schedule):
        steps, rates = (values[schedule[0] <= last_step] for values in schedule)
        ax.plot(steps, rates, label="train", color=TRAIN, linewidth=1.2, clip_on=False)
    elif len(train[0]):
        steps, means, lows, highs = thinned(train)
        _plot(ax, (steps, means), label="train", color=TRAIN, linewidth=1.2)
        if len(steps) < len(train[0]):
            label = "train, lowest to highest"
            ax.fill_between(steps, lows, highs, label=label, color=TRAIN, alpha=0.2, linewidth=0)
    if len(heldout[0]):
        _plot(ax, heldout, label="held-out", color=HELDOUT, linewidth=1.8)
        ends.append(End(heldout[1][-1], f"{heldout[1][-1]:.3f}", HELDOUT))
    key, word = BASELINES.get(name, (f"majority_{name}", "majority"))
    steps, values = series(lines, "heldout", key)
    if len(steps):  # each value holds from the evaluation before it on
        ax.plot(
            np.concatenate([[0.0], steps, [last_step]]),
            np.concatenate([values[:1], values, values[-1:]]),
            drawstyle="steps-pre",
            label="baseline",
            color=GREY,
            linewidth=1.1,
            linestyle=(0, (5, 3)),
        )
        ends.append(End(values[-1], f"{word}\n{values[-1]:.3f}", GREY))
    return ends


def _agree(logged: Points, schedule: Points) -> bool:
    """Whether the rates of a run are those of a schedule: not where it had another one before."""
    expected = np.interp(logged[0], *schedule)
    return bool(np.allclose(logged[1], expected, rtol=0.01, atol=0.01 * float(schedule[1].max())))


def _plot(ax: Axes, points: Points, **look: Any) -> None:
    dots = "o" if len(points[0]) <= MOST_DOTS else ""
    ax.plot(*points, marker=dots, markersize=3.5, clip_on=False, **look)


def set_axes(ax: Axes, name: str, last_step: int, is_lowest: bool) -> None:
    """Title, limits and ticks of a metric's panel."""
    ax.set_title(TITLES.get(name, name.replace("_", " ").capitalize()), loc="left")
    ax.set_xlim(0, max(last_step, 1))
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    _widen(ax, name)
    if name == "learning_rate":
        ax.set_ylim(bottom=0.0)
        ax.yaxis.set_major_formatter(FuncFormatter(_rate))
    if name == "sequences_per_sec":
        ax.set_ylim(bottom=0.0)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if is_lowest:
        ax.set_xlabel("step", color=GREY)
    else:
        ax.tick_params(labelbottom=False)


def _widen(ax: Axes, name: str) -> None:
    """Show at least so much of a metric that its noise does not look like progress.

    A loss is never below 0, and an accuracy not above 1 either.
    """
    is_loss = name.endswith("_loss")
    if not is_loss and not name.endswith("accuracy"):
        return
    least = LEAST_LOSS_SPAN if is_loss else LEAST_ACCURACY_SPAN
    low, high = ax.get_ylim()
    missing = max(0.0, least - (high - low))
    bottom = max(low - missing / 2, min(low, 0.0))
    top = max(high, bottom + least)
    if not is_loss and top > max(high, 1.0):
        top = max(high, 1.0)
        bottom = min(bottom, top - least)
    ax.set_ylim(bottom, top)


def _rate(value: float, _: int | None) -> str:
    """2.5e-4 for 0.00025."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}" if value else "0"


def draw_phases(ax: Axes, phases: Sequence[Phase], last_step: int, is_highest: bool) -> None:
    """A line where a phase begins; over the highest panels, the sequence length of each."""
    ends = list(itertools.accumulate(phase.steps for phase in phases))
    spans = [
        (phase.seq_len, end - phase.steps, min(end, last_step))
        for phase, end in zip(phases, ends, strict=True)
        if end - phase.steps < last_step
    ]
    for seq_len, start, end in spans:
        if start:
            ax.axvline(start, color=FAINT, linewidth=1.0, zorder=0.9)
        share = (end - start) / last_step
        if is_highest and len(spans) > 1 and share > NARROWEST:
            ax.annotate(
                f"length {seq_len}" if share > NARROW else str(seq_len),
                ((start + end) / 2, 1.0),
                (0, 2),
                xycoords=ax.get_xaxis_transform(),
                textcoords="offset points",
                color=GREY,
                fontsize="small",
                ha="center",
            )
    if is_highest and len(spans) > 1:
        ax.set_title(ax.get_title(loc="left"), loc="left", pad=18)


def write_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Write the last values, two at most, right of the panel and apart from one another."""
    low, high = ax.get_ylim()
    ends = sorted(ends, key=lambda end: end.value)
    places = [(end.value - low) / (high - low) for end in ends]
    if len(places) == 2 and places[1] - places[0] < APART:
        middle = sum(places) / 2
        places = [middle - APART / 2, middle + APART / 2]
    for place, end in zip(places, ends, strict=True):
        ax.annotate(
            end.text,
            (1.0, place),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=end.colour,
            va="center",
        )


def _where(phases: Sequence[Phase], last_step: int) -> str:
    """How far the run has come."""
    ends = itertools.accumulate(phase.steps for phase in phases)
    total = sum(phase.steps for phase in phases)
    now = next((p for p, end in zip(phases, ends, strict=True) if last_step <= end), phases[-1])
    return f"Step {last_step:,} of {total:,}, sequences of {now.seq_len}"
