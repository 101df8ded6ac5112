"""Split Project Gutenberg books into chapters, without the license around them."""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator

from data_pipeline.io import Refused
from data_pipeline.read.lines import (
    MAX_DOCUMENT_BYTES,
    MIN_LINE_BYTES,
    NO_WIDTH,
    add_size,
    check_size,
    join_wrapped,
    strip_line,
)

# A book begins after the marker since 2004, or the end of the "small print" in older files.
_START = re.compile(
    r"\*\*\*\s*START OF (?:THE|THIS) PROJECT GUTENBERG|\*END\W{0,3}THE SMALL PRINT", re.IGNORECASE
)
# The book ends here. Some books have only the sentence, some only the marker, most have both.
_END = re.compile(
    r"\*\*\*\s*END OF (?:THE|THIS) PROJECT GUTENBERG|\s*END OF (?:THE |THIS )?PROJECT GUTENBERG",
    re.IGNORECASE,
)
# The longest headers (old small print) take about 400 lines.
_HEADER_LINES = 1000
_HEADER_CHARS = 1 << 20

_COUNT = (
    r"(?:[IVXLC]+|[0-9]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|"
    r"fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|first|second|third|fourth|fifth|"
    r"sixth|seventh|eighth|ninth|tenth|last)"
)
_HEADING = re.compile(
    # "CHAPTER IV. Title", "Book the First--Recalled to Life", "ADVENTURE II. TITLE"
    rf"\s*(?:(?:chapter|book|part|volume|letter|adventure|stave|canto|act|scene)\s+(?:the\s+)?{_COUNT}\b"
    # "AUTHOR'S PREFACE", "FIRST EPILOGUE: 1813 - 20", "EXTRACTS."
    r"|(?:[\w’']+\s+)?(?:preface|introduction|prologue|epilogue|foreword|afterword|conclusion|"
    r"contents|(?:list of )?illustrations|footnotes|index|transcriber[’']s notes?|etymology|"
    r"extracts)"
    r"(?:[\s.:(].*)?$)",
    re.IGNORECASE,
)
# "IV", "IV.", "IV. TITLE", "12 TITLE"; upper case only, or the word "I" would be a heading.
_NUMBERED = re.compile(r"\s*(?:[IVXLC]{1,8}\.?$|(?:[IVXLC]{1,8}\.|[0-9]{1,3}\.?)\s+[A-Z‘“\"'])")
# The line "12", alone or above a title; a heading if it continues the count.
_BARE_NUMBER = re.compile(r"\s*([0-9]{1,3})\.?\s*(?:\n|$)")
_BARE_ROMAN = re.compile(r"\s*[IVXLC]{1,8}\.?$")
# The largest gap between numbers: one that is lost in scanning does not end the count.
_MAX_STEP = 2
# "Chapter 8" and nothing else: a heading after one blank line, too (Anna Karenina has six such).
_BARE = re.compile(rf"\s*chapter\s+{_COUNT}\.?$", re.IGNORECASE)
_NOT_PROSE = re.compile(
    r"\s*(?:contents|(?:list of )?illustrations|footnotes|index|transcriber[’']s notes?)\b",
    re.IGNORECASE,
)
_NOTES = re.compile(r"\s*(?:footnotes|index)\b", re.IGNORECASE)  # their entries are numbered
_ENDS_LIKE_PROSE = re.compile(r"[.!?…:;,—。！？：；，、।॥۔؟։።။។།-][\"'”’»)\]_*」』）]*$")
_ITALICS = re.compile(r"\b_|_\b")
_ORNAMENT = re.compile(r"[\s*.·•=~_―–—-]*$")

MIN_CHAPTER_CHARS = 200  # less prose is a part's title page or a table
# A front part or a list with this much prose has chapters under headings that are not known here,
# such as "Erstes Kapitel". Title pages, contents and notes of the books in the tests have 3,600
# characters at most.
MIN_HEADLESS_CHARS = 5000


def may_be_book(head: bytes) -> bool:
    """Return whether plain text with this head begins like a downloaded book."""
    text = head.decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    lines = re.split(r"\r\n?|\n", text, maxsplit=_HEADER_LINES)[:_HEADER_LINES]
    return any(map(_START.match, lines))


def describe_strangers(addresses: list[str], files: int) -> str:
    """Describe how many of `files` files are not books as downloaded."""
    which = (
        f"{addresses[0]} is not a book"
        if len(addresses) == 1
        else f"{len(addresses)} of {files} files, {addresses[0]} the first, are not books"
    )
    return (
        f"--documents is gutenberg, but {which} as Project Gutenberg sends them: no '*** START OF "
        f"THE PROJECT GUTENBERG EBOOK' in the first {_HEADER_LINES} lines; leave them out, or read "
        "books without their license by --documents=chapters"
    )


def read_chapters(
    address: str,
    lines: Iterable[str],
    needs_license: bool = False,
    counts: collections.Counter[str] | None = None,
) -> Iterator[list[str]]:
    """Yield the chapters of a file's books, each as its paragraphs with the wrapped lines joined.

    A chapter begins at a heading: a paragraph of at most three lines after two or more blank lines
    that is named or numbered like a chapter. A bare number, which may be a page number, is a
    heading only if it is 1 or continues the count. Headings, the license, footnotes and indexes are
    skipped; so are title pages, contents and lists of illustrations with under MIN_HEADLESS_CHARS
    of prose, and other sections with under MIN_CHAPTER_CHARS. A book without a heading is one
    chapter. One chapter is in memory at a time. After the end of a book only a marker opens another
    one. Raises Refused for a chapter over MAX_DOCUMENT_BYTES and, with `needs_license`, if no
    marker opens the first book.

    Source: the layout rules of Project Gutenberg (two or four blank lines before a chapter).
    """
    counts = collections.Counter() if counts is None else counts
    lines = iter(lines)
    yield from _read_book(address, _book_lines(address, lines, needs_license), counts)
    for line in lines:
        if _START.match(line):  # some licenses end their small print with it: no text follows
            book = _book_lines(address, itertools.chain([line], lines), needs_license)
            yield from filter(None, _read_book(address, book, counts))


def _read_book(
    address: str, lines: Iterable[str], counts: collections.Counter[str]
) -> Iterator[list[str]]:
    """Yield the chapters of the lines of one book."""
    chapter: list[str] = []
    is_front = is_kept = True  # a book without headings keeps all of its text
    least_chars, size_bytes = MIN_HEADLESS_CHARS, 0
    headings = _Headings()
    for blank_lines, paragraph in _paragraphs(address, lines):
        if headings.is_next(blank_lines, paragraph):
            if _has_prose(chapter, least_chars):
                yield _join(chapter, counts)
            is_front, is_kept = False, not _NOTES.match(paragraph)
            is_list = _NOT_PROSE.match(paragraph) is not None
            least_chars = MIN_HEADLESS_CHARS if is_list else MIN_CHAPTER_CHARS
            chapter, size_bytes = [], 0
        elif is_kept:
            chapter.append(paragraph)
            size_bytes = add_size(address, size_bytes, paragraph)
    if is_front or _has_prose(chapter, least_chars):
        yield _join(chapter, counts)


class _Headings:
    """Tell headings from other paragraphs, in the order of the book."""

    def __init__(self) -> None:
        self._number = 0  # number of the last heading that was a bare number
        self._follows_heading = False
        self._in_notes = False

    def is_next(self, blank_lines: int, paragraph: str) -> bool:
        """Return whether the next paragraph, after so many blank lines, is a heading."""
        bare = _BARE_NUMBER.match(paragraph)
        is_note = self._in_notes and bool(bare or _NUMBERED.match(paragraph))
        is_heading = not is_note and (
            _is_heading(paragraph, blank_lines)
            or (self._follows_heading and bool(_BARE_ROMAN.match(paragraph)))
            or (
                bare is not None
                and (blank_lines >= 2 or self._follows_heading)
                and _continues(self._number, int(bare[1]), paragraph)
            )
        )
        if bare and is_heading:
            self._number = int(bare[1])
        if is_heading:
            self._in_notes = bool(_NOTES.match(paragraph))
        self._follows_heading = is_heading
        return is_heading


def _book_lines(address: str, lines: Iterator[str], needs_license: bool) -> Iterator[str]:
    """Yield the lines between the license's markers; all of them if no marker opens the book."""
    head: list[str] = []
    head_chars = 0
    body: Iterable[str] = ()
    for line in lines:
        if _START.match(line):  # the lines before the marker are the license
            # A long title wraps the marker over several lines.
            yield from _take_until_end(itertools.dropwhile(str.strip, lines))
            return
        if _END.match(line):
            break
        if len(head) >= _HEADER_LINES or head_chars > _HEADER_CHARS:
            body = _take_until_end(itertools.chain([line], lines))
            break
        head.append(line)
        head_chars += len(line)
    if head and needs_license:
        raise Refused(describe_strangers([address], files=1))
    yield from head
    yield from body


def _take_until_end(lines: Iterable[str]) -> Iterator[str]:
    return itertools.takewhile(lambda line: not _END.match(line), lines)


def _paragraphs(address: str, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (blank lines before it, text with its line breaks) of each paragraph.

    Raises Refused for a paragraph without an end, before it fills memory. Its characters are
    counted here, which are no more than the bytes that read_chapters counts.
    """
    blank_lines, paragraph = 2, []  # the first paragraph may be a heading
    size_bytes = 0
    for line in lines:
        stripped = line.rstrip()
        if stripped and (stripped[-1] not in NO_WIDTH or strip_line(stripped)):
            paragraph.append(stripped)
            size_bytes += max(len(stripped), MIN_LINE_BYTES)
            if size_bytes > MAX_DOCUMENT_BYTES:  # a call for each line would cost time
                check_size(address, size_bytes)
            continue
        if paragraph:
            yield blank_lines, "\n".join(paragraph)
            blank_lines, paragraph, size_bytes = 0, [], 0
        blank_lines += 1
    if paragraph:
        yield blank_lines, "\n".join(paragraph)


def _is_heading(paragraph: str, blank_lines: int) -> bool:
    if len(paragraph) > 270:  # three lines of 90; most paragraphs stop here
        return False
    lines = paragraph.split("\n")
    if blank_lines < 2:
        return len(lines) == 1 and bool(_BARE.match(paragraph))
    return len(lines) <= 3 and _is_heading_line(lines[0])


def _continues(last: int, number: int, paragraph: str) -> bool:
    """Return whether a paragraph under a bare number opens the next chapter, or a part's first."""
    is_next = number == 1 or last < number <= last + _MAX_STEP
    return is_next and paragraph.count("\n") < 3


def _is_heading_line(line: str) -> bool:
    return len(line) <= 90 and bool(_HEADING.match(line) or _NUMBERED.match(line))


def _has_prose(paragraphs: list[str], least_chars: int) -> bool:
    """Return whether paragraphs other than titles and tables have least_chars of text."""
    lengths = (
        len(paragraph)
        for paragraph in paragraphs
        if _ENDS_LIKE_PROSE.search(paragraph[-8:]) and not _is_table(paragraph)
    )
    return any(chars >= least_chars for chars in itertools.accumulate(lengths))


def _is_table(paragraph: str) -> bool:
    lines = paragraph.split("\n")
    return 2 * sum(map(_is_heading_line, lines)) > len(lines)


def _join(paragraphs: list[str], counts: collections.Counter[str]) -> list[str]:
    """Join wrapped lines; drop rows of stars and the underscores that stand for italics."""
    joined = []
    for paragraph in paragraphs:
        if not _ORNAMENT.match(paragraph):
            line = " ".join(join_wrapped(paragraph, counts).split())
            joined.append(_ITALICS.sub("", line) if "_" in line else line)
    return joined
