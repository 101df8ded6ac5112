"""Read the lines of stored files: decode UTF-8, and refuse what is no text or too large.

A document is handled in one piece, so its largest size bounds the memory of a build.
"""

import functools
import io
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from data_pipeline.io.compression import decompress
from data_pipeline.io.files import open_file
from data_pipeline.io.refused import Refused

# A process took 145 MB on 1,422 chapters and 1.45 GB on one document of 60 MB.
MAX_DOCUMENT_BYTES = 64 << 20
# A line of one letter takes 60 bytes and more as a string of its own.
LEAST_LINE_BYTES = 16


def add_size(address: str, size_bytes: int, text: str) -> int:
    """Return the size in bytes of UTF-8 of a document of `size_bytes` with `text` added to it.

    A short line counts as LEAST_LINE_BYTES, so this bounds how many lines there are too. Call it
    while a document is read: it raises Refused before one without an end fills memory.
    """
    added_bytes = len(text) if text.isascii() else len(text.encode())
    if added_bytes < LEAST_LINE_BYTES:
        added_bytes = LEAST_LINE_BYTES
    elif added_bytes > MAX_DOCUMENT_BYTES // LEAST_LINE_BYTES:  # less has few enough line ends
        line_ends = max(text.count("\n"), text.count("\r"))
        added_bytes = max(added_bytes, LEAST_LINE_BYTES * line_ends)
    size_bytes += added_bytes
    if size_bytes > MAX_DOCUMENT_BYTES:  # as in check_size; a call for each line would cost time
        check_size(address, size_bytes)
    return size_bytes


def check_size(address: str, size_bytes: int) -> None:
    """Raise Refused if a document has more than MAX_DOCUMENT_BYTES."""
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise Refused(
            f"{address} has a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB (lines of fewer "
            f"than {LEAST_LINE_BYTES} bytes count as {LEAST_LINE_BYTES}), the largest "
            "that is handled in one piece; put blank lines between documents, or split the file"
        )


_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 128 << 10  # of a file, from which its format is detected
_MARK = "\ufeff"
_BLANK_RUN = re.compile("\n{16,}")
_RETURNS_RUN = "\r\n" * 16
_OTHER_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class BlankLines(str):
    """Stand for several empty lines; itself an empty string."""

    lines: int

    def __new__(cls, lines: int) -> "BlankLines":
        run = super().__new__(cls)
        run.lines = lines
        return run


def numbered_lines(lines: Iterable[str], first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a run of empty lines has the number of its first."""
    number = first
    for line in lines:
        yield number, line
        number += line.lines if isinstance(line, BlankLines) else 1


def read_lines(
    address: str, advance: Callable[[int], None], joins_blank: bool = False
) -> Iterator[str]:
    """Yield the lines of a file; `advance` is called with the stored bytes that were read.

    With `joins_blank` a long run of empty lines is yielded as two, the second of them a BlankLines:
    a small compressed file may hold hundreds of millions.

    A line ends at a line feed, a carriage return, or both; of both, the line may keep the carriage
    return, as removing it from every line takes longer than finding the lines. A byte order mark at
    the start of a line is dropped: files that were joined have one wherever a file began.

    Raises Refused for a file that is gone, cut off or damaged, for binary data, for bytes that
    are not UTF-8 and for a line over MAX_DOCUMENT_BYTES.
    """
    yield from _split_blocks(address, _blocks(address, advance), joins_blank)


def read_stream(name: str, stream: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a pipe as they arrive, by the rules of read_lines, plain text alone."""
    blocks = iter(functools.partial(stream.read1, _BLOCK_BYTES), b"")
    yield from _split_blocks(name, _check_blocks(name, blocks), joins_blank=False)


def _split_blocks(address: str, blocks: Iterable[bytes], joins_blank: bool) -> Iterator[str]:
    rest = b""
    offset = 0  # of `rest` in the (decompressed) text
    line_ends = 0
    for block in blocks:
        block = rest + block
        # UTF-8 has neither byte inside a character. A carriage return at the very end may be half
        # of a line's end, so it waits for the next block.
        cut = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
        rest = block[cut:]
        line_ends += block.count(b"\n", 0, cut)
        check_size(f"{address} line {line_ends + 1:,}", len(rest))
        if cut:
            yield from _decoded(address, block[:cut], offset, joins_blank)
        offset += cut
    if rest:
        yield from _decoded(address, rest, offset, joins_blank)


def read_head(address: str) -> bytes:
    """Return the first bytes of a file, decompressed; none if it is empty."""
    with open_file(address, _HEAD_BYTES) as stored:
        return next(decompress(address, stored, _HEAD_BYTES), b"")


def split_paragraphs(text: str) -> list[str]:
    """Return the lines with text in them, for formats in which a line is a paragraph."""
    if "\r" in text:
        text = text.replace("\r", "\n")  # of a pair, both: the line between them has no text
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def _decoded(address: str, data: bytes, offset: int, joins_blank: bool) -> list[str]:
    """Return the lines of a block of complete lines, the last of which may end with the file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(
            f"{address} is not UTF-8: byte 0x{data[error.start]:02x} at byte offset "
            f"{offset + error.start} ({error.reason}); convert it first, "
            f"as in: iconv -f LATIN1 -t UTF-8 {address}"
        ) from error
    if b"\r" in data and _has_lone_return(data):
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _MARK in text:
        text = text.removeprefix(_MARK).replace("\n" + _MARK, "\n")
    lines = _split(text) if joins_blank else text.split("\n")
    if not lines[-1]:
        lines.pop()  # the text after the last line's end belongs to the next block
    return lines


def _split(text: str) -> list[str]:
    """Return the lines of a text, with long runs of empty ones as BlankLines."""
    if _RETURNS_RUN in text:
        text = text.replace("\r\n", "\n")
    lines: list[str] = []
    start = 0
    for run in _BLANK_RUN.finditer(text):
        lines += text[start : run.start()].split("\n")
        lines += ["", BlankLines(run.end() - run.start() - 2)]
        start = run.end()
    lines += text[start:].split("\n")
    return lines


def _has_lone_return(data: bytes) -> bool:
    """Return whether a carriage return has no line feed after it."""
    bytes_N = np.frombuffer(data, np.uint8)
    return data.endswith(b"\r") or bool(((bytes_N[:-1] == 13) & (bytes_N[1:] != 10)).any())


def _blocks(address: str, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, a block at a time, refusing binary data."""
    reported_bytes = 0
    with open_file(address) as stored:
        for block in _check_blocks(address, decompress(address, stored, _BLOCK_BYTES)):
            advance(stored.tell() - reported_bytes)
            reported_bytes = stored.tell()
            yield block
        advance(stored.tell() - reported_bytes)  # the end of a compressed file holds no text


def _check_blocks(address: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    offset = 0
    for block in blocks:
        check_is_text(address, block, offset)
        offset += len(block)
        yield block


def check_is_text(address: str, block: bytes, offset: int) -> None:
    """Raise Refused for UTF-16 and for binary data in a block that begins at `offset`."""
    if offset == 0:
        for mark, encoding in _OTHER_MARKS.items():
            if block.startswith(mark):
                raise Refused(
                    f"{address} is {encoding} by its byte order mark, and UTF-8 is needed; convert "
                    f"it first, as in: iconv -f {encoding} -t UTF-8 {address}"
                )
    if (nul := block.find(b"\0")) >= 0:
        raise Refused(
            f"{address} is binary data, not text: a NUL byte at byte offset "
            f"{offset + nul}; give UTF-8 text (UTF-16 must be converted first)"
        )
