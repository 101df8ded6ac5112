"""What a file is by its content, its name and its place, and many bad files in one go."""

import gzip
import io
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.io import Refused
from data_pipeline.read import documents
from data_pipeline.read.documents import read_documents, read_sources
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources

TEXT = b"One text. Two sentences.\n\nAnother text.\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:74bf\nsize 9\n"
PAGE = b"\xef\xbb\xbf \n<!doctype HTML><html><body>503</body></html>"


def read(path: pathlib.Path, **options: str) -> list[list[str]]:
    text = TextOptions(**options)
    (source,) = find_sources(str(path), text)
    return list(read_documents(source, text))


@pytest.mark.parametrize("data", [POINTER, PAGE, PAGE.decode().encode("utf-16")], ids=repr)
@pytest.mark.parametrize("suffix", ["txt", "gz", "jsonl", "parquet", "txt.zst", "csv", "html", ""])
def test_a_pointer_and_a_page_are_refused_under_any_name(tmp_path, data, suffix):
    path = tmp_path / f"page.{suffix}"
    words = "git-lfs.*git lfs pull" if data is POINTER else "HTML.*extractor"
    for stored in (data, gzip.compress(data)):
        path.write_bytes(stored)
        with pytest.raises(Refused, match=rf"/page\.{suffix} looks like .*{words}.*--format=text"):
            find_sources(str(path), TextOptions())
        assert read(path, format="text", documents="file")


def test_a_compressed_table_is_refused_for_what_it_is(tmp_path):
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    packed = gzip.compress((tmp_path / "a.parquet").read_bytes())
    for name in ("a.parquet.gz", "a.gz"):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(Refused, match=rf"/{name} is a compressed parquet file, .*; unpack it"):
            find_sources(str(tmp_path / name), TextOptions())


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.gz", TEXT, "named like gzip and holds plain text"),
        ("a.txt.bz2", TEXT, "named like bzip2"),
        ("a.JSONL.XZ", b'{"text": "x"}\n', "named like xz and holds JSON lines"),
        ("a.zst", b'<doc id="1">\nA\n</doc>', "named like Zstandard and holds WikiExtractor"),
        ("a.parquet", TEXT, "named like Parquet and holds plain text"),
        ("a.parquet", b'{"text": "x"}\n', "named like Parquet and holds JSON lines"),
        ("a.parquet", b"\x01\x02\0\0", "named like Parquet and holds binary data"),
        ("a.arrow", TEXT, "named like Arrow"),
        ("a.csv.gzip", TEXT, "named like gzip"),
        ("a.zstd", TEXT, "named like Zstandard"),
        ("a.zip", TEXT, "named like zip and holds plain text"),
        ("a.txt", b'INFO: 1 page\n<doc id="1">\nA\n</doc>', "text outside <doc ...>"),
        ("a.jsonl", TEXT, "line 1 is not JSON"),
    ],
)
def test_a_name_that_promises_another_format_is_refused(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refused, match=rf"/{name} .*{words}"):
        find_sources(f"{tmp_path}/*", TextOptions())
    if b"\0" not in data:
        assert read(tmp_path / name, format="text")


@pytest.mark.parametrize(
    "value",
    [
        *({"text": "x"}, [{"text": "x"}], {"text": {"a": ["x"]}, "b": 1}),
        *(["x", 'a "b"'], ["x"], [["x", 1], ["y", 2]], [["x"]]),
    ],
)
@pytest.mark.parametrize("indent", [None, 0, 2])
def test_json_that_is_no_json_lines_is_refused_under_any_name(tmp_path, value, indent):
    (tmp_path / "a.txt").write_text("\ufeff" + json.dumps(value, indent=indent) + "\n")
    if value == {"text": "x"} and indent is None:
        assert read(tmp_path / "a.txt") == [["x"]]
        return
    with pytest.raises(Refused, match=r"a\.txt line 1 .*(not JSON|JSON list|an object)"):
        read(tmp_path / "a.txt")
    braces = '{"Words" in braces: a text}\n["Words": none]'
    for text in (braces, '["Words": none]', '["Stop," he said, "now."]', '["A"] is a letter.'):
        (tmp_path / "a.txt").write_text(text)
        assert read(tmp_path / "a.txt") != []


def test_all_bad_files_are_named_in_one_go_and_many_are_counted(tmp_path):
    (tmp_path / "good.txt").write_bytes(TEXT)
    bad = [tmp_path / f"bad{number:02}.txt" for number in range(23)]
    for number, path in enumerate(bad):
        path.write_bytes([b"caf\xe9\n", PAGE, b"a\0\0", POINTER][number % 4])
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "x"}\n{"body": "x"}\n')
    with pytest.raises(Refused) as raised:
        find_sources(f"{tmp_path}/*", TextOptions())
    first, *named, last = str(raised.value).split("\n")
    assert first == "24 of 25 input files cannot be read:"
    assert len(named) == 20 and last == "  and 4 more"
    assert [line.split()[0] for line in named] == [
        str(path) for path in [tmp_path / "bad.jsonl", *bad[:19]]
    ]


@pytest.mark.slow
def test_a_bad_byte_behind_the_head_ends_the_reading_with_every_bad_file(tmp_path, monkeypatch):
    for name in ("a", "b", "c", "d"):
        end = b"\xe9\n" if name in "bd" else b"\n"
        (tmp_path / name).write_bytes(b"A line.\n\n" * 30_000 + end)
    sources = find_sources(f"{tmp_path}/*", TextOptions())
    assert len(sources) == 4
    documents_read = []
    with pytest.raises(Refused, match=r"2 input files.*\n.*/b is not UTF-8.*\n.*/d is not UTF-8"):
        documents_read += read_sources(enumerate(sources), TextOptions())
    monkeypatch.setattr(documents, "_LOOK_SECS", 0)
    with pytest.raises(Refused, match=r"^/.*/b is not UTF-8"):
        documents_read += read_sources(enumerate(sources), TextOptions())


@pytest.mark.parametrize(
    ("flag", "value", "data", "is_used"),
    [
        ("text_key", "body", TEXT, False),
        ("text_key", "body", b'{"body": "x"}\n', True),
        ("documents", "file", b'{"text": "x"}\n', False),
        ("documents", "line", TEXT, True),
        ("documents", "gutenberg", b'<doc id="1">\nA\n</doc>', False),
        ("fallback_encoding", "cp1252", TEXT, True),
        ("fallback_encoding", "cp1252", "table", False),
        ("format", "text", TEXT, True),
    ],
)
def test_a_flag_that_no_input_uses_is_refused(tmp_path, flag, value, data, is_used):
    if data == "table":
        pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a")
    else:
        (tmp_path / "a").write_bytes(data)
    options = TextOptions(**{flag: value})
    if is_used:
        assert find_sources(f"{tmp_path}/a", options)
        return
    with pytest.raises(Refused, match=f"--{flag} is '{value}', and no input uses it"):
        find_sources(f"{tmp_path}/a", options)
    (tmp_path / "b").write_bytes(TEXT)
    (tmp_path / "b.jsonl").write_bytes(json.dumps({value: "x", "text": "y"}).encode())
    if flag == "text_key" or data == "table":
        assert len(find_sources(f"{tmp_path}/*", options)) == 3


def arrow_bytes(table: pa.Table, new=pa.ipc.new_stream, **options: str | None) -> bytes:
    file = io.BytesIO()
    with new(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


TEXTS = ["One.\n\nTwo.", None, "", "zwölf €", "five"]


@pytest.mark.parametrize(
    ("new", "name", "compression"),
    [
        (pa.ipc.new_stream, "data-00000-of-00001.arrow", "zstd"),
        (pa.ipc.new_file, "any name", None),
    ],
)
@pytest.mark.parametrize("key", ["text", "words", "content.body"])
def test_an_arrow_file_is_read_as_parquet_is(tmp_path, new, name, key, compression):
    table = pa.table(
        {
            "text": TEXTS,
            "words": pa.array(TEXTS).dictionary_encode(),
            "content": [text if text is None else {"body": text, "id": 1} for text in TEXTS],
            "n": range(5),
        }
    )
    (tmp_path / name).write_bytes(arrow_bytes(table, new, compression=compression))
    (source,) = find_sources(str(tmp_path / name), TextOptions(text_key=key))
    read_bytes: list[int] = []
    texts = list(read_documents(source, TextOptions(text_key=key), read_bytes.append))
    assert texts == [["One.", "Two."], [], [], ["zwölf €"], ["five"]]
    assert 0 < sum(read_bytes) <= source.stored_bytes
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", text_key=key) == texts


def test_a_null_among_the_texts_that_indices_name_is_a_missing_text(tmp_path):
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array(["x", None]))
    (tmp_path / "a").write_bytes(arrow_bytes(pa.table({"text": texts})))
    assert read(tmp_path / "a") == [[text] if text else [] for text in texts.to_pylist()]


@pytest.mark.parametrize("damage", ["cut", "no end", "noise", "length", "other column"])
def test_a_damaged_arrow_file_is_one_sentence(tmp_path, damage):
    table = pa.table({"text": TEXTS if damage != "other column" else range(5)})
    data = arrow_bytes(table)
    if damage in ("cut", "no end"):
        data = data[: -100 if damage == "cut" else -8]
    if damage == "noise":
        data = data[:40] + bytes(range(256)) * 9
    if damage == "length":
        data = data[:4] + b"\xff\xff\xff\x7f" + data[8:]
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(
        Refused, match=r"a\.arrow (is an? (truncated or damaged )?Arrow|has no column)"
    ) as raised:
        read(tmp_path / "a.arrow")
    assert "\n" not in str(raised.value)


WITHOUT_WIDTH = [
    *("\u200b", "\ufeff\u2060", "\u00ad", " \u200c\u200d ", "\u061c", "\x01", "\ufe0f"),
    *("\u2800", "\U0001bca0", "\U0001d173"),
]


@pytest.mark.parametrize("rule", ["blank_line", "chapters"])
def test_a_line_of_characters_without_width_separates(tmp_path, rule):
    chapter = "It was a long day at sea, and the crew slept on deck. " * 5
    for separator in WITHOUT_WIDTH:
        between = f"\n{separator}\n{separator}\n" * 2
        (tmp_path / "a").write_text(between.join(["One.", "\u200bTwo.", chapter, "Four\u200b"]))
        documents_read = read(tmp_path / "a", documents=rule)
        paragraphs = [paragraph for document in documents_read for paragraph in document]
        assert len(paragraphs) == 4, ascii(separator)
        assert "\u200bTwo." in paragraphs  # the characters stay where they stand beside others


SEAMS = [
    ("一二", "三四", ""),
    ("です。", "今日は", ""),
    ("カタ", "カナ", ""),
    ("ไทย", "ภาษา", ""),
    ("ພາ", "ສາ", ""),
    ("ភាសា", "ខ្មែរ", ""),
    ("မြန်", "မာ", ""),
    ("བོད་", "སྐད", ""),
    ("他说：“", "好", ""),
    ("好”", "他说", ""),
    ("天……", "地", ""),
    ("天…", "…地", ""),  # a row of marks that both scripts use, cut within
    ("天—", "— and", ""),
    ("天……", "” and", ""),
    ("and ”", "“天", ""),
    ("one…", "…two", " "),
    ("Python", "，好", ""),
    ("𠀀", "𠀁", ""),
    ("한국", "어", " "),
    ("中文", "and", " "),
    ("word", "中文", " "),
    ("one", "two", " "),
    ("exam\u00ad", "ple", ""),
    ("exam-", "ple", " "),
    ("“one”", "two", " "),
    ("слово", "слово", " "),
    ("हिन्दी", "भाषा", " "),
    ("عربي", "نص", " "),
]


@pytest.mark.parametrize(("left", "right", "between"), SEAMS)
def test_the_characters_at_a_seam_decide_how_lines_join(tmp_path, left, right, between):
    (tmp_path / "a").write_text(f"{left}\n{right}\r\n\r\nb")
    for rule in ("blank_line", "file", "chapters"):
        joined = [text for document in read(tmp_path / "a", documents=rule) for text in document]
        assert joined == [left + between + right, "b"], rule


TEXTS_BY_ENCODING = {
    "cp1252": "Der Größte sagte „nein“ – für 5 €.",
    "cp1251": "Это было давно, в городе.",
    "shift_jis": "昨日は雨が降っていた。",
    "gb18030": "昨天下雨了。",
    "euc-kr": "어제는 비가 왔다.",
}


@pytest.mark.parametrize("encoding", TEXTS_BY_ENCODING)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_fallback_encoding_reads_the_lines_that_are_not_utf_8(tmp_path, encoding, end):
    text = TEXTS_BY_ENCODING[encoding]
    (tmp_path / "a").write_bytes((text + end + end).encode(encoding) * 9 + "zwölf €".encode())
    (tmp_path / "b").write_text("ASCII")
    counts = documents.Counts()
    options = TextOptions(fallback_encoding=encoding)
    sources = find_sources(f"{tmp_path}/*", options)
    read_all = [text for _, (text,) in read_sources(enumerate(sources), options, counts=counts)]
    assert read_all == [text] * 9 + ["zwölf €", "ASCII"]
    assert counts == {"files_in_fallback_encoding": 1, "replaced_bytes": 0}


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "cp037", "x", "hex", "utf-7", "idna", "iso2022_jp"]
)
def test_a_fallback_without_ascii_is_refused(encoding):
    with pytest.raises(Refused, match=f"--fallback_encoding is '{encoding}'"):
        TextOptions(fallback_encoding=encoding).check()
