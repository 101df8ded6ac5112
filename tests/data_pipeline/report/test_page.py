"""The page: pictures parse and say how many each bar stands for; flags of findings stay whole."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from data_pipeline.report import page
from data_pipeline.report.lengths import measure_lengths

LENGTHS = {
    "one value": [7],
    "one is rare": [1] * 10_000 + [3],
    "a long tail": [*np.random.default_rng(1).geometric(0.001, 5000).tolist(), 10**7],
    "a full row": [128] * 90 + list(range(20, 128)),
}


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("name", LENGTHS)
def test_bars_have_their_counts_as_titles_and_stay_within_the_picture(name, is_even):
    lengths = measure_lengths([np.array(LENGTHS[name])], is_even)
    text = page.draw_histogram(lengths, "tokens <of>", [(125, "a & b"), (10**9, "beyond")])
    svg = ElementTree.fromstring(text)
    _, _, width, height = map(float, svg.get("viewBox").split())
    bars = [group for group in svg.iter("g") if group.get("class") == "bar"]
    titles = [bar.find("title").text for bar in bars]
    counts = [int(re.search(r": ([\d,]+) \(", title)[1].replace(",", "")) for title in titles]
    assert sum(counts) == len(LENGTHS[name]) and "tokens <of>" in titles[0]
    for bar, count in zip(bars, counts, strict=True):
        xs, ys = points(bar.find("path")).T
        assert xs.min() >= 0 and xs.max() <= width and ys.min() >= 0 and ys.max() <= height
        assert (np.ptp(ys) > 0) == (count > 0)
    words = [element.text for element in svg.iter("text")]
    assert "beyond" not in words
    ticks = [word for word in words if re.fullmatch(r"[\d.]+[kM]?", word)]
    assert 1 <= len(ticks) <= 9 and len(set(ticks)) == len(ticks)


def points(path: ElementTree.Element) -> np.ndarray:
    """Read the corners of a path: float[N,2]."""
    return np.array(re.findall(r"[\d.]+", path.get("d")), float).reshape(-1, 2)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("give --config.data.packed_examples=8.", "--config.data.packed_examples=8"),
        ("set --config.phases[0].seq_len=64, then", "--config.phases[0].seq_len=64"),
        ("give --near_duplicates=together-or-not: now", "--near_duplicates=together-or-not"),
        ("give --input=a/b.txt,c.txt", "--input=a/b.txt,c.txt"),
    ],
)
def test_a_flag_of_a_finding_is_marked_whole(text, flag):
    assert f"<code>{flag}</code>" in page.render_findings([text])
