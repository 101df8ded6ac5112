"""A plan of packed rows has every example once, is as short as best fit makes it, and is hashed."""

import numpy as np
import pytest

from data_pipeline.sampling.packing import RowPlan, plan_rows
from tests.data_pipeline.spec.test_hashing import chi_square_z


def lengths_like_berts(examples: int, seq_len: int, seed: int) -> np.ndarray:
    """Half of the examples full, the others of any length, more of them short than long."""
    rng = np.random.default_rng(seed)
    short = 3 + (rng.random(examples) ** 2 * (seq_len - 2)).astype(np.int64)
    return np.where(rng.random(examples) < 0.5, seq_len, short).astype(np.uint16)


def all_rows(plan: RowPlan) -> list[list[int]]:
    return [
        [example for example in row if example >= 0]
        for row in plan.find_examples(np.arange(plan.rows)).tolist()
    ]


def best_fit_decreasing(lengths: list[int], seq_len: int, most: int) -> list[list[int]]:
    """The lengths in each row: every example, longest first, goes where it leaves least room."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= seq_len and len(row) < most]
        if fitting:
            min(fitting, key=lambda row: (seq_len - sum(row), len(row))).append(length)
        else:
            rows.append([length])
    return rows


@pytest.mark.parametrize("most", [1, 3, 64])
@pytest.mark.parametrize(("examples", "seq_len"), [(0, 16), (1, 16), (2, 5), (700, 37), (900, 512)])
def test_rows_are_those_of_best_fit_one_example_at_a_time(examples, seq_len, most):
    lengths = lengths_like_berts(examples, seq_len, seed=examples)
    plan = plan_rows(lengths, 1, seq_len, most)
    rows = all_rows(plan)
    assert sorted(example for row in rows for example in row) == list(range(examples))
    ours = [[int(lengths[example]) for example in row] for row in rows]
    assert all(1 <= len(row) <= most and sum(row) <= seq_len for row in ours)
    assert all(row == sorted(row, reverse=True) for row in ours)
    theirs = best_fit_decreasing(lengths.tolist(), seq_len, most)
    assert plan.rows == len(ours) == len(theirs)
    # Rows that are alike in room and number of examples may differ in which lengths they hold.
    assert sorted((sum(row), len(row)) for row in ours) == sorted(
        (sum(row), len(row)) for row in theirs
    )


@pytest.mark.slow
def test_the_key_decides_who_shares_a_row_and_nothing_else():
    lengths = lengths_like_berts(30_000, 128, seed=4)
    first, again, other = (plan_rows(lengths, key, 128, 8) for key in (1, 1, 2))
    assert all_rows(first) == all_rows(again) != all_rows(other)
    assert first.rows == other.rows
    row = np.arange(first.rows)
    pairs = [
        {frozenset(row[:2]) for row in all_rows(plan) if len(row) > 1} for plan in (first, other)
    ]
    assert len(pairs[0] & pairs[1]) < 0.02 * len(pairs[0])
    lengths_of = [
        np.where(plan.find_examples(row) >= 0, lengths[plan.find_examples(row)], 0)
        for plan in (first, other)
    ]
    np.testing.assert_array_equal(*lengths_of)


def test_partners_come_from_anywhere_in_the_epoch():
    examples, tenths = 40_000, 10
    lengths = np.where(np.arange(examples) % 2, 30, 70)
    rows = plan_rows(lengths, 5, 100, 8).find_examples(np.arange(examples // 2))
    tenth = rows[:, :2] * tenths // examples
    counts = np.bincount(tenth[:, 0] * tenths + tenth[:, 1], minlength=tenths**2)
    assert abs(chi_square_z(counts, counts.mean())) < 4.5


def test_a_plan_is_the_same_at_every_release():
    # Frozen: another plan here means that no run resumes on its own data.
    plan = plan_rows(np.asarray([9, 4, 4, 6, 10, 4, 5, 3, 6]), 7, 10, 3)
    assert all_rows(plan) == [[4], [0], [8, 5], [3, 2], [6, 1], [7]]


def test_blocks_leave_no_trace():
    lengths = lengths_like_berts(100_000, 128, seed=6)
    plan = plan_rows(lengths, 1, 128, 8)
    examples = plan.find_examples(np.arange(plan.rows))
    tokens = np.where(examples >= 0, lengths[examples].astype(np.int64), 0).sum(axis=1)
    assert tokens.max() <= 128 and tokens.sum() == lengths.sum(dtype=np.int64)
    assert (np.bincount(examples[examples >= 0], minlength=100_000) == 1).all()
