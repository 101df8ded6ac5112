"""Entities and their F1 against conlleval's own output and its rules worked by hand."""

import pytest

from bert_jax.score import ScoreFlags, _main, read_score
from bert_jax.tasks.ner.conlleval import (
    Counts,
    Entity,
    find_entities,
    format_report,
    score_entities,
    to_iob2,
)
from data_pipeline.cli.stderr_log import LibraryLog

# Gold and predicted tag of each word, sentences parted by |, drawn at random from all tags; what
# conlleval (Perl, version 2004-01-26, its options and LaTeX left out) printed for them.
DRAWN = """
B-LOC/I-creative-work O/B-PER O/O B-LOC/B-LOC B-PER/B-PER | B-PER/B-PER B-PER/B-PER |
I-LOC/I-LOC O/O B-creative-work/B-creative-work | O/O |
O/I-PER B-LOC/I-creative-work B-PER/B-PER B-PER/I-LOC | O/O O/I-PER O/O O/B-LOC O/O |
B-creative-work/O B-creative-work/B-creative-work O/O O/B-LOC I-LOC/I-LOC |
B-LOC/B-LOC O/O O/B-PER O/B-creative-work B-LOC/I-creative-work I-PER/O B-LOC/O |
O/O I-creative-work/O B-LOC/B-LOC I-creative-work/I-creative-work B-LOC/B-LOC O/I-PER
B-creative-work/B-creative-work | O/I-creative-work |
O/O B-LOC/B-creative-work I-LOC/I-LOC O/B-LOC B-PER/B-PER O/I-LOC O/O |
O/O I-LOC/I-LOC B-creative-work/O I-creative-work/I-creative-work B-creative-work/B-LOC
B-creative-work/B-creative-work
"""
PRINTED = """\
processed 53 tokens with 28 phrases; found: 34 phrases; correct: 16.
accuracy:  58.49%; precision:  47.06%; recall:  57.14%; FB1:  51.61
              LOC: precision:  46.15%; recall:  50.00%; FB1:  48.00  13
              PER: precision:  50.00%; recall:  71.43%; FB1:  58.82  10
    creative-work: precision:  45.45%; recall:  55.56%; FB1:  50.00  11"""


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O", [("PER", 0, 2)]),
        ("I-PER I-PER O", [("PER", 0, 2)]),  # as IOB1 writes it
        ("O I-PER", [("PER", 1, 2)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("I-PER I-LOC I-LOC O I-LOC", [("PER", 0, 1), ("LOC", 1, 3), ("LOC", 4, 5)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
    ],
)
def test_entities_begin_and_end_by_the_rules_of_conlleval(tags, expected):
    assert find_entities(tags.split()) == [Entity(*one) for one in expected]


def test_iob2_begins_every_entity_with_b():
    tags = ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]
    assert to_iob2(find_entities(tags), 6) == ("B-PER", "I-PER", "O", "B-LOC", "B-LOC", "B-PER")


def test_the_report_is_that_of_conlleval_to_the_last_digit():
    pairs = [[word.split("/") for word in one.split()] for one in DRAWN.split("|")]
    gold = [[tag for tag, _ in one] for one in pairs]
    predicted = [[tag for _, tag in one] for one in pairs]
    score = score_entities(gold, predicted)
    assert format_report(score) == PRINTED
    assert score.overall.compute_rates()["f1"] == pytest.approx(32 / 62)
    assert score.by_type["LOC"].compute_rates()["recall"] == 0.5
    assert score.token_accuracy == pytest.approx(31 / 53)


def test_an_accuracy_halfway_between_two_digits_is_rounded_as_conlleval_does():
    score = score_entities([["B-X"] * 23 + ["O"] * 137], [["B-X"] * 23 + ["B-X"] * 137])
    assert "accuracy:  14.38%; precision:  14.38%" in format_report(score)  # 14.375 of both


def test_nothing_predicted_and_nothing_there_score_0():
    nothing = score_entities([["O", "O"]], [["O", "O"]])
    assert (nothing.overall.compute_rates()["f1"], nothing.token_accuracy) == (0.0, 1.0)
    assert score_entities([["B-PER"]], [["O"]]).overall.compute_rates()["f1"] == 0.0
    assert "accuracy:   0.00%; precision:   0.00%" in format_report(score_entities([], []))


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_the_last_two_columns_are_gold_and_predicted(tmp_path, separator):
    text = "a NN B-X B-X\nb NN I-X O\n\nc VB O O\n\n\nd NN B-Y I-Y\n"
    (tmp_path / "dev.conll").write_text(text.replace(" ", separator))
    score = read_score(tmp_path / "dev.conll")
    # What conlleval (Perl, version 2004-01-26) prints for it.
    assert format_report(score) == (
        "processed 4 tokens with 2 phrases; found: 2 phrases; correct: 1.\n"
        "accuracy:  50.00%; precision:  50.00%; recall:  50.00%; FB1:  50.00\n"
        "                X: precision:   0.00%; recall:   0.00%; FB1:   0.00  1\n"
        "                Y: precision: 100.00%; recall: 100.00%; FB1: 100.00  1"
    )


def test_white_space_around_a_tag_is_none_of_it(tmp_path):
    (tmp_path / "dev.conll").write_text("a\tB-X \tB-X\nb\tO\tO \n")
    assert read_score(tmp_path / "dev.conll").overall == Counts(1, 1, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a B-X\n", "row 1 has 2 columns; a file to score has"),
        ("a O O\nb S-X O\n", "row 2 has the tag 'S-X'"),
        ("a O NNP\n", "row 1 has the tag 'NNP'"),
        ("\n", "has no words to score"),
    ],
)
def test_other_files_are_refused_by_row(tmp_path, text, words):
    (tmp_path / "dev.conll").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_score(tmp_path / "dev.conll")


def test_a_terminal_obeys_no_name_of_a_type(tmp_path, capsys):
    (tmp_path / "dev.conll").write_text("a B-\x1b[2JX B-\x1b[2JX\n")
    flags = ScoreFlags(task="ner", predictions=str(tmp_path / "dev.conll"))
    assert _main(LibraryLog(), flags) == 0
    said = capsys.readouterr().out
    assert "\\x1b[2JX: precision: 100.00%" in said and "\x1b" not in said
    assert said.startswith("processed 1 tokens with 1 phrases; found: 1 phrases; correct: 1.\n")
