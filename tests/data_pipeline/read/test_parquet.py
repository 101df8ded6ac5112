"""Parquet against pyarrow's own reading of it, and what can be wrong with a table."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.read import lines, parquet
from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import Source

TEXTS = [
    f"Document {i}.\n\n Its second paragraph, the {i * i}th.\r\n" * (1 + i % 3) for i in range(997)
]


def source_of(path: pathlib.Path) -> Source:
    return Source(str(path), path.stat().st_size)


def read(path: pathlib.Path, key: str = "text", told: list[int] | None = None) -> list[list[str]]:
    told = [] if told is None else told
    return list(read_documents(source_of(path), TextOptions(text_key=key), told.append))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_rows_are_documents_and_their_lines_paragraphs(tmp_path, monkeypatch, kind, compression):
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 5000)
    table = pa.table(
        {
            "info": [{"text": "not this", "id": i} for i in range(len(TEXTS))],
            "text": pa.array(TEXTS).cast(kind),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=211, compression=compression)
    told: list[int] = []
    expected = [
        [line.strip() for line in text.splitlines() if line.strip()]
        for text in pq.read_table(path)["text"].cast(pa.string()).to_pylist()
    ]
    assert read(path, told=told) == expected
    assert sum(told) == path.stat().st_size and len(told) > 4


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_shard_whose_texts_are_all_missing_has_empty_documents(tmp_path, name):
    table = pa.table({"text": [None] * 3, "id": [1, 2, 3]})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    assert read(tmp_path / name) == [[]] * 3
    with pytest.raises(ValueError, match=r"its columns are text \(null\), id \(int64\)"):
        read(tmp_path / name, key="id")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
def test_rows_that_share_a_long_text_do_not_take_its_bytes_each(tmp_path, encoding):
    path = tmp_path / "table"
    text = "A sentence that comes again. " * 10_000  # 0.3 MB, 290 MB in 1,024 rows
    other = {} if encoding == "RLE_DICTIONARY" else {"column_encoding": {"text": encoding}}
    table = pa.table({"text": pa.array([text] * 1024)})
    pq.write_table(table, path, compression="zstd", use_dictionary=not other, **other)
    assert path.stat().st_size < 40_000
    del table
    documents = read_documents(source_of(path), TextOptions())
    before = pa.total_allocated_bytes()
    most_bytes = 0
    for number in range(8):
        assert next(documents) == [text.strip()], number
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before)
    assert most_bytes < 96 << 20


def test_copies_of_a_text_as_long_as_its_group_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    path = tmp_path / "table"
    pq.write_table(pa.table({"text": ["ab " * 500] * 512}), path)
    group_bytes = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    monkeypatch.setattr(parquet, "_MAX_SHARED_BYTES", 2 * group_bytes)
    batches = parquet._parquet_batches(str(path), path.stat().st_size, "text", [].append)
    assert {len(batch) for batch in batches} == {2}


def test_a_column_that_no_text_packs_so_small_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "table"
    pq.write_table(pa.table({"text": ["x" * 5_000_000]}), path, compression="zstd")
    assert len(read(path)) == 1
    monkeypatch.setattr(parquet, "_LARGE_BYTES", 1 << 20)
    with pytest.raises(ValueError, match=r"/table has 5,\d+,\d+ bytes of 'text' packed into"):
        read(path)


def test_a_batch_of_arrow_that_is_too_large_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["x" * 5_000] * 10})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    monkeypatch.setattr(parquet, "_MAX_ARROW_BYTES", 20_000)
    assert len(read(path)) == 10
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=r"/a\.arrow has a batch of 5\d,\d+ bytes, and at most 20"):
        read(path)


def test_cut_off_and_damaged_tables_are_refused(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.table({"text": TEXTS}), path, write_page_checksum=True)
    whole = path.read_bytes()
    sentence = r"/table is a truncated or damaged Parquet file \(.+\); copy or download it again"
    for data in (whole[:-1], whole[: len(whole) // 2], b"PAR1", b"PAR1" + bytes(999)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=sentence):
            read(path)
    pq.write_table(pa.table({"text": TEXTS, "id": TEXTS}), path, store_schema=False)
    not_utf8 = path.read_bytes().replace(b"id", b"i\xff")
    for data in (whole[:200] + bytes(50) + whole[250:], not_utf8):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=sentence):
            read(path)


def test_a_text_that_is_not_utf_8_or_too_long_is_refused_by_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 100)
    offsets = pa.array([0, 2, 5], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ok\xed\xa0\x80")])
    path = tmp_path / "table"
    for texts, words in (
        (broken, r"/table has text that is not UTF-8 in row 2 \(inval"),
        (["x" * 100, "é" * 51], r"/table row 2 has a document of more than"),
    ):
        pq.write_table(pa.table({"text": texts}), path)
        with pytest.raises(ValueError, match=words):
            read(path)


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError("no answer")])
def test_a_lost_connection_is_no_damage(error):
    with pytest.raises(type(error)), parquet.explain_damage("hf://datasets/a/b/c.parquet"):
        raise error
