"""The health of a store as one HTML page that needs nothing else: pictures and style are in it.

Corpora hold HTML. Whatever comes from one goes through html.escape, here or in health_plots.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from data_pipeline import health_plots, health_words
from data_pipeline.health import Health
from data_pipeline.lengths import Lengths
from data_pipeline.row_health import Example, Token

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #646c76; --faint: #e4e7eb;
  --paper: #ffffff; --panel: #f7f8fa; --bar: #4a7fb5; --mark: #c2571a; --warn: #9a5b00;
  --warn-paper: #fff6e5; --good: #1a7f4b; --hidden: #0b6e99; --replaced: #9b2c86; --kept: #23783c; }
@media (prefers-color-scheme: dark) { :root { --ink: #d9dee4; --quiet: #929ba6; --faint: #2c333b;
  --paper: #14181d; --panel: #1b2027; --bar: #6c9fd3; --mark: #eb8f55; --warn: #ecb65f;
  --warn-paper: #2a2418; --good: #5fc48f; --hidden: #67c1e6; --replaced: #e08fd0;
  --kept: #74cf8c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 980px; padding: 40px 24px 80px; color: var(--ink);
  background: var(--paper); font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 24px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 600; margin: 44px 0 12px; }
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
svg text { fill: var(--quiet); font-size: 11px; font-variant-numeric: tabular-nums; }
.bar { fill: var(--bar); } .bar:hover { fill: var(--mark); }
.curve { fill: none; stroke: var(--bar); stroke-width: 2; }
.grid { stroke: var(--faint); } .tick { stroke: var(--quiet); }
.mark { stroke: var(--mark); stroke-dasharray: 3 3; }
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
.hidden { color: var(--hidden); } .kept { color: var(--kept); }
.replaced { color: var(--replaced); }
"""
# A flag of the build in a finding: not to be cut at its dashes.
_FLAG, _CODE = re.compile(r"(--\w[\w.\[\]]*\w(=[\w./*,+-]*\w)?)"), r"<code>\1</code>"
_SPECIALS = ("[CLS]", "[SEP]", "<cls>", "<sep>")


def page(health: Health, found: Sequence[str]) -> str:
    """The whole page."""
    title = escape(f"Store {health.store}")
    sections = [
        f'<h1>{title}</h1><p class="quiet">{escape(_digest(health))}</p>',
        _section("What looks wrong", _findings(found)),
        _section("Counts", _counts(health)),
        _section("Lengths, of the training split", _plots(health) + _percentiles(health)),
        _section("Facts", _facts(health)),
        _section("Vocabulary", _pieces(health)),
    ]
    if health.copies.repeated:
        sections.append(_section("Sentences that repeat most often", _repeated(health)))
    if health.examples:
        sections.append(_section("Examples", _examples(health)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _digest(health: Health) -> str:
    return f"digest {health.manifest['digest'][:12]}, {len(health.manifest['sources']):,} sources"


def _findings(found: Sequence[str]) -> str:
    if not found:
        return '<p class="good">Nothing.</p>'
    items = "".join(f"<li>{_FLAG.sub(_CODE, escape(finding))}</li>" for finding in found)
    return f'<ul class="findings">{items}</ul>'


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of escaped cells; the first of a row names it."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = []
    for label, *values in rows:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        lines.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return f'<div class="scroll"><table><tr>{names}</tr>{"".join(lines)}</table></div>'


def _counts(health: Health) -> str:
    rows = ((label, *values) for label, values in health_words.counts(health))
    return _table(("", "train", "held out"), rows)


def _plots(health: Health) -> str:
    marks = [(health.text_tokens, f"{health.text_tokens}: text in a row of {health.seq_len}")]
    figures = [
        _figure(label, health_plots.histogram(lengths, label.split()[0], marks * _has_mark(label)))
        for label, lengths in health_words.lengths(health)
    ]
    figures.append(_figure("pieces by rank", health_plots.rank_curve(health.pieces.rank_counts)))
    return f'<div class="plots">{"".join(figures)}</div>'


def _has_mark(label: str) -> bool:
    return label in ("tokens a sentence", "tokens a document")


def _figure(title: str, svg: str) -> str:
    return f"<div><h3>{escape(title.capitalize())}</h3>{svg}</div>"


def _percentiles(health: Health) -> str:
    head = ("", "shortest", "5%", "25%", "median", "75%", "95%", "99%", "longest", "mean")
    rows = ((label, *_percentile_row(one)) for label, one in health_words.lengths(health))
    return f"<br>{_table(head, rows)}"


def _percentile_row(lengths: Lengths) -> list[str]:
    percents = (lengths.percentiles[percent] for percent in (5, 25, 50, 75, 95, 99))
    whole = (lengths.shortest, *percents, lengths.longest)
    return [*(f"{one:,}" for one in whole), f"{lengths.mean:,.1f}"]


def _facts(health: Health) -> str:
    lines = health_words.facts(health)
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in lines) + "</dl>"


def _pieces(health: Health) -> str:
    pieces = health.pieces
    frequent = "".join(
        f"<li>{escape(piece)} <small>{count / pieces.tokens:.2%}</small></li>"
        for piece, count in pieces.most_frequent
        if count
    )
    never = "".join(f"<li>{escape(piece)}</li>" for piece in pieces.examples_of_never)
    shown = f'<p class="quiet">Most frequent, of all tokens:</p><ul class="pieces">{frequent}</ul>'
    if never:
        shown += f'<p class="quiet">{pieces.never_used:,} never occur, such as:</p>'
        shown += f'<ul class="pieces">{never}</ul>'
    return shown


def _repeated(health: Health) -> str:
    rows = "".join(
        f'<tr><td>{one.count:,}</td><td class="text">{escape(one.text)}</td></tr>'
        for one in health.copies.repeated
    )
    return f"<table>{rows}</table>"


def _examples(health: Health) -> str:
    key = (
        '<p class="quiet">Rows as the model sees them. Under a token to predict stands the answer: '
        '<span class="hidden">hidden</span>, <span class="replaced">replaced</span> by another, '
        'or <span class="kept">kept</span>.</p><br>'
    )
    return key + "".join(_example(one, health.seq_len) for one in health.examples)


def _example(example: Example, seq_len: int) -> str:
    label = "The second part is random" if example.is_random else "The second part follows"
    text = "".join((" " if one.starts_word else "") + _token(one) for one in example.tokens)
    return (
        f'<div class="example"><p class="quiet">{label}; {len(example.tokens)} of {seq_len} tokens'
        f"</p><p>{text}</p></div>"
    )


def _token(token: Token) -> str:
    text = escape(token.text)
    if token.original is not None:
        return (
            f'<span class="token {token.fate}">{text}<small>{escape(token.original)}</small></span>'
        )
    return f'<span class="special">{text}</span>' if token.text in _SPECIALS else text
