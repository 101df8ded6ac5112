"""SQuAD opened from files: notes, rows, scores and predictions of a task; real files too."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import registry
from bert_jax.tasks.squad.data import Paragraph
from bert_jax.tasks.squad.task import open_task, score_best_constant
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.template import make_bert_template
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


@pytest.fixture
def opened(folder, vocabulary):
    return open_task(options(folder), vocabulary)


@pytest.fixture
def opened_2(folder, vocabulary):
    return open_task(options(folder, has_unanswerable=True), vocabulary)


def gold_places(rows):
    return np.stack([rows.labels["start_positions"], rows.labels["end_positions"]], axis=1)


def gold_logits(task):
    return pointing(task.splits["dev"], gold_places(task.splits["dev"]))


def test_notes_count_what_is_skipped_truncated_or_long(folder, vocabulary):
    task = open_task(options(folder, max_seq_length=17), vocabulary)
    assert (task.name, task.kind, task.classes, task.head_width) == ("SQuAD 1.1", "span", 2, 2)
    misplaced, several, _, cut, *_, long, empty = task.notes
    assert "1 of 4" in misplaced and "question t2" in misplaced
    assert several.endswith("learned: 1")
    assert cut.endswith("1, the first is t4") and empty.endswith("1, the first is d2")
    rows = task.splits["dev"].examples
    assert rows > 2 and long.startswith(f"dev: 2 questions in {rows} rows; the context of 2 is lo")
    assert set(task.splits) == {"train", "dev"} and task.dev_splits == ("dev",)
    few = open_task(options(folder, train_examples=3), vocabulary)
    assert few.splits["train"].examples == 2  # of three, one is left out


def test_train_examples_counts_questions_and_keeps_all_their_windows(folder, vocabulary):
    written(folder / "train-v1.1.json", DEV)
    given = options(folder, train_examples=1, max_seq_length=17)
    rows = registry.open_task(given, vocabulary).splits["train"]
    assert rows.examples == open_task(given, vocabulary).splits["train"].examples > 1


def test_right_places_score_everything_in_1_1(opened):
    assert opened.score("dev", gold_logits(opened)) == {"f1": 1.0, "exact_match": 1.0}
    # d1 is answered with "Eve ran": half of its words are right; d2 rightly.
    places = gold_places(opened.splits["dev"])
    places[0, 1] = places[0, 0] + 3  # eve r ##a ##n
    scores = opened.score("dev", pointing(opened.splits["dev"], places))
    assert scores == pytest.approx({"f1": (2 / 3 + 1) / 2, "exact_match": 0.5})


def test_scores_of_2_0_are_at_the_best_threshold(opened_2, tmp_path):
    logits = gold_logits(opened_2)  # at [CLS] for d3 and d4
    logits[1, 0] = 14  # d2 is answered rightly, but no answer seems likelier: odds of 8
    names = ["has_answer_f1", "has_answer_exact_match", "no_answer_exact_match"]
    perfect = dict.fromkeys(["f1", "exact_match", *names], 1.0)
    assert opened_2.score("dev", logits) == perfect
    paths = opened_2.write_predictions("dev", logits, tmp_path / "predictions")
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "predictions/null_threshold.json",
        "predictions/dev/predictions.json",
        "predictions/dev/nbest_predictions.json",
        "predictions/dev/null_odds.json",
    ]
    assert json.loads(paths[0].read_text()) == {"null_threshold": 8.0}
    answers = json.loads(paths[1].read_text())
    assert answers == {"d1": "Eve", "d2": "May", "d3": "", "d4": ""}
    logits[3, 6] = 16  # d4: an answer that it should not have, odds of -12
    # By rising odds: d1 +1, d4 -1, d2 +1. To stop behind d1 is as good as any, and comes first.
    lost = {"f1": 0.75, "exact_match": 0.75, "has_answer_f1": 0.5, "has_answer_exact_match": 0.5}
    assert opened_2.score("dev", logits) == perfect | lost


def test_files_of_contexts_without_a_token_are_json(folder, vocabulary, tmp_path):
    written(folder / "dev-v2.0.json", [Paragraph("\x07", WITHOUT.questions)], "v2.0")
    task = open_task(options(folder, has_unanswerable=True), vocabulary)
    nowhere = pointing(task.splits["dev"], np.zeros((2, 2), int))
    assert task.score("dev", nowhere)["no_answer_exact_match"] == 1.0
    for path in task.write_predictions("dev", nowhere, tmp_path / "predictions"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_row_has_room_for_the_special_tokens_of_the_vocabulary(folder, vocabulary):
    """RoBERTa has four around a pair."""
    roberta = dataclasses.replace(
        vocabulary, template=make_bert_template(vocabulary.special_ids, separators=2)
    )
    with pytest.raises(ValueError, match=r"max_seq_length is 15, .* 11 tokens and 4 .* least 16,"):
        open_task(options(folder, max_seq_length=15), roberta)
    assert open_task(options(folder, max_seq_length=16), roberta).splits["dev"].examples > 2


def test_a_test_set_takes_the_threshold_of_dev(folder, vocabulary):
    paragraph = {"context": "Eve ran.", "qas": [{"id": "x", "question": "who"}]}
    (folder / "test.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    task = open_task(options(folder, has_unanswerable=True, test_file="test.json"), vocabulary)
    assert task.splits["test"].labels == {}
    logits = pointing(task.splits["test"], np.array([[3, 3]]))
    logits[:, 0] = 11  # odds of 2

    def answer():
        return json.loads(task.format_predictions("test", logits)["test/predictions.json"])["x"]

    assert answer() == ""
    of_dev = gold_logits(task)
    of_dev[1, 0] = 14  # no answer seems likelier for d2: odds of 8 are the best threshold
    task.format_predictions("dev", of_dev)
    assert answer() == "Eve"


def test_the_best_constant_answer(opened, opened_2):
    """Of 1.1 the whole context: of its eight words "Eve" is one and "in May" two."""
    assert opened.baseline == pytest.approx({"f1": (2 / 9 + 2 / 5) / 2, "exact_match": 0})
    assert opened_2.baseline == {"f1": 0.5, "exact_match": 0.5}
    often = [Paragraph("Eve", (question("t", "Who?", ("Eve", 0)),))]
    assert score_best_constant(often, DEV, False) == {"f1": 0.5, "exact_match": 0.5}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_seq_length": 14}, "config.data.max_seq_length is 14, .*; give at least 15,"),
        ({"source": "tfds"}, "config.data.source is 'tfds', but squad is read from files alone"),
        (
            {"dev_file": "absent.json"},
            "data.dev_file is 'absent.json', but there is no file ",
        ),
        ({"train_file": "dev-v2.0.json"}, "dev-v2.0.json question d3 has no answer, and in SQuAD"),
        ({"dev_file": "dev-v2.0.json"}, "question d3 has no answer, .*squad.py:version=2.0"),
        ({"train_file": "bad.json"}, "bad.json has no question to learn from"),
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


@pytest.mark.slow
def test_answers_of_real_questions_come_back_as_they_stand(shared_data, uncased):
    file = "xquad/xquad.en.json.gz"
    lengths = {"train_examples": 7, "max_seq_length": 256, "max_answer_length": 64}
    folder = str(shared_data / "squad")
    asked = TaskOptions(dir=folder, train_file=file, dev_file=file, **lengths)
    task = open_task(asked, load_vocabulary(uncased))
    scores = task.score("dev", gold_logits(task))
    assert scores["exact_match"] >= 0.999 and scores["f1"] >= 0.9995
    assert not any("answer_start" in note for note in task.notes)
