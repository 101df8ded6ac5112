"""Rows of one text and of pairs, against the loop that Google's script truncates with."""

import numpy as np
import pytest

from data_pipeline.labelled.framing import flatten_rows, frame, truncate_pair

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def popped(a_tokens: int, b_tokens: int, most: int) -> tuple[int, int]:
    """run_classifier.py@eedf5716ce _truncate_seq_pair, a token at a time."""
    while a_tokens + b_tokens > most:
        if a_tokens > b_tokens:
            a_tokens -= 1
        else:
            b_tokens -= 1
    return a_tokens, b_tokens


@pytest.mark.parametrize("most", [0, 1, 2, 5, 8, 13])
def test_the_longer_text_loses_its_end_first(most):
    for a in range(14):
        for b in range(14):
            assert truncate_pair(a, b, most) == popped(a, b, most), (a, b)


def test_a_row_has_its_special_pieces_and_says_where_the_second_segment_begins():
    assert frame([11, 12], None, SPECIAL, 8) == ([2, 11, 12, 3], 4)
    assert frame(range(11, 31), None, SPECIAL, 6) == ([2, 11, 12, 13, 14, 3], 6)
    assert frame([11, 12], [21], SPECIAL, 8) == ([2, 11, 12, 3, 21, 3], 4)
    assert frame([11, 12, 13], [21, 22, 23], SPECIAL, 8) == ([2, 11, 12, 13, 3, 21, 22, 3], 5)


def test_rows_lie_one_after_another():
    flat, offsets, seconds = flatten_rows([([2, 11, 3], 3), ([2, 12, 3, 13, 3], 3)])
    np.testing.assert_array_equal(flat, [2, 11, 3, 2, 12, 3, 13, 3])
    np.testing.assert_array_equal(offsets, [0, 3, 8])
    np.testing.assert_array_equal(seconds, [3, 3])
