"""Lines of text: their ends, byte order marks, and what is no text."""

import gzip
import pathlib

import pytest

from data_pipeline.io import Refused
from data_pipeline.read import lines
from data_pipeline.read.lines import read_lines


def read(path: pathlib.Path, data: bytes) -> list[str]:
    path.write_bytes(data)
    return [line.removesuffix("\r") for line in read_lines(str(path), lambda stored_bytes: None)]


@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("end", "last"), [("\n", ""), ("\r\n", "last"), ("\r\r\n", "last"), ("\r", "last")]
)
def test_a_line_ends_as_on_any_system(tmp_path, monkeypatch, block_bytes, end, last):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
    expected = ["one", "", "zwölf €", "", "", "𝒳"]
    data = "".join(line + end for line in expected) + last
    assert read(tmp_path / "a", data.encode()) == expected + [last] * bool(last)


@pytest.mark.parametrize("block_bytes", [1, 4, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_joined_files_leave_no_byte_order_mark_at_a_line(tmp_path, monkeypatch, block_bytes, end):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
    data = f"\ufeffone{end}\ufefftwo\ufeff{end}"
    assert read(tmp_path / "a", data.encode()) == ["one", "two\ufeff"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
def test_other_encodings_are_read_by_their_byte_order_mark(
    tmp_path, monkeypatch, encoding, block_bytes
):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", block_bytes)
    assert read(tmp_path / "a", "\ufeffeins\r\nzwölf €\n𝒳".encode(encoding)) == [
        "eins",
        "zwölf €",
        "𝒳",
    ]
    if encoding.startswith("utf-16"):
        with pytest.raises(Refused, match=f"looks like UTF-16{encoding[-2:].upper()}"):
            read(tmp_path / "a", "text without a mark".encode(encoding))


BAD_TEXT = {
    "half a pair": ("\ud800".encode("utf-8", "surrogatepass"), r"byte 0xed at byte offset 7 "),
    "latin-1": ("é".encode("latin-1"), r"byte 0xe9 at byte offset 7 "),
    "overlong": (b"\xc0\xaf", r"byte 0xc0 at byte offset 7 "),
    "cut character": (b"\xe2\x82", r"byte 0xe2 at byte offset 7 "),
}


@pytest.mark.parametrize("case", BAD_TEXT)
@pytest.mark.parametrize("end", [b"\r\n", b"\n\r", b"\r\r"])
def test_bytes_that_are_not_utf_8_are_refused_at_their_place(tmp_path, case, end):
    data, sentence = BAD_TEXT[case]
    with pytest.raises(ValueError, match=rf"/a is not UTF-8: {sentence}"):
        read(tmp_path / "a", b"12345" + end + data)
    with pytest.raises(ValueError, match=rf"/a is not UTF-8: {sentence}"):
        read(tmp_path / "a", gzip.compress(b"12345" + end + data))
