"""A JSON document read a value at a time: the same values as json.loads, at any block size."""

import json

import pytest

from data_pipeline.io import json_stream
from data_pipeline.io.json_stream import JsonStream
from data_pipeline.io.small_files import DamagedFile

VALUES = ['ä\n"]}{[,:', 7, -1.5e-3, None, True, [], {}, [[1], {"a": [2]}], "\u2028\U0001f600", ""]


def pieces(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize("indent", [None, 3])
def test_values_are_those_of_the_library(monkeypatch, size, indent):
    monkeypatch.setattr(json_stream, "_BLOCK_CHARS", 1)
    data = json.dumps({"data": VALUES, "last": 12}, indent=indent, ensure_ascii=size == 7)
    stream = JsonStream(pieces(b"\xef\xbb\xbf" + data.encode() + b" \n", size), "file")
    found = {}
    for key in stream.members("file"):
        found[key] = (
            [stream.value() for _ in stream.items("data")] if key == "data" else stream.value()
        )
    stream.end()
    assert found == {"data": VALUES, "last": 12}


def test_memory_holds_a_value_not_the_document():
    item = b'{"text": "' + b"a" * 1000 + b'"}'
    read = 0

    def blocks():
        nonlocal read
        yield b"["
        for number in range(1000):
            read += 1
            yield item + (b"," if number < 999 else b"]")

    stream = JsonStream(blocks(), "file")
    for number in stream.items("file"):
        assert stream.value() == {"text": "a" * 1000}
        assert read - number <= 2 * json_stream._BLOCK_CHARS // 1000 + 2
    stream.end()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "file is not JSON"),
        (b"\0\0\0", "file is not JSON"),
        (b"{", "a key in double quotes is missing at line 1, column 2"),
        (b'{"a" 1}', "a colon is missing at line 1, column 6"),
        (b'{"a": 1 "b": 2}', "is missing at line 1, column 9"),
        (b'{"a": 1,}', "a key in double quotes is missing"),
        (b'{"a":\n tru', "Expecting value at line 2, column 2"),
        (b'{"a": 1', "is missing at line 1, column 8"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7"),
        (b'{"a": "\xc3', "is not UTF-8 at byte"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b'{"a": ' + b"[" * 100_000, "nested deeper than 64"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_damage_is_a_sentence(data, words):
    with pytest.raises(DamagedFile, match=words) as caught:
        stream = JsonStream(pieces(data, 1 << 14), "file")
        for _ in stream.members("file"):
            stream.value()
    assert "\n" not in str(caught.value)


def test_a_value_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(json_stream, "MAX_BYTES", 1 << 18)
    endless = (b'["' if number == 0 else b"a" * 4096 for number in range(1 << 20))
    stream = JsonStream(endless, "file")
    with pytest.raises(DamagedFile, match="or never ends"):
        list(zip(stream.items("file"), iter(stream.value, None), strict=False))
