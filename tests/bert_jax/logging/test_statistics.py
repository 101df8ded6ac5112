"""Means, spread and paired differences over seeds."""

import pytest
import scipy.stats

from bert_jax.logging.statistics import (
    Interval,
    compare_paired,
    compare_unpaired,
    describe_mean,
)


def test_a_paired_difference_is_that_of_scipy():
    ours, theirs = [4.61, 4.58, 4.66], [4.50, 4.55, 4.57]
    tested = scipy.stats.ttest_rel(ours, theirs)
    interval = tested.confidence_interval(0.95)
    difference = compare_paired(ours, theirs)
    assert difference.mean == pytest.approx((interval.low + interval.high) / 2)
    assert difference.half_width == pytest.approx((interval.high - interval.low) / 2)
    assert difference.is_beyond_chance == (tested.pvalue < 0.05)


def test_a_difference_that_seeds_share_is_beyond_chance():
    assert compare_paired([3.0, 4.0, 5.0], [2.9, 3.9, 4.9001]).is_beyond_chance
    assert not compare_paired([3.0, 4.0, 5.0], [3.1, 3.9, 5.0]).is_beyond_chance


def test_an_unpaired_difference_is_that_of_scipy():
    ours, theirs = [4.61, 4.58, 4.66], [4.50, 4.55, 4.57, 4.49]
    interval = scipy.stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    difference = compare_unpaired(ours, theirs, [ours, theirs])
    assert difference is not None
    assert difference.mean == pytest.approx((interval.low + interval.high) / 2)
    assert difference.half_width == pytest.approx((interval.high - interval.low) / 2)
    assert compare_unpaired([1.0], [2.0], [[1.0], [2.0]]) is None


def test_means_and_differences_are_written_with_their_spread():
    assert describe_mean([0.5, 0.7], 4) == "0.6000 ± 0.1414"  # the root of 0.02
    assert describe_mean([0.5], 2) == "0.50"
    assert Interval(-0.25, 0.125).describe(3) == "-0.250 ± 0.125"
