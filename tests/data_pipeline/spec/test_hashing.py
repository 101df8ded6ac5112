"""The stateless random numbers are those published, uniform, independent and exact."""

import math

import numpy as np
import pytest

from data_pipeline.spec import hashing


def chi_square_z(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Standard score of a chi-square statistic, normal for many cells (Wilson and Hilferty)."""
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def test_hash64_gives_the_published_splitmix64_numbers():
    # The test vector of SplitMix64 with seed 1234567, https://rosettacode.org/wiki/
    # Pseudo-random_numbers/Splitmix64.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    np.testing.assert_array_equal(hashing.hash64(1234567, np.arange(1, 6)), expected)
    assert [hashing.derive_key(1234567, part) for part in range(5)] == expected


def test_subkeys_depend_on_every_part_and_their_order():
    keys = {hashing.derive_key(7, a, b) for a in range(40) for b in range(40)}
    keys |= {hashing.derive_key(7, a) for a in range(40)} | {hashing.derive_key(7)}
    assert len(keys) == 40 * 40 + 40 + 1


def test_hash32_is_the_same_at_every_release():
    # Frozen: another number here means that no run resumes on its own data. Raise HASH_VERSION.
    keys = hashing.hash64(5, np.arange(2))
    bits = hashing.hash32(keys, np.arange(3, dtype=np.uint32))
    assert hashing.HASH_VERSION == 1
    assert bits.tolist() == FROZEN_HASH32


FROZEN_HASH32 = [[2593907872, 519820049, 231689825], [2250262376, 4015728571, 979736195]]


def test_hash32_of_a_row_depends_on_its_key_and_counter_alone():
    keys = hashing.hash64(3, np.arange(50))
    together = hashing.hash32(keys, np.arange(64, dtype=np.uint32))
    alone = hashing.hash32(keys[31:32], np.asarray([[9, 2]], np.uint32))
    np.testing.assert_array_equal(alone[0], together[31, [9, 2]])


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_hash32_is_uniform_in_every_byte(shift):
    bits = hashing.hash32(hashing.hash64(1, np.arange(4000)), np.arange(128, dtype=np.uint32))
    counts = np.bincount(((bits >> np.uint32(shift)) & np.uint32(255)).ravel(), minlength=256)
    assert abs(chi_square_z(counts, bits.size / 256)) < 4.5


def test_hash32_of_neighbors_and_of_related_keys_is_uncorrelated():
    keys = hashing.hash64(2, np.arange(3000))
    # Keys that agree in one half by chance, as some of millions of rows do.
    other_keys = hashing.hash64(3, np.arange(3000))
    low_half = np.uint64(0xFFFFFFFF)
    same_low = (keys & low_half) | (other_keys & ~low_half)
    same_high = (keys & ~low_half) | (other_keys & low_half)
    counters = np.arange(128, dtype=np.uint32)
    base = hashing.hash32(keys, counters)
    others = [
        np.roll(base, 1, axis=1),
        np.roll(base, 1, axis=0),
        hashing.hash32(same_low, counters),
        hashing.hash32(same_high, counters),
    ]
    for other in others:
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) * math.sqrt(base.size) < 4.5
        # Each of the 32 bits flips in half of the cases.
        flips = np.bitwise_count(base ^ other).mean() / 32
        assert abs(flips - 0.5) * 2 * math.sqrt(32 * base.size) < 4.5


def test_uniform_below_is_uniform_and_stays_below():
    bits = hashing.hash64(11, np.arange(200_000))
    for bound in (1, 2, 3, 97):
        draws = hashing.draw_below(bits, bound)
        assert draws.min() == 0 and draws.max() == bound - 1
        if bound > 1:
            counts = np.bincount(draws, minlength=bound)
            assert chi_square_z(counts, len(bits) / bound) < 4.5
    top = np.full(1, 2**64 - 1, np.uint64)
    assert hashing.draw_below(top, 2**32)[0] == 2**32 - 1


def test_chance_has_its_probability_and_is_independent_of_uniform_below():
    bits = hashing.hash64(12, np.arange(200_000))
    upper = hashing.draw_below(bits, 2) == 1
    for probability in (0.1, 0.5):
        hit = hashing.chance(bits, probability)
        spread = math.sqrt(probability * (1 - probability) / upper.sum())
        assert abs(hit[upper].mean() - probability) < 4.5 * spread
    assert hashing.chance(bits, 1.0).all() and not hashing.chance(bits, 0.0).any()


@pytest.mark.parametrize("trials", [1, 2, 7, 63, 64, 65, 130])
def test_binomial_half_has_the_binomial_distribution(trials):
    draws = 60_000
    heads = hashing.draw_binomial_half(4, np.arange(draws), np.full(draws, trials))
    expected = draws * np.asarray([math.comb(trials, k) for k in range(trials + 1)]) / 2.0**trials
    counts = np.bincount(heads, minlength=trials + 1)
    assert len(counts) == trials + 1
    usual = expected >= 20
    rest = draws - expected[usual].sum()
    assert abs(counts[~usual].sum() - rest) < 5 * math.sqrt(rest + 1) + 5
    if usual.sum() > 2:
        assert chi_square_z(counts[usual], expected[usual]) < 4.5


def test_binomial_half_of_long_cuts_and_of_none():
    trials = np.asarray([0, 1, 1023, 1024, 1025, 40_000] * 300)
    heads = hashing.draw_binomial_half(9, np.arange(len(trials)), trials)
    assert (heads[trials == 0] == 0).all() and (heads <= trials).all()
    for count in (1023, 1024, 1025, 40_000):
        scores = (heads[trials == count] - count / 2) / math.sqrt(count / 4)
        assert abs(scores.mean()) * math.sqrt(300) < 4.5
        assert 0.75 < scores.std() < 1.25
    alone = hashing.draw_binomial_half(9, np.asarray([5]), np.asarray([40_000]))
    assert alone[0] == heads[5]


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_permuted_is_a_bijection(key):
    for size in (*range(1, 40), 64, 65, 255, 256, 257, 4097):
        image = hashing.permute(key, np.arange(size), size)
        np.testing.assert_array_equal(np.sort(image), np.arange(size))


def test_permuted_of_a_large_range_is_distinct_and_independent_of_the_grouping():
    size = 10_000_019
    index = np.arange(0, size, 97)
    image = hashing.permute(3, index, size)
    assert image.min() >= 0 and image.max() < size and len(np.unique(image)) == len(index)
    np.testing.assert_array_equal(hashing.permute(3, index[500:503], size), image[500:503])


def test_permuted_sends_an_index_anywhere_and_neighbors_apart():
    size, keys = 31, 600
    images = np.stack([hashing.permute(key, np.arange(size), size) for key in range(keys)])
    for index in (0, 15, 30):
        assert chi_square_z(np.bincount(images[:, index], minlength=size), keys / size) < 4.5
    steps = (images[:, 1] - images[:, 0]) % size
    assert chi_square_z(np.bincount(steps, minlength=size)[1:], keys / (size - 1)) < 4.5


def test_the_numbers_of_purposes_are_frozen():
    # Those of the release that made the stores and checkpoints in use. Add new ones only.
    numbers = {purpose.name: int(purpose) for purpose in hashing.Purpose}
    assert numbers == {
        **{"WALK": 1, "TARGET_LENGTH": 2, "SPLIT_OF_CHUNK": 3, "STRETCH": 9, "PACKED_ROWS": 11},
        **{"TRIAL_WALK": 12, "SAME_DOCUMENT": 4, "OTHER_DOCUMENT": 5, "START_OF_B": 6},
        **{"CUT_A": 7, "CUT_B": 8, "SWAP": 10, "LABELED_ORDER": 71, "EPOCH": 101},
        **{"EPOCH_ORDER": 102, "MASKS": 103, "WALK_MASKS": 104, "DEAL_TO_ROWS": 201},
        **{"STORED_ORDER": 211, "DOCUMENT_FINGERPRINT": 202, "SENTENCE_FINGERPRINT": 203},
    }
    assert hashing.derive_key(7, hashing.Purpose.WALK, 64) == hashing.derive_key(7, 1, 64)
