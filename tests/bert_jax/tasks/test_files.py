"""Columns of tsv files, by hand and as csv reads GLUE's own; the files of a task's splits."""

import bz2
import csv
import gzip
import lzma
import pathlib
import re

import pytest
import zstandard

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.files import read_column_names, read_columns, split_file

NAMES = ("eng.train", "train.txt")


def written(tmp_path: pathlib.Path, data: bytes) -> pathlib.Path:
    path = tmp_path / "rows.tsv"
    path.write_bytes(data)
    return path


def test_quotes_are_characters_and_only_a_line_feed_ends_a_row(tmp_path):
    text = "one\u2028two\x85three\x0bfour\rfive\x1csix"
    data = f'\ufeffa\tb\r\n"x\ty"z\r\n\tc\'"\n{text}\t1\n'.encode()
    columns = read_columns(written(tmp_path, data), ["a", "b"])
    assert columns.values == {"a": ['"x', "", text], "b": ['y"z', "c'\"", "1"]}


def test_rows_are_counted_as_an_editor_counts_lines(tmp_path):
    columns = read_columns(written(tmp_path, b"a\tb\n1\t2\n\n3\t4\n"), ["b"])
    assert columns.row_numbers == [2, 4] and columns.values == {"b": ["2", "4"]}
    assert columns.place(1) == f"{tmp_path}/rows.tsv row 4"
    headless = read_columns(written(tmp_path, b"1\t2\n3\t4"), ["b"], headers=[["a", "b"]])
    assert headless.row_numbers == [1, 2] and headless.values == {"b": ["2", "4"]}


def test_columns_are_found_by_name_wherever_they_stand(tmp_path):
    path = written(tmp_path, b"x\tlabel\ttext\n9\t1\thello\n")
    columns = read_columns(path, ["text", "label"], also=["index", "x"])
    assert columns.values == {"text": ["hello"], "label": ["1"], "x": ["9"]}


LONG = "a" * (1 << 18)


@pytest.mark.parametrize(
    ("name", "data", "names"),
    [
        ("rows.tsv", '"text"\tlabel\na\tb\n', ['"text"', "label"]),
        ("rows.csv", '\n"te\nxt",label\na,b\n', ["te\nxt", "label"]),
        ("rows.csv", f"{LONG},label\na,b\n", [LONG, "label"]),
        ("rows.csv", "", []),
    ],
)
def test_names_of_columns_are_read_as_the_rows_below_them(tmp_path, name, data, names):
    (tmp_path / name).write_text(data)
    assert read_column_names(tmp_path / name) == names


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"text,label\ra,b\r", "lines that end in carriage returns alone.* tr "),
        (b"PK\x03\x04text,label\na,b\n", "a zip archive.* save a document .* as text or csv"),
        (b"text,label\na\0,b\n", "binary data, not text: a NUL byte at byte offset 12"),
        (b"\xd0\xcf\x11\xe0\0\0\0\0", "binary data, not text"),  # Office before 2007
        ("é,ü\n".encode("utf-16-le"), "looks like UTF-16LE text"),
    ],
)
def test_what_programs_write_under_the_name_of_a_table_is_named(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read_column_names(tmp_path / name)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("start", ["", "sep={mark}\n"])
def test_the_first_line_of_a_csv_shows_what_separates_its_columns(tmp_path, mark, start):
    text = f'{start.format(mark=mark)}text{mark}label\n"fi{mark}ne"{mark}1\n'
    (tmp_path / "rows.csv").write_text(text)
    columns = read_columns(tmp_path / "rows.csv", ["text", "label"])
    assert columns.values == {"text": [f"fi{mark}ne"], "label": ["1"]}


@pytest.mark.parametrize("name", ['"score, of 5; or more"', "score (0,5)"])
def test_a_mark_within_the_name_of_a_csvs_column_separates_nothing(tmp_path, name):
    path = tmp_path / "rows.csv"
    path.write_text(f'text;{name};label\n"fi;ne";3,5;1\n')
    assert read_columns(path, ["text", "label"]).values == {"text": ["fi;ne"], "label": ["1"]}
    assert read_column_names(path, ["text"]) == ["text", name.strip('"'), "label"]


def test_another_mark_between_the_columns_of_a_tsv_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape(": ';' separates them")):
        read_columns(written(tmp_path, b"text;label\nfine;1\n"), ["text", "label"])


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("", lambda data: data.decode().encode("utf-16")),
        (".gz", lambda data: gzip.compress(data.decode().encode("utf-16"), mtime=0)),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
    ],
)
def test_compressed_tables_and_utf_16_are_read_like_plain_ones(tmp_path, suffix, ending, pack):
    text = "é" * (1 << 19) + "\u2028"
    data = {
        ".tsv": f"a\tb\n{text}\t1\n",
        ".csv": f'a;b\n"{text}";1\n',
        ".jsonl": f'{{"a": "{text}", "b": 1}}\n',
    }[suffix]
    path = tmp_path / f"rows{suffix}{ending}"
    path.write_bytes(pack(data.encode()))
    assert read_columns(path, ["a", "b"]).values == {"a": [text], "b": ["1"]}
    assert read_column_names(path) == ["a", "b"]


HEADER = b"sentence\tlabel\n"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"text\tlabel\nhi\t1\n",
            r"rows\.tsv has no column 'sentence'; its columns are text, label; the task reads",
        ),
        (
            b"sentence\tlabel \xe2\x80\x8b\nhi\t1\n",
            r"task reads sentence, label: 'label \\u200b' only looks like it: rename that column",
        ),
        (HEADER + b"hi\t1\nyou\n", r"rows\.tsv row 3 has 1 fields and not 2 \(sentence, l"),
        (HEADER + b"hi\t1\t2\n", r"row 2 has 3 fields and not 2 .* begins 'hi\\\\t1\\\\t2'"),
        (HEADER + b"hi\t1\ny\xffu\t1\n", r"row 3 is not UTF-8: byte 0xff at its byte 2"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_file_and_row(tmp_path, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_columns(written(tmp_path, data), ["sentence", "label"])


def test_short_rows_are_left_out_where_asked_and_long_ones_never(tmp_path):
    path = written(tmp_path, b"a\tb\n1\n2\t3\n4\n")
    columns = read_columns(path, ["a"], drops_short_rows=True)
    assert columns.values == {"a": ["2"]} and columns.short_rows == [2, 4]
    with pytest.raises(ValueError, match="row 2 has 3 fields"):
        read_columns(written(tmp_path, b"a\tb\n1\t2\t3\n"), ["a"], drops_short_rows=True)


@pytest.mark.parametrize("name", ["SST-2/dev.tsv", "RTE/test.tsv"])
def test_real_files_are_read_as_csv_reads_them_without_quotes(shared_data, name):
    path = shared_data / "glue" / name
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        theirs = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = read_columns(path, list(theirs[0]))
    assert columns.values == {key: [row[key] for row in theirs] for key in theirs[0]}


def test_a_published_name_is_found_and_a_given_one_comes_first(tmp_path):
    (tmp_path / "train.txt").write_text("")
    (tmp_path / "mine").write_text("")
    folder = str(tmp_path)
    assert split_file(TaskOptions(dir=folder), "train", NAMES) == tmp_path / "train.txt"
    assert split_file(TaskOptions(dir=folder, train_file="mine"), "train", NAMES).name == "mine"
    assert split_file(TaskOptions(dir=folder), "test", ("eng.testb",)) is None


@pytest.mark.parametrize(
    ("changes", "files", "words"),
    [
        ({"dir": "nowhere"}, (), "config.data.dir is 'nowhere'"),
        (
            {"dir": "~no.body/a"},
            (),
            "config.data.dir is ~no.body/a, whose home folder is not known",
        ),
        ({"train_file": "none"}, (), "config.data.train_file is 'none'"),
        ({}, (), "no train file of ner: none of eng.train, train.txt"),
        ({}, NAMES, r"holds both eng\.train and train.txt"),
        ({"source": "tfds"}, NAMES, "config.data.source is 'tfds'"),
    ],
)
def test_files_that_cannot_be_chosen_are_refused(tmp_path, changes, files, words):
    for name in files:
        (tmp_path / name).write_text("")
    options = TaskOptions(**{"task": "ner", "dir": str(tmp_path), **changes})
    with pytest.raises(ValueError, match=words):
        split_file(options, "train", NAMES)
