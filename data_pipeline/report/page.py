"""Write the health of a store as one HTML page that loads nothing: style and pictures are inline.

store.html is the page, page.css its style; the page of a training run shares parts.html. Text from
a corpus may hold HTML: the templates escape all of it.
"""

import functools
import io
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator

from data_pipeline.report import terminal
from data_pipeline.report.health import Health
from data_pipeline.report.lengths import Bin, Lengths

_INCHES = (4.6, 2.4)
# Colors of the pictures; the page replaces each by its own variable, for light and dark screens.
_COLORS = {
    "#4a7fb5": "--bar",
    "#c2571a": "--mark",
    "#646c76": "--quiet",
    "#e4e7eb": "--faint",
    "#ffffff": "--paper",
    # Colors of compared runs: apart for color-blind eyes (after Okabe and Ito).
    "#0072b2": "--run1",
    "#d55e00": "--run2",
    "#00845f": "--run3",
    "#b3589a": "--run4",
    "#8c6d00": "--run5",
    "#4d4d4d": "--run6",
}
BAR, MARK, QUIET, FAINT, PAPER, *RUN_COLORS = _COLORS
LOOK = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "data_pipeline",  # one store gives one page, byte for byte
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "axes.edgecolor"), QUIET),
    **dict.fromkeys((f"axes.spines.{side}" for side in ("left", "right", "top")), False),
    # Tick marks and clipping would need ids, which have to be unique among all pictures of the
    # page.
    **dict.fromkeys(
        (f"{axis}tick.{kind}.size" for axis in "xy" for kind in ("major", "minor")), 0.0
    ),
}
_MANY_DECADES = 2.5  # an axis with more has no labels at 2 and 5


def draw_histogram(lengths: Lengths, unit: str, marks: Sequence[tuple[int, str]]) -> str:
    """Draw a distribution as SVG: bars with their counts on hover, lines at the named lengths.

    The axis of lengths is logarithmic unless the bins are of one width.
    """
    bars, bins = lengths.bars(), lengths.bins
    start, stop = bins[0].first, bins[-1].last + 1
    top = max(bar.height for bar in bars)
    # A length that occurs at all is visible, however rare.
    heights = [max(bar.height, 0.005 * top) if bar.height else 0.0 for bar in bars]
    # A bar of an even axis stands for whole numbers: their labels belong under its middle.
    shift = 0.5 if lengths.is_even else 0.0
    with style.context(["default", LOOK]):
        figure, axes = new_axes()
        if not lengths.is_even:
            axes.set_xscale("log")
        rectangles = axes.bar(
            [each.first - shift for each in bins],
            heights,
            [each.last + 1 - each.first for each in bins],
            align="edge",
            color=BAR,
            edgecolor=PAPER,
            linewidth=0.5,
            clip_on=False,
        )
        titles = {}
        for number, (rectangle, each) in enumerate(zip(rectangles, bins, strict=True)):
            rectangle.set_gid(f"bar{number}")
            titles[f"bar{number}"] = _hover_text(each, unit, lengths.count)
        axes.set_xlim(start - shift, stop - shift)
        axes.set_ylim(0.0, top * (1.15 if marks else 1.0))
        if lengths.is_even:
            axes.xaxis.set_major_locator(MaxNLocator(8, steps=(1, 2, 5, 10), integer=True))
        else:
            has_many_decades = stop > 10**_MANY_DECADES * start
            digits = (1.0,) if has_many_decades else (1.0, 2.0, 5.0)
            axes.xaxis.set_major_locator(LogLocator(subs=digits, numticks=9))
            axes.minorticks_off()
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
        for length, name in marks:
            if start < length < stop:
                _draw_mark(axes, length - shift, name, is_right=length > (start * stop) ** 0.5)
        axes.set_title(f"share in each {'bin' if lengths.is_even else 'doubling'}")
        axes.set_xlabel(unit if lengths.is_even else f"{unit}, log scale")
        return render_svg(figure, f"Distribution of {unit}", titles)


def draw_rank_curve(rank_counts: Sequence[tuple[int, int]]) -> str:
    """Draw as SVG how often a vocabulary entry occurs against its rank, both on log scales."""
    ranks, counts = zip(*rank_counts, strict=True)
    with style.context(["default", LOOK]):
        figure, axes = new_axes()
        axes.loglog(ranks, counts, color=BAR, linewidth=1.8, clip_on=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0,)))
            axis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(1, max(ranks[-1], 10))
        axes.set_ylim(1, max(counts[0], 10))
        axes.minorticks_off()
        axes.set_title("occurrences, log scale")
        axes.set_xlabel("rank, log scale")
        return render_svg(figure, "Occurrences of vocabulary entries by rank", {})


def new_axes(inches: tuple[float, float] = _INCHES) -> tuple[Figure, Axes]:
    """Make a picture; draw inside style.context(["default", LOOK])."""
    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots()
    axes.grid(axis="y", clip_on=False)
    return figure, axes


def _hover_text(lengths_bin: Bin, unit: str, total: int) -> str:
    span = f"{lengths_bin.first:,}"
    if lengths_bin.last > lengths_bin.first:
        span += f" to {lengths_bin.last:,}"
    return f"{span} {unit}: {lengths_bin.count:,} ({lengths_bin.count / total:.2%})"


def _draw_mark(axes: Axes, x: float, name: str, is_right: bool) -> None:
    axes.axvline(x, color=MARK, linestyle=(0, (3, 3)), linewidth=1.0, clip_on=False)
    axes.annotate(
        name,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-3 if is_right else 3, -2),
        textcoords="offset points",
        horizontalalignment="right" if is_right else "left",
        verticalalignment="top",
    )


def render_svg(figure: Figure, name: str, titles: dict[str, str]) -> str:
    """Render a figure as an SVG element; `titles` maps an artist's gid to its hover text."""
    figure.patch.set_visible(False)
    figure.axes[0].patch.set_visible(False)
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata)
    svg = file.getvalue()
    svg = svg[svg.index("</defs>") + len("</defs>") :]  # drop the file header
    for gid, title in titles.items():
        group = f'<g class="bar"><title>{escape(title)}</title>'
        svg = svg.replace(f'<g id="{gid}">', group)
    svg = re.sub(r' id="[^"]*"|font-family: [^;]*; ', "", svg)
    for color, variable in _COLORS.items():
        svg = svg.replace(color, f"var({variable})")
    width, height = figure.get_size_inches()
    size = f"{72 * width:g} {72 * height:g}"
    return f'<svg viewBox="0 0 {size}" role="img" aria-label="{escape(name)}">{svg}'


# A flag in a finding; as code it is not broken at its dashes.
_FLAG, _CODE = re.compile(r"(--\w[\w.\[\]]*\w(=[\w./*,+-]*\w)?)"), r"<code>\1</code>"


def _mark_flags(sentence: str) -> Markup:
    return Markup(_FLAG.sub(_CODE, str(escape(sentence))))


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.globals["colors"] = _COLORS
_TEMPLATES.filters |= {"mark_flags": _mark_flags, "form": lambda value, form: format(value, form)}


@functools.cache
def _load_parts() -> Any:
    return _TEMPLATES.get_template("parts.html").module


def render_page(health: Health, findings: Sequence[str]) -> str:
    """Render the whole page."""
    lengths = terminal.list_lengths(health)
    marks = [(health.text_tokens, f"{health.text_tokens}: text in a row of {health.seq_len}")]
    pictures = {
        label.capitalize(): draw_histogram(
            distribution,
            label.split()[0],
            marks if label in ("tokens per sentence", "tokens per document") else (),
        )
        for label, distribution in lengths
    }
    pictures["Vocabulary by rank"] = draw_rank_curve(health.pieces.rank_counts)
    return _TEMPLATES.get_template("store.html").render(
        health=health,
        findings=findings,
        counts=[(label, *values) for label, values in terminal.list_counts(health)],
        lengths=lengths,
        facts=terminal.list_health_facts(health),
        pictures=pictures,
        percents=(5, 25, 50, 75, 95, 99),
    )


def render_document(title: str, sections: Iterable[str]) -> str:
    """Render a page from a title and sections, both HTML, with the style inline."""
    return str(_load_parts().document(Markup(title), Markup("\n".join(sections))))


def render_section(title: str, content: str) -> str:
    """Render a section: the title is escaped, the content is HTML."""
    return str(_load_parts().section(title, Markup(content)))


def render_findings(sentences: Sequence[str]) -> str:
    """Render findings with flags marked as code; the sentences are escaped."""
    return str(_load_parts().findings(sentences))


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Render pairs of a name and a text; both are escaped."""
    return str(_load_parts().facts(facts))


def render_plots(pictures: Mapping[str, str]) -> str:
    """Render SVG pictures under their titles; the titles are escaped."""
    return str(_load_parts().plots(pictures))
