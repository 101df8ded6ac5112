"""Rows of windows: against plain loops over positions, and rows worked out by hand."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from bert_jax.tasks.squad.answers import find_best_answers
from bert_jax.tasks.squad.data import Paragraph
from bert_jax.tasks.squad.windows import make_windows
from data_pipeline.labeled.windows import choose_windows, cut_windows
from data_pipeline.vocab.template import make_xlnet_template
from tests.bert_jax.tasks.squad_samples import letter_vocabulary, options, question

TEXT = "ann sang in paris . bob ( 1895-96 ) slept"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return letter_vocabulary(
        tmp_path_factory.mktemp("vocab"), "who sang slept ann in paris bob 1895 96 when"
    )


def tokens(vocabulary, rows, row):
    pieces = vocabulary.pieces()
    ids = rows.token_ids[rows.offsets[row] : rows.offsets[row + 1]]
    return " ".join(pieces[one] for one in ids)


@pytest.mark.parametrize(
    ("pieces", "most", "stride", "expected"),
    [
        (5, 7, 3, [(0, 5)]),
        (7, 7, 3, [(0, 7)]),
        (8, 7, 3, [(0, 7), (3, 5)]),
        (17, 7, 5, [(0, 7), (5, 7), (10, 7)]),
        (17, 7, 11, [(0, 7), (7, 7), (14, 3)]),  # never past what was seen
        (0, 7, 3, [(0, 0)]),
    ],
)
def test_windows_over_a_context(pieces, most, stride, expected):
    assert cut_windows(pieces, most, stride) == expected


@pytest.mark.parametrize(("pieces", "most", "stride"), [(61, 17, 5), (61, 17, 17), (23, 11, 3)])
def test_each_piece_belongs_to_the_window_that_sees_most_around_it(pieces, most, stride):
    spans = cut_windows(pieces, most, stride)
    for piece, chosen in enumerate(choose_windows(spans, pieces)):
        scores = [
            min(piece - start, start + length - 1 - piece) + 0.01 * length
            if start <= piece < start + length
            else -1
            for start, length in spans
        ]
        assert scores[chosen] == max(scores) and chosen == np.argmax(scores)


def test_the_windows_of_a_long_text_take_memory_for_its_pieces_alone():
    """An array of windows times pieces would take 200 MB."""
    spans = cut_windows(20_000, 64, 16)
    tracemalloc.start()
    try:
        choose_windows(spans, 20_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_row_and_the_places_of_its_answer(vocabulary):
    """'1895' lies in the word '1895-96', and alone is the answer; 'pari' lies in a token."""
    asked = (question("q", "When?", ("1895", 26)), question("p", "who", ("pari", 12)))
    windows, findings = make_windows(
        [Paragraph(TEXT, asked)], vocabulary, options(""), labeled=True
    )
    rows = windows.rows
    row = "[CLS] when ? [SEP] ann sang in paris . bob ( 1895 - 96 ) slept [SEP]"
    assert tokens(vocabulary, rows, 0) == row
    assert rows.second_starts.tolist() == [4, 3]
    assert tokens(vocabulary, rows, 1).split()[6] == "paris"
    assert rows.labels["start_positions"].tolist() == rows.labels["end_positions"].tolist()
    assert rows.labels["start_positions"].tolist() == [11, 6]
    assert not any((findings.in_several_windows, findings.cut, findings.without_pieces))


def test_rows_of_another_template_have_their_answers_where_cls_stands(vocabulary):
    """XLNet's rows end with [CLS]."""
    xlnet = dataclasses.replace(vocabulary, template=make_xlnet_template(vocabulary.special_ids))
    asked = (question("q", "When?", ("1895", 26)), question("n", "who"))
    windows, _ = make_windows([Paragraph(TEXT, asked)], xlnet, options(""), labeled=True)
    rows = windows.rows
    row = "when ? [SEP] ann sang in paris . bob ( 1895 - 96 ) slept [SEP] [CLS]"
    assert tokens(vocabulary, rows, 0) == row
    assert rows.second_starts.tolist() == [3, 2]
    last = np.diff(rows.offsets) - 1
    assert rows.cls_positions.tolist() == last.tolist()
    assert rows.labels["start_positions"].tolist() == [10, last[1]]
    logits = np.zeros((2, last[0] + 3, 2), np.float32)
    logits[[0, 1], last] = 5.0
    for prediction in find_best_answers(windows, logits, 20, 30, texts=1):
        assert prediction.null.logit == 10.0 and prediction.null_odds == 10.0


SHORT = {"max_seq_length": 12, "max_query_length": 5, "doc_stride": 3}


def test_an_answer_outside_of_a_window_is_at_cls(vocabulary):
    cut = question("c", "who sang", ("in paris . bob (", 9))
    asked = (question("q", "who sang", ("paris", 12)), question("n", "who slept"), cut)
    windows, findings = make_windows(
        [Paragraph(TEXT, asked)], vocabulary, options("", **SHORT), labeled=True
    )
    rows = windows.rows
    # 7 pieces a window: ann sang in paris . bob ( | paris . bob ( 1895 - 96 | ( 1895 - 96 ) slept
    assert windows.question_R.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert tokens(vocabulary, rows, 2) == "[CLS] who sang [SEP] ( 1895 - 96 ) slept [SEP]"
    assert rows.labels["start_positions"].tolist() == [7, 4, 0, 0, 0, 0, 6, 0, 0]
    assert rows.labels["end_positions"].tolist() == [7, 4, 0, 0, 0, 0, 10, 0, 0]
    assert [list(of_question) for of_question in windows.split_rows_by_question()][1] == [3, 4, 5]
    assert findings.in_several_windows == ["q", "n", "c"]


def test_a_long_question_is_cut_and_an_empty_one_kept(vocabulary):
    asked = (question("long", "who " * 9), question("empty", " "), question("dropped", "\x07"))
    windows, findings = make_windows(
        [Paragraph("ann", asked)], vocabulary, options("", max_query_length=3), labeled=False
    )
    shown = [tokens(vocabulary, windows.rows, row) for row in range(3)]
    assert shown[0] == "[CLS] who who who [SEP] ann [SEP]"
    assert shown[1] == shown[2] == "[CLS] [SEP] ann [SEP]"
    assert findings.cut == ["long"] and findings.without_pieces == ["empty", "dropped"]
    assert windows.rows.labels == {}


def test_a_context_without_pieces_has_a_row(vocabulary):
    windows, _ = make_windows(
        [Paragraph(" ", (question("q", "who"),))], vocabulary, options(""), labeled=True
    )
    assert tokens(vocabulary, windows.rows, 0) == "[CLS] who [SEP] [SEP]"
    assert windows.window_pieces_R.tolist() == [0]
