"""Sources: what --input names, and what is refused before anything is read."""

import os
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.io.files import StoredFile
from data_pipeline.read import sources
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import Source, find_sources

OPTIONS = TextOptions()
BOOK = "Title\n\n*** START OF THE PROJECT GUTENBERG EBOOK DAYS ***\n\nCHAPTER I\n\nA day.\n"


def test_sources_come_in_the_order_of_the_entries_each_once(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x" * len(name))
    patterns = f"{tmp_path}/b.txt, {tmp_path}/*.txt,{tmp_path}/**/c.txt,{tmp_path}/**"
    assert find_sources(patterns, OPTIONS) == [
        Source(f"{tmp_path}/{name}", len(name))
        for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt")
    ]


def test_a_file_by_several_names_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "d0.txt").write_text("text")
    (tmp_path / "link.txt").symlink_to("d0.txt")
    monkeypatch.chdir(tmp_path)
    patterns = f"d0.txt,./d0.txt,link.txt,{tmp_path}/*.txt"
    assert find_sources(patterns, OPTIONS) == [Source("d0.txt", 4)]


def test_a_file_whose_server_tells_no_size_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    file = StoredFile(f"{tmp_path}/a.txt", 0, is_directory=False)
    monkeypatch.setattr(sources, "find_files", lambda pattern: [file])
    assert find_sources("http://server/a.txt", OPTIONS) == [Source(file.address, 0)]


def test_a_name_with_a_comma_brackets_or_a_space_at_its_end_is_a_name_first(tmp_path):
    for name in ("a,b.txt", "c[1].txt", "c1.txt", "d.txt", "e.txt "):
        (tmp_path / name).write_text(name)

    def names(patterns):
        return [pathlib.Path(one.address).name for one in find_sources(patterns, OPTIONS)]

    assert names(f"{tmp_path}/a,b.txt") == ["a,b.txt"]
    assert names(f"{tmp_path}/c[1].txt,{tmp_path}/d.txt") == ["c[1].txt", "d.txt"]
    assert names(f"{tmp_path}/c[12].txt") == ["c1.txt"]
    assert names(f"{tmp_path}/e.txt ") == ["e.txt "]


def test_a_name_that_is_not_utf_8_is_refused_at_the_start(tmp_path):
    try:
        pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt")).write_text("text")
    except OSError:
        pytest.skip("needs a file system whose names are bytes")
    with pytest.raises(ValueError, match=r"^--input has .*/a\\xff\.txt, a name that is not UTF-8"):
        find_sources(f"{tmp_path}/*", OPTIONS)


def parquet(path: pathlib.Path, **columns: list[object]) -> None:
    pq.write_table(pa.table(columns), path)


def test_bad_input_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "empty.txt").touch()
    parquet(tmp_path / "numbers.parquet", id=[1, 2], score=[0.5, 1.5])
    for entry, sentence in (
        ("*.txt", r"--input has '.*/\*\.txt', which matches no file under /.*; give files or glob"),
        ("sub", r"--input has .*/sub, a directory; give its files: --input='.*/sub/\*'$"),
        ("s*", r"--input has .*/sub, a directory; give its files: --input='.*/sub/\*'$"),
        ("sub/*", r"no file that is not empty \(0 bytes\), as .*/sub/empty\.txt is; give files"),
        (
            "numbers.parquet",
            r"/numbers\.parquet has no column of text called 'text'; its columns are id \(int64\), "
            r"score \(double\); name the right one with --text_key=COLUMN$",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            find_sources(f"{tmp_path}/{entry}", OPTIONS)
    with pytest.raises(ValueError, match=r"^--input has 'memory://no/\*', which matches no file; "):
        find_sources("memory://no/*", OPTIONS)
    with pytest.raises(ValueError, match="--input is empty; give files or globs"):
        find_sources(" , ", OPTIONS)


def test_files_that_are_no_gutenberg_books_are_counted_and_refused(tmp_path):
    for number in range(4):
        (tmp_path / f"book{number}.txt").write_text(BOOK)
    (tmp_path / "book4.txt").write_bytes(b"\xef\xbb\xbf" + BOOK.replace("\n", "\r\n").encode())
    (tmp_path / "book5.txt").write_text(BOOK.replace("\n", "\r"), newline="")
    (tmp_path / "wiki_00").write_text('<doc id="1" title="T">\nText.\n</doc>\n')
    parquet(tmp_path / "table", text=["A text."])
    options = TextOptions("gutenberg")
    assert len(find_sources(f"{tmp_path}/*", options)) == 8
    (tmp_path / "a.txt").write_text("Not a book.\n" * 5000 + BOOK)
    sentence = (
        r"^--documents is gutenberg, but /.*/a\.txt is not a book as .* --documents=chapters$"
    )
    with pytest.raises(ValueError, match=sentence):
        find_sources(f"{tmp_path}/*", options)
    (tmp_path / "b.txt").write_text("Nor is this.\n")
    with pytest.raises(ValueError, match=r"but 2 of 10 files, .*/a\.txt the first, are not books "):
        find_sources(f"{tmp_path}/*", options)
    assert len(find_sources(f"{tmp_path}/*", TextOptions("chapters"))) == 10
