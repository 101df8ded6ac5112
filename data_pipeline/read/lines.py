"""Read the lines of stored files: decode them, and refuse binary data and long documents.

A document is handled in one piece, so its largest size bounds the memory of a build.
"""

import codecs
import collections
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from data_pipeline.io import Refused
from data_pipeline.io.compression import PLAIN, decompress, find_compression
from data_pipeline.io.file_kinds import HEAD_BYTES, find_stand_in
from data_pipeline.io.files import open_file
from data_pipeline.read.cleaning import Changed, Counted

# A process took 145 MB on 1,422 chapters and 1.45 GB on one document of 60 MB.
MAX_DOCUMENT_BYTES = 64 << 20
# A line of one letter takes 60 bytes and more as a string of its own.
MIN_LINE_BYTES = 16
# They end a line within a text too (Unicode UAX #14: BK). BERT's normalizer drops the first two,
# which would join the words around them.
_BREAKS = "\v\f\u2028\u2029"


def add_size(address: str, size_bytes: int, text: str) -> int:
    """Return a document's size in UTF-8 bytes after `text` is added to its `size_bytes`.

    A short line counts as MIN_LINE_BYTES, so this bounds how many lines there are too. Call it
    while a document is read: it raises Refused before one without an end fills memory.
    """
    added_bytes = len(text) if text.isascii() else len(text.encode())
    if added_bytes < MIN_LINE_BYTES:
        added_bytes = MIN_LINE_BYTES
    elif (
        added_bytes > MAX_DOCUMENT_BYTES // MIN_LINE_BYTES
    ):  # a shorter text has few enough line ends
        line_ends = max(map(text.count, f"\n\r{_BREAKS}"))
        added_bytes = max(added_bytes, MIN_LINE_BYTES * line_ends)
    size_bytes += added_bytes
    if size_bytes > MAX_DOCUMENT_BYTES:  # check_size inlined: a call per line would cost time
        check_size(address, size_bytes)
    return size_bytes


def check_size(address: str, size_bytes: int) -> None:
    """Raise Refused if a document has more than MAX_DOCUMENT_BYTES."""
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise Refused(
            f"{address} has a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB (lines of fewer "
            f"than {MIN_LINE_BYTES} bytes count as {MIN_LINE_BYTES}), the largest "
            "that is handled in one piece; put blank lines between documents, split the file, or "
            "make each line of plain text a document by --documents=line"
        )


_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 128 << 10  # read from each file to detect its format and check its start
_UTF16_SHARE = 0.1  # smallest share of UTF-16 characters that have a NUL byte
_MARK = "\ufeff"
_OTHER_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_MAX_MARK_BYTES = 4
_ESCAPES = {  # they begin encodings whose bytes are ASCII
    **dict.fromkeys((b"\x1b$B", b"\x1b$@"), "ISO-2022-JP"),
    b"\x1b$)C": "ISO-2022-KR",
    b"\x1b$)A": "ISO-2022-CN",
}

Advance = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Set how lines are decoded: as UTF-8, and lines that are not UTF-8 by `fallback`, if any.

    A fallback of None means that the command has no flag for it. Lines decoded by the fallback are
    counted in `counts`.
    """

    fallback: str | None = None
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass(frozen=True)
class FileHead:
    """Hold the first bytes of a file, decompressed; UTF-16 with a byte order mark is now UTF-8."""

    data: bytes
    is_whole: bool  # the file has no more bytes
    is_compressed: bool


class HeadEndsError(Exception):
    """Stop a reader at the end of a head, in the middle of its file."""


def read_lines(address: str, advance: Advance, decoding: Decoding | None = None) -> Iterator[str]:
    """Yield the lines of a file; `advance` is called with the stored bytes that were read.

    A line ends at LF, CR, CR LF, or CR CR LF (Windows' text mode writes this for CR LF). The line
    may keep the CR of a CR LF: removing it from every line takes longer than finding the lines. A
    byte order mark at the start of a line is dropped, as a joined file has one wherever a file
    began. UTF-16 and UTF-32 are read if a mark opens the file.

    Without `decoding` a pointer, a page or a dump is refused: its caller has not looked at the
    file. Raises Refused for a file that is gone, cut off or damaged, for binary data, for bytes
    that are not UTF-8 and for a line over MAX_DOCUMENT_BYTES.
    """
    blocks = _blocks(address, advance)
    if decoding is None:
        decoding, blocks = Decoding(), _refuse_stand_in(address, blocks)
    yield from _split_blocks(address, blocks, decoding)


def read_stream(name: str, stream: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a pipe as they arrive, by the rules of read_lines, plain text alone."""
    blocks = iter(functools.partial(stream.read1, _BLOCK_BYTES), b"")
    checked = _check_blocks(name, _transcode(name, blocks))
    yield from _split_blocks(name, checked, Decoding())


def read_head(address: str) -> FileHead:
    """Read the first bytes of a file; raise as read_lines does for what they show."""
    with open_file(address, _HEAD_BYTES) as stored:
        start = stored.read(_MAX_MARK_BYTES + 12)
        stored.seek(0)
        blocks = decompress(address, stored, _HEAD_BYTES)
        data = first = next(blocks, b"")
        if first.startswith(tuple(_OTHER_MARKS)):
            data = b"".join(_transcode(address, [first], is_whole=len(first) < _HEAD_BYTES))
        return FileHead(data, len(first) < _HEAD_BYTES, find_compression(start) != PLAIN)


def read_head_lines(address: str, head: FileHead, decoding: Decoding) -> Iterator[str]:
    """Yield the complete lines of a head, checked and decoded; raise HeadEndsError if it is cut."""
    check_is_text(address, head.data, 0)
    cut = len(head.data) if head.is_whole else max(map(head.data.rfind, (b"\n", b"\r"))) + 1
    yield from _split_blocks(address, [head.data[:cut]] if cut else [], decoding)
    if head.is_whole:
        return
    if not decoding.fallback:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head.data[cut:])
        except UnicodeDecodeError as error:
            raise Refused(_describe_bytes(address, error, cut, decoding)) from error
    raise HeadEndsError


def _split_blocks(address: str, blocks: Iterable[bytes], decoding: Decoding) -> Iterator[str]:
    is_utf8 = True
    for data, offset in _cut_at_line_ends(address, blocks):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            if not decoding.fallback:
                raise Refused(_describe_bytes(address, error, offset, decoding)) from error
            decoding.counts[Changed.FALLBACK_FILES] += is_utf8  # once for each file
            is_utf8 = False
            text = "\n".join(_decode_line(line, decoding) for line in data.split(b"\n"))
        yield from _split_text(data, text)


def _cut_at_line_ends(address: str, blocks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of complete lines, each with its offset in bytes; the last may lack an end."""
    rest = b""
    offset = 0  # byte offset of `rest`
    line_ends = 0
    for block in blocks:
        block = rest + block
        # UTF-8 has neither byte inside a character. Carriage returns at the very end may be part of
        # a line's end, so they wait for the next block.
        cut = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -2)) + 1
        rest = block[cut:]
        line_ends += block.count(b"\n", 0, cut)
        check_size(f"{address} line {line_ends + 1:,}", len(rest))
        if cut:
            yield block[:cut], offset
        offset += cut
    if rest:
        yield rest, offset


def _decode_line(line: bytes, decoding: Decoding) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode(decoding.fallback or "", "replace")
        decoding.counts[Changed.REPLACED_BYTES] += text.count("\ufffd")
        return text


def split_paragraphs(place: str, text: str) -> list[str]:
    """Return the lines with text in a document of a format in which a line is a paragraph.

    Raises Refused, with its place, for a document over MAX_DOCUMENT_BYTES.
    """
    add_size(place, 0, text)
    text = _replace_breaks(
        text.replace("\r", "\n")
    )  # "\r\n" becomes two ends: no text is between them
    return [stripped for line in text.split("\n") if (stripped := line.strip())]


def _replace_breaks(text: str) -> str:
    for character in _BREAKS:
        text = text.replace(character, "\n")
    return text


def _describe_bytes(
    address: str, error: UnicodeDecodeError, offset: int, decoding: Decoding
) -> str:
    """Describe bytes that are not UTF-8, without a guess at what they are."""
    by_flag = (
        ""
        if decoding.fallback is None
        else ", or give it: --fallback_encoding=cp1252 (Western Europe), cp1251 (Cyrillic), "
        "shift_jis, gb18030 or another reads the lines that are not UTF-8"
    )
    return (
        f"{address} is not UTF-8: byte 0x{error.object[error.start]:02x} at byte offset "
        f"{offset + error.start} ({error.reason}); convert it from the encoding that it was "
        f"written in (iconv -f ENCODING -t UTF-8){by_flag}"
    )


def _split_text(data: bytes, text: str) -> list[str]:
    if b"\r" in data and data.count(b"\r") > data.count(b"\r\n"):  # some lines end in CR alone
        text = text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")
    if _MARK in text:
        text = text.removeprefix(_MARK).replace("\n" + _MARK, "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # the text after the last line's end belongs to the next block
    return lines


def _blocks(address: str, advance: Advance) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, a block at a time, refusing binary data."""
    reported_bytes = 0
    with open_file(address) as stored:
        for block in decode_blocks(address, stored):
            advance(stored.tell() - reported_bytes)
            reported_bytes = stored.tell()
            yield block
        advance(stored.tell() - reported_bytes)  # the end of a compressed file holds no text


def decode_blocks(address: str, stored: BinaryIO) -> Iterator[bytes]:
    """Yield an open file a block at a time: decompressed, UTF-16 by its mark as UTF-8, no NUL."""
    return _check_blocks(address, _transcode(address, decompress(address, stored, _BLOCK_BYTES)))


def _transcode(address: str, blocks: Iterable[bytes], is_whole: bool = True) -> Iterator[bytes]:
    """Turn UTF-16 and UTF-32 with a byte order mark into UTF-8, and leave all else as it is."""
    blocks = iter(blocks)
    start = b""
    while len(start) < _MAX_MARK_BYTES and (block := next(blocks, b"")):
        start += block
    encoding = next((name for mark, name in _OTHER_MARKS.items() if start.startswith(mark)), "")
    if not encoding:
        yield from filter(None, itertools.chain([start], blocks))
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for block in itertools.chain([start], blocks):
            yield decoder.decode(block).encode()
        decoder.decode(b"", final=is_whole)
    except UnicodeError as error:
        raise Refused(
            f"{address} is {encoding} by its byte order mark but has bytes that do not decode "
            f"({error}); write or copy it again"
        ) from error


def _refuse_stand_in(address: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    for number, block in enumerate(blocks):
        if number == 0 and (kind := find_stand_in(block[:HEAD_BYTES])):
            raise Refused(
                f"{address} looks like {kind.looks}, where a line is a text; {kind.makes_text}, or "
                "pipe it in (-) to read it as it is"
            )
        yield block


def _check_blocks(address: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    offset = 0
    for block in blocks:
        check_is_text(address, block, offset)
        offset += len(block)
        yield block


def check_is_text(address: str, block: bytes, offset: int) -> None:
    """Raise Refused for NUL bytes; at offset 0 also for a recognized encoding other than UTF-8."""
    if offset == 0 and (name := _guess_encoding(block)):
        raise Refused(
            f"{address} looks like {name} text, and UTF-8 is needed (or UTF-16 with its byte order "
            f"mark); convert it, as in: iconv -f {name} -t UTF-8 {address}"
        )
    nul = block.find(b"\0")
    if nul >= 0:
        raise Refused(
            f"{address} is binary data, not text: a NUL byte at byte offset "
            f"{offset + nul}; give text in UTF-8, or in UTF-16 with its byte order mark"
        )


def _guess_encoding(block: bytes) -> str:
    """Return the encoding of text that UTF-8 would decode to wrong characters; else ""."""
    if b"\0" not in block:
        return next((name for escape, name in _ESCAPES.items() if escape in block), "")
    start = block[: 2 * (HEAD_BYTES // 2)]
    for first, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        nuls, others = start[first::2].count(0), start[1 - first :: 2].count(0)
        if nuls >= max(2, _UTF16_SHARE * len(start) / 2) and not others:
            return name
    return ""


# Characters without width (Unicode: Cc, Cf and others of Default_Ignorable_Code_Point), and the
# blank of braille.
_NO_WIDTH = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_PLANES = itertools.chain(range(0x10000), range(0x1BC00, 0x1D200), range(0xE0000, 0xE1000))
NO_WIDTH = frozenset(re.findall(f"[{_NO_WIDTH}]", "".join(map(chr, _PLANES))))
_IS_INVISIBLE = re.compile(rf"[{_NO_WIDTH}\s]+").fullmatch


def strip_line(line: str) -> str:
    """Strip the white space around a line; return "" if none of its characters is visible."""
    stripped = line.strip()
    if stripped[:1] in NO_WIDTH and _IS_INVISIBLE(stripped):
        return ""
    return stripped


# Scripts that put no space between words (UAX #14: SA and ID, and Tibetan), with their
# punctuation; not Hangul. Source: https://www.w3.org/TR/css-text-3/#line-break-transform.
_NO_SPACE = (
    "\u0e01-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff"
    "\uaa60-\uaadf\u2e80-\u2fdf\u3001-\u312f\u3190-\u4dbf\u4e00-\ua4cf\uf900-\ufaff"
    "\ufe10-\ufe1f\ufe30-\ufe6f\uff01-\uff9f\uffe0-\uffe6\U00011700-\U0001174f"
    "\U0001b000-\U0001b2ff\U00020000-\U0003ffff"
)
# Marks of those scripts and others: a run of them next to such a script is joined without space.
_NEUTRAL = "\u2010-\u2026\u200b-\u200d\ufe00-\ufe0f\u00b7"
# Punctuation as wide as a Chinese character holds its own space. A soft hyphen is never a word's.
_WIDE_MARKS = (
    "\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
)
_AFTER_NO_SPACE = "|".join(f"(?<=[{_NO_SPACE}][{_NEUTRAL}]{{{n}}}.)" for n in range(3))
_SEAM = re.compile(
    f"\n(?:(?:{_AFTER_NO_SPACE})\\s*(?=[{_NO_SPACE}{_NEUTRAL}])"
    f"|(?<=[{_NEUTRAL}].)\\s*(?=[{_NEUTRAL}]*[{_NO_SPACE}])"
    f"|(?<=[{_WIDE_MARKS}\u00ad].)\\s*|\\s*(?=[{_WIDE_MARKS}]))",
    re.DOTALL,
)


# Both patterns begin with the line's end, which is found fast, and look back from it.
_HYPHENATED = re.compile("\n(?<=[^\\W\\d_][-\u2010]\n)")


def join_wrapped(text: str, counts: collections.Counter[str]) -> str:
    """Join the lines of a paragraph by spaces, or by nothing in scripts without spaces.

    Lines end without white space; where nothing joins two, the second loses its indentation. The
    characters on both sides of a line's end decide. Lines that end in a hyphen after a letter are
    counted and joined as they are: whether the hyphen is the word's own cannot be known.
    """
    text = _replace_breaks(text)
    if not text.isascii():
        text = _SEAM.sub("", text)
    if hyphenated := _HYPHENATED.findall(text):
        counts[Counted.HYPHENATED_LINES] += len(hyphenated)
    return text.replace("\n", " ")
