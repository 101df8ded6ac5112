"""CODAH's tsv: seven columns without names, in which quotation marks mean nothing."""

import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import codah
from data_pipeline.vocab import load_vocabulary


@pytest.fixture
def of(tmp_path):
    def write(text):
        path = tmp_path / "train.tsv"
        path.write_text(text)
        return path

    return write


def test_a_question_is_the_prompt_with_each_ending(of):
    file = codah.read(of('\tHe said "no". He\t"runs\tsits"\tstands\twalks\t1\r\n'))
    (question,) = file.questions
    assert question.first == 'He said "no". He'
    assert question.seconds == ('"runs', 'sits"', "stands", "walks")
    assert question.answer == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has a header and no rows"),
        ("o\tp\ta\tb\tc\td\t0\no\tp\ta\tb\tc\t0\n", "row 2 has 6 fields and not 7"),
        ("o\tp\ta\tb\tc\td\t5\n", "row 1 has the label '5'"),
        ("o\tp\ta\tb\tc\td\tyes\n", "row 1 has the label 'yes'"),
    ],
)
def test_what_is_wrong_is_refused_by_line(of, text, words):
    with pytest.raises(ValueError, match=words):
        codah.read(of(text))


def test_the_folds_have_as_many_questions_as_published(shared_data, uncased):
    folder = shared_data / "multiple_choice" / "codah"
    options = TaskOptions(task="codah", dir=str(folder), max_seq_length=64)
    task = codah.open_task(options, load_vocabulary(uncased))
    counts = {split: rows.examples for split, rows in task.splits.items()}
    assert counts == {"train": 1665, "dev": 556, "test": 555}
    assert len(codah.read(folder / "full_data.tsv").questions) == sum(counts.values())
    # grep -c '3$' of both files: 3 is training's commonest, right 143 times in 556.
    assert task.baseline == {"accuracy": pytest.approx(143 / 556)}
