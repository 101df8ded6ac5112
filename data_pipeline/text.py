"""Sources to documents: plain text, WikiExtractor's <doc> files, JSON lines, Parquet, TFDS.

The content says what a file is. Its first bytes tell whether it is compressed, and whether it is
Parquet. A first line (blank ones aside) that opens <doc ...> makes it a WikiExtractor file; one
that is a JSON object makes it JSON lines, as WikiExtractor's --json writes into wiki_00. A .json or
.jsonl file must be JSON lines.
Everything streams: at most one document and one block of a file are in memory.
"""

import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from data_pipeline import parquet, tfds_documents
from data_pipeline.document_size import grown
from data_pipeline.gutenberg import read_chapters
from data_pipeline.json_lines import opens_json_lines, read_records
from data_pipeline.lines import numbered_lines, read_head, read_lines
from data_pipeline.sources import Source
from data_pipeline.text_options import TextOptions

_JSON_NAME = re.compile(r"\.jsonl?(\.(gz|bz2|xz|zst))?$")
_DOC_START = re.compile(r"<doc\b[^>]*?(?:\btitle=\"(.*?)\")?\s*>$")


def read_documents(
    source: Source,
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[list[str]]:
    """Yield the documents of a source, each as its paragraphs (or lines, with --sentences=lines).

    Plain text: `options.documents` says what a document is. The lines of a paragraph are joined by
    a space when sentences are to be found in it: a hard-wrapped line ends in mid-sentence.
    Every other format brings its own documents; there a line is a paragraph, as their writers have
    it. A file without text has none. `advance` is told the bytes of the stored file as they are
    read.

    Raises:
      ValueError: a file that is gone, damaged, not UTF-8 or binary, a bad JSON line, a broken
        <doc>, a table without the column, a document over MAX_DOCUMENT_BYTES; the sentence names
        file and place.
      OSError: a file that cannot be read.
    """
    address, text_key = source.address, options.text_key
    if address.startswith(tfds_documents.PREFIX):
        return tfds_documents.read_shard(address, source.stored_bytes, text_key, advance)
    if parquet.is_parquet(read_head(address)):
        return parquet.read_rows(address, source.stored_bytes, text_key, advance)
    return _of_lines(address, read_lines(address, advance, joins_blank=True), options)


def _of_lines(address: str, lines: Iterator[str], options: TextOptions) -> Iterator[list[str]]:
    number, first = next(
        ((number, line) for number, line in numbered_lines(lines) if line.strip()), (0, "")
    )
    if not first:
        return iter(())
    lines = itertools.chain([first], lines)
    if _JSON_NAME.search(address) or opens_json_lines(first):
        return read_records(address, lines, number, options.text_key)
    if first.startswith("<doc "):
        return _wiki_articles(address, lines, number)
    if options.documents in ("gutenberg", "chapters"):
        return read_chapters(address, lines, needs_licence=options.documents == "gutenberg")
    paragraphs = _paragraphs(address, lines)
    if options.documents == "file":
        return _whole_file(address, paragraphs, options.sentences)
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
            size_bytes = grown(address, size_bytes, stripped)
        elif block:
            yield block
            block, size_bytes = [], 0
    if block:
        yield block


def _whole_file(
    address: str, paragraphs: Iterable[list[str]], sentences: str
) -> Iterator[list[str]]:
    document: list[str] = []
    size_bytes = 0
    for block in paragraphs:
        for paragraph in _as_paragraphs(block, sentences):
            document.append(paragraph)
            size_bytes = grown(address, size_bytes, paragraph)
    if document:
        yield document


def _wiki_articles(address: str, lines: Iterable[str], first_line: int) -> Iterator[list[str]]:
    """Yield the lines of each <doc ...> ... </doc>, without the title.

    `first_line` is the number, for errors, of the first of `lines`.

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
                raise ValueError(
                    f"{address} has text outside <doc ...> ... </doc> near line {number}: "
                    f"{stripped[:40]!r}; WikiExtractor files hold nothing else, so it is damaged"
                )
        elif stripped == "</doc>":
            yield article
            article = None
        elif stripped and not (not article and html.unescape(stripped) == title):
            article.append(stripped)
            size_bytes = grown(address, size_bytes, stripped)
    if article is not None:
        raise ValueError(
            f"{address} ends inside a <doc> at line {number}: it is cut off; copy it again"
        )
