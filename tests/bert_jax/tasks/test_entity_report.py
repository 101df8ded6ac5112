"""A file of gold and predicted tags, scored as conlleval scores it."""

import pytest

from bert_jax.tasks.entity_report import read_score
from bert_jax.tasks.entity_score import report


@pytest.fixture
def of(tmp_path):
    def write(text):
        path = tmp_path / "dev.conll"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_the_last_two_columns_are_gold_and_predicted(of, separator):
    text = "a NN B-X B-X\nb NN I-X O\n\nc VB O O\n\n\nd NN B-Y I-Y\n"
    score = read_score(of(text.replace(" ", separator)))
    # What conlleval (Perl, version 2004-01-26) prints for it.
    assert report(score) == (
        "processed 4 tokens with 2 phrases; found: 2 phrases; correct: 1.\n"
        "accuracy:  50.00%; precision:  50.00%; recall:  50.00%; FB1:  50.00\n"
        "                X: precision:   0.00%; recall:   0.00%; FB1:   0.00  1\n"
        "                Y: precision: 100.00%; recall: 100.00%; FB1: 100.00  1"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a B-X\n", "row 1 has 2 columns; a file to score has"),
        ("a O O\nb S-X O\n", "row 2 has the tag 'S-X'"),
        ("a O NNP\n", "row 1 has the tag 'NNP'"),
        ("\n", "has no words to score"),
    ],
)
def test_other_files_are_refused_by_row(of, text, words):
    with pytest.raises(ValueError, match=words):
        read_score(of(text))
