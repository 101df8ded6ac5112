"""Answers from logits: against a search through every span, and by hand."""

import json
import math

import numpy as np
import pytest

from bert_jax.tasks.squad.answers import find_best_answers, format_files, list_best
from bert_jax.tasks.squad.data import Paragraph
from bert_jax.tasks.squad.windows import make_windows
from tests.bert_jax.tasks.squad_samples import letter_vocabulary, options, pointing, question

CONTEXT = "The  old  Cat's (big)\thouse, in  Bonn — once a town; 中国 and more of it here today"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    words = "the old cat house in bonn once town and more of it here today big who where"
    return letter_vocabulary(tmp_path_factory.mktemp("vocab"), words)


def windows_of(vocabulary, context=CONTEXT, **changed):
    asked = (question("p", "who"), question("q", "where, in"))
    return make_windows(
        [Paragraph(context, asked)], vocabulary, options("", **changed), labeled=False
    )[0]


def by_search(windows, which, logits, most):
    """Every allowed span of a question as (sum of logits, text), the best first."""
    rows = [row for row in range(len(windows.question_R)) if windows.question_R[row] == which]
    pieces, context = windows.pieces[which], windows.contexts[which]

    def room(row, piece):
        first = windows.first_piece_R[row]
        left, right = piece - first, first + windows.window_pieces_R[row] - 1 - piece
        return (
            min(left, right) + 0.01 * windows.window_pieces_R[row] if min(left, right) >= 0 else -1
        )

    found = []
    for row in rows:
        first, at = windows.first_piece_R[row], windows.rows.second_starts[row]
        for start in range(windows.window_pieces_R[row]):
            if max(rows, key=lambda one: room(one, first + start)) != row:
                continue
            for end in range(start, min(start + most, windows.window_pieces_R[row])):
                total = float(logits[row, at + start, 0]) + float(logits[row, at + end, 1])
                cut = context[pieces.starts_T[first + start] : pieces.ends_T[first + end]]
                found.append((total, cut))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("max_seq_length", [17, 41])
def test_the_best_answers_are_those_of_a_search_through_all_spans(vocabulary, max_seq_length):
    windows = windows_of(vocabulary, max_seq_length=max_seq_length, doc_stride=5)
    assert (windows.rows.examples > 2) == (max_seq_length == 17)
    length = int(windows.rows.lengths_N.max()) + 3
    logits = np.random.default_rng(5).normal(size=(windows.rows.examples, length, 2))
    logits = logits.astype(np.float32)
    found = list(find_best_answers(windows, logits, length, 4, texts=7))
    for which, prediction in enumerate(found):
        best = list(dict.fromkeys(text for _, text in by_search(windows, which, logits, 4)))[:7]
        assert [one.text for one in prediction.candidates] == best
        assert prediction.text == best[0]
        null = min(
            float(logits[row, 0].astype(np.float64).sum())
            for row in np.flatnonzero(windows.question_R == which)
        )
        assert prediction.null.logit == pytest.approx(null)
        top = by_search(windows, which, logits, 4)[0][0]
        assert prediction.null_odds == pytest.approx(null - top)


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ("the", "old", "The  old"),
        ("cat", "s", "Cat's"),
        ("big", "house", "big)\thouse"),
        ("bonn", "bonn", "Bonn"),
        ("in", "once", "in  Bonn — once"),
        ("中", "国", "中国"),
    ],
)
def test_the_text_is_cut_from_the_context_as_it_stands(vocabulary, first, last, text):
    windows = windows_of(vocabulary, max_seq_length=64)
    pieces = vocabulary.pieces()
    names = [pieces[one] for one in windows.rows.token_ids[: windows.rows.offsets[1]]]
    start = names.index(first, 3)  # behind [CLS] who [SEP]
    places = np.array([[start, names.index(last, start)], [0, 0]])
    prediction = next(find_best_answers(windows, pointing(windows.rows, places), 20, 30, texts=1))
    assert prediction.text == text


def test_an_answer_is_in_the_context_and_not_too_long(vocabulary):
    windows = windows_of(vocabulary, max_seq_length=64)
    end_of_row = int(windows.rows.lengths_N[0]) - 2
    # The start in the question, the end at the end: the start is free, and 5 pieces at most.
    logits = pointing(windows.rows, np.array([[1, end_of_row], [0, 0]]))
    prediction = next(find_best_answers(windows, logits, end_of_row, 5, texts=20))
    assert prediction.text.endswith("today")
    assert all(len(one.text.split()) <= 5 for one in prediction.candidates)
    # With one start and one end it still answers where [CLS] and the question are higher.
    logits = pointing(windows.rows, np.array([[0, 0], [1, 1]]))
    logits[:, 7, :] = 5
    assert next(find_best_answers(windows, logits, 1, 30, texts=3)).text != ""


def test_a_context_without_pieces_has_no_answer(vocabulary):
    windows = windows_of(vocabulary, context="\x07")
    logits = np.ones((2, 9, 2), np.float32)
    prediction = next(find_best_answers(windows, logits, 20, 30, texts=20))
    assert prediction.text == "" and prediction.null_odds == np.finfo(np.float32).max
    assert list_best(prediction, 20, False) == list_best(prediction, 20, True) == [prediction.null]


def test_the_files_are_those_of_run_squad(vocabulary):
    windows = windows_of(vocabulary, max_seq_length=64)
    logits = pointing(windows.rows, np.array([[9, 9], [0, 0]]))
    found = dict(zip("pq", find_best_answers(windows, logits, 3, 30, texts=3), strict=True))
    files = format_files(found, 3, threshold=0.0)
    assert list(files) == [
        "predictions.json",
        "nbest_predictions.json",
        "null_odds.json",
    ]
    answers, n_bests, odds = map(json.loads, files.values())
    assert list(answers) == list(n_bests) == list(odds) == ["p", "q"]
    assert answers["p"] == found["p"].text != "" and answers["q"] == ""
    assert odds == {"p": -20.0, "q": 20.0}
    # No answer is the first of q, and the last of p, where it is not among the three best.
    assert n_bests["q"][0]["text"] == "" and len(n_bests["q"]) == 3
    assert n_bests["p"][-1]["text"] == "" and len(n_bests["p"]) == 4
    assert set(n_bests["p"][0]) == {"text", "probability", "start_logit", "end_logit"}
    for listed in n_bests.values():
        totals = [math.exp(one["start_logit"] + one["end_logit"]) for one in listed]
        shares = [one["probability"] for one in listed]
        assert shares == pytest.approx([total / sum(totals) for total in totals])


def test_without_unanswerable_questions_nothing_is_said_of_them(vocabulary):
    windows = windows_of(vocabulary, max_seq_length=64)
    logits = pointing(windows.rows, np.array([[0, 0], [0, 0]]))
    found = dict(zip("pq", find_best_answers(windows, logits, 3, 30, texts=3), strict=True))
    files = format_files(found, 3, threshold=None)
    assert list(files) == ["predictions.json", "nbest_predictions.json"]
    answers, n_bests = map(json.loads, files.values())
    assert all(answers.values())
    assert all(one["text"] for listed in n_bests.values() for one in listed)
