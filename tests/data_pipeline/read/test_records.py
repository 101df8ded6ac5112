"""Tables in csv and tsv, and nested keys of JSON lines."""

import csv
import io
import itertools
import pathlib

import pytest

from data_pipeline.io import Refused
from data_pipeline.read import documents, lines, records
from data_pipeline.read.documents import check_source, read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.records import MISSING, find_value, read_fields
from data_pipeline.read.sources import Source

TEXTS = [
    'The film, they said, was "great".\n\nThen it ended.',
    "",
    "One\ttab; one semicolon.",
    '"Quoted" from its start',
    "zwölf €",
]


def read(path: pathlib.Path, data: str | bytes, **options: str) -> list[list[str]]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    text = TextOptions(**options)
    assert check_source(str(path), text) in ("csv", "tsv", "text")
    return list(read_documents(Source(str(path), path.stat().st_size), text))


def write_table(delimiter: str, end: str = "\r\n", texts: list[str] = TEXTS) -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerows([["id", "text", "label"], *([n, text, "x"] for n, text in enumerate(texts))])
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [
        ("a.csv", ","),
        ("a.csv", ";"),
        ("a.csv", "\t"),
        ("a.csv", "|"),
        ("a.CSV", ","),
        ("a.tsv", "\t"),
    ],
)
@pytest.mark.parametrize(
    ("end", "encoding", "copies"),  # of 40 copies a head holds a part
    [("\r\n", "utf-8", 1), ("\n", "utf-8-sig", 40), ("\r\n", "utf-16", 40)],
)
def test_a_text_of_a_table_is_a_document(
    tmp_path, monkeypatch, name, delimiter, end, encoding, copies
):
    monkeypatch.setattr(lines, "_HEAD_BYTES", 2000)
    table = write_table(delimiter, end, TEXTS * copies)
    expected = [[line for line in text.split("\n") if line] for text in TEXTS] * copies
    assert read(tmp_path / name, table.encode(encoding), text_key="text") == expected


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_first_line_that_tells_excel_the_delimiter_is_no_row(tmp_path, delimiter):
    table = write_table(delimiter)
    told = read(tmp_path / "a.csv", f"sep={delimiter}\r\n{table}", text_key="text")
    assert told == read(tmp_path / "a.csv", table, text_key="text")


@pytest.mark.parametrize(
    "texts",
    [
        ['"Good morning." he said', "5' 10\" tall", '"An open quote'],
        ["He spoke.", '"I am tired.', 'Let us go."', "They went."],
        [*["They went."] * 5000, '"Good morning." he said'],  # the head's 32 kB have no quote
        [*["They went."] * 5000, '"I am tired.', 'Let us go."'],
    ],
)
def test_a_tsv_may_be_written_without_quotes(tmp_path, texts):
    rows = ["id\ttext", *(f"{n}\t{text}" for n, text in enumerate(texts))]
    assert read(tmp_path / "a.tsv", "\n".join(rows), text_key="text") == [[text] for text in texts]


def test_a_quotation_that_may_be_two_rows_is_refused(tmp_path):
    texts = ['"Go!"', *["They went."] * 5000, '"I am tired.', 'Let us go."']
    rows = ["id\ttext", *(f"{n}\t{text}" for n, text in enumerate(texts))]
    with pytest.raises(
        Refused, match=r"row 5003 has .* over several lines, .* '5001.tI am tired\."
    ):
        read(tmp_path / "a.tsv", "\n".join(rows), text_key="text")


def test_the_texts_of_a_single_column_may_be_quoted(tmp_path):
    table = 'text\n"I am tired.\nLet us go."\nThey went.\n'
    expected = [["I am tired.", "Let us go."], ["They went."]]
    assert read(tmp_path / "a.tsv", table, text_key="text") == expected


@pytest.mark.parametrize("key", ["", "body", "id;text;label"])
@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.tsv", "\t")])
def test_a_table_without_the_column_is_refused_with_its_columns(tmp_path, name, delimiter, key):
    if key == "id;text;label" and delimiter == ";":
        key = "Text"
    with pytest.raises(Refused, match=r"its columns are id, text, label; .*--text_key=COLUMN"):
        read(tmp_path / name, write_table(delimiter), text_key=key)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("7,too,many,fields", r"row 5 has 4 fields and not 3"),
        ("few", r"row 5 has 1 fields and not 3"),
        ('7,"open,x', r"row 5 cannot be read"),
        ('7,"a"b,x', r"row 5 cannot be read"),
        ("id,text,label", r"row 5 is a header within the rows"),
    ],
)
def test_a_broken_row_is_refused_by_its_number(tmp_path, row, words):
    table = 'id,text,label\n1,"a\n\nb",x\n' + row + "\n"
    with pytest.raises(Refused, match=words):
        read(tmp_path / "a.csv", table, text_key="text")


def test_a_row_without_an_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(records, "_MAX_ROW_CHARS", 1000)
    open_row = itertools.repeat('","\n', 1000)  # each quote closes a text and opens the next
    rows = read_fields("a.csv", itertools.chain(["a,b\n", "c,d\n"] * 200, ['1,"\n'], open_row))
    assert [number for number, _ in itertools.islice(rows, 400)] == list(range(1, 401))
    with pytest.raises(Refused, match=r"a\.csv row 401 has more than 1,000 characters"):
        next(rows)


def test_a_head_that_ends_within_a_row_is_no_damage(tmp_path, monkeypatch):
    table = write_table(",", "\n", [*TEXTS, "line\n" * 3000, *TEXTS])
    expected = read(tmp_path / "a.csv", table, text_key="text")
    for head_bytes in (30, 60, 100, 1000, 9000):
        monkeypatch.setattr(lines, "_HEAD_BYTES", head_bytes)
        assert read(tmp_path / "a.csv", table, text_key="text") == expected


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        ({"a": {"b": "x"}}, "a.b", "x"),
        ({"a.b": "y", "a": {"b": "x"}}, "a.b", "y"),
        ({"a": {"b": {"c": "x"}}}, "a.b.c", "x"),
        ({"a": None}, "a.b", None),
        ({"a": {"b": None}}, "a.b", None),
        ({"a": "x"}, "a.b", MISSING),
        ({"a": {"c": "x"}}, "a.b", MISSING),
        ({}, "a", MISSING),
        ({"": {"": "x"}}, ".", "x"),
    ],
)
def test_a_nested_key_is_found_after_the_plain_one(record, key, value):
    assert find_value(record, key) == value


def test_the_advice_for_an_object_is_a_nested_key_or_rows_for_a_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": {"0": "x", "1": "y"}}')
    with pytest.raises(Refused, match=r"text is needed.*; pandas writes"):
        check_source(str(path), TextOptions())
    path.write_text('{"text": {"body": "x"}}\n')
    with pytest.raises(Refused, match=r"--text_key=text\.KEY"):
        check_source(str(path), TextOptions())
    assert check_source(str(path), TextOptions(text_key="text.body")) == "json"
    assert documents.MAX_NAMED_FILES == 20
