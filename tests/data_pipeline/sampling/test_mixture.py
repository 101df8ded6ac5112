"""Rows of several stores in one stream: how many of each, which, and where shares change."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.sampling.mixture import MixedSource, chain, make_schedule
from data_pipeline.spec.options import PretrainOptions, parse_store_weights
from tests.data_pipeline.corpora import split_of, varied
from tests.data_pipeline.sampling.sources import assert_same, source_of

pytestmark = pytest.mark.usefixtures("few_trial_walks")


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_every_prefix_has_each_store_by_its_weight_within_a_row(cuts):
    """Of any start, to any length; where a store goes on is the number of its rows before."""
    weights = tuple(np.diff([0, *sorted(cuts), 200]) / 200)
    schedule = make_schedule(weights)
    rows = np.arange(min(2 * len(schedule.store_P), 3000))
    store_N, earlier_N = schedule.locate(rows)
    is_of_NK = store_N[:, None] == np.arange(len(weights))
    counts_NK = np.cumsum(is_of_NK, axis=0)
    assert (np.abs(counts_NK - (rows[:, None] + 1) * schedule.weights_K) < 1).all()
    np.testing.assert_array_equal(earlier_N, counts_NK[rows, store_N] - 1)
    np.testing.assert_allclose(schedule.weights_K, weights, atol=1e-5)
    for length in (0, 1, len(rows) // 2, len(rows) - 1):
        np.testing.assert_array_equal(schedule.count(length), is_of_NK[:length].sum(axis=0))


def test_shares_in_decimals_are_exact_and_too_small_ones_are_refused():
    assert make_schedule((0.7, 0.3)).quotas_K.tolist() == [7, 3]
    assert make_schedule((0.29, 0.0, 0.71)).quotas_K.tolist() == [29, 0, 71]
    assert make_schedule((1.0,)).store_P.tolist() == [0]
    with pytest.raises(ValueError, match=r"store 1 of config\.data\.store has 1e-06 of the rows"):
        make_schedule((1 - 1e-6, 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("shares", ["1,1,1", "0.3,0.3,0.1", "0.14,0.14,0.14,0.14,0.14,0.14,0.14"])
def test_the_shares_that_an_error_names_are_taken(shares):
    count = shares.count(",") + 1
    with pytest.raises(ValueError, match="sums to") as raised:
        parse_store_weights(shares, count, "--weights")
    advised = str(raised.value).rpartition(" ")[2]
    assert len(make_schedule(parse_store_weights(advised, count, "--weights")).quotas_K) == count


@pytest.fixture(scope="module")
def sources():
    """Three streams whose rows differ: two of text of their own, one of another seed."""
    split, other = (split_of(varied(8, seed)) for seed in (1, 2))
    options = PretrainOptions(dupe_factor=2)
    seeded = dataclasses.replace(options, random_seed=5)
    return [
        source_of(text, 16, 3, chosen)
        for text, chosen in ((split, options), (other, options), (split, seeded))
    ]


def test_a_mixture_has_the_rows_of_each_store_in_its_own_order(sources):
    """Also over a change of shares, and whichever positions are asked for together."""
    shares = [(0.5, 0.3, 0.2), (0.5, 0.3, 0.2), (0.0, 0.25, 0.75), (0.2, 0.4, 0.4)]
    schedules = [
        (rows, make_schedule(each)) for rows, each in zip((10, 7, 20, 9), shares, strict=True)
    ]
    spans = chain(schedules)
    assert [span.start for span in spans] == [0, 17, 37]
    mixed = MixedSource(sources, spans, schedules[-1][1].weights_K)
    positions = np.arange(60)
    store_B = mixed.find_stores(positions)
    assert np.bincount(store_B[:17], minlength=3).tolist() == [9, 5, 3]
    assert not (store_B[17:37] == 0).any()
    assert np.bincount(store_B[37:47], minlength=3).tolist() == [2, 4, 4]
    rows = mixed.rows(positions)
    epoch_B, index_B = mixed.locate(positions)
    for number, source in enumerate(sources):
        is_of = store_B == number
        alone = np.arange(np.count_nonzero(is_of))
        assert_same({name: array[is_of] for name, array in rows.items()}, source.rows(alone))
        np.testing.assert_array_equal([epoch_B[is_of], index_B[is_of]], source.locate(alone))
    shuffled = np.random.default_rng(0).permutation(60)[:23]
    assert_same(mixed.rows(shuffled), {name: array[shuffled] for name, array in rows.items()})
    with pytest.raises(ValueError, match="position -1 is negative"):
        mixed.rows(np.array([-1]))


def test_a_single_store_with_all_rows_is_that_store(sources):
    schedule = make_schedule((0.0, 1.0, 0.0))
    mixed = MixedSource(sources, chain([(9, schedule)]), schedule.weights_K)
    positions = np.arange(40)
    assert_same(mixed.rows(positions), sources[1].rows(positions))
    assert mixed.mean_rows_per_epoch == sources[1].mean_rows_per_epoch
    assert mixed.mean_examples_in_row == sources[1].mean_examples_in_row == 1.0
