"""Pictures of a store's health as inline SVG, which takes its colours from the page."""

import math
from collections.abc import Sequence
from html import escape

from data_pipeline.lengths import Lengths

_WIDTH, _HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 18, 28, 40  # margins around the axes
_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
_MOST_LABELS = 8


def histogram(lengths: Lengths, unit: str, marks: Sequence[tuple[int, str]] = ()) -> str:
    """Bars of a distribution, each with its count on hover, and lines at lengths with a name."""
    bars = lengths.bars()
    low, high = bars[0].left, bars[-1].right
    step = _share_step(max(bar.height for bar in bars))
    steps = math.ceil(max(bar.height for bar in bars) / step - 1e-9)
    top = step * steps

    def x(place: float) -> float:
        return _LEFT + (place - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_grid_line(y(n * step), _percent(n * step)) for n in range(steps + 1)]
    for bar in bars:
        one = bar.bin
        span = f"{one.first:,}" if one.first == one.last else f"{one.first:,} to {one.last:,}"
        title = f"{span} {unit}: {one.count:,} ({one.count / lengths.count:.2%})"
        # What occurs at all is seen, however rare.
        height = max(y(0) - y(bar.height), 1.0 if one.count else 0.0)
        parts.append(
            f'<rect class="bar" x="{x(bar.left):.1f}" y="{y(0) - height:.1f}" '
            f'width="{max(x(bar.right) - x(bar.left) - 0.8, 0.6):.1f}" height="{height:.1f}">'
            f"<title>{escape(title)}</title></rect>"
        )
    ticks = _even_ticks(lengths) if lengths.is_even else _decade_ticks(lengths)
    for tick in ticks:
        # A bar of an even axis stands for whole numbers: its label belongs under its middle.
        place = (
            (lengths.place(tick) + lengths.place(tick + 1)) / 2
            if lengths.is_even
            else lengths.place(tick)
        )
        parts.append(_tick(x(place), f"{tick:,}"))
    for length, name in marks:
        if low < lengths.place(length) < high:
            parts.append(_mark(x(lengths.place(length)), name))
    each = "each bin" if lengths.is_even else "each doubling"
    parts.append(_axis_names(unit if lengths.is_even else f"{unit}, log scale", f"share in {each}"))
    return _svg(f"Distribution of {unit}", parts)


def rank_curve(rank_counts: Sequence[tuple[int, int]]) -> str:
    """How often a piece occurs against its rank, both on log scales."""
    ranks, counts = zip(*rank_counts, strict=True)
    widest = max(math.ceil(math.log10(ranks[-1])), 1)
    highest = max(math.ceil(math.log10(counts[0])), 1)

    def x(rank: float) -> float:
        return _LEFT + math.log10(rank) / widest * (_WIDTH - _LEFT - _RIGHT)

    def y(count: float) -> float:
        return _HEIGHT - _BOTTOM - math.log10(count) / highest * (_HEIGHT - _TOP - _BOTTOM)

    every = -(-highest // 4)
    parts = [_grid_line(y(10**n), _short(10**n)) for n in range(0, highest + 1, every)]
    parts += [_tick(x(10**n), _short(10**n)) for n in range(widest + 1)]
    points = " ".join(f"{x(rank):.1f},{y(count):.1f}" for rank, count in rank_counts)
    parts.append(f'<polyline class="curve" points="{points}"/>')
    parts.append(_axis_names("rank of the piece, log scale", "occurrences, log scale"))
    return _svg("Occurrences of pieces by rank", parts)


def _svg(name: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def _grid_line(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="label" text-anchor="end" x="{_LEFT - 6}" y="{y + 3.5:.1f}">{label}</text>'
    )


def _tick(x: float, label: str) -> str:
    y = _HEIGHT - _BOTTOM
    return (
        f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>'
        f'<text class="label" text-anchor="middle" x="{x:.1f}" y="{y + 16}">{label}</text>'
    )


def _mark(x: float, name: str) -> str:
    side, shift = ("end", -4) if x > _WIDTH / 2 else ("start", 4)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 12}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="label" text-anchor="{side}" x="{x + shift:.1f}" y="{_TOP - 5}">'
        f"{escape(name)}</text>"
    )


def _axis_names(below: str, beside: str) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return (
        f'<text class="name" text-anchor="middle" x="{middle:.1f}" y="{_HEIGHT - 6}">'
        f'{escape(below)}</text><text class="name" x="0" y="11">{escape(beside)}</text>'
    )


def _share_step(highest: float) -> float:
    """The step of the share axis that gives it three or four lines."""
    return next((share for share in _SHARES if highest / share <= 4), _SHARES[-1])


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _even_ticks(lengths: Lengths) -> list[int]:
    first, last = lengths.bins[0].first, lengths.longest
    spacing = next(
        step * 10**power
        for power in range(10)
        for step in (1, 2, 5)
        if (last - first) / (step * 10**power) <= _MOST_LABELS
    )
    return [tick for tick in range(0, last + 1, spacing) if tick >= first]


def _decade_ticks(lengths: Lengths) -> list[int]:
    """1, 2, 5, 10, ... or, where those are too many, 1, 10, 100, ..."""
    first, last = lengths.bins[0].first, lengths.bins[-1].last
    for digits in ((1, 2, 5), (1,)):
        ticks = [digit * 10**power for power in range(12) for digit in digits]
        ticks = [tick for tick in ticks if first <= tick <= last]
        if len(ticks) <= _MOST_LABELS:
            break
    return ticks


def _short(number: int) -> str:
    """1,000 as 1k."""
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= factor:
            return f"{number // factor}{unit}"
    return str(number)
