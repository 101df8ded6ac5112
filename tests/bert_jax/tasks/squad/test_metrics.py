"""Scores worked out by hand from the rules of evaluate-v1.1.py and evaluate-v2.0.py."""

import json

import pytest

from bert_jax.tasks.squad import metrics
from bert_jax.tasks.squad.data import Paragraph
from bert_jax.tasks.squad.metrics import (
    apply_threshold,
    find_best_threshold,
    normalize,
    score_question,
)
from tests.bert_jax.tasks.squad_samples import question, written


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
    assert normalize(text) == expected


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
@pytest.mark.parametrize("is_version_2", [False, True])
def test_an_answer_against_its_golds(golds, answer, exact, f1, is_version_2):
    assert score_question(golds, answer, is_version_2) == pytest.approx((exact, f1))


@pytest.mark.parametrize(
    ("golds", "answer", "of_version_1", "of_version_2"),
    [
        # Nothing left of both: 1.1 counts no shared word, 2.0 an agreement.
        (["The"], "a", (1, 0), (1, 1)),
        # 2.0 leaves out a gold answer without words; then only the empty answer is right.
        (["The"], "The", (1, 0), (1, 1)),
        (["The", "cat"], "a", (1, 0), (0, 0)),
        (["cat"], "", (0, 0), (0, 0)),
        ([], "", None, (1, 1)),
        ([], "Paris", None, (0, 0)),
    ],
)
def test_what_is_empty_once_normalized(golds, answer, of_version_1, of_version_2):
    assert of_version_1 is None or score_question(golds, answer, False) == of_version_1
    assert score_question(golds, answer, True) == of_version_2


def test_the_threshold_that_is_best():
    """By rising odds: a scores 1, b loses a point, c scores 0.5, d loses one, e scores 1."""
    golds = {"a": ["x"], "b": [], "c": ["y z"], "d": [], "e": ["w"]}
    answers = {"a": "x", "b": "n", "c": "y", "d": "", "e": "v"}
    scores = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 1.0, "e": 0.0}
    odds = {"a": -3.0, "b": 2.5, "c": -1.0, "d": 4.0, "e": 5.0}
    # Nothing answered: 2 of 5. Up to a 3, up to c 3.5, up to b 2.5; d has no answer to lose.
    best, threshold = find_best_threshold(answers, scores, golds, odds)
    assert (best, threshold) == (3.5, -1.0)
    kept = apply_threshold(scores, golds, odds, threshold)
    assert kept == {"a": 1.0, "b": 1.0, "c": 0.5, "d": 1.0, "e": 0.0}


def test_where_every_answer_is_wrong_no_threshold_is_best():
    golds, scores, odds = {"a": [], "b": ["x"]}, {"a": 0, "b": 0}, {"a": -1, "b": -2}
    assert find_best_threshold({"a": "n", "b": "n"}, scores, golds, odds) == (1, None)


ASKED = (
    question("a", "Who?", ("the Eve", 0), ("Eve Smith", 0)),
    question("b", "Where?", ("in Rome", 0)),
    question("c", "When?", ("May", 0)),
)
UNANSWERABLE = (question("d", "Why?"), question("e", "What?"))


@pytest.fixture
def files(tmp_path):
    written(tmp_path / "1.json", [Paragraph("Eve", ASKED)])
    written(tmp_path / "2.json", [Paragraph("Eve", (*ASKED, *UNANSWERABLE))], "v2.0")
    return tmp_path


def report(folder, version, answers, odds=None, threshold=1.0):
    (folder / "answers.json").write_text(json.dumps(answers))
    if odds is not None:
        (folder / "odds.json").write_text(json.dumps(odds))
    return metrics.score_file(
        folder / f"{version}.json",
        folder / "answers.json",
        None if odds is None else folder / "odds.json",
        threshold,
    )


def test_version_1(files):
    """a: exact. b: one of one word of two, 2/3. c: no prediction. x: no question."""
    numbers, notes = report(files, 1, {"a": "Eve!", "b": "Rome", "x": "y"})
    assert numbers == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3})
    assert [note.rpartition(": ")[2] for note in notes] == ["1", "1"]


ANSWERS = {"a": "Eve", "b": "Rome", "c": "June", "d": "", "e": "Bonn"}


def test_version_2_without_odds(files):
    assert report(files, 2, ANSWERS)[0] == pytest.approx(
        {
            "exact": 40,
            "f1": 100 * (1 + 2 / 3 + 1) / 5,
            "total": 5,
            "HasAns_exact": 100 / 3,
            "HasAns_f1": 100 * (1 + 2 / 3) / 3,
            "HasAns_total": 3,
            "NoAns_exact": 50,
            "NoAns_f1": 50,
            "NoAns_total": 2,
        }
    )


def test_version_2_with_odds(files):
    """Above 1 are a and e: a is given up, e won. The best threshold keeps a and b."""
    odds = {"a": 1.5, "b": -4, "c": 0.5, "d": 0, "e": 3}
    numbers, notes = report(files, 2, ANSWERS, odds)
    assert not notes
    assert (numbers["exact"], numbers["f1"]) == pytest.approx((40, 100 * (2 / 3 + 2) / 5))
    assert (numbers["HasAns_exact"], numbers["NoAns_exact"]) == (0, 100)
    assert (numbers["best_exact"], numbers["best_exact_thresh"]) == (60, 1.5)
    assert (numbers["best_f1"], numbers["best_f1_thresh"]) == (
        pytest.approx(100 * (1 + 2 / 3 + 2) / 5),
        1.5,
    )
    assert list(numbers)[-4:] == ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert report(files, 2, ANSWERS, odds, threshold=-9)[0]["NoAns_exact"] == 100


def test_the_best_numbers_are_multiplied_before_the_division_as_by_the_script(files):
    written(files / "2.json", [Paragraph("Eve", (*ASKED[:1], *UNANSWERABLE))], "v2.0")
    numbers, _ = report(files, 2, dict.fromkeys("ade", ""), dict.fromkeys("ade", 0))
    assert numbers["best_exact"] == 100.0 * 2 / 3 != 100 * (2 / 3)


@pytest.mark.parametrize(
    ("version", "answers", "odds", "words"),
    [
        (2, {"a": "x"}, None, "has no prediction for 4 of the 5 questions of .*, such as b; give"),
        (2, ANSWERS, {"a": 1}, "odds.json has no null odds for 4 questions, such as b;"),
        (2, ANSWERS, dict.fromkeys("abcde", float("nan")), "question a has nan, not a number"),
        (1, {"a": 7}, None, "question a has 7, not a text"),
        (1, {"a": "x"}, {"a": 1}, "but .*1.json is SQuAD 1.1"),
    ],
)
def test_files_that_cannot_be_scored_are_refused(files, version, answers, odds, words):
    with pytest.raises(ValueError, match=words):
        report(files, version, answers, odds)
