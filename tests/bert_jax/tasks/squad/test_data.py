"""SQuAD's JSON: what it is read to, its mistakes by place, where answers stand."""

import gzip
import json

import pytest

from bert_jax.tasks.squad.data import Answer, find_answer_span, read_squad

QA = {
    "id": "q1",
    "question": "Who?",
    "answers": [{"text": "Ann", "answer_start": 0}],
}


def document(*qas: dict, **fields: object) -> dict:
    return {"data": [{"paragraphs": [{"context": "Ann sang.", "qas": list(qas)}]}], **fields}


def stored(folder, content):
    path = folder / "dev.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_plain_and_compressed_files_say_the_same(tmp_path):
    plain = stored(tmp_path, document(QA, version="1.1"))
    packed = tmp_path / "dev.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read_squad(plain), read_squad(packed)
    assert one.paragraphs == other.paragraphs and one.version == "1.1"
    assert [question.id for question in one.questions()] == ["q1"]
    assert next(one.questions()).answers == (Answer("Ann", 0),)
    assert not one.has_unanswerable
    for version, is_2 in (("v2.0", True), ("2.0", True), (2, True), ("2023-05-01", False)):
        assert read_squad(stored(tmp_path, document(QA, version=version))).has_unanswerable is is_2
    numbered = stored(tmp_path, document({**QA, "id": 2**40}, {**QA, "id": "b"}))  # some files do
    assert [question.id for question in read_squad(numbered).questions()] == [str(2**40), "b"]


@pytest.mark.parametrize(
    "unanswerable",
    [{"answers": []}, {"is_impossible": True, "plausible_answers": QA["answers"]}],
)
def test_a_question_without_answer_makes_it_version_2(tmp_path, unanswerable):
    read = read_squad(stored(tmp_path, document(QA, {**QA, "id": "q2", **unanswerable})))
    assert [len(question.answers) for question in read.questions()] == [1, 0]
    assert read.has_unanswerable


def test_questions_of_a_test_set_need_no_answers(tmp_path):
    unknown = {"answers": None, "is_impossible": None}
    path = stored(tmp_path, document({"id": "q", "question": "Who?"} | unknown, QA))
    read = read_squad(path, has_answers=False).questions()
    assert [question.answers for question in read] == [(), ()]
    path = stored(tmp_path, document({"id": "q", "question": "Who?"}))
    with pytest.raises(ValueError, match=r"question 1 \(q\) has no 'answers'"):
        read_squad(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", r"is not JSON .* line 1 column 2 \(char 1\)\); download"),
        ({"version": "1.1"}, "dev.json has no 'data'"),
        ({"data": {}}, "'data' is {}, not a list"),
        ('{"data": [] "version": 1}', "is not JSON .*',' delimiter: line 1 column 13 "),
        ('{"data": []} {}', "Extra data: line 1 column 14 "),
        ({"data": [{}]}, "article 1 has no 'paragraphs'"),
        ({"data": [{"paragraphs": ["x"]}]}, "article 1 paragraph 1 is a JSON str, not an object"),
        (document(QA, {**QA, "id": 7.5}), "question 2: 'id' is 7.5, not a string"),
        (
            document({**QA, "id": "7"}, {**QA, "id": 7}),
            r"question 2 \(7\) has the id of .* article 1",
        ),
        (document(QA, QA), r"question 2 \(q1\) has the id of .* article 1 paragraph 1 question 1;"),
        (document({**QA, "question": None}), r"\(q1\): 'question' is null, not a string"),
        (document({**QA, "answers": "Ann"}), r"\(q1\): 'answers' is \"Ann\", not a list"),
        (
            document({**QA, "answers": [{"text": "A", "answer_start": "0"}]}),
            "'answer_start' is \"0\"",
        ),
        (document({**QA, "is_impossible": "false"}), r"\(q1\): 'is_impossible' is \"false\", not"),
        (document({**QA, "is_impossible": 0}), r"\(q1\): 'is_impossible' is 0, not true or false"),
        (document({**QA, "is_impossible": None}), r"\(q1\): 'is_impossible' is null, not true"),
        (document({**QA, "question": "Who\ud83d?"}), r"\(q1\) has half .*\\ud83d, .* 'question'"),
    ],
)
def test_mistakes_are_named_by_place(tmp_path, content, words):
    with pytest.raises(ValueError, match=words) as caught:
        read_squad(stored(tmp_path, content))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer_start", "expected"),
    [
        ("1895", 11, (11, 15)),
        ("(1895-1943)", 10, (10, 21)),
        # Beside its place, in the same words: run_squad.py finds it there.
        ("1895", 10, (11, 15)),
        ("Smith", 5, (4, 9)),
        ("Bonn", 34, (33, 37)),
        # White space may be another, and the place is that of the words.
        ("born in", 23, (23, 32)),
        # In other words of the text, or in none.
        ("Smith", 12, None),
        ("Smyth", 4, None),
        ("Smith", -1, None),
        ("Smith", 400, None),
        ("", 4, None),
        (" ", 3, None),
    ],
)
def test_where_an_answer_stands(text, answer_start, expected):
    context = "Joe Smith (1895-1943). born \n in Bonn"
    assert find_answer_span(context, Answer(text, answer_start)) == expected
    if expected:
        assert context[slice(*expected)].split() == text.split()


def test_an_answer_counted_in_utf_16_is_the_nearest_one_where_no_spaces_separate_words():
    context = "東京は大きい。😀東京の人口は東京都が数える。"
    for place in (0, 8, 14):
        counted = len(context[:place].encode("utf-16-le")) // 2
        assert find_answer_span(context, Answer("東京", counted)) == (place, place + 2)
