"""Compressed files: each kind against its own library, whole, joined, cut off and damaged."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
import zstandard

from data_pipeline import compression
from data_pipeline.compression import decompressed
from data_pipeline.lines import read_lines

TEXT = b"".join(b"%d squared is %d\n" % (i, i * i) for i in range(20_000))
COMPRESS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "Zstandard": zstandard.compress,
}


def read(data: bytes, block_bytes: int = 1 << 16) -> bytes:
    return b"".join(decompressed("a.txt", io.BytesIO(data), block_bytes))


@pytest.mark.parametrize("kind", COMPRESS)
def test_every_kind_is_read_in_blocks_alone_and_joined(kind):
    compress = COMPRESS[kind]
    assert read(compress(TEXT)) == TEXT
    assert read(compress(TEXT) + compress(b"") + compress(b"end")) == TEXT + b"end"
    blocks = list(decompressed("a.txt", io.BytesIO(compress(TEXT)), 1000))
    assert len(blocks) > 1 and min(map(len, blocks[:-1])) >= 1000


def test_plain_bytes_are_as_they_are():
    for data in (TEXT, b"", b"B", b"BZh9 is how a text may begin\n", b"\x1f is no gzip\n"):
        assert read(data) == data


def test_zstandard_frames_without_a_size_with_long_windows_or_to_be_skipped_are_read():
    long = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=long).compressobj()
    data = frame.compress(TEXT) + frame.flush()
    skipped = b"\x50\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"skipped"
    assert read(skipped + data + skipped) == TEXT


def test_a_small_file_of_much_text_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(compression, "_ZSTD_PIECE_BYTES", 64)
    data = zstandard.compress(bytes(1 << 24))
    sizes = [len(block) for block in decompressed("a", io.BytesIO(data), 1 << 10)]
    assert sum(sizes) == 1 << 24 and max(sizes) <= 1 << 22


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_file_that_is_cut_off_is_refused(kind, share):
    whole = COMPRESS[kind](TEXT)
    with pytest.raises(ValueError, match=rf"^a\.txt is a {kind} file that ends early, after \d+"):
        read(whole[: int(share * len(whole))])


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_damaged_file_is_refused(kind):
    data = bytearray(COMPRESS[kind](TEXT))
    middle = len(data) // 2
    data[middle : middle + 100] = bytes(100)
    with pytest.raises(ValueError, match=rf"^a\.txt is a damaged {kind} file \(.+\); copy"):
        read(bytes(data))


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_file_of_many_streams_is_read_to_its_end(kind):
    pieces = [TEXT[start : start + 9973] for start in range(0, len(TEXT), 9973)]
    assert len(pieces) > 40
    assert read(b"".join(map(COMPRESS[kind], pieces)), block_bytes=1009) == TEXT


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("damaged_from", [0, 20])
def test_damage_in_a_later_stream_is_refused(kind, damaged_from):
    first, second = COMPRESS[kind](b"one\n" * 250), bytearray(COMPRESS[kind](b"two\n" * 250))
    second[damaged_from : damaged_from + 8] = b"\xff" * 8
    with pytest.raises(ValueError, match=rf"^a\.txt is a damaged {kind} file \(.+\); copy"):
        read(first + bytes(second) + first * 50)


@pytest.mark.parametrize("kind", COMPRESS)
def test_what_follows_a_compressed_file_is_not_taken_for_text(kind):
    with pytest.raises(ValueError, match=rf"a\.txt is a damaged {kind} file"):
        read(COMPRESS[kind](TEXT) + b"and more than a header")


def test_zeros_may_follow_each_stream_of_an_xz_file():
    padded = lzma.compress(TEXT) + bytes(8)
    assert read(padded + lzma.compress(b"end") + bytes(1 << 16)) == TEXT + b"end"


def test_archives_are_refused_by_name():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", TEXT)
    with pytest.raises(ValueError, match=r"a\.txt is a zip archive, which is not read; unpack it"):
        read(archive.getvalue())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        file.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(ValueError, match=r"a\.txt is a tar archive, which is not read; unpack it"):
        read(archive.getvalue())


def test_an_xz_file_that_wants_gigabytes_for_its_dictionary_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.xz"
    path.write_bytes(
        lzma.compress(b"text\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 24}])
    )
    assert list(read_lines(str(path), lambda stored_bytes: None)) == ["text"]
    monkeypatch.setattr(compression, "_XZ_MEMORY_BYTES", 1 << 20)
    with pytest.raises(ValueError, match=r"/a\.xz is a damaged xz file \(.*[Mm]emory"):
        list(read_lines(str(path), lambda stored_bytes: None))
