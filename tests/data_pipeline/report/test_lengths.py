"""Distributions of lengths against NumPy's percentiles and plain counting."""

import numpy as np
import pytest

from data_pipeline.report.lengths import PERCENTS, measure_lengths

# Among them lengths on both sides of where counting by value ends.
LONG = [1, 65535, 65536, 65537, 10**6]
LENGTHS = [*np.random.default_rng(5).geometric(0.01, 997).tolist(), *LONG]


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_percentiles_mean_and_bins_are_those_of_plain_counting(is_even, pieces):
    chunks = np.array_split(np.array(LENGTHS), pieces)
    found = measure_lengths(chunks, is_even)
    assert (found.count, found.shortest, found.longest) == (1002, 1, 10**6)
    assert found.mean == pytest.approx(sum(LENGTHS) / 1002)
    for percent in PERCENTS:
        assert found.percentiles[percent] == np.percentile(LENGTHS, percent, method="inverted_cdf")
    for one in found.bins:
        assert one.count == sum(one.first <= length <= one.last for length in LENGTHS)
    assert sum(one.count for one in found.bins) == 1002
    assert found.bins[0].count and found.bins[-1].count


def test_bins_follow_each_other_and_are_even_or_four_a_doubling():
    found = measure_lengths([np.array([1, 500])])
    edges = [one.first for one in found.bins] + [found.bins[-1].last + 1]
    assert edges[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]
    assert edges[-5:] == [256, 320, 384, 448, 512]
    assert [one.last + 1 for one in found.bins] == edges[1:]
    even = measure_lengths([np.array([3, 19])], is_even=True)
    assert [(one.first, one.last) for one in even.bins] == [(n, n) for n in range(3, 20)]
