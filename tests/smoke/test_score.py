"""The score entry as a person runs it."""

import json

import pytest

from bert_jax.tasks.squad_files import Paragraph
from tests.bert_jax.tasks.squad_samples import question, written


@pytest.fixture
def files(tmp_path):
    asked = (question("a", "Who?", ("the Eve", 0)), question("b", "Why?", ("May", 0)))
    written(tmp_path / "dev.json", [Paragraph("Eve", asked)])
    (tmp_path / "predictions.json").write_text(json.dumps({"a": "Eve."}))
    (tmp_path / "dev.conll").write_text("Eve B-P B-P\nran O O\n")
    (tmp_path / "dev.csv").write_text(",pred,label\n0,1,1\n1,0,1\n")
    return tmp_path


def test_answers_are_scored(forked, files):
    done = forked(
        "bert_jax.score",
        "--task=squad",
        f"--data={files}/dev.json",
        f"--predictions={files}/predictions.json",
    )
    assert json.loads(done.stdout) == {"exact_match": 50.0, "f1": 50.0}
    assert done.stderr == "questions without a prediction, counted as wrong: 1\n"


def test_tags_and_endings_are_scored(forked, files):
    done = forked("bert_jax.score", "--task=ner", f"--predictions={files}/dev.conll")
    assert "FB1: 100.00" in done.stdout and done.stdout.startswith("processed 2 tokens with 1")
    done = forked("bert_jax.score", "--task=codah", f"--predictions={files}/dev.csv")
    assert json.loads(done.stdout) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data={}/dev.json"], "--task is None; it must be squad, ner, swag, codah; python -m"),
        (["--task=squad", "--data={}/dev.json"], "--predictions is missing: the file"),
        (["--task=squad", "--predictions={}/dev.json"], "--data is missing: the file of SQuAD"),
        (["--task=squad", "--data={}/no", "--predictions={}/no"], "no is not a file; give"),
        (["--task=ner", "--predictions={}/no"], "no is not a file; give"),
        (["--task=ner", "--predictions={}/dev.csv", "--data=x"], "--data and --null_odds are of"),
        (
            ["--task=ner", "--predictions={}/dev.conll", "--null_threshold=0.5"],
            "--null_threshold is 0.5, but there are no odds that it could divide; give --null_odds",
        ),
        (["--task=squad", "dev.json"], "'dev.json' is not a flag; usage: python -m"),
    ],
)
def test_mistakes_get_one_sentence(forked, files, arguments, words):
    done = forked("bert_jax.score", *(one.format(files) for one in arguments), code=2)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert words in done.stderr and done.stdout == ""
