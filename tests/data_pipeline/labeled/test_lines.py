"""Lines to rows: a row for every line, pairs as Google's script reads them, counts of both."""

import gzip
import io
import os
import threading
import types

import numpy as np
import pytest

from data_pipeline.io import Refused
from data_pipeline.labeled import lines as sentence_lines
from data_pipeline.labeled.lines import LineCounts, check_lines, group_rows, open_lines
from data_pipeline.read import lines as read_lines
from data_pipeline.vocab import load_vocabulary
from tests.data_pipeline.encoded import write_list

CLS, SEP, THE, CAT, S, SAT, BAR = 2, 3, 5, 6, 7, 8, 9


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    return load_vocabulary(write_list(path, ["the", "cat", "##s", "sat", "|"]))


def rows_of(lines, vocabulary, max_seq_length=11, most_tokens=1000):
    counts = LineCounts()
    rows = []
    for group in group_rows(lines, vocabulary, max_seq_length, most_tokens, counts):
        ends = group.offsets[1:]
        rows.append(
            [
                (group.token_ids[start:end].tolist(), int(second))
                for start, end, second in zip(
                    group.offsets[:-1], ends, group.second_starts, strict=True
                )
            ]
        )
    return rows, counts


def test_each_line_is_a_row_and_bars_part_a_pair(vocabulary):
    lines = ["The cats sat\n", "the\ncat ||| sat\r\n", " \n", "the ||| cat ||| sat", "sat |||"]
    (rows,), counts = rows_of(lines, vocabulary)
    assert rows == [
        ([CLS, THE, CAT, S, SAT, SEP], 6),
        ([CLS, THE, CAT, SEP, SAT, SEP], 4),
        ([CLS, SEP], 2),
        ([CLS, THE, BAR, BAR, BAR, CAT, SEP, SAT, SEP], 7),
        ([CLS, SAT, BAR, BAR, BAR, SEP], 6),
    ]
    assert counts == LineCounts(lines=5, empty=1)


def test_what_is_cut_and_what_has_no_token_is_counted(vocabulary):
    lines = ["the cat", "the cat sat", "the ||| cats sat sat", "\u200b", "the ||| \u200b"]
    (rows,), counts = rows_of(lines, vocabulary, max_seq_length=4)
    assert [row for row, _ in rows] == [
        [CLS, THE, CAT, SEP],
        [CLS, THE, CAT, SEP],
        [CLS, THE, SEP, SEP],
        [CLS, SEP],
        [CLS, THE, SEP],
    ]
    assert counts == LineCounts(lines=5, without_tokens=1, cut=2)


def test_groups_hold_no_more_tokens_than_asked_and_every_line(vocabulary):
    lines = ["the " * n for n in (1, 2, 6, 3, 0, 2)]
    groups, counts = rows_of(lines, vocabulary, most_tokens=7)
    assert [[len(row) for row, _ in group] for group in groups] == [[3, 4], [8], [5, 2], [4]]
    assert counts.lines == 6
    assert rows_of([], vocabulary) == ([], LineCounts())
    with pytest.raises(Refused, match=r"^'the cat' is one text, "):
        rows_of("the cat", vocabulary)


def test_many_lines_come_in_their_order(vocabulary, monkeypatch):
    monkeypatch.setattr(sentence_lines, "_LINES_AT_ONCE", 3)
    lengths = np.random.default_rng(5).integers(0, 6, 17)
    (rows,), _ = rows_of(["sat " * n for n in lengths], vocabulary)
    assert [len(row) - 2 for row, _ in rows] == lengths.tolist()


def test_lines_are_read_from_gzip_and_standard_input(tmp_path, monkeypatch):
    text = "\ufeffthe cat\n\nsat \u00e9t\u00e9".encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    assert list(open_lines(str(tmp_path / "a.gz"))) == ["the cat", "", "sat \u00e9t\u00e9"]
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(text)))
    assert [line.strip() for line in open_lines("-")] == ["the cat", "", "sat \u00e9t\u00e9"]
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b"a\n\xe9\n")))
    with pytest.raises(ValueError, match="/dev/stdin is not UTF-8: byte 0xe9 at byte offset 2"):
        list(open_lines("-"))


@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_lines_of_a_pipe_end_as_those_of_a_file(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(read_lines, "_BLOCK_BYTES", block_bytes)
    text = "one\rtwo\r\nthr\u00e9e\n\nfour\r".encode()
    (tmp_path / "file").write_bytes(text)
    os.mkfifo(tmp_path / "pipe")
    # A daemon: it waits for a reader, which a test that fails never opens.
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(text,), daemon=True).start()
    for name in ("file", "pipe"):
        check_lines(str(tmp_path / name), "--input")
        lines = [line.rstrip("\r") for line in open_lines(str(tmp_path / name))]
        assert lines == ["one", "two", "thr\u00e9e", "", "four"]


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "s3://b/a.jsonl.gz", "a.json", "a.parquet"])
def test_a_table_is_no_file_of_lines(name):
    with pytest.raises(ValueError, match=f"--input is {name}, a table by its name, .* in \\(-\\)"):
        check_lines(name, "--input")


def test_a_folder_is_no_file_of_lines(tmp_path):
    with pytest.raises(ValueError, match=r"--input is .*which is not a file; give a text file, a"):
        check_lines(str(tmp_path), "--input")
