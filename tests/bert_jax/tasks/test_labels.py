"""Labels that a person reads as one, missing ones, and headers within the rows."""

import contextlib
import csv
import json
import time
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.tasks.files import read_column_names, read_columns, refuse_quoted
from bert_jax.tasks.labels import check_labels, fold_text, is_header
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.task import CLASSIFY
from data_pipeline.io import Refused
from tests.bert_jax.tasks.test_damaged_inputs import predictor

CAFE = "caf\u00e9"


def check(*labels: str, column: str = "label") -> tuple[str, ...]:
    rows = ((label, f"row {number}") for number, label in enumerate(labels, 2))
    return check_labels(rows, column)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "01"),
        ("0.5", ".50"),
        ("100", "1e2"),
        ("pos", "pos "),
        ("pos", "pos\u00a0"),
        ("pos", "\u200bpos"),
        ("pos", "\ufeffpos"),
        ("so so", "so  so"),
        ("so so", "so\u3000so"),
        (CAFE, unicodedata.normalize("NFD", CAFE)),
        ("1", "\uff11"),
        ("\uac00", "\u1100\u1161"),
        ("pos", "p\u043es"),
        ("non-toxic", "non\u2011toxic"),
        ("\u2764", "\u2764\ufe0f"),
    ],
)
def test_labels_that_read_the_same_are_refused_with_their_rows(one, other):
    with pytest.raises(Refused, match="several classes") as caught:
        check(one, "else", other, one)
    message = str(caught.value)
    assert f"{one!a} (2 rows, the first row 2)" in message and f"{other!a} (1 rows" in message


def test_cells_of_many_digits_or_quotation_marks_take_linear_time(tmp_path):
    label, text = "1" * 200_000 + "x", '"' + '""' * 100_000 + "a"
    (tmp_path / "rows.tsv").write_text(f"text\tlabel\n{text}\t{label}\n")
    started = time.process_time()
    columns = read_columns(tmp_path / "rows.tsv", ["text", "label"])
    assert columns.values == {"text": [text], "label": [label]}
    assert check(label, "else") == ()
    assert time.process_time() - started < 5  # their squares take minutes


@pytest.mark.parametrize(
    "labels",
    [
        ("1", "2", "10"),
        ("a", "b"),
        ("1.1", "1.2"),
        ("-1", "0", "1"),
        ("+", "-"),
        (CAFE, "cafe"),
        ("\u9ad8", "\u4f4e"),
        ("\U0001faea", "\U0001fadf"),
    ],
)
def test_other_labels_are_classes(labels):
    assert check(*labels) == ()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("True", "true", "false"), "'True' (1 rows, the first row 2) and 'true'"),
        (("nan", "a"), "'nan' (1 rows, the first row 2) may be a missing label"),
        (("a", "None", "NULL"), "'None' (1 rows, the first row 3) and 'NULL'"),
        (("#N/A", "a"), "'#N/A' (1 rows, the first row 2) may be a missing label"),
        (("neutral", "-"), "'-' (1 rows, the first row 3) may be a missing label"),
        (("0", "1", "2", "-1"), "'-1' (1 rows, the first row 5) may be a missing label"),
        (("a", "b", "Label"), "'Label' (1 rows, the first row 4) is the name of its column"),
    ],
)
def test_what_may_be_meant_is_named(labels, words):
    assert [words in finding for finding in check(*labels)] == [True]


def test_a_class_may_have_the_name_of_its_column():
    assert check("spam", "ham", "spam", column="spam") == ()


def test_folded_texts_keep_what_is_seen():
    assert fold_text(" \u200b\u00a0") == "" and fold_text("a\tb") == "a b"
    assert fold_text("\U0001faea")  # newer than unicodedata
    assert is_header(["text", "label"], ["Label ", "\ufefftext"])
    assert not is_header(["text", "label"], ["text", "1"])


HEADER = "is a header within the rows"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "text,label\nhi,1\n\ufeffText,label\n"),
        ("a.csv", "text,label\nhi,1\nlabel,text\n"),
        ("a.tsv", "text\tlabel\nhi\t1\ntext\tlabel \r\n"),
        ("a.jsonl", '{"text": "hi", "label": 1}\n\n{"text": "text", "label": "label"}\n'),
        ("a.parquet", {"text": ["hi", "text"], "label": ["1", "label"]}),
    ],
)
def test_a_header_within_the_rows_is_refused(tmp_path, name, text):
    if name == "a.parquet":
        pq.write_table(pa.table(text), tmp_path / name)
    else:
        (tmp_path / name).write_text(text)
    with pytest.raises(Refused, match=rf"{name} row [234] {HEADER}"):
        read_columns(tmp_path / name, ["text", "label"])


def test_a_tsv_quoted_as_csv_is_refused_and_other_quotes_are_text(tmp_path):
    texts = ['He said "no".', '"Half', 'of" two', '"whole"', '""', "plain"]
    path, names = tmp_path / "a.tsv", ["sentence", "label"]
    path.write_text("\n".join(["\t".join(names), *(f"{text}\t1" for text in texts)]) + "\n")
    columns = read_columns(path, names)
    refuse_quoted(columns)
    assert columns.values["sentence"] == texts
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([names, *([text, "1"] for text in texts)])
    own, published = (
        predictor(TablePredictor, CLASSIFY, task=task, text_column="sentence")
        for task in ("table", "sst2")
    )
    for read in (lambda path: refuse_quoted(read_columns(path, names)), own):
        with pytest.raises(Refused, match=r"tsv row 2 has a text under 'sentence' that is quoted"):
            read(path)
    assert published(path).total == len(texts)  # GLUE's files are read as published


@pytest.mark.parametrize(
    ("with_comma", "without", "is_refused"),
    [
        ('"One, two"', "three", True),
        ("One, two", "three", False),
        ('"One, two"', '"three"', False),
        ('"One, two', "three", False),
    ],
)
def test_a_tsv_of_excel_that_quotes_texts_with_commas_is_refused(
    tmp_path, with_comma, without, is_refused
):
    path = tmp_path / "a.tsv"
    for rows in (4, 5):
        path.write_text("\n".join(["text", *[with_comma] * rows, *[without] * 5]))
        columns = read_columns(path, ["text"])
        words = "row 2 has a text under 'text' that is quoted as csv quotes it, '\"One, two\"'"
        with (
            pytest.raises(Refused, match=words)
            if is_refused and rows == 5
            else contextlib.nullcontext()
        ):
            refuse_quoted(columns)


def test_missing_texts_are_empty_and_known_by_their_rows(tmp_path):
    lines = [{"text": "a"}, {"text": None}, {"text": float("nan")}, {"text": ""}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    columns = read_columns(tmp_path / "a.jsonl", ["text"])
    assert columns.values == {"text": ["a", "", "", ""]} and columns.missing_rows == [2, 3]
    assert read_columns(tmp_path / "a.parquet", ["text"]).missing_rows == [2]


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        ('{"info": {"features": {"label": {"names": ["no"], "_type": "ClassLabel"}}}}', "0,,,2"),
        ('{"info": {"features": {"label": {"dtype": "int64", "_type": "Value"}}}}', "0,,-1,2"),
        ('{"info": {"features": null}}', "0,,-1,2"),
        ("[", "0,,-1,2"),
    ],
)
def test_a_class_label_of_datasets_below_0_is_missing(tmp_path, metadata, labels):
    table = pa.table({"text": ["a", "b", "c", "d"], "label": [0, None, -1, 2]})
    pq.write_table(table.replace_schema_metadata({"huggingface": metadata}), tmp_path / "a.parquet")
    columns = read_columns(tmp_path / "a.parquet", ["text", "label"])
    assert columns.values["label"] == labels.split(",")


@pytest.mark.parametrize(
    "line",
    [
        r'{"text": "a\ud83d"}',
        r'{"text": "a", "more": ["\uDE00"]}',
        r'{"text": "a", "\ud83d": 1}',
        r'{"text": "a", "more": {"\ude00\ud83d": 1}}',
    ],
)
def test_half_a_character_is_refused_by_row(tmp_path, line):
    whole = '{"text": "\\ud83d\\ude00 \\\\ud83d"}\n'
    (tmp_path / "a.jsonl").write_text(whole)
    assert read_columns(tmp_path / "a.jsonl", ["text"]).values == {"text": ["\U0001f600 \\ud83d"]}
    (tmp_path / "a.jsonl").write_text(whole + line + "\n")
    with pytest.raises(Refused, match=r"a\.jsonl row 2 has half a character, \\ud"):
        read_columns(tmp_path / "a.jsonl", ["text"])


def test_parquet_whose_schema_is_damaged_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path, store_schema=False)
    whole = path.read_bytes()
    place = whole.rindex(b"text")
    for data in (whole.replace(b"text", b"te\xfft"), whole[: place - 3] + whole[place:]):
        path.write_bytes(data)
        for read in (read_column_names, lambda path: read_columns(path, ["text"])):
            with pytest.raises(Refused, match=r"a\.parquet is a truncated or damaged Parquet file"):
                read(path)


def test_parquet_with_dates_for_texts_or_packed_as_no_text_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    when = pa.array([10**8], pa.date32())  # after the year 9999
    packed = ["a " * 9999]
    pq.write_table(pa.table({"text": packed, "when": when, "one": [1]}), path)
    with pytest.raises(Refused, match=r"a\.parquet has date32\[day\] under 'when'; a text"):
        read_columns(path, ["text", "when"])
    monkeypatch.setattr("data_pipeline.read.parquet._LARGE_BYTES", 100)
    monkeypatch.setattr("data_pipeline.read.parquet._MAX_PACKED", 2)
    with pytest.raises(Refused, match=r"a\.parquet has [\d,]+ bytes of 'text' packed into"):
        read_columns(path, ["text"])
    assert read_columns(path, ["one"]).values == {"one": ["1"]}


def test_parquet_text_that_is_not_utf8_is_refused_by_row(tmp_path):
    stored = pa.array([b"good", b"b\xffd"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, stored.buffers())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(Refused, match=r"a\.parquet rows 1 to 2 .*UTF8"):
        read_columns(tmp_path / "a.parquet", ["text"])
