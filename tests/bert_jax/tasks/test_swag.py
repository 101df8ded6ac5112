"""SWAG's csv: its columns by name, its quotation marks, and what is wrong in it by line."""

import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import swag
from data_pipeline.vocab import load_vocabulary

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
ROW = "0,v,1,It is. He,It is.,He,gold,runs,sits,stands,walks"


@pytest.fixture
def of(tmp_path):
    def write(text):
        path = tmp_path / "train.csv"
        path.write_text(text)
        return path

    return write


def test_a_question_is_the_sentence_and_the_begun_one_with_each_ending(of):
    file = swag.read(of(f"{HEADER},label\n{ROW},2\n"))
    (question,) = file.questions
    assert question.first == "It is."
    assert question.seconds == ("He runs", "He sits", "He stands", "He walks")
    assert question.answer == 2


def test_the_test_file_has_no_label(of):
    file = swag.read(of(f"{HEADER}\n{ROW}\n"))
    assert file.questions[0].answer is None and file.answers_N is None


def test_quotation_marks_commas_and_lines_belong_to_a_field(of):
    row = '0,v,1,x,"It, is\n""so"".",He,gold,"a,b",c,d,e,0'
    (question, second) = swag.read(of(f"{HEADER},label\n{row}\n{ROW},1\n")).questions
    assert question.first == 'It, is\n"so".'
    assert question.seconds[0] == "He a,b"
    assert second.answer == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sent1,sent2,label\n", "has no column ending0, ending1, ending2, ending3; its columns"),
        ("", "its columns are none"),
        (f"{HEADER},label\n", "has no questions"),
        (f"{HEADER},label\n{ROW},1\n{ROW}\n", "row 3 has 11 columns, where the first row names"),
        (f"{HEADER},label\n{ROW},4\n", "row 2 has the label '4'"),
        (f"{HEADER},label\n{ROW},\n", "row 2 has the label ''"),
        (f'{HEADER},label\n0,"v,1\n', "row 2 is not csv"),
    ],
)
def test_what_is_wrong_is_refused_by_line(of, text, words):
    with pytest.raises(ValueError, match=words):
        swag.read(of(text))


def test_questions_of_the_real_validation_file(shared_data, uncased):
    folder = shared_data / "multiple_choice" / "swag_fixture"
    options = TaskOptions(
        task="swag", dir=str(folder), train_file="swag.csv", dev_file="swag.csv", max_seq_length=80
    )
    task = swag.open_task(options, load_vocabulary(uncased))
    rows = task.splits["dev"]
    assert rows.examples == 11
    assert rows.labels["label_ids"].tolist() == [int(answer) for answer in "22222002102"]
    pieces = load_vocabulary(uncased).pieces()
    first = [pieces[i] for i in rows.token_ids[: rows.offsets[1]]]
    assert " ".join(first) == (
        "[CLS] students lower their eyes nervously . [SEP] she pat ##s her shoulder , then sa "
        "##unt ##ers toward someone . [SEP]"
    )
