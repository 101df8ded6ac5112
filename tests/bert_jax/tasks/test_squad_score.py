"""Scores worked out by hand from the rules of evaluate-v1.1.py and evaluate-v2.0.py."""

import pytest

from bert_jax.tasks.squad_score import (
    best_threshold,
    normalized,
    question_scores,
    scores_of_all,
    with_threshold,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, a dog; an\tOWL!", "cat dog owl"),
        ("U.S.A.", "usa"),  # punctuation goes first, without leaving a space
        ("a.k.a. the", "aka"),
        ("theatre another Ana", "theatre another ana"),  # articles are whole words
        ("l'an 2000", "lan 2000"),
        ("“Café” – naïve", "“café” – naïve"),  # punctuation is ASCII's alone
        ("ÀÉ\u00a0İ", "àé i\u0307"),
        ("the", ""),
        ("$1,000", "1000"),
        ("", ""),
    ],
)
def test_normalized(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        (["Denver Broncos"], "the Denver Broncos!", 1, 1),
        # Two words of three, both right: precision 2/2, recall 2/3.
        (["gold and silver"], "gold silver", 0, 0.8),
        # Exact match and F1 may come from different golds: here 2/3 and 4/5 of F1.
        (["big red car", "red car door now"], "red car", 0, 0.8),
        # "a" is no word: one of one word against one of two.
        (["a cat sat"], "a cat", 0, 2 / 3),
        # Words count as often as they stand there: two of three and two of two.
        (["no no"], "no no no", 0, 0.8),
        (["one", "two"], "two", 1, 1),
        (["Łódź"], "łódź", 1, 1),
        (["north"], "south", 0, 0),
    ],
)
@pytest.mark.parametrize("of_version_2", [False, True])
def test_an_answer_against_its_golds(golds, answer, exact, f1, of_version_2):
    assert question_scores(golds, answer, of_version_2) == pytest.approx((exact, f1))


@pytest.mark.parametrize(
    ("golds", "answer", "of_version_1", "of_version_2"),
    [
        # Nothing left of both: 1.1 counts no shared word, 2.0 an agreement.
        (["The"], "a", (1, 0), (1, 1)),
        # 2.0 leaves out a gold answer without words; then only the empty answer is right.
        (["The"], "The", (1, 0), (1, 1)),
        (["The", "cat"], "a", (1, 0), (0, 0)),
        (["cat"], "", (0, 0), (0, 0)),
    ],
)
def test_what_is_empty_once_normalised(golds, answer, of_version_1, of_version_2):
    assert question_scores(golds, answer, False) == of_version_1
    assert question_scores(golds, answer, True) == of_version_2


def test_a_question_without_answer_wants_none():
    assert question_scores([], "", True) == (1, 1)
    assert question_scores([], "Paris", True) == (0, 0)


def test_a_missing_prediction_scores_nothing_in_1_1_and_is_refused_in_2_0():
    golds = {"p": ["one"], "q": ["two"]}
    exact, f1s = scores_of_all(golds, {"p": "one", "other": "x"}, of_version_2=False)
    assert exact == f1s == {"p": 1, "q": 0}
    with pytest.raises(ValueError, match="question q has no prediction"):
        scores_of_all(golds, {"p": "one"}, of_version_2=True)


def test_the_threshold_that_is_best():
    """By rising odds: a scores 1, b loses a point, c scores 0.5, d loses one, e scores 1."""
    golds = {"a": ["x"], "b": [], "c": ["y z"], "d": [], "e": ["w"]}
    answers = {"a": "x", "b": "n", "c": "y", "d": "", "e": "v"}
    scores = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 1.0, "e": 0.0}
    odds = {"a": -3.0, "b": 2.5, "c": -1.0, "d": 4.0, "e": 5.0}
    # Nothing answered: 2 of 5. Up to a 3, up to c 3.5, up to b 2.5; d has no answer to lose.
    best, threshold = best_threshold(answers, scores, golds, odds)
    assert (best, threshold) == (pytest.approx(3.5 / 5), -1.0)
    assert with_threshold(scores, golds, odds, threshold) == {
        "a": 1.0,
        "b": 1.0,
        "c": 0.5,
        "d": 1.0,
        "e": 0.0,
    }


def test_where_every_answer_is_wrong_no_threshold_is_best():
    golds = {"a": [], "b": ["x"]}
    assert best_threshold({"a": "n", "b": "n"}, {"a": 0, "b": 0}, golds, {"a": -1, "b": -2}) == (
        0.5,
        None,
    )
