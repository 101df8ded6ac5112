"""Pictures as SVG: they parse, and every bar says how many it stands for."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from data_pipeline import health_plots
from data_pipeline.lengths import lengths_of

LENGTHS = {
    "one value": [7],
    "one is rare": [1] * 10_000 + [3],
    "a long tail": [*np.random.default_rng(1).geometric(0.001, 5000).tolist(), 10**7],
    "a full row": [128] * 90 + list(range(20, 128)),
}


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("name", LENGTHS)
def test_bars_tell_their_counts_and_stay_within_the_picture(name, is_even):
    lengths = lengths_of([np.array(LENGTHS[name])], is_even)
    svg = ElementTree.fromstring(
        health_plots.histogram(lengths, "tokens <of>", [(125, "a & b"), (10**9, "beyond")])
    )
    _, _, width, height = map(float, svg.get("viewBox").split())
    bars = svg.findall("rect")
    told = [bar.find("title").text for bar in bars]
    counts = [int(re.search(r": ([\d,]+) \(", title)[1].replace(",", "")) for title in told]
    assert sum(counts) == len(LENGTHS[name])
    for bar, count in zip(bars, counts, strict=True):
        left, top, wide, high = (float(bar.get(key)) for key in ("x", "y", "width", "height"))
        assert left >= 0 and top >= 0 and left + wide <= width and top + high <= height
        assert (high > 0) == (count > 0)
    assert "tokens <of>" in told[0]
    words = [text.text for text in svg.findall("text")]
    assert "beyond" not in words
    ticks = [word for word in words if re.fullmatch(r"[\d,]+", word)]
    assert len(ticks) <= 9 and len(set(ticks)) == len(ticks)


def test_the_highest_bar_is_the_commonest_length():
    lengths = lengths_of([np.array([5, 6, 6, 6, 7])], is_even=True)
    bars = ElementTree.fromstring(health_plots.histogram(lengths, "tokens")).findall("rect")
    heights = [float(bar.get("height")) for bar in bars]
    assert heights[1] == pytest.approx(3 * heights[0], rel=0.02)
    assert heights[0] == heights[2]


@pytest.mark.parametrize("rank_counts", [[(1, 1)], [(1, 5 * 10**8), (10, 10**4), (70_000, 1)]])
def test_the_curve_of_pieces_falls_from_left_to_right(rank_counts):
    svg = ElementTree.fromstring(health_plots.rank_curve(rank_counts))
    points = [
        tuple(map(float, point.split(","))) for point in svg.find("polyline").get("points").split()
    ]
    assert len(points) == len(rank_counts)
    assert points == sorted(points) and [y for _, y in points] == sorted(y for _, y in points)
