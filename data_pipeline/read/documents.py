"""Read documents from a source of any format: plain text here, the others by their readers.

Files are streamed: one document and one block are in memory. formats.py detects the format.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from data_pipeline.io import Refused
from data_pipeline.read import formats, gutenberg, parquet, tfds
from data_pipeline.read.lines import (
    NO_WIDTH,
    Decoding,
    HeadEndsError,
    add_size,
    join_wrapped,
    read_head,
    read_head_lines,
    read_lines,
    strip_line,
)
from data_pipeline.read.options import TextOptions
from data_pipeline.read.records import read_json_lines, read_table
from data_pipeline.read.wiki import read_articles

Counts = collections.Counter[str]  # keys: cleaning.COUNTED
# GPT-2's mark between documents, as in TinyStories: a line of its own, or at a text's end. Prose
# about it has a space or a quotation mark before it.
_MARK = re.compile(r"(<\|endoftext\|>)")
_ENDS_IN_MARK = re.compile(rb"(?m)(?:^[ \t]*|(?<![\s\"'(`]))<\|endoftext\|>\s*$")
MAX_NAMED_FILES = 20
_LOOK_SECS = 10.0  # time to look at the other files after a bad one


@dataclasses.dataclass(frozen=True)
class Source:
    """Name an input: a file by its path or address, or a shard of a TFDS data set.

    A shard's address is "tfds:NAME/CONFIG:VERSION#train/3". A source can be pickled.
    """

    address: str
    stored_bytes: int


def read_documents(
    source: Source,
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
    counts: Counts | None = None,
) -> Iterator[list[str]]:
    """Yield the documents of a source, each as its paragraphs (or lines, with --sentences=lines).

    In plain text `options.documents` defines a document, and with --sentences=split the lines of a
    paragraph are joined, as a hard-wrapped line ends in the middle of a sentence. Every other
    format has its own documents, in which a line is a paragraph. A file without text has none.
    `advance` is called with the bytes of the stored file as they are read; what reading changes is
    added to `counts`.

    Raises Refused for a file that is gone, damaged, binary, not UTF-8 without a fallback, or not
    what its name or its place promises; for a bad JSON line, a broken <doc>, a table without the
    column, a document over MAX_DOCUMENT_BYTES.
    """
    address, key = source.address, options.key
    counts = collections.Counter() if counts is None else counts
    if address.startswith(tfds.PREFIX):
        return tfds.read_shard(address, source.stored_bytes, key, advance)
    head = read_head(address)
    kind = formats.find_format(address, head, options)
    if kind in (formats.PARQUET, formats.ARROW):
        is_arrow = kind == formats.ARROW
        return parquet.read_rows(address, source.stored_bytes, key, advance, is_arrow)
    if kind == formats.EMPTY:
        return iter(())
    decoding = Decoding(options.fallback_encoding, counts)
    lines = read_lines(address, advance, decoding)
    is_plain = kind == formats.TEXT and options.documents == "blank_line"
    if is_plain and _ENDS_IN_MARK.search(head.data):
        return _read_marked(address, lines, options, counts)
    return _read_lines_as(kind, address, lines, options, counts)


def check_source(address: str, options: TextOptions) -> str:
    """Return the format of a file, after a look at its head; raise as read_documents does.

    The head of JSON, <doc> files and tables is parsed; plain text only has its bytes checked. The
    format is STRANGER if --documents=gutenberg and the file does not begin like a book.
    """
    head = read_head(address)
    kind = formats.find_format(address, head, options)
    if kind in (formats.PARQUET, formats.ARROW):
        parquet.check_columns(address, options.key, is_arrow=kind == formats.ARROW)
    if kind not in formats.LINES:
        return kind
    is_plain = kind == formats.TEXT
    lines = read_head_lines(address, head, Decoding(options.fallback_encoding))
    documents = lines if is_plain else _read_lines_as(kind, address, lines, options, Counts())
    with contextlib.suppress(HeadEndsError):
        collections.deque(documents, maxlen=0)
    if is_plain and options.documents == "gutenberg" and not gutenberg.may_be_book(head.data):
        return STRANGER
    return kind


STRANGER = "stranger"  # not a book of Project Gutenberg


def read_sources(
    sources: Iterable[tuple[int, Source]],
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
    counts: Counts | None = None,
    limit_chars: int | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Yield the documents of numbered sources in their order, each with the number of its source.

    With `limit_chars` reading of a source stops after so many characters. After a file that cannot
    be read, the next files are tried for _LOOK_SECS, and the Refused names all bad ones.
    """
    bad: list[str] = []
    end_secs = math.inf
    for number, source in sources:
        left = limit_chars
        try:
            for document in read_documents(source, options, advance, counts):
                if time.monotonic() > end_secs:
                    break
                if not bad:
                    yield number, document
                if left is not None and (left := left - sum(map(len, document))) <= 0:
                    break
        except Refused as error:
            end_secs = min(end_secs, time.monotonic() + _LOOK_SECS)
            bad.append(str(error))
        if time.monotonic() > end_secs:
            break
    if bad:
        raise Refused(describe_bad_files(bad))


def describe_bad_files(sentences: Sequence[str], files: int = 0) -> str:
    """Join sentences about bad files among `files`: MAX_NAMED_FILES of them, then a count.

    A single sentence stays as it is.
    """
    if len(sentences) == 1:
        return sentences[0]
    more = len(sentences) - MAX_NAMED_FILES
    named = [*sentences[:MAX_NAMED_FILES], *([f"and {more:,} more"] if more > 0 else [])]
    among = f" of {files:,}" if files else ""
    return f"{len(sentences):,}{among} input files cannot be read:\n  " + "\n  ".join(named)


def read_equal_shares(
    sources: Sequence[Source],
    options: TextOptions,
    limit_chars: int,
    advance: Callable[[int], None],
) -> Iterator[list[str]]:
    """Yield documents from the start of each source, at most `limit_chars` in equal shares."""
    share_chars = limit_chars // max(1, len(sources))
    for _, document in read_sources(enumerate(sources), options, advance, None, share_chars):
        yield document


def _read_lines_as(
    kind: str, address: str, lines: Iterator[str], options: TextOptions, counts: Counts
) -> Iterator[list[str]]:
    """Yield the documents in the decoded lines of a file of this format."""
    if kind == formats.JSON:
        return read_json_lines(address, lines, options.key)
    if kind == formats.WIKI:
        return read_articles(address, lines)
    if kind in formats.TABLES:
        return read_table(address, lines, kind, options.text_key)
    if options.documents in ("gutenberg", "chapters"):
        needs_license = options.documents == "gutenberg"
        return gutenberg.read_chapters(address, lines, needs_license, counts)
    if options.documents == "line":
        stripped = map(strip_line, lines)
        return ([line] for line in stripped if line and add_size(address, 0, line))
    blocks = _read_blocks(address, lines)
    if options.sentences == "split":
        blocks = ([join_wrapped("\n".join(block), counts)] for block in blocks)
    return _join_blocks(address, blocks) if options.documents == "file" else blocks


def _read_marked(
    address: str, lines: Iterable[str], options: TextOptions, counts: Counts
) -> Iterator[list[str]]:
    """Yield the documents between marks: each is read as a file of its own."""
    options = dataclasses.replace(options, documents="file")
    parts = itertools.chain.from_iterable(map(_MARK.split, lines))
    for is_mark, part in itertools.groupby(parts, lambda part: bool(_MARK.fullmatch(part))):
        if not is_mark:
            yield from _read_lines_as(formats.TEXT, address, part, options, counts)


def _read_blocks(address: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the blocks of lines between lines without a visible character."""
    block: list[str] = []
    size_bytes = 0
    for line in lines:
        stripped = line.strip()
        if stripped[:1] in NO_WIDTH:  # a call for each line would cost time
            stripped = strip_line(stripped)
        if stripped:
            block.append(stripped)
            size_bytes = add_size(address, size_bytes, stripped)
        elif block:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block


def _join_blocks(address: str, blocks: Iterable[list[str]]) -> Iterator[list[str]]:
    document: list[str] = []
    size_bytes = 0
    for paragraph in itertools.chain.from_iterable(blocks):
        document.append(paragraph)
        size_bytes = add_size(address, size_bytes, paragraph)
    if document:
        yield document
