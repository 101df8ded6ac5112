"""Read documents from plain text, WikiExtractor's <doc> files, JSON lines, Parquet and TFDS.

The format of a file is detected from its content. Its first bytes tell whether it is compressed or
Parquet. A first line with text that opens <doc ...> makes it a WikiExtractor file; one that is a
JSON object makes it JSON lines, as WikiExtractor's --json writes into wiki_00. A .json or .jsonl
file must be JSON lines. Files are streamed: one document and one block are in memory.
"""

import html
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import check_unicode, kind_in_words
from data_pipeline.read import parquet, tfds
from data_pipeline.read.gutenberg import read_chapters
from data_pipeline.read.lines import (
    add_size,
    numbered_lines,
    read_head,
    read_lines,
    split_paragraphs,
)
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import Source

_JSON_NAME = re.compile(r"\.jsonl?(\.(gz|bz2|xz|zst))?$")
_DOC_START = re.compile(r"<doc\b[^>]*?(?:\btitle=\"(.*?)\")?\s*>$")


def read_documents(
    source: Source, options: TextOptions, advance: Callable[[int], None] = lambda stored_bytes: None
) -> Iterator[list[str]]:
    """Yield the documents of a source, each as its paragraphs (or lines, with --sentences=lines).

    In plain text `options.documents` defines a document, and with --sentences=split the lines of a
    paragraph are joined by a space, as a hard-wrapped line ends in mid-sentence. Every other format
    has its own documents, in which a line is a paragraph. A file without text has none. `advance`
    is called with the bytes of the stored file as they are read.

    Raises Refused for a file that is gone, damaged, not UTF-8 or binary, a bad JSON line, a
    broken <doc>, a table without the column, a document over MAX_DOCUMENT_BYTES.
    """
    address, text_key = source.address, options.text_key
    if address.startswith(tfds.PREFIX):
        return tfds.read_shard(address, source.stored_bytes, text_key, advance)
    if parquet.is_parquet(read_head(address)):
        return parquet.read_rows(address, source.stored_bytes, text_key, advance)
    return _of_lines(address, read_lines(address, advance, joins_blank=True), options)


def read_equal_shares(
    sources: Sequence[Source],
    options: TextOptions,
    limit_chars: int,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[list[str]]:
    """Yield documents from the start of each source, at most `limit_chars` in equal shares."""
    for source in sources:
        left = limit_chars // len(sources)
        for document in read_documents(source, options, advance):
            yield document
            left -= sum(map(len, document))
            if left <= 0:
                break


def _of_lines(address: str, lines: Iterator[str], options: TextOptions) -> Iterator[list[str]]:
    number, first = next(
        ((number, line) for number, line in numbered_lines(lines) if line.strip()), (0, "")
    )
    if not first:
        return iter(())
    lines = itertools.chain([first], lines)
    if _JSON_NAME.search(address) or _opens_json_lines(first):
        return _json_documents(address, lines, number, options.text_key)
    if first.startswith("<doc "):
        return _wiki_articles(address, lines, number)
    if options.documents in ("gutenberg", "chapters"):
        return read_chapters(address, lines, needs_licence=options.documents == "gutenberg")
    paragraphs = _paragraphs(address, lines)
    if options.documents == "file":
        return _join_blocks(address, paragraphs, options.sentences)
    return (_as_paragraphs(block, options.sentences) for block in paragraphs)


def _as_paragraphs(block: list[str], sentences: str) -> list[str]:
    return block if sentences == "lines" else [" ".join(block)]


def _paragraphs(address: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the blocks of lines between blank lines."""
    block: list[str] = []
    size_bytes = 0
    for line in lines:
        stripped = line.strip()
        if stripped:
            block.append(stripped)
            size_bytes = add_size(address, size_bytes, stripped)
        elif block:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block


def _join_blocks(
    address: str, paragraphs: Iterable[list[str]], sentences: str
) -> Iterator[list[str]]:
    document: list[str] = []
    size_bytes = 0
    for block in paragraphs:
        for paragraph in _as_paragraphs(block, sentences):
            document.append(paragraph)
            size_bytes = add_size(address, size_bytes, paragraph)
    if document:
        yield document


def _wiki_articles(address: str, lines: Iterable[str], first_line: int) -> Iterator[list[str]]:
    """Yield the lines of each <doc ...> ... </doc>, without the title.

    WikiExtractor writes the title into the tag and once more as the first line. It is no sentence
    of the article and would be half of a pair, so it is dropped where it repeats the tag's title.
    """
    article: list[str] | None = None
    title, size_bytes, number = "", 0, 0
    for number, line in numbered_lines(lines, first_line):
        stripped = line.strip()
        if article is None:
            match = _DOC_START.match(stripped)
            if match:
                article, title, size_bytes = [], html.unescape(match[1] or "").strip(), 0
            elif stripped:
                raise Refused(
                    f"{address} has text outside <doc ...> ... </doc> near line {number}: "
                    f"{stripped[:40]!r}; WikiExtractor files hold nothing else, so it is damaged"
                )
        elif stripped == "</doc>":
            yield article
            article = None
        elif stripped and not (not article and html.unescape(stripped) == title):
            article.append(stripped)
            size_bytes = add_size(address, size_bytes, stripped)
    if article is not None:
        raise Refused(
            f"{address} ends inside a <doc> at line {number}: it is cut off; copy it again"
        )


_FORM = (
    "JSON lines (a .json or .jsonl file, or one whose first line is a JSON object) must hold one "
    "JSON object a line"
)


def _opens_json_lines(line: str) -> bool:
    """Return whether a file with this first line of text holds JSON lines."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        return type(json.loads(line)) is dict
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # JSON that Python cannot parse: _record reports it
        return True


def _json_documents(
    address: str, lines: Iterable[str], first_line: int, text_key: str
) -> Iterator[list[str]]:
    """Yield the lines of the text of each line's object; `first_line` is the number of the first.

    A text that is null is a document without text.
    """
    for number, line in numbered_lines(lines, first_line):
        if not line.strip():
            continue
        place = f"{address} line {number}"
        record = _record(place, line)
        text = record.get(text_key)
        if text is None and text_key in record:  # as exports of tables write a missing text
            yield []
            continue
        if text_key not in record:
            raise Refused(
                f"{place} has no key {text_key!r}; its keys are {sorted(record)[:8]}; name the "
                "right one with --text_key=KEY"
            )
        if type(text) is not str:
            raise Refused(
                f"{place} has {kind_in_words(text)} under the key {text_key!r}, and text is "
                'needed, as in "text": "..."; write it as a string, or name another key with '
                "--text_key=KEY"
            )
        check_unicode(text, text_key, place)
        add_size(address, 0, text)
        yield split_paragraphs(text)


def _record(place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise Refused(
            f"{place} is not JSON ({error.msg} at character {error.pos + 1}); {_FORM}"
        ) from error
    except ValueError as error:  # the only other cause: Python limits the digits of an integer
        raise Refused(
            f"{place} has a number of too many digits to be read ({str(error).split(';')[0]}); "
            "write it as a string, or leave it out"
        ) from error
    except RecursionError as error:
        raise Refused(
            f"{place} has lists or objects nested too deeply to be read; write its text as a "
            "plain string, and leave the rest out"
        ) from error
    if type(record) is not dict:
        raise Refused(f"{place} is a JSON {type(record).__name__}, not an object; {_FORM}")
    return record
