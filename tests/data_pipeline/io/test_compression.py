"""Compressed files: each kind against its own library, whole, joined, cut off and damaged."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
import zstandard

from data_pipeline.io import compression
from data_pipeline.io.compression import decompress
from data_pipeline.read.lines import read_lines

TEXT = b"".join(b"%d squared is %d\n" % (i, i * i) for i in range(10_000))
COMPRESS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "Zstandard": zstandard.compress,
}


def read(data: bytes, block_bytes: int = 1 << 16) -> bytes:
    return b"".join(decompress("a.txt", io.BytesIO(data), block_bytes))


@pytest.mark.parametrize("kind", COMPRESS)
def test_every_kind_is_read_in_blocks_alone_and_joined(kind):
    compress = COMPRESS[kind]
    assert read(compress(TEXT)) == TEXT
    assert read(compress(TEXT) + compress(b"") + compress(b"end")) == TEXT + b"end"
    blocks = list(decompress("a.txt", io.BytesIO(compress(5 * TEXT)), 1000))
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


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_small_file_of_much_text_comes_in_pieces(monkeypatch, kind):
    monkeypatch.setattr(compression, "_PIECE_BYTES", 64)
    data = COMPRESS[kind](bytes(1 << 24))
    sizes = [len(block) for block in decompress("a", io.BytesIO(data), 1 << 10)]
    assert sum(sizes) == 1 << 24 and max(sizes) <= 1 << 22


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_file_that_is_cut_off_is_refused(kind, share):
    whole = COMPRESS[kind](TEXT)
    with pytest.raises(
        ValueError, match=rf"^a\.txt is a truncated {kind} file, which ends after \d+"
    ):
        read(whole[: int(share * len(whole))])


def overwritten(data: bytes, start: int, instead: bytes) -> bytes:
    return data[:start] + instead + data[start + len(instead) :]


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize(
    "damage", ["middle", "head of a later stream", "later stream", "text after"]
)
def test_a_damaged_file_is_refused_and_what_follows_it_is_not_taken_for_text(kind, damage):
    whole, first, second = map(COMPRESS[kind], (TEXT, b"one\n" * 250, b"two\n" * 250))
    data = {
        "middle": overwritten(whole, len(whole) // 2, bytes(100)),
        "head of a later stream": first + overwritten(second, 0, b"\xff" * 8) + first * 50,
        "later stream": first + overwritten(second, 20, b"\xff" * 8) + first * 50,
        "text after": whole + b"and more than a header",
    }
    with pytest.raises(ValueError, match=rf"^a\.txt is a damaged {kind} file \(.+\); copy"):
        read(data[damage])


def test_zeros_may_follow_each_stream_of_an_xz_file():
    padded = lzma.compress(TEXT) + bytes(8)
    assert read(padded + lzma.compress(b"end") + bytes(1 << 16)) == TEXT + b"end"


def test_archives_are_refused_by_name():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", TEXT)
    with pytest.raises(ValueError, match=r"a\.txt is a zip archive, which.* unpack it.*docx"):
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
