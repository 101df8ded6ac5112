"""SQuAD opened from files: notes, rows, scores and predictions of a task; real files too."""

import gzip
import json

import numpy as np
import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.squad import best_constant, open_task
from bert_jax.tasks.squad_files import Paragraph
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.tasks.squad_samples import (
    letter_vocabulary,
    options,
    pointing,
    question,
    written,
)

TRAIN = [
    Paragraph("Ann sang in Rome.", (question("t1", "Who sang?", ("Ann", 0)),)),
    Paragraph(
        "Bob slept in Rome.",
        (
            question("t2", "Who slept?", ("Bob", 13)),  # not there
            question("t3", "Where?", ("Rome", 13), ("in Rome", 10)),
            question("t4", "x" * 60, ("Bob", 0)),
        ),
    ),
]
DEV = [
    Paragraph(
        "Eve ran home. It was late, in May.",
        (question("d1", "Who?", ("Eve", 0)), question("d2", "", ("May", 29), ("in May", 26))),
    )
]
WITHOUT = Paragraph("Nobody came.", (question("d3", "Who came?"), question("d4", "Why?")))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return letter_vocabulary(tmp_path_factory.mktemp("vocab"), "who sang in rome eve may it was")


@pytest.fixture
def folder(tmp_path):
    written(tmp_path / "train-v1.1.json", TRAIN)
    written(tmp_path / "dev-v1.1.json", DEV)
    written(tmp_path / "train-v2.0.json", [*TRAIN, WITHOUT], "v2.0")
    written(tmp_path / "dev-v2.0.json", [*DEV, WITHOUT], "v2.0")
    return tmp_path


def gold_places(rows):
    return np.stack([rows.labels["start_positions"], rows.labels["end_positions"]], axis=1)


def test_what_is_found_in_the_files_is_counted(folder, vocabulary):
    task = open_task(options(folder), vocabulary)
    assert (task.name, task.kind, task.classes, task.head_width) == ("SQuAD 1.1", "span", 2, 2)
    assert task.notes[0] == (
        "train: answers that do not stand where answer_start says, left out: 1 of 4, the first of "
        "question t2"
    )
    assert (
        task.notes[1] == "train: questions with several answers, the first of which is learned: 1"
    )
    assert task.notes[2].startswith("train: 3 questions in ")
    assert task.notes[3] == "train: questions cut to their first 11 pieces: 1, the first is t4"
    assert task.notes[-1] == (
        "dev: questions that are empty or of nothing that the vocabulary keeps: 1, the first is d2"
    )
    assert set(task.splits) == {"train", "dev"} and task.dev_splits == ("dev",)


def test_long_contexts_are_counted(folder, vocabulary):
    task = open_task(options(folder, max_seq_length=17), vocabulary)
    (said,) = [note for note in task.notes if note.startswith("dev: 2 questions in")]
    assert said == (
        f"dev: 2 questions in {task.splits['dev'].examples} rows; the context of 2 is longer than "
        "a row of 17"
    )
    assert task.splits["dev"].examples > 2


def test_train_examples_are_questions(folder, vocabulary):
    task = open_task(options(folder, train_examples=3), vocabulary)
    assert task.splits["train"].examples == 2  # of three, one is left out


def test_right_places_score_everything_in_1_1(folder, vocabulary):
    task = open_task(options(folder), vocabulary)
    logits = pointing(task.splits["dev"], gold_places(task.splits["dev"]))
    assert task.score("dev", logits) == {"f1": 1.0, "exact_match": 1.0}
    # d1 is answered with "Eve ran": half of its words are right; d2 rightly.
    start = task.splits["dev"].labels["start_positions"][0]
    places = gold_places(task.splits["dev"])
    places[0] = [start, start + 3]  # eve r ##a ##n
    scores = task.score("dev", pointing(task.splits["dev"], places))
    assert scores == pytest.approx({"f1": (2 / 3 + 1) / 2, "exact_match": 0.5})


def test_scores_of_2_0_are_at_the_best_threshold(folder, vocabulary, tmp_path):
    task = open_task(options(folder, has_unanswerable=True), vocabulary)
    rows = task.splits["dev"]
    logits = pointing(rows, gold_places(rows))  # at [CLS] for d3 and d4
    logits[1, 0] = 14  # d2 is answered rightly, but no answer seems likelier: odds of 8
    assert task.score("dev", logits) == {
        "f1": 1.0,
        "exact_match": 1.0,
        "has_answer_f1": 1.0,
        "has_answer_exact_match": 1.0,
        "no_answer_exact_match": 1.0,
    }
    paths = task.write_predictions("dev", logits, tmp_path / "predictions")
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "predictions/null_threshold.json",
        "predictions/dev/predictions.json",
        "predictions/dev/nbest_predictions.json",
        "predictions/dev/null_odds.json",
    ]
    assert json.loads(paths[0].read_text()) == {"null_threshold": 8.0}
    answers = json.loads(paths[1].read_text())
    assert answers == {"d1": "Eve", "d2": "May", "d3": "", "d4": ""}


def test_the_threshold_of_2_0_gives_up_one_for_another(folder, vocabulary):
    task = open_task(options(folder, has_unanswerable=True), vocabulary)
    logits = pointing(task.splits["dev"], gold_places(task.splits["dev"]))
    logits[1, 0] = 14  # d2: right, odds of 8
    logits[3, 6] = 16  # d4: an answer that it should not have, odds of -12
    # By rising odds: d1 +1, d4 -1, d2 +1. To stop behind d1 is as good as any, and comes first.
    assert task.score("dev", logits) == {
        "f1": 0.75,
        "exact_match": 0.75,
        "has_answer_f1": 0.5,
        "has_answer_exact_match": 0.5,
        "no_answer_exact_match": 1.0,
    }


def test_a_test_set_takes_the_threshold_of_dev(folder, vocabulary, tmp_path):
    document = {
        "data": [{"paragraphs": [{"context": "Eve ran.", "qas": [{"id": "x", "question": "who"}]}]}]
    }
    (folder / "test.json").write_text(json.dumps(document))
    task = open_task(options(folder, has_unanswerable=True, test_file="test.json"), vocabulary)
    assert task.splits["test"].labels == {}
    logits = pointing(task.splits["test"], np.array([[3, 3]]))
    logits[:, 0] = 11  # odds of 2

    def answer():
        path = task.write_predictions("test", logits, tmp_path)[0]
        return json.loads(path.read_text())["x"]

    assert answer() == ""
    (tmp_path / "null_threshold.json").write_text('{"null_threshold": 2.5}')
    assert answer() == "Eve"


def test_the_best_constant_answer(folder, vocabulary):
    """Of 1.1 the whole context: of its eight words "Eve" is one and "in May" two."""
    task = open_task(options(folder), vocabulary)
    assert task.baseline == pytest.approx({"f1": (2 / 9 + 2 / 5) / 2, "exact_match": 0})
    assert open_task(options(folder, has_unanswerable=True), vocabulary).baseline == {
        "f1": 0.5,
        "exact_match": 0.5,
    }
    often = [Paragraph("Eve", (question("t", "Who?", ("Eve", 0)),))]
    assert best_constant(often, DEV, False) == {"f1": 0.5, "exact_match": 0.5}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"doc_stride": 0}, "config.data.doc_stride is 0; it must be 1 or more"),
        ({"max_seq_length": 14}, "config.data.max_seq_length is 14, .*; give at least 15,"),
        ({"source": "tfds"}, "config.data.source is 'tfds'; SQuAD is read from its official JSON"),
        ({"dev_file": "absent.json"}, "absent.json is not a file; .* or the file as --config.data"),
        ({"train_file": "dev-v2.0.json"}, "dev-v2.0.json question d3 has no answer, and in SQuAD"),
        ({"dev_file": "dev-v2.0.json"}, "question d3 has no answer, .*squad.py:version=2.0"),
        (
            {"train_file": "bad.json"},
            "bad.json has no question to learn from: the answers of all 1",
        ),
    ],
)
def test_mistakes_get_one_sentence(folder, vocabulary, changed, words):
    written(folder / "bad.json", [Paragraph("Bob", (question("t", "Who?", ("Ann", 0)),))])
    with pytest.raises(ValueError, match=words) as caught:
        open_task(options(folder, **changed), vocabulary)
    assert "\n" not in str(caught.value)


def test_published_names_may_be_packed(folder, vocabulary):
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        plain = folder / name
        (folder / f"{name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    assert open_task(options(folder), vocabulary).splits["train"].examples == 3


def test_answers_of_real_questions_come_back_as_they_stand(shared_data, uncased):
    file = "xquad/xquad.en.json.gz"
    task = open_task(
        TaskOptions(
            dir=str(shared_data / "squad"),
            train_file=file,
            dev_file=file,
            train_examples=7,
            max_seq_length=256,
            max_answer_length=64,
        ),
        load_vocabulary(uncased),
    )
    rows = task.splits["dev"]
    scores = task.score("dev", pointing(rows, gold_places(rows)))
    assert scores["exact_match"] >= 0.999 and scores["f1"] >= 0.9995
    assert not any("answer_start" in note for note in task.notes)


def test_the_folder_may_be_named_from_home(folder, vocabulary, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    task = open_task(options(folder, dir=f"~/{folder.name}"), vocabulary)
    assert set(task.splits) == {"train", "dev"}
