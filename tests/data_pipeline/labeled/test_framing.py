"""Rows of one text and of pairs, against the loop that Google's script truncates with."""

import itertools

import pytest
import tokenizers

from data_pipeline.io import Refused
from data_pipeline.labeled.framing import frame, truncate_pair
from data_pipeline.labeled.rows import build_rows
from data_pipeline.spec.schema import TRANSFORMERS
from data_pipeline.vocab.template import make_bert_template

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
BERT = make_bert_template(SPECIAL)


def popped(a_tokens: int, b_tokens: int, most: int) -> tuple[int, int]:
    """run_classifier.py@eedf5716ce _truncate_seq_pair, a token at a time."""
    while a_tokens + b_tokens > most:
        if a_tokens > b_tokens:
            a_tokens -= 1
        else:
            b_tokens -= 1
    return a_tokens, b_tokens


def cut_by_tokenizers(a_tokens: int, b_tokens: int, most: int) -> tuple[int, int]:
    """Truncation of the tokenizers library, on words of two letters."""
    words = {"a": 0, "b": 1}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.enable_truncation(most, strategy="longest_first")
    ids = library.encode("a " * a_tokens, "b " * b_tokens).ids
    return ids.count(0), ids.count(1)


@pytest.mark.parametrize("most", [2, 5, 8, 13])
def test_the_longer_text_loses_its_end_first_and_an_odd_token_is_for_either(most):
    for a, b in itertools.product(range(14), repeat=2):
        assert truncate_pair(a, b, most) == popped(a, b, most), (a, b)
        expected = cut_by_tokenizers(a, b, most)
        assert truncate_pair(a, b, most, TRANSFORMERS) == expected, (a, b)
    assert frame([11] * 9, [12] * 9, BERT, 8, TRANSFORMERS).second_start == 4
    assert frame([11] * 9, [12] * 9, BERT, 8).second_start == 5


def test_a_row_has_its_special_pieces_and_says_where_the_second_segment_begins():
    assert frame([11, 12], None, BERT, 8) == ([2, 11, 12, 3], 4, [0] * 4, 0)
    assert frame(range(11, 31), None, BERT, 6) == ([2, 11, 12, 13, 14, 3], 6, [0] * 6, 0)
    assert frame([11, 12], [21], BERT, 8) == ([2, 11, 12, 3, 21, 3], 4, [0, 0, 0, 0, 1, 1], 0)
    row = [2, 11, 12, 13, 3, 21, 22, 3], 5, [0, 0, 0, 0, 0, 1, 1, 1], 0
    assert frame([11, 12, 13], [21, 22, 23], BERT, 8) == row


@pytest.mark.parametrize(("b_ids", "most"), [(None, 1), ([21, 22, 23], 2)])
def test_a_row_too_short_for_its_special_tokens_is_refused(b_ids, most):
    assert len(frame([11, 12, 13], b_ids, BERT, most + 1).token_ids) == most + 1
    with pytest.raises(Refused, match=rf"max_seq_length is {most}, .* give {most + 2} or more"):
        frame([11, 12, 13], b_ids, BERT, most)


def test_rows_lie_one_after_another():
    rows = build_rows([([2, 11, 3], 3), ([2, 12, 3, 13, 3], 3)])
    assert rows.token_ids.tolist() == [2, 11, 3, 2, 12, 3, 13, 3]
    assert rows.offsets.tolist() == [0, 3, 8]
    assert (rows.second_starts.tolist(), rows.cls_positions.tolist()) == ([3, 3], [0, 0])
    assert rows.segment_ids.tolist() == [0] * 6 + [1, 1]
