"""Write the health of a store as one HTML page that loads nothing: style and pictures are inline.

Text from a corpus may hold HTML. All of it goes through html.escape.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator

from data_pipeline.report import terminal
from data_pipeline.report.health import Health
from data_pipeline.report.lengths import Bin, Lengths
from data_pipeline.report.rows import ShownToken

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


STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --panel: #f7f8fa; --warn: #9a5b00;
  --warn-paper: #fff6e5; --good: #1a7f4b; --hidden: #0b6e99; --replaced: #9b2c86;
  --kept: #23783c; }
@media (prefers-color-scheme: dark) { :root { --ink: #d9dee4; --quiet: #929ba6; --faint: #2c333b;
  --paper: #14181d; --panel: #1b2027; --bar: #6c9fd3; --mark: #eb8f55; --warn: #ecb65f;
  --warn-paper: #2a2418; --good: #5fc48f; --hidden: #67c1e6; --replaced: #e08fd0;
  --kept: #74cf8c; --run1: #56b4e9; --run2: #f08a3c; --run3: #2fc79a; --run4: #e39bc6;
  --run5: #e6d455; --run6: #c8c8c8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 980px; padding: 40px 24px 80px; color: var(--ink);
  background: var(--paper); font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 24px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 600; margin: 44px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 14px; font-weight: 600; margin: 0 0 6px; }
p, li { max-width: 76ch; }
p { margin: 4px 0; }
.quiet, th, dt { color: var(--quiet); font-weight: 400; }
.findings { list-style: none; margin: 0; padding: 0; }
.findings li { background: var(--warn-paper); border-left: 3px solid var(--warn);
  margin: 0 0 8px; max-width: none; padding: 8px 14px; }
.findings li::first-letter { text-transform: uppercase; }
code { font: 13px ui-monospace, monospace; white-space: nowrap; }
.good { color: var(--good); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--faint); padding: 4px 20px 4px 0; text-align: right;
  vertical-align: top; white-space: nowrap; }
th:first-child, td.text { text-align: left; }
td.text { overflow-wrap: anywhere; white-space: normal; }
.plots { display: grid; gap: 28px 36px;
  grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); }
svg { display: block; height: auto; width: 100%; }
svg text { font-variant-numeric: tabular-nums; }
.bar:hover { filter: brightness(0.7); }
dl { display: grid; gap: 4px 20px; grid-template-columns: max-content 1fr; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.pieces { display: flex; flex-wrap: wrap; gap: 6px; list-style: none; margin: 8px 0; padding: 0; }
.pieces li { background: var(--panel); border-radius: 4px; padding: 1px 8px; }
.pieces small { color: var(--quiet); font-variant-numeric: tabular-nums; }
.example { background: var(--panel); border-radius: 6px; line-height: 1.5; margin: 0 0 12px;
  max-width: none; padding: 12px 16px; }
.example p { max-width: none; }
.special { color: var(--quiet); }
.token { display: inline-flex; flex-direction: column; text-align: center; vertical-align: top; }
.token small { font-size: 12px; line-height: 1.2; }
.runs { margin: 8px 0 0; padding-left: 28px; }
.runs li { margin: 0 0 6px; overflow-wrap: anywhere; }
.runs li::marker { color: var(--run); font-weight: 600; }
.hidden { color: var(--hidden); } .kept { color: var(--kept); }
.replaced { color: var(--replaced); }
"""
# A flag in a finding, which must not be broken at its dashes.
_FLAG, _CODE = re.compile(r"(--\w[\w.\[\]]*\w(=[\w./*,+-]*\w)?)"), r"<code>\1</code>"


def render_page(health: Health, findings: Sequence[str]) -> str:
    """Render the whole page."""
    title = escape(f"Store {health.store}")
    manifest = health.manifest
    digest = f"digest {manifest['digest'][:12]}, {len(manifest['sources']):,} sources"
    counts = ((label, *values) for label, values in terminal.list_counts(health))
    sections = [
        f'<h1>{title}</h1><p class="quiet">{escape(digest)}</p>',
        render_section("What looks wrong", render_findings(findings)),
        render_section("Counts", render_table(("", "train", "held out"), counts)),
        render_section("Lengths, of the training split", _plots(health) + _percentiles(health)),
        render_section("Facts", render_facts(terminal.list_health_facts(health))),
        render_section("Vocabulary", _vocabulary(health)),
    ]
    if health.copies.repeated:
        sections.append(render_section("Sentences that repeat most often", _repeated(health)))
    if health.examples:
        sections.append(render_section("Examples", _examples(health)))
    return render_document(title, sections)


def render_document(title: str, sections: Iterable[str]) -> str:
    """Make a page of sections, which are HTML, with the style inline; title is escaped already."""
    light = "; ".join(f"{variable}: {color}" for color, variable in _COLORS.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>:root {{ {light} }}{STYLE}</style></head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def render_section(title: str, content: str) -> str:
    """Make a section with a heading, which is escaped; content is HTML."""
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def render_findings(sentences: Sequence[str]) -> str:
    """Render findings with flags marked as code; the sentences are escaped."""
    if not sentences:
        return '<p class="good">Nothing.</p>'
    items = "".join(f"<li>{_FLAG.sub(_CODE, escape(sentence))}</li>" for sentence in sentences)
    return f'<ul class="findings">{items}</ul>'


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Render pairs of a name and a text, which are escaped."""
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return f"<dl>{''.join(pairs)}</dl>"


def render_plots(pictures: Mapping[str, str]) -> str:
    """Render pictures, which are SVG, under their titles, which are escaped."""
    figures = (f"<div><h3>{escape(title)}</h3>{svg}</div>" for title, svg in pictures.items())
    return f'<div class="plots">{"".join(figures)}</div>'


def render_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a table and escape its cells; the first of a row is its name."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = []
    for label, *values in rows:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        lines.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return f'<div class="scroll"><table><tr>{names}</tr>{"".join(lines)}</table></div>'


def _plots(health: Health) -> str:
    marks = [(health.text_tokens, f"{health.text_tokens}: text in a row of {health.seq_len}")]
    pictures = {
        label.capitalize(): draw_histogram(
            lengths,
            label.split()[0],
            marks if label in ("tokens per sentence", "tokens per document") else (),
        )
        for label, lengths in terminal.list_lengths(health)
    }
    pictures["Vocabulary by rank"] = draw_rank_curve(health.pieces.rank_counts)
    return render_plots(pictures)


def _percentiles(health: Health) -> str:
    head = ("", "shortest", "5%", "25%", "median", "75%", "95%", "99%", "longest", "mean")
    rows = []
    for label, lengths in terminal.list_lengths(health):
        percents = (lengths.percentiles[percent] for percent in (5, 25, 50, 75, 95, 99))
        values = [f"{value:,}" for value in (lengths.shortest, *percents, lengths.longest)]
        rows.append([label, *values, f"{lengths.mean:,.1f}"])
    return f"<br>{render_table(head, rows)}"


def _vocabulary(health: Health) -> str:
    pieces = health.pieces
    frequent = "".join(
        f"<li>{escape(piece)} <small>{count / pieces.tokens:.2%}</small></li>"
        for piece, count in pieces.most_frequent
        if count
    )
    html = f'<p class="quiet">Most frequent, of all tokens:</p><ul class="pieces">{frequent}</ul>'
    if pieces.examples_of_never:
        never = "".join(f"<li>{escape(piece)}</li>" for piece in pieces.examples_of_never)
        html += f'<p class="quiet">{pieces.never_used:,} never occur, such as:</p>'
        html += f'<ul class="pieces">{never}</ul>'
    return html


def _repeated(health: Health) -> str:
    rows = "".join(
        f"<tr><td>{sentence.count:,}</td>"
        f'<td class="text" dir="auto">{escape(sentence.text)}</td></tr>'
        for sentence in health.copies.repeated
    )
    return f"<table>{rows}</table>"


def _examples(health: Health) -> str:
    html = (
        '<p class="quiet">Rows as the model sees them. Under a token to predict stands the answer: '
        '<span class="hidden">hidden</span>, <span class="replaced">replaced</span> by another, '
        'or <span class="kept">kept</span>.</p><br>'
    )
    for example in health.examples:
        label = "The second part is random" if example.is_random else "The second part follows"
        text = "".join(" " * token.starts_word + _token(token) for token in example.tokens)
        html += (
            f'<div class="example"><p class="quiet">{label}; {len(example.tokens)} of '
            f'{health.seq_len} tokens</p><p dir="auto">{text}</p></div>'
        )
    return html


def _token(token: ShownToken) -> str:
    """Render a token inside <bdi>, so that it cannot reverse the text around it."""
    text = escape(token.text)
    if token.original is not None:
        return (
            f'<bdi class="token {token.fate}">{text}<small>{escape(token.original)}</small></bdi>'
        )
    return f'<bdi class="special">{text}</bdi>' if token.is_special else text
