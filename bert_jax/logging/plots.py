"""Draw a run: curves.png from metrics.jsonl, and the learning rate as a picture."""

import dataclasses
import io
import itertools
import logging
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Before the import: matplotlib logs that it indexes fonts or that the home folder is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from bert_jax import config as config_lib
from bert_jax.config import Config, Phase
from bert_jax.logging.console import REFERENCE_LINES, list_terms
from bert_jax.logging.metrics_writer import CURVES, METRICS
from bert_jax.train_step.schedule import sample_rates
from data_pipeline.io.atomic import write_file
from data_pipeline.io.jsonl import read_metrics

Line = Mapping[str, Any]  # a line of metrics.jsonl
Points = tuple[np.ndarray, np.ndarray]  # steps and values


@dataclasses.dataclass(frozen=True)
class End:
    """Hold the label at the end of a curve."""

    value: float
    text: str
    color: str


TITLES = {
    "mlm_loss": "Masked LM loss (nats)",
    "mlm_accuracy": "Masked LM accuracy",
    "nsp_loss": "Next sentence loss (nats)",
    "nsp_accuracy": "Next sentence accuracy",
    "causal_loss": "Next token loss (nats)",
    "causal_accuracy": "Next token accuracy",
    "permutation_loss": "Permutation LM loss (nats)",
    "permutation_accuracy": "Permutation LM accuracy",
    "rtd_loss": "Replaced tokens loss (nats)",
    "rtd_accuracy": "Replaced tokens accuracy",
    "rtd_auc": "Replaced tokens, area under the ROC curve",
    "learning_rate": "Learning rate",
    "sequences_per_sec": "Sequences per second",
}
# Scores without learning are named PREFIX_METRIC (trainer/baselines.py): PREFIX -> label.
BASELINES = REFERENCE_LINES | {"majority": "majority"}
# A panel spans at least so much, since a few hundred examples make evaluations this noisy.
MIN_LOSS_SPAN, MIN_ACCURACY_SPAN = 0.5, 0.2
MAX_POINTS = 200  # limit per training curve: the noise of more hides the trend
MAX_DOTS = 12  # a curve of at most this many points shows each
APART = 0.17  # share of a panel's height that separates two values
NARROW, NARROWEST = 0.16, 0.05  # shares of the axis that "length 128" and "128" fit into

# Okabe and Ito's colors, distinct for color-blind readers; blue and vermilion also in gray.
TRAIN, HELDOUT, GRAY, FAINT = "#0072B2", "#D55E00", "#595959", "#D9D9D9"
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#999999", "#000000"),
)
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
    "xtick.labelcolor": GRAY,
    "ytick.labelcolor": GRAY,
    "ytick.major.size": 0.0,
}


def draw_curves(
    workdir: pathlib.Path, phases: Sequence[Phase], schedule: Points | None = None
) -> pathlib.Path | None:
    """Write curves.png into workdir; return its path, or None if there is nothing to draw.

    `schedule` has steps, counted from 1, and their learning rates, as logged rates miss bends.

    Raises:
      Refused: a line before the last one of metrics.jsonl is not a line of metrics.
    """
    lines = read_metrics(workdir / METRICS)
    if not list_panels(lines):
        return None
    save(workdir / CURVES, lambda: make_figure(lines, phases, schedule))
    return workdir / CURVES


def save(path: pathlib.Path, draw: Callable[[], Figure]) -> None:
    """Draw a figure in the style of bert_jax, and write it as PNG."""
    picture = io.BytesIO()
    with style.context(["default", LOOK]):  # ignore the machine's matplotlibrc
        draw().savefig(picture, format="png")
    write_file(path, picture.getvalue())


def list_panels(lines: Sequence[Line]) -> list[str]:
    """List the metrics that get a panel: losses, accuracies, learning rate, speed.

    In pre-training loss and accuracy of each term; in fine-tuning the loss and the dev scores.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    panels = [f"{term}_{kind}" for term in list_terms(names) for kind in ("loss", "accuracy")]
    panels += [name for name in names if name == "task_loss" or name.startswith("dev_")]
    panels += [name for name in ("rtd_auc", "learning_rate", "sequences_per_sec") if name in names]
    return list(dict.fromkeys(panels))


def make_figure(
    lines: Sequence[Line], phases: Sequence[Phase], schedule: Points | None = None
) -> Figure:
    """Draw all panels; the label of each Axes is its metric."""
    names = list_panels(lines)
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
    add_legend(picture, handles, _describe_progress(phases, last_step))
    return picture


def add_legend(picture: Figure, handles: Mapping[str, Artist], title: str) -> None:
    """Add a legend with a title above the panels; handles are artists by label."""
    picture.legend(
        list(handles.values()),
        list(handles),
        title=title,
        title_fontproperties={"size": "large", "weight": "bold"},
        loc="outside upper left",
        alignment="left",
        ncols=4,
        frameon=False,
    )


def select_series(lines: Sequence[Line], split: str, name: str) -> Points:
    """Select steps and values of a metric; values that are not finite are skipped."""
    chosen = [line for line in lines if line["split"] == split]
    chosen = [line for line in chosen if math.isfinite(line.get(name, math.nan))]
    steps = np.asarray([line["step"] for line in chosen], np.float64)
    return steps, np.asarray([line[name] for line in chosen], np.float64)


def thin(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Group neighbors into at most MAX_POINTS groups; return last step, mean, low and high of each.

    The first point is a group by itself; if there are few points, each point is.
    """
    steps, values = (
        [points_N[:1], *filter(len, np.array_split(points_N[1:], MAX_POINTS - 1))]
        for points_N in points
    )
    lasts = np.array([group[-1] for group in steps])
    means, lows, highs = (
        np.array([reduce(group) for group in values]) for reduce in (np.mean, np.min, np.max)
    )
    return lasts, means, lows, highs


def _draw_curves(
    ax: Axes, lines: Sequence[Line], name: str, last_step: int, schedule: Points | None
) -> list[End]:
    """Draw the curves of a panel; return the labels of their ends."""
    ends = []
    train, heldout = select_series(lines, "train", name), select_series(lines, "heldout", name)
    if name == "learning_rate" and schedule is not None and _follows(train, schedule):
        steps, rates = (values[schedule[0] <= last_step] for values in schedule)
        ax.plot(steps, rates, label="train", color=TRAIN, linewidth=1.2, clip_on=False)
    elif len(train[0]):
        steps, means, lows, highs = thin(train)
        _plot(ax, (steps, means), label="train", color=TRAIN, linewidth=1.2)
        if len(steps) < len(train[0]):
            label = "train, lowest to highest"
            ax.fill_between(steps, lows, highs, label=label, color=TRAIN, alpha=0.2, linewidth=0)
    if len(heldout[0]):
        _plot(ax, heldout, label="held-out", color=HELDOUT, linewidth=1.8)
        ends.append(End(heldout[1][-1], f"{heldout[1][-1]:.3f}", HELDOUT))
    for prefix, word in BASELINES.items():
        steps, values = select_series(lines, "heldout", f"{prefix}_{name}")
        if len(steps):  # each value holds from the evaluation before it on
            ax.plot(
                np.concatenate([[0.0], steps, [last_step]]),
                np.concatenate([values[:1], values, values[-1:]]),
                drawstyle="steps-pre",
                label="baseline",
                color=GRAY,
                linewidth=1.1,
                linestyle=(0, (5, 3)),
            )
            ends.append(End(values[-1], f"{word}\n{values[-1]:.3f}", GRAY))
    return ends


def _follows(logged: Points, schedule: Points) -> bool:
    """Return whether logged rates follow a schedule; False if the run had another one before."""
    expected = np.interp(logged[0], *schedule)
    return bool(np.allclose(logged[1], expected, rtol=0.01, atol=0.01 * float(schedule[1].max())))


def _plot(ax: Axes, points: Points, **look: Any) -> None:
    dots = "o" if len(points[0]) <= MAX_DOTS else ""
    ax.plot(*points, marker=dots, markersize=3.5, clip_on=False, **look)


def set_axes(ax: Axes, name: str, last_step: int, is_lowest: bool) -> None:
    """Set title, limits and ticks of the panel of a metric."""
    ax.set_title(TITLES.get(name, name.replace("_", " ").capitalize()), loc="left")
    ax.set_xlim(0, max(last_step, 1))
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    _widen(ax, name)
    if name in _NUMBERS:
        ax.set_ylim(bottom=0.0)
        ax.yaxis.set_major_formatter(FuncFormatter(_NUMBERS[name]))
    if is_lowest:
        ax.set_xlabel("step", color=GRAY)
    else:
        ax.tick_params(labelbottom=False)


def _widen(ax: Axes, name: str) -> None:
    """Widen the axis of a metric so that its noise does not look like progress.

    A loss is never below 0, and an accuracy not above 1 either.
    """
    is_loss = name.endswith("_loss")
    if not is_loss and not name.endswith("accuracy"):
        return
    least = MIN_LOSS_SPAN if is_loss else MIN_ACCURACY_SPAN
    low, high = ax.get_ylim()
    missing = max(0.0, least - (high - low))
    bottom = max(low - missing / 2, min(low, 0.0))
    top = max(high, bottom + least)
    if not is_loss and top > max(high, 1.0):
        top = max(high, 1.0)
        bottom = min(bottom, top - least)
    ax.set_ylim(bottom, top)


def _rate(value: float, _: int | None) -> str:
    """Format a learning rate: 0.00025 as 2.5e-4."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}" if value else "0"


# Metrics whose axis begins at 0 -> how their ticks are written.
_NUMBERS = {"learning_rate": _rate, "sequences_per_sec": lambda value, _: f"{value:,g}"}


def draw_phases(ax: Axes, phases: Sequence[Phase], last_step: int, is_highest: bool) -> None:
    """Mark where phases begin, with the sequence length of each above the top panels."""
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
                color=GRAY,
                fontsize="small",
                ha="center",
            )
    if is_highest and len(spans) > 1:
        ax.set_title(ax.get_title(loc="left"), loc="left", pad=18)


def write_ends(ax: Axes, ends: Sequence[End], apart: float = APART) -> None:
    """Write the last values to the right of the panel, without overlap."""
    low, high = ax.get_ylim()
    ends = sorted(ends, key=lambda end: end.value)
    places = spread([(end.value - low) / (high - low) for end in ends], apart)
    lift = max(0.0, -min(places, default=0.0))  # lower texts would cover the axis labels
    for place, end in zip(places, ends, strict=True):
        ax.annotate(
            end.text,
            (1.0, place + lift),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=end.color,
            va="center",
        )


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Move ascending places so that they are at least `apart` apart, as little as possible."""
    from scipy.optimize import isotonic_regression  # takes half a second; few pictures need it

    offsets_N = apart * np.arange(len(places))
    moved_N = isotonic_regression(np.asarray(places) - offsets_N).x + offsets_N
    return [float(place) for place in moved_N]


def _describe_progress(phases: Sequence[Phase], last_step: int) -> str:
    ends = itertools.accumulate(phase.steps for phase in phases)
    total = sum(phase.steps for phase in phases)
    now = next((p for p, end in zip(phases, ends, strict=True) if last_step <= end), phases[-1])
    return f"Step {last_step:,} of {total:,}, sequences of {now.seq_len}"


def draw_rates(config: Config, path: pathlib.Path) -> None:
    """Write a picture of the learning rate of a run to path, a .png."""
    total = config_lib.total_steps(config)

    def draw() -> Figure:
        picture = Figure(figsize=(7.2, 2.8), layout="constrained")
        ax = picture.add_subplot()
        ax.plot(*sample_rates(config), color=TRAIN, linewidth=1.6, clip_on=False)
        set_axes(ax, "learning_rate", total, is_lowest=True)
        draw_phases(ax, config.phases, total, is_highest=True)
        return picture

    save(path, draw)
