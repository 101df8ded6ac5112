"""A table goes through in pieces, its own columns and types kept beside new ones in any format."""

import csv
import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.tasks import table_pieces
from bert_jax.tasks.files import read_columns
from bert_jax.tasks.table_pieces import TableWriter, choose_free_names, open_table
from tests.bert_jax.tasks.tables import write_table

ROWS = [
    {"id": number, "text": text, "score": number / 4}
    for number, text in enumerate(["a cat", 'b, "dog"', "", "ä\u2028", "e" * 50, "f\tg\nh", "i\rj"])
]
SUFFIXES = [".tsv", ".csv", ".jsonl", ".parquet"]


def plain(rows, suffix):
    """As the format keeps them: a tsv has no tabs within a text."""
    cut = str.maketrans("\t\n\r", "   ") if suffix == ".tsv" else {}
    return [row | {"text": row["text"].translate(cut)} for row in rows]


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    delimiter = {"delimiter": ",", "quoting": csv.QUOTE_MINIMAL}
    if path.suffix == ".tsv":
        delimiter = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(newline="") as file:
        return list(csv.DictReader(file, **delimiter))


def through(source, output, added=("n",)):
    """Write a table beside the number of each row; the pieces that it went through in."""
    table = open_table(source, ["text"])
    names = list(choose_free_names(table.names, list(added)).values())
    writer, rows, sizes = TableWriter(output, output.suffix, table, names), 0, []
    for piece in table_pieces.read_pieces(table):
        sizes.append(piece.rows)
        numbers = pa.array(range(rows, rows + piece.rows))
        writer.write(piece, dict.fromkeys(names, numbers))
        rows += piece.rows
    writer.close()
    assert rows == table.rows
    return sizes


@pytest.mark.parametrize("out", SUFFIXES)
@pytest.mark.parametrize("into", SUFFIXES)
def test_rows_keep_their_order_columns_and_values(tmp_path, monkeypatch, into, out):
    monkeypatch.setattr(table_pieces, "PIECE_ROWS", 3)
    monkeypatch.setattr("bert_jax.tasks.files._PARQUET_ROWS", 3)
    rows = plain(ROWS, into)
    sizes = through(write_table(tmp_path / f"in{into}", rows), tmp_path / f"out{out}")
    assert sizes == [3, 3, 1]
    is_typed = into in (".jsonl", ".parquet") and out in (".jsonl", ".parquet")
    expected = [{k: v if is_typed else str(v) for k, v in row.items()} for row in plain(rows, out)]
    is_text = out in (".csv", ".tsv")
    for number, row in enumerate(expected):
        row["n"] = str(number) if is_text else number
    assert read(tmp_path / f"out{out}") == expected


def test_many_characters_are_a_piece_too(tmp_path, monkeypatch):
    monkeypatch.setattr(table_pieces, "_PIECE_CHARS", 40)
    for suffix in SUFFIXES[:3]:
        source = write_table(tmp_path / f"in{suffix}", plain(ROWS, suffix))
        assert max(through(source, tmp_path / f"out{suffix}")) < len(ROWS) - 1


def test_columns_of_the_same_name_get_a_number(tmp_path):
    rows = [{"text": "a", "n": "own", "n_2": "too"}]
    through(write_table(tmp_path / "in.csv", rows), tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == [{**rows[0], "n_3": 0}]
    assert choose_free_names(["p"], ["p", "q"]) == {"p": "p_2", "q": "q"}
    (tmp_path / "twice.csv").write_text("text,x,x\na,b,c\n")
    with pytest.raises(ValueError, match=r"has 2 columns 'x'"):
        open_table(tmp_path / "twice.csv", ["text"])
    (tmp_path / "twice.tsv").write_text('"text"\t"x"\t"x"\na\tb\tc\n')  # quotes are characters
    with pytest.raises(ValueError, match=r"""has 2 columns '"x"'"""):
        open_table(tmp_path / "twice.tsv", ['"text"'])


def test_a_csv_names_its_columns_where_a_tsv_may_leave_them_out(tmp_path):
    headers = [("source", "label", "star", "sentence")]
    (tmp_path / "rows.tsv").write_text("gj\t1\t\ta cat\n")
    assert open_table(tmp_path / "rows.tsv", ["sentence"], headers).names == headers[0]
    (tmp_path / "rows.csv").write_text("id,body,author,date\n1,a cat,b,c\n")
    with pytest.raises(ValueError, match="no column 'sentence'; its columns are id, body"):
        open_table(tmp_path / "rows.csv", ["sentence"], headers)


def test_types_of_parquet_are_kept_in_parquet_and_said_in_words_elsewhere(tmp_path):
    table = pa.table(
        {
            "text": ["a"],
            "when": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "day": [datetime.date(2024, 5, 1)],
            "list": [[1, None]],
            "nan": [float("nan")],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    through(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").drop_columns("n").schema == table.schema
    assert pq.read_schema(tmp_path / "out.parquet").field("when").type == pa.timestamp("ns")
    through(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    (row,) = read(tmp_path / "out.jsonl")
    assert row["when"] == "2023-11-14 22:13:20.123456789" and row["day"] == "2024-05-01"
    assert row["list"] == [1, None] and row["nan"] is None
    through(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert read(tmp_path / "out.csv")[0]["list"] == "[1, null]"


def test_dates_within_a_list_are_text_in_json(tmp_path):
    days = pa.array([[datetime.date(2024, 5, 1)]], pa.list_(pa.date32()))
    pq.write_table(pa.table({"text": ["a"], "days": days}), tmp_path / "in.parquet")
    through(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == [{"text": "a", "days": ["2024-05-01"], "n": 0}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]], pa.list_(pa.timestamp("ns"))),
        pa.array([[1 << 62]], pa.list_(pa.timestamp("us"))),
        pa.array([[1]], pa.list_(pa.timestamp("us", "Nowhere"))),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]),
        pa.array([b"\xff"], pa.binary(1)),
        pa.array([b"\xff"]).dictionary_encode(),
        pa.array([{"bytes": b"\x89PNG", "path": "a.png"}]),
        pa.array([[("a", [b"a"])]], pa.map_(pa.string(), pa.list_(pa.binary()))),
    ],
)
def test_a_column_without_a_text_form_is_refused(tmp_path, column):
    pq.write_table(pa.table({"text": ["a"], "more": column}), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match=r"column 'more' of type .* has no text form; write"):
        through(tmp_path / "in.parquet", tmp_path / "out.jsonl")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_may_be_both_texts_of_a_pair(tmp_path, suffix):
    source = write_table(tmp_path / f"in{suffix}", [{"text": "a"}, {"text": "b"}])
    (piece,) = table_pieces.read_pieces(open_table(source, ["text", "text"]))
    assert piece.columns.values == {"text": ["a", "b"]}
    assert read_columns(source, ["text", "text"]).values == {"text": ["a", "b"]}


def test_rows_of_json_may_differ_in_their_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(table_pieces, "PIECE_ROWS", 1)
    rows = [{"text": "a"}, {"text": "b", "more": [1]}, {"text": "c", "more": None}]
    source = write_table(tmp_path / "in.jsonl", rows)
    through(source, tmp_path / "out.csv")
    assert [row["more"] for row in read(tmp_path / "out.csv")] == ["", "[1]", ""]
    through(source, tmp_path / "out.jsonl")
    for row, number in zip(rows, range(3), strict=True):
        row["n"] = number
    assert read(tmp_path / "out.jsonl") == rows
    with pytest.raises(ValueError, match=r"do not fit the types of the first .* as \.jsonl"):
        through(source, tmp_path / "out.parquet")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"x": 1}, {"x": 2, "z": 1}, "{'x': 2, 'z': 1} under 'more' would be changed"),
        ([{"x": {"y": 1}}], [{"x": {"z": 1}}], "under 'more' would be changed"),
        (1, 1.5, "1.5 under 'more' would be changed"),
        ([1], [2, 1.5], "under 'more' would be changed"),
        (0.5, True, "True under 'more' would be changed"),
        ({}, {}, "no child field"),
        (0.5, 2, None),
        (float("inf"), float("nan"), None),
        ({"x": 1, "y": [{"z": 2}]}, {"x": None, "z": None}, None),
        ([{"x": 1}], None, None),
    ],
)
def test_values_of_json_lose_nothing_in_parquet(tmp_path, monkeypatch, first, second, words):
    monkeypatch.setattr(table_pieces, "PIECE_ROWS", 1)
    rows = [{"text": "a", "more": first}, {"text": "b", "more": second}]
    source = write_table(tmp_path / "in.jsonl", rows)
    if words is None:
        through(source, tmp_path / "out.parquet")
        assert read(tmp_path / "out.parquet")[0] == {**rows[0], "n": 0}
        return
    with pytest.raises(ValueError, match=rf"do not fit .*{words}.* as \.jsonl"):
        through(source, tmp_path / "out.parquet")


def test_a_file_without_names_of_columns_gets_those_of_its_task(tmp_path):
    (tmp_path / "dev.tsv").write_text("gj04\t1\t\ta cat\ngj04\t0\t*\tcat a\n")
    headers = [("source", "label", "star", "sentence")]
    table = open_table(tmp_path / "dev.tsv", ["sentence"], headers)
    assert table.rows == 2 and table.names == headers[0]
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta cat\n")
    assert open_table(tmp_path / "test.tsv", ["sentence"], headers).rows == 1
    with pytest.raises(ValueError, match=r"row 2 has 3 fields and not 4"):
        (tmp_path / "bad.tsv").write_text("gj04\t1\t\ta cat\na\tb\tc\n")
        open_table(tmp_path / "bad.tsv", ["sentence"], headers)
    with pytest.raises(ValueError, match=r"has no column 'review'; its columns are gj04, 1"):
        open_table(tmp_path / "dev.tsv", ["review"], headers)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_header_within_the_rows_is_refused(tmp_path, suffix):
    rows = [{"text": "a", "score": "1"}, {"text": "text", "score": "Score"}]
    source = write_table(tmp_path / f"in{suffix}", rows)
    with pytest.raises(ValueError, match=r"row [23] is a header within the rows, text, score"):
        open_table(source, ["text"])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_missing_texts_stay_in_the_table_and_are_named(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(table_pieces, "PIECE_ROWS", 2)
    monkeypatch.setattr("bert_jax.tasks.files._PARQUET_ROWS", 2)
    rows = [{"text": text} for text in ("a", None, "", "b", None)]
    source = write_table(tmp_path / f"in{suffix}", rows)
    pieces = list(table_pieces.read_pieces(open_table(source, ["text"])))
    assert [number for piece in pieces for number in piece.columns.missing_rows] == [2, 5]
    assert [text for piece in pieces for text in piece.columns.values["text"]] == [
        "a",
        "",
        "",
        "b",
        "",
    ]
    through(source, tmp_path / f"out{suffix}")
    assert [row["text"] for row in read(tmp_path / f"out{suffix}")] == ["a", None, "", "b", None]


def test_rows_with_numbers_that_json_lacks_are_counted(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        '{"text": "a", "x": NaN}\n{"text": "b", "x": [1, -Infinity]}\n'
    )
    table = open_table(tmp_path / "in.jsonl", ["text"])
    writer = TableWriter(tmp_path / "out.jsonl", ".jsonl", table, [])
    for piece in table_pieces.read_pieces(table):
        writer.write(piece, {})
    writer.close()
    assert writer.not_finite == 2
    assert [row["x"] for row in read(tmp_path / "out.jsonl")] == [None, [1, None]]


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_empty_columns_of_a_spreadsheet_keep_what_they_hold(tmp_path, suffix, mark):
    source = tmp_path / f"in{suffix}"
    source.write_text("text,y,,\na cat,1,,\na dog,0,seen,\n".replace(",", mark))
    through(source, tmp_path / "out.jsonl")
    unnamed = {"Unnamed: 2": "seen", "Unnamed: 3": ""}  # the names that pandas gives
    assert read(tmp_path / "out.jsonl")[1] == {"text": "a dog", "y": "0", **unnamed, "n": 1}
