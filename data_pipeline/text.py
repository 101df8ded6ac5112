"""Files to documents: plain text, gzip of it, WikiExtractor's <doc> files and JSON lines.

The content says what a file is. Its first bytes tell whether it is gzip. A first line (blank ones
aside) that opens <doc ...> makes it a WikiExtractor file; one that is a JSON object makes it JSON
lines, as WikiExtractor's --json writes into wiki_00. A .json or .jsonl file must be JSON lines.
Everything streams: at most one document and one block of a file are in memory.
"""

import dataclasses
import glob
import gzip
import html
import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from data_pipeline.document_size import check_size, grown
from data_pipeline.gutenberg import read_chapters
from data_pipeline.json_lines import opens_json_lines, read_records

DOCUMENT_RULES = ("blank_line", "file", "gutenberg")
SENTENCE_RULES = ("split", "lines")

_BLOCK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DOC_START = re.compile(r"<doc\b[^>]*?(?:\btitle=\"(.*?)\")?\s*>$")


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How files are cut into documents and sentences; the fields are flags of the build."""

    documents: str = "blank_line"  # of plain text; <doc> files and JSON lines bring their own
    sentences: str = "split"  # "split" finds sentences, "lines" takes one a line
    language: str = "en"  # whose rules find the sentences; an ISO 639-1 code
    text_key: str = "text"  # of a JSON line

    def check(self) -> None:
        """Raise if a rule is unknown or two rules contradict each other.

        Raises:
          ValueError: names the flag, its value and what is allowed.
        """
        if self.documents not in DOCUMENT_RULES:
            raise ValueError(
                f"--documents is {self.documents!r}; it must be one of {', '.join(DOCUMENT_RULES)}"
            )
        if self.sentences not in SENTENCE_RULES:
            raise ValueError(
                f"--sentences is {self.sentences!r}; it must be one of {', '.join(SENTENCE_RULES)}"
            )
        if (self.documents, self.sentences) == ("gutenberg", "lines"):
            raise ValueError(
                "--sentences is lines, but with --documents=gutenberg a line is a piece of a "
                "wrapped paragraph, not a sentence; use --sentences=split"
            )


def find_files(patterns: str) -> list[pathlib.Path]:
    """The files that a comma-separated list of globs names, each once, checked as far as is cheap.

    Order: that of the patterns, sorted by name within one. `**` reaches into folders.

    Raises:
      ValueError: a pattern without a file, a directory, an empty file, binary data at its start.
    """
    paths: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise ValueError(
                f"--input has {pattern!r}, which matches no file under {os.getcwd()}; give files "
                "or globs, and put quotes around a glob so that the shell leaves it alone"
            )
        paths |= dict.fromkeys(matches)
    if not paths:
        raise ValueError("--input is empty; give files or globs, as in --input='corpus/*.txt.gz'")
    files = [pathlib.Path(path) for path in paths]
    for path in files:
        _check_file(path)
    return files


def _check_file(path: pathlib.Path) -> None:
    if path.is_dir():
        raise ValueError(f"--input has {path}, a directory; give its files: --input='{path}/*'")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); remove it from --input")
    if next(_blocks(path, lambda stored_bytes: None), None) is None:
        raise ValueError(f"{path} is the gzip of an empty file; remove it from --input")


def read_documents(
    path: pathlib.Path,
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[list[str]]:
    """Yield the documents of a file, each as its paragraphs (or lines, with --sentences=lines).

    Plain text: `options.documents` says what a document is. The lines of a paragraph are joined by
    a space when sentences are to be found in it: a hard-wrapped line ends in mid-sentence.
    WikiExtractor files and JSON lines bring their own documents; there a line is a paragraph, as
    their writers have it. `advance` is told the bytes of the stored file as they are read.

    Raises:
      ValueError: bad gzip, bad UTF-8, NUL bytes, a bad JSON line, a broken <doc>, a document over
        MAX_DOCUMENT_BYTES, a file without a document; the sentence names file and place.
    """
    found = False
    for document in _documents(path, _lines(path, advance), options):
        found = True
        yield document
    if not found:
        raise ValueError(f"{path} holds no document: it has no text; remove it from --input")


def _documents(
    path: pathlib.Path, lines: Iterator[str], options: TextOptions
) -> Iterator[list[str]]:
    number, first = next(
        ((number, line) for number, line in enumerate(lines, 1) if line.strip()), (0, "")
    )
    if not first:
        return iter(())
    lines = itertools.chain([first], lines)
    is_named_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
    if is_named_json or opens_json_lines(first):
        return read_records(path, lines, number, options.text_key)
    if first.startswith("<doc "):
        return _wiki_articles(path, lines, number)
    if options.documents == "gutenberg":
        return read_chapters(path, lines)
    paragraphs = _paragraphs(path, lines)
    if options.documents == "file":
        return _whole_file(path, paragraphs, options.sentences)
    return (_as_paragraphs(block, options.sentences) for block in paragraphs)


def _as_paragraphs(block: list[str], sentences: str) -> list[str]:
    return block if sentences == "lines" else [" ".join(block)]


def _paragraphs(path: pathlib.Path, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the blocks of lines between blank lines."""
    block: list[str] = []
    size_bytes = 0
    for line in lines:
        stripped = line.strip()
        if stripped:
            block.append(stripped)
            size_bytes = grown(path, size_bytes, stripped)
        elif block:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block


def _whole_file(
    path: pathlib.Path, paragraphs: Iterable[list[str]], sentences: str
) -> Iterator[list[str]]:
    document: list[str] = []
    size_bytes = 0
    for block in paragraphs:
        for paragraph in _as_paragraphs(block, sentences):
            document.append(paragraph)
            size_bytes = grown(path, size_bytes, paragraph)
    if document:
        yield document


def _wiki_articles(
    path: pathlib.Path, lines: Iterable[str], first_line: int
) -> Iterator[list[str]]:
    """Yield the lines of each <doc ...> ... </doc>, without the title.

    `first_line` is the number, for errors, of the first of `lines`.

    WikiExtractor writes the title into the tag and once more as the first line. It is no sentence
    of the article and would be half of a pair, so it is dropped where it repeats the tag's title.
    """
    article: list[str] | None = None
    title, size_bytes, number = "", 0, 0
    for number, line in enumerate(lines, first_line):
        stripped = line.strip()
        if article is None:
            match = _DOC_START.match(stripped)
            if match:
                article, title, size_bytes = [], html.unescape(match[1] or "").strip(), 0
            elif stripped:
                raise ValueError(
                    f"{path} has text outside <doc ...> ... </doc> near line {number}: "
                    f"{stripped[:40]!r}; WikiExtractor files hold nothing else, so it is damaged"
                )
        elif stripped == "</doc>":
            yield article
            article = None
        elif stripped and not (not article and html.unescape(stripped) == title):
            article.append(stripped)
            size_bytes = grown(path, size_bytes, stripped)
    if article is not None:
        raise ValueError(
            f"{path} ends inside a <doc> at line {number}: it is cut off; copy it again"
        )


def _lines(path: pathlib.Path, advance: Callable[[int], None]) -> Iterator[str]:
    """Yield the decoded lines of a file, split at line feeds only."""
    rest = b""
    offset = 0  # of `rest` in the (decompressed) text
    for block in _blocks(path, advance):
        block = rest + block
        cut = block.rfind(b"\n") + 1  # UTF-8 has no line feed inside a character
        rest = block[cut:]
        check_size(path, len(rest))
        if cut:
            yield from _decoded(path, block[:cut], offset)[:-1].split("\n")
        offset += cut
    if rest:
        yield _decoded(path, rest, offset)


def _decoded(path: pathlib.Path, data: bytes, offset: int) -> str:
    if offset == 0 and data.startswith(_BYTE_ORDER_MARK):
        data, offset = data[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at byte offset "
            f"{offset + error.start} ({error.reason}); convert it first, "
            f"as in: iconv -f LATIN1 -t UTF-8 {path}"
        ) from error


def _blocks(path: pathlib.Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, a block at a time, refusing binary data."""
    offset, stored_bytes = 0, 0
    with open(path, "rb") as stored:
        try:
            source = _decompressed(stored)
            for block in iter(lambda: source.read(_BLOCK_BYTES), b""):
                if (nul := block.find(b"\0")) >= 0:
                    raise ValueError(
                        f"{path} is binary data, not text: a NUL byte at byte offset "
                        f"{offset + nul}; give UTF-8 text (UTF-16 must be converted first)"
                    )
                advance(stored.tell() - stored_bytes)
                stored_bytes = stored.tell()
                offset += len(block)
                yield block
        except EOFError as error:
            raise ValueError(
                f"{path} is a gzip file that ends early, after {offset} bytes of text; "
                "it is cut off: copy or download it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is a damaged gzip file ({error}); copy or download it again"
            ) from error


def _decompressed(stored: BinaryIO) -> BinaryIO:
    """The text of an open file, whether it is stored plain or as gzip."""
    is_gzip = stored.read(2) == _GZIP_MAGIC
    stored.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=stored)) if is_gzip else stored
