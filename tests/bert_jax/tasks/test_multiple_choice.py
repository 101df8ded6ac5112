"""Multiple choice: four rows a question, the largest number is the answer."""

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import multiple_choice
from bert_jax.tasks.multiple_choice import ChoiceFile, read_codah, read_swag
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.task import CHOOSE
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.tasks.test_damaged_inputs import predictor
from tests.bert_jax.tasks.tiny_vocabulary import vocabulary_of

OPTIONS = TaskOptions(task="swag", max_seq_length=9)
HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
ROW = "0,v,1,It is. He,It is.,He,gold,runs,sits,stands,walks"


@pytest.fixture
def vocabulary(tmp_path):
    #                     5 6 7 8 9
    return vocabulary_of("a b c d e", tmp_path)


def questions_of(tmp_path, answers, name="file", context="a b", choices=("c", "d", "e", "c c")):
    count = len(answers)
    answers_N = None if answers[0] is None else np.array(answers, np.int32)
    return ChoiceFile(tmp_path / name, [context] * 4 * count, [*choices] * count, answers_N)


@pytest.fixture
def task(tmp_path, vocabulary):
    answers = {"train": [1, 3, 3, 0], "dev": [3, 2, 1, 3, 0], "test": [None, None]}
    files = {split: questions_of(tmp_path, numbers) for split, numbers in answers.items()}
    return multiple_choice.build_task(files, OPTIONS, vocabulary)


def test_each_ending_is_a_row_behind_its_context(task):
    batch = task.splits["dev"].batch(np.array([0]), 7, pad_id=0)
    rows = ["2 5 6 3 7 3 0", "2 5 6 3 8 3 0", "2 5 6 3 9 3 0", "2 5 6 3 7 7 3"]
    assert [" ".join(map(str, row)) for row in batch["input_ids"][0]] == rows
    np.testing.assert_array_equal(batch["segment_ids"][0, 3], [0, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(batch["label_ids"], [3])
    assert (task.kind, task.classes, task.head_width) == ("choose", 4, 1)
    assert task.splits["test"].labels == {}


def test_accuracy_and_the_most_frequent_answer_of_training(task):
    logits_NC = np.eye(4, dtype=np.float32)[[3, 2, 0, 0, 0]]
    assert task.score("dev", logits_NC) == {"accuracy": pytest.approx(3 / 5)}
    assert task.baseline == {"accuracy": pytest.approx(2 / 5)}  # 3 is right twice


def test_predictions_are_a_csv_of_numbers_and_choices(task, tmp_path):
    (path,) = task.write_predictions("test", np.eye(4)[[2, 0]], tmp_path)
    assert path.read_text() == ",pred\n0,2\n1,0\n"
    (path,) = task.write_predictions("dev", np.eye(4)[[0, 1, 2, 3, 0]], tmp_path)
    assert path.read_text() == ",pred,label\n0,0,3\n1,1,2\n2,2,1\n3,3,3\n4,0,0\n"
    assert multiple_choice.read_accuracy(path) == {"accuracy": pytest.approx(2 / 5)}


def test_rows_that_are_cut_or_empty_are_counted(tmp_path, vocabulary):
    file = questions_of(tmp_path, [0], context="a a a a", choices=("b", "b b b", "", "c"))
    task = multiple_choice.build_task(dict.fromkeys(("train", "dev"), file), OPTIONS, vocabulary)
    np.testing.assert_array_equal(np.diff(task.splits["dev"].offsets), [8, 9, 7, 8])
    findings = [note.partition(" row")[0] for note in task.notes if note.startswith("dev: ")]
    assert findings == ["dev: 1", "dev: 1"]


def test_training_without_answers_is_refused(tmp_path, vocabulary):
    files = {name: questions_of(tmp_path, [None], name) for name in ("train", "dev")}
    with pytest.raises(ValueError, match="train has no column of answers"):
        multiple_choice.build_task(files, OPTIONS, vocabulary)


def test_a_question_of_swag_is_a_sentence_and_a_begun_one_with_each_ending(tmp_path):
    row = '0,v,1,x,"It, is\n""so"".",He,gold,"a,b",c,d,e,0'  # quotes, commas and lines in a field
    (tmp_path / "a.csv").write_text(f"{HEADER},label\n{row}\n{ROW},2\n")
    file = read_swag(tmp_path / "a.csv")
    assert file.contexts == ['It, is\n"so".'] * 4 + ["It is."] * 4
    quoted, plain = ["He a,b", "He c", "He d", "He e"], ["runs", "sits", "stands", "walks"]
    assert file.choices == [*quoted, *(f"He {word}" for word in plain)]
    assert file.answers_N.tolist() == [0, 2]
    (tmp_path / "test.csv").write_text(f"{HEADER}\n{ROW}\n")
    assert read_swag(tmp_path / "test.csv").answers_N is None


def test_a_question_of_codah_is_the_prompt_with_each_ending(tmp_path):
    (tmp_path / "a.tsv").write_text('\tHe said "no". He\t"runs\tsits"\tstands\twalks\t1\r\n')
    file = read_codah(tmp_path / "a.tsv")
    assert file.contexts == ['He said "no". He'] * 4 and file.answers_N.tolist() == [1]
    assert file.choices == ['"runs', 'sits"', "stands", "walks"]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_swag, "sent1,sent2,label\n", "no column 'ending0'"),
        (read_swag, f"{HEADER},label\n{ROW},1\n{ROW}\n", "row 3 has 11 fields and not 12"),
        (read_swag, f"{HEADER},label\n{ROW},-1\n", "row 2 has the label '-1'.*remove the column"),
        *(
            (read, f"{HEADER},ending4,label\n{ROW},w,3\n", "column 'ending4', and a question has 4")
            for read in (read_swag, predictor(TablePredictor, CHOOSE, task="swag"))
        ),
        (read_swag, f'{HEADER},label\n0,"v,1\n', "row 2 cannot be read as a table"),
        (read_codah, "o\tp\ta\tb\tc\td\t0\no\tp\ta\tb\tc\t0\n", "row 2 has 6 fields and not 7"),
        (read_codah, "o\tp\ta\tb\tc\t0\n", "are o, p, .*: give a file of CODAH, whose rows have 7"),
        (multiple_choice.read_accuracy, ",pred,label\n0,1,2\n1,1,x\n", "row 3 has the label 'x'"),
    ],
)
def test_a_damaged_file_is_refused_with_the_row(tmp_path, read, text, words):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "a.csv")


def test_questions_of_swags_real_validation_file(shared_data, uncased):
    folder = shared_data / "multiple_choice" / "swag_fixture"
    options = TaskOptions(
        task="swag", dir=str(folder), train_file="swag.csv", dev_file="swag.csv", max_seq_length=80
    )
    task = multiple_choice.open_task(options, load_vocabulary(uncased))
    rows = task.splits["dev"]
    assert rows.examples == 11
    assert rows.labels["label_ids"].tolist() == [int(answer) for answer in "22222002102"]
    pieces = load_vocabulary(uncased).pieces()
    first = [pieces[i] for i in rows.token_ids[: rows.offsets[1]]]
    assert " ".join(first) == (
        "[CLS] students lower their eyes nervously . [SEP] she pat ##s her shoulder , then sa "
        "##unt ##ers toward someone . [SEP]"
    )


def test_codahs_folds_have_as_many_questions_as_published(shared_data, uncased):
    folder = shared_data / "multiple_choice" / "codah"
    options = TaskOptions(task="codah", dir=str(folder), max_seq_length=64)
    task = multiple_choice.open_task(options, load_vocabulary(uncased))
    counts = {split: rows.examples for split, rows in task.splits.items()}
    assert counts == {"train": 1665, "dev": 556, "test": 555}
    assert read_codah(folder / "full_data.tsv").questions == sum(counts.values())
    # grep -c '3$' of both files: 3 is training's most frequent, right 143 times in 556.
    assert task.baseline == {"accuracy": pytest.approx(143 / 556)}
