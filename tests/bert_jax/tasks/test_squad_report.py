"""Files of predictions against numbers worked out by hand from the official scripts."""

import json

import pytest

from bert_jax.tasks import squad_report
from bert_jax.tasks.squad_files import Paragraph
from tests.bert_jax.tasks.squad_samples import question, written

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
    return squad_report.read(
        folder / f"{version}.json",
        folder / "answers.json",
        None if odds is None else folder / "odds.json",
        threshold,
    )


def test_version_1(files):
    """a: exact. b: one of one word of two, 2/3. c: no prediction. x: no question."""
    found = report(files, 1, {"a": "Eve!", "b": "Rome", "x": "y"})
    assert found.numbers == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3})
    assert len(found.notes) == 2
    assert found.notes[0] == "questions without a prediction, counted as wrong: 1"
    assert found.notes[1].startswith("predictions for no question of") and found.notes[1].endswith(
        ": 1"
    )


ANSWERS = {"a": "Eve", "b": "Rome", "c": "June", "d": "", "e": "Bonn"}


def test_version_2_without_odds(files):
    assert report(files, 2, ANSWERS).numbers == pytest.approx(
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
    found = report(files, 2, ANSWERS, odds)
    assert found.notes == ()
    numbers = found.numbers
    assert (numbers["exact"], numbers["f1"]) == pytest.approx((40, 100 * (2 / 3 + 2) / 5))
    assert (numbers["HasAns_exact"], numbers["NoAns_exact"]) == (0, 100)
    assert (numbers["best_exact"], numbers["best_exact_thresh"]) == (60, 1.5)
    assert (numbers["best_f1"], numbers["best_f1_thresh"]) == (
        pytest.approx(100 * (1 + 2 / 3 + 2) / 5),
        1.5,
    )
    assert list(numbers)[-4:] == ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert report(files, 2, ANSWERS, odds, threshold=-9).numbers["NoAns_exact"] == 100


@pytest.mark.parametrize(
    ("version", "answers", "odds", "words"),
    [
        (2, {"a": "x"}, None, "has no prediction for 4 of the 5 questions of .*, such as b; give"),
        (2, ANSWERS, {"a": 1}, "odds.json has no null odds for 4 questions, such as b;"),
        (2, ANSWERS, dict.fromkeys("abcde", "1"), "question a has '1', not a number"),
        (2, ANSWERS, dict.fromkeys("abcde", float("nan")), "question a has nan, not a number"),
        (1, {"a": 7}, None, "question a has 7, not a text; the file maps each question's id to"),
        (1, ["a"], None, "is a list, not an object"),
        (1, {"a": "x"}, {"a": 1}, "but .*1.json is of SQuAD 1.1; leave it out"),
    ],
)
def test_mistakes_get_one_sentence(files, version, answers, odds, words):
    with pytest.raises(ValueError, match=words) as caught:
        report(files, version, answers, odds)
    assert "\n" not in str(caught.value)
