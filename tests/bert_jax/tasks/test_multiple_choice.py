"""Multiple choice: four rows a question, the largest number is the answer."""

import numpy as np
import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import multiple_choice
from bert_jax.tasks.multiple_choice import Question, QuestionFile, question_rows
from tests.bert_jax.tasks.tiny_vocabulary import vocabulary_of

OPTIONS = TaskOptions(task="swag", max_seq_length=9)


@pytest.fixture
def vocabulary(tmp_path):
    #                     5 6 7 8 9
    return vocabulary_of("a b c d e", tmp_path)


def questions_of(tmp_path, answers, name="file", first="a b", seconds=("c", "d", "e", "c c")):
    questions = tuple(Question(first, tuple(seconds), answer) for answer in answers)
    return QuestionFile(tmp_path / name, questions)


@pytest.fixture
def task(tmp_path, vocabulary):
    files = {
        "train": questions_of(tmp_path, [1, 3, 3, 0]),
        "dev": questions_of(tmp_path, [3, 2, 1, 3, 0]),
        "test": questions_of(tmp_path, [None, None]),
    }
    return multiple_choice.task("SWAG", files, OPTIONS, vocabulary)


def test_each_ending_is_a_row_behind_what_comes_before(task):
    batch = task.splits["dev"].batch(np.array([0]), 7, pad_id=0)
    np.testing.assert_array_equal(
        batch["input_ids"][0],
        [
            [2, 5, 6, 3, 7, 3, 0],
            [2, 5, 6, 3, 8, 3, 0],
            [2, 5, 6, 3, 9, 3, 0],
            [2, 5, 6, 3, 7, 7, 3],
        ],
    )
    np.testing.assert_array_equal(batch["segment_ids"][0, 3], [0, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(batch["label_ids"], [3])
    assert (task.kind, task.classes, task.head_width) == ("choose", 4, 1)
    assert task.splits["test"].labels == {}


def test_accuracy_and_the_commonest_answer_of_training(task):
    logits_NC = np.eye(4, dtype=np.float32)[[3, 2, 0, 0, 0]]
    assert task.score("dev", logits_NC) == {"accuracy": pytest.approx(3 / 5)}
    assert task.baseline == {"accuracy": pytest.approx(2 / 5)}  # 3 is right twice


def test_predictions_are_a_csv_of_numbers_and_choices(task, tmp_path):
    (path,) = task.write_predictions("test", np.eye(4)[[2, 0]], tmp_path)
    assert path.read_text() == ",pred\n0,2\n1,0\n"
    (path,) = task.write_predictions("dev", np.eye(4)[[0, 1, 2, 3, 0]], tmp_path)
    assert path.read_text() == ",pred,label\n0,0,3\n1,1,2\n2,2,1\n3,3,3\n4,0,0\n"
    assert multiple_choice.read_accuracy(path) == {"accuracy": pytest.approx(2 / 5)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (",pred\n0,1\n", "has no column label; a file to score has both"),
        (",pred,label\n0,1,2\n1,1,x\n", "row 3 has the label 'x'"),
        (",pred,label\n", "has no rows"),
    ],
)
def test_predictions_without_answers_are_not_scored(tmp_path, text, words):
    (tmp_path / "test.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        multiple_choice.read_accuracy(tmp_path / "test.csv")


def test_rows_that_are_cut_or_empty_are_counted(tmp_path, vocabulary):
    file = questions_of(tmp_path, [0], first="a a a a", seconds=("b", "b b b", "", "c"))
    rows, notes = question_rows("dev", file, vocabulary, max_seq_length=9)
    np.testing.assert_array_equal(np.diff(rows.offsets), [8, 9, 7, 8])
    assert notes == [
        "dev: 1 row with a text of no piece: an empty segment",
        "dev: 1 row (25.0%) cut to 9",
    ]


def test_training_without_answers_is_refused(tmp_path, vocabulary):
    files = {name: questions_of(tmp_path, [None], name) for name in ("train", "dev")}
    with pytest.raises(ValueError, match="train has no column of answers; as the train file"):
        multiple_choice.task("SWAG", files, OPTIONS, vocabulary)


@pytest.mark.usefixtures("killed_while_writing")
def test_no_half_of_the_predictions_is_left(task, tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        task.write_predictions("test", np.eye(4)[[2, 0]], tmp_path)
    assert not (tmp_path / "test.csv").exists()
