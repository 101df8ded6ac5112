"""Files to documents: every format, every rule, every kind of bad file."""

import gzip
import json
import pathlib
import tracemalloc

import pytest

from data_pipeline.read import gutenberg, lines
from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import Source, find_sources

LINES = TextOptions(sentences="lines")


def write(path: pathlib.Path, content: str | bytes) -> pathlib.Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def source_of(path: pathlib.Path) -> Source:
    return Source(str(path), path.stat().st_size)


def read(path: pathlib.Path, options: TextOptions = LINES) -> list[list[str]]:
    return list(read_documents(source_of(path), options))


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("\n\none\n two \n\n \t \nthree\n\nfour", LINES, [["one", "two"], ["three"], ["four"]]),
        (
            "The end of a\nline. Not of\n\na text.",
            TextOptions(),  # wrapped lines are joined where sentences are to be found
            [["The end of a line. Not of"], ["a text."]],
        ),
        ("one\ntwo\n\nthree\n", TextOptions("file"), [["one two", "three"]]),
        ("one\ntwo\n\nthree\n", TextOptions("file", "lines"), [["one", "two", "three"]]),
        (
            "One. Two.\n\n  Three.\r\n\u200b\nFour.",
            TextOptions("line"),
            [["One. Two."], ["Three."], ["Four."]],
        ),
        (
            "\ufeffone\r\ntwo\r\n\r\nthr\u2028ee\r\n",
            LINES,  # line ends and the byte order mark leave no trace
            [["one", "two"], ["thr\u2028ee"]],
        ),
        ("page\none\fpage\vtwo\n", TextOptions(), [["page one page two"]]),
        (
            "One\nis.\n\nIt ends.\r\n<|endoftext|>\r\n\n<|endoftext|>\nTwo.\n\n",
            TextOptions(),
            [["One is.", "It ends."], ["Two."]],
        ),
        (
            "One\nis.<|endoftext|>\nTwo.<|endoftext|>Three.",
            LINES,
            [["One", "is."], ["Two."], ["Three."]],
        ),
        (
            "The mark is\n'<|endoftext|>' or\n\nalso <|endoftext|>\n",
            TextOptions(),
            [["The mark is '<|endoftext|>' or"], ["also <|endoftext|>"]],
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_plain_text_is_documents_by_its_rule(tmp_path, name, content, options, expected):
    assert read(write(tmp_path / name, content), options) == expected


@pytest.mark.slow
def test_a_line_of_50_megabytes_is_read_in_a_few_times_its_size(tmp_path):
    path = write(tmp_path / "a.txt", b"word " * 10_000_000)
    tracemalloc.start()
    ((line,),) = read(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(line) == 5 * 10_000_000 - 1
    assert peak_bytes < 5 * len(line)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "wiki_00", "wiki_00.gz"])
def test_json_lines_are_documents_and_their_lines_paragraphs(tmp_path, name):
    rows = [{"text": "one\n\fend\vtwo ", "id": 1}, {"text": "", "id": 2}]
    for start in ("", "\n \n", "\ufeff"):
        path = write(tmp_path / name, start + "\n\n".join(map(json.dumps, rows)))
        assert read(path) == [["one", "end", "two"], []]


def test_the_escapes_of_wikiextractor_are_undone_in_its_json_alone(tmp_path):
    its = {"id": "1", "revid": "2", "url": "u", "title": "T", "text": "A &lt; B &amp;amp; C"}
    rows = [its, {"text": its["text"]}]
    path = write(tmp_path / "wiki_00", "\n".join(map(json.dumps, rows)))
    assert read(path) == [["A < B &amp; C"], ["A &lt; B &amp;amp; C"]]


@pytest.mark.parametrize("first", ["{", "{curly} braces", '["text"]', '"text"', "{} {}"])
def test_a_first_line_that_is_no_json_object_is_prose(tmp_path, first):
    path = write(tmp_path / "a.txt", f'{first}\n{{"text": "x"}}')
    assert read(path) == [[first, '{"text": "x"}']]


LONG, DEEP = b"1" * 5000, b"[" * 200_000 + b"]" * 200_000
BAD_FILES = {
    "binary": ("a.txt", b"ab\n\0", r"a\.txt is binary data.*NUL byte at byte offset 3; .*UTF-8"),
    "utf-16": ("a.txt", b"h\0i\0", r"a\.txt looks like UTF-16LE .*iconv -f UTF-16LE"),
    "iso-2022-jp": (
        "a.txt",
        "a\n雨".encode("iso2022_jp"),
        r"looks like ISO-2022-JP .*iconv -f ISO",
    ),
    "iso-2022-kr": ("a.txt", "a\n비".encode("iso2022_kr"), "looks like ISO-2022-KR"),
    "iso-2022-cn": ("a.txt", b"\x1b$)A\x0eSj\x0f", "looks like ISO-2022-CN"),
    "cut utf-16": ("a.txt", "hi".encode("utf-16")[:-1], r"a\.txt is UTF-16 by its byte"),
    "no json": ("a.jsonl", b'{"text": "x"}\n{"text"\n', r"a\.jsonl line 2 is not JSON .*one JSON"),
    "json array": ("a.json", b'[{"text": "x"}]', r"line 1 is a JSON list, not an object"),
    "other key": ("a.jsonl", b'{"body": "x"}', r"line 1 .* key 'text'; its keys are body;.*"),
    "nested key": ("a.jsonl", b'{"c": {"x": "y"}, "id": 7}', r"its keys are c, c\.x, id; name"),
    "escaped key": ("a.jsonl", b'{"\\u001b[2J": 7}', r"its keys are '\\x1b\[2J'; name"),
    "other key, by content": ("wiki_00", b'\n{"body": "x"}', r"wiki_00 line 2 .* are body; name"),
    "prose in json": ("wiki_00", b'{"text": "x"}\nabc', r"line 2 is not JSON .*one that opens"),
    "long number first": ("wiki_00", b'{"id": %s}' % LONG, r"line 1 has a number of too"),
    "number": ("a.jsonl", b'{"text": 5}', r"line 1 has a whole number under the key 'text'"),
    "long number": ("a.jsonl", b'{"text": "x"}\n\n{"id": %s}' % LONG, r"line 3 .*too many .*4300"),
    "deep nesting": ("a.jsonl", b'{"text": "x"}\n{"a": %s}' % DEEP, r"line 2 .*too deeply"),
    "half a character": ("a.jsonl", b'{"text": "ab\\ud800"}', r"line 1 .*\\ud800, .* character 3:"),
    "doc cut off": ("wiki_0", b'<doc id="1" title="T">\nx\n', r"ends inside a <doc> at line 2"),
    "doc garbage below blank lines": ("wiki_0", b"\n\n<doc >\n</doc>\nx", r"near line 5: 'x'"),
    "doc garbage": ("wiki_0", b'<doc title="T">\nx\n</doc>\nstray\n', r"outside <doc .*'stray'"),
}


@pytest.mark.parametrize("name, data, sentence", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_are_refused_by_name_and_place(tmp_path, name, data, sentence):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=sentence):
        for source in find_sources(str(tmp_path / name), LINES):
            list(read_documents(source, LINES))


@pytest.mark.parametrize(
    "content",
    [
        "word\n" * 30,
        "x" * 101,
        "<doc title='T'>\n" + "word\n" * 30,
        "w\n\n" * 50 + "w" * 99,
        ("é" * 20 + "\n") * 3,  # 60 characters, 120 bytes
        '{"text": "' + "x" * 101 + '"}',
    ],
)
def test_a_document_beyond_the_limit_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 10)
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(
        ValueError, match=r"a\.txt (line 1 )?has a document of more than .* blank lines"
    ):
        read(path, TextOptions("file"))


def test_a_document_of_the_limit_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 100)
    for document in ("x" * 100, "é" * 50):
        path = write(tmp_path / "a.txt", f"{document}\n\n{document}\n")
        assert read(path) == [[document], [document]]


@pytest.mark.parametrize("end", ["\n", "\\n", "\\r\\n"])
def test_a_document_of_too_many_short_lines_is_refused(tmp_path, monkeypatch, end):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 16 * 20)

    def document(count):
        text = ("ab" + end) * count
        return write(tmp_path / "a.txt", text if end == "\n" else f'{{"text": "{text}"}}\n')

    assert len(read(document(20), TextOptions("file", sentences="lines"))[0]) == 20
    place = r"a\.txt" if end == "\n" else r"a\.txt line 1"
    sentence = rf"/{place} has a document of more than .* 16 bytes count as 16"
    with pytest.raises(ValueError, match=sentence):
        read(document(21), TextOptions("file", sentences="lines"))


SHORT_PARAGRAPHS = "A short paragraph.\n\n" * 50_000
ENDLESS = {
    "one paragraph, blank_line": "some words in a line\n" * 50_000,
    "one paragraph, chapters": "some words in a line\n" * 50_000,
    "one file, file": SHORT_PARAGRAPHS,
    "no heading, chapters": SHORT_PARAGRAPHS,
    "one chapter, chapters": "CHAPTER I\n\n" + SHORT_PARAGRAPHS,
    "long lines, chapters": ("word " * 150 + "\n") * 2_000,
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_file_that_ends_no_document_is_not_read_to_its_end(tmp_path, monkeypatch, case):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(gutenberg, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(gutenberg, "_HEADER_LINES", 100)
    monkeypatch.setattr(gutenberg, "_HEADER_CHARS", 1000)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 100)
    path = write(tmp_path / "a.txt", ENDLESS[case])
    done: list[int] = []
    with pytest.raises(ValueError, match=r"a\.txt has a document of more than"):
        list(read_documents(source_of(path), TextOptions(case.split(", ")[1]), done.append))
    assert sum(done) < 5000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"language": name}, f"--language is {name!r}")
            for name in ("German", "DE", "", "cz", "jp")
        ),
        ({"language": "de\n"}, "as in --language=de"),
        ({"documents": "gutenberg", "sentences": "lines"}, "--sentences is lines, but with --doc"),
    ],
)
def test_rules_that_no_metadata_holds_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        TextOptions(**options).check()
