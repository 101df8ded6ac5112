"""Masks have Google's counts, places and replacements, and a row's depend on its key alone."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

from data_pipeline.sampling.masking import (
    MaskRules,
    count_predictions,
    mask_rows,
    weigh_rare_tokens,
)
from data_pipeline.spec import hashing
from tests.data_pipeline.spec.test_hashing import chi_square_z

CLS, SEP, MASK = 2, 3, 4


def plain_rows(
    lengths: np.ndarray, seq_len: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unmasked rows of random text, the middle [SEP] at random: ids, is_text, length."""
    rng = np.random.default_rng(8)
    ids = rng.integers(5, vocab_size, (len(lengths), seq_len)).astype(np.int32)
    middle = 2 + (rng.random(len(lengths)) * (lengths - 4)).astype(np.int64)
    row = np.arange(len(lengths))
    ids[:, 0] = CLS
    ids[row, middle] = SEP
    ids[row, lengths - 1] = SEP
    ids[np.arange(seq_len) >= lengths[:, None]] = 0
    return ids, text_of(middle, lengths, seq_len), lengths


def text_of(middle: np.ndarray, lengths: np.ndarray, seq_len: int) -> np.ndarray:
    position = np.arange(seq_len)
    is_text = (position > 0) & (position < (lengths - 1)[:, None])
    return is_text & (position != middle[:, None])


@pytest.mark.parametrize("prob", [0.05, 0.15, 0.25, 0.5])
@pytest.mark.parametrize("most", [1, 20, 77, 400])
def test_the_number_of_predictions_is_pythons_round(prob, most):
    lengths = np.arange(5, 2049)
    rules = MaskRules(prob, most, 1000, MASK)
    expected = [min(most, max(1, round(int(length) * prob))) for length in lengths]
    np.testing.assert_array_equal(
        count_predictions(lengths, lengths - 3, rules), np.minimum(expected, lengths - 3)
    )


@pytest.mark.parametrize(
    ("seq_len", "slots", "prob"),
    [(128, 20, 0.15), (5, 20, 0.15), (67, 3, 0.5), (13, 40, 0.99), (2048, 320, 0.15)],
)
def test_only_text_is_predicted_and_the_text_can_be_restored(seq_len, slots, prob):
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, seq_len + 1, 300)
    ids, is_text, lengths = plain_rows(lengths, seq_len, 997)
    rules = MaskRules(prob, slots, 997, MASK)
    shown = ids.copy()
    keys = hashing.hash64(1, np.arange(300))
    positions, labels, weights = mask_rows(shown, is_text, lengths, keys, rules)
    assert positions.shape == labels.shape == weights.shape == (300, slots)
    assert [a.dtype for a in (positions, labels, weights)] == [np.int32, np.int32, np.float32]
    for row in range(300):
        one = lengths[row : row + 1]
        count = int(count_predictions(one, one - 3, rules)[0])
        used = positions[row, :count]
        assert (np.diff(used) > 0).all()
        assert is_text[row, used].all()
        assert (weights[row] == (np.arange(slots) < count)).all()
        assert not positions[row, count:].any() and not labels[row, count:].any()
        restored = shown[row].copy()
        restored[used] = labels[row, :count]
        np.testing.assert_array_equal(restored, ids[row])


def test_replacements_are_80_10_10_and_random_ids_cover_the_whole_vocabulary():
    rows, vocab_size = 20_000, 53
    ids, is_text, lengths = plain_rows(np.full(rows, 128), 128, vocab_size)
    shown = ids.copy()
    keys = hashing.hash64(3, np.arange(rows))
    rules = MaskRules(0.15, 20, vocab_size, MASK)
    positions, labels, weights = mask_rows(shown, is_text, lengths, keys, rules)
    assert weights.sum() == rows * 19
    used = weights > 0
    seen = np.take_along_axis(shown, positions, axis=1)[used]
    true = labels[used]
    # A random id is the token itself or [MASK] once in vocab_size times.
    chance_hit = 0.1 / vocab_size
    for share, expected in (
        ((seen == MASK).mean(), 0.8 + chance_hit),
        ((seen == true).mean(), 0.1 + chance_hit),
    ):
        assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / len(seen))
    replaced = seen[(seen != MASK) & (seen != true)]
    counts = np.bincount(replaced, minlength=vocab_size)
    assert counts[MASK] == 0
    assert counts[[0, 1, CLS, SEP]].min() > 0.9 * counts.mean()
    # Text ids were excluded where they equal the token, special ids never.
    text = np.delete(counts, [0, 1, CLS, SEP, MASK])
    assert chi_square_z(text, text.mean()) < 4.5


def test_every_position_and_pair_of_positions_is_equally_likely():
    rows, seq_len, count = 30_000, 24, 4
    ids, _, lengths = plain_rows(np.full(rows, seq_len), seq_len, 97)
    is_text = text_of(np.full(rows, 9), lengths, seq_len)
    keys = hashing.hash64(4, np.arange(rows))
    positions, _, _ = mask_rows(ids, is_text, lengths, keys, MaskRules(0.15, count, 97, MASK))
    chosen = np.zeros((rows, seq_len), bool)
    np.put_along_axis(chosen, positions, True, axis=1)
    candidates = np.delete(np.arange(seq_len), [0, 9, seq_len - 1])
    share = count / len(candidates)
    means = chosen.mean(axis=0)[candidates]
    assert (np.abs(means - share) < 4.5 * math.sqrt(share * (1 - share) / rows)).all()
    together = (chosen.astype(np.float64).T @ chosen / rows)[np.ix_(candidates, candidates)]
    pair_share = share * (count - 1) / (len(candidates) - 1)
    off = together[~np.eye(len(candidates), dtype=bool)]
    assert (np.abs(off - pair_share) < 5 * math.sqrt(pair_share / rows)).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_tokens_are_chosen_in_proportion_to_a_power_of_their_counts(smoothing):
    rows, seq_len, unk = 60_000, 14, 1
    text = np.asarray([5, 6, 7, unk, 8, 9, 5, 10, 11, 12, 13, 14])
    counts = np.r_[np.full(5, 900), 1_000_000, 3, 1, 40_000, 900, 0, 17, 250, 2, 5000]
    ids = np.r_[CLS, text, SEP].astype(np.int32)[None].repeat(rows, axis=0)
    is_text = np.ones(ids.shape, bool)
    is_text[:, [0, -1]] = False
    special_ids = {"pad": 0, "unk": unk, "cls": CLS, "sep": SEP, "mask": MASK}
    rules = MaskRules(
        2 / seq_len, 2, 15, MASK, weights_V=weigh_rare_tokens(counts, smoothing, special_ids)
    )
    keys = hashing.hash64(5, np.arange(rows))
    lengths = np.full(rows, seq_len)
    for slots in (1, 2):
        limited = dataclasses.replace(rules, max_predictions_per_seq=slots)
        positions, _, weights = mask_rows(ids.copy(), is_text, lengths, keys, limited)
        assert weights.all()
        seen = np.bincount(positions.ravel(), minlength=seq_len)[1:-1]
        # By hand: in proportion to the weights, then in proportion to those that are left.
        share = np.where(text == unk, 0.0, 1.0 / np.maximum(counts[text], 1) ** smoothing)
        share /= share.sum()
        expected = share.copy()
        if slots == 2:
            for first, chance in enumerate(share):
                expected += chance * np.where(np.arange(12) == first, 0, share) / (1 - chance)
        is_word = text != unk
        assert not seen[~is_word].any()
        deviation = np.sqrt(rows * expected * (1 - expected))[is_word]
        assert (np.abs(seen - rows * expected)[is_word] < 4.5 * deviation + 1).all()
        if slots == 1:
            expected = rows * expected[is_word]
            statistic = ((seen[is_word] - expected) ** 2 / expected).sum()
            assert scipy.stats.chi2.sf(statistic, is_word.sum() - 1) > 1e-3


def test_a_row_of_tokens_without_weight_has_no_predictions():
    ids = np.asarray([[CLS, 1, 1, SEP], [CLS, 1, 7, SEP]], np.int32)
    is_text = ids != SEP
    is_text[:, 0] = False
    weights = np.ones(9)
    weights[1] = 0.0
    rules = MaskRules(0.9, 3, 9, MASK, weights_V=weights)
    shown = ids.copy()
    fields = mask_rows(shown, is_text, np.full(2, 4), hashing.hash64(2, np.arange(2)), rules)
    assert fields[0].tolist() == [[0, 0, 0], [2, 0, 0]]
    assert fields[2].tolist() == [[0, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(shown[0], ids[0])


def test_token_masks_are_the_same_at_every_release():
    # Frozen: another number here means that no run resumes on its own data.
    ids, is_text, lengths = plain_rows(np.asarray([12, 64, 9]), 64, 97)
    rules = MaskRules(0.15, 4, 97, MASK)
    fields = mask_rows(ids, is_text, lengths, hashing.hash64(6, np.arange(3)), rules)
    shown = np.take_along_axis(ids, fields[0], axis=1)
    assert fields[0].tolist() == [[2, 8, 0, 0], [16, 20, 31, 46], [1, 0, 0, 0]]
    assert shown.tolist() == [[4, 63, 2, 2], [4, 4, 49, 4], [4, 2, 2, 2]]


@pytest.mark.parametrize(
    ("mask_share", "random_share"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.3)]
)
def test_shares_are_those_asked_for(mask_share, random_share):
    rows = 8000
    ids, is_text, lengths = plain_rows(np.full(rows, 64), 64, 9973)
    rules = MaskRules(0.15, 10, 9973, MASK, mask_share, random_share)
    keys = hashing.hash64(8, np.arange(rows))
    positions, labels, _ = mask_rows(ids, is_text, lengths, keys, rules)
    seen = np.take_along_axis(ids, positions, axis=1)
    for share, expected in (
        ((seen == MASK).mean(), mask_share + random_share / 9973),
        ((seen == labels).mean(), 1.0 - mask_share - random_share * (1 - 1 / 9973)),
    ):
        deviation = math.sqrt(max(0.0, expected * (1 - expected)) / seen.size)
        assert abs(share - expected) <= 4 * deviation + 1e-12
