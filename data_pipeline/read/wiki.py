"""Read the articles of WikiExtractor's <doc> files, whichever of its programs wrote them.

WikiExtractor writes titles and addresses into the tag as they are: a quote or a ">" may stand in
them. Some tools glue tags to each other or to the text.
"""

import html
import re
from collections.abc import Iterable, Iterator

from data_pipeline.io import Refused
from data_pipeline.read.lines import add_size, strip_line

OPENING, _CLOSING = "<doc ", "</doc>"
_MAX_TITLE_CHARS = 1000
# WikiExtractor 3 escapes these in a text, if told nothing else; older ones escape nothing.
JSON_KEYS = {"id", "revid", "url", "title", "text"}  # its --json writes all of them
_ESCAPED = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_END = re.compile(r"</doc>\s*(?=<doc\s|</doc>|$)")
_TAG = re.compile(r"""<doc(?>(?>\s+)[\w:.-]+=(?>"[^"]*"|'[^']*'))*+(?>\s*)>""")
_ATTRIBUTE = re.compile(r"""\s([\w:.-]+)=(?>"([^"]*)"|'([^']*)')""")
# A title with quotes in it ends before the next attribute, or with the tag.
_RAW_TITLE = re.compile(r'\stitle="')
_NEXT_ATTRIBUTE = re.compile(r'"(?>\s+)[\w:.-]+="')


def read_articles(address: str, lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each <doc ...> ... </doc>, without the title.

    WikiExtractor writes the title into the tag and again as the first line. It is not a sentence
    of the article and would be half of a pair, so it is dropped where it repeats the tag's title.
    """
    article: list[str] | None = None
    title, size_bytes, number = "", 0, 0
    for number, line in enumerate(lines, 1):
        stripped = strip_line(line)
        if article is not None and stripped.startswith(OPENING) and _TAG.match(stripped):
            raise Refused(
                f"{address} has a <doc> within another at line {number}: {stripped[:40]!r}; the "
                "article before it has no </doc>: copy the file again, or read it as it is by "
                "--format=text"
            )
        if article and _CLOSING not in stripped:  # nearly every line
            if stripped:
                article.append(stripped)
                size_bytes = add_size(address, size_bytes, stripped)
            continue
        for part in _cut_at_tags(stripped):
            if article is None:
                if not part.startswith(OPENING):
                    raise _outside(address, part, number)
                article, size_bytes = [], 0
                title, part = _read_tag(address, part, number)
            if part == _CLOSING:
                yield [*map(unescape, article)]
                article = None
            elif part and (article or not _repeats(part, title)):
                article.append(part)
                size_bytes = add_size(address, size_bytes, part)
    if article is not None:
        raise Refused(
            f"{address} ends inside a <doc> at line {number}: it is cut off; copy it again"
        )


def unescape(text: str) -> str:
    """Return a text of WikiExtractor without its escapes."""
    for escaped, character in _ESCAPED.items():
        text = text.replace(escaped, character)
    return text


def _cut_at_tags(line: str) -> Iterator[str]:
    """Split a line into closing tags and the texts between them; an empty line has no part."""
    start = 0
    if _CLOSING in line:
        for end in _END.finditer(line):
            if before := line[start : end.start()].rstrip():
                yield before
            yield _CLOSING
            start = end.end()
    if start < len(line):
        yield line[start:]


def _read_tag(address: str, line: str, number: int) -> tuple[str, str]:
    """Return the title that a tag names and the text after the tag."""
    if tag := _TAG.match(line):
        named = (match for match in _ATTRIBUTE.finditer(tag[0]) if match[1] == "title")
        title = next((match[2] or match[3] or "" for match in named), "")
        return html.unescape(title).strip(), line[tag.end() :].lstrip()
    start = _RAW_TITLE.search(line)
    if not line.endswith('">') or start is None:
        raise _outside(address, line, number)
    following = _NEXT_ATTRIBUTE.search(line, start.end())
    end = following.start() if following else len(line) - 2
    return html.unescape(line[start.end() : end]).strip(), ""


def _repeats(line: str, title: str) -> bool:
    return len(line) <= 2 * _MAX_TITLE_CHARS and html.unescape(line) == title


def _outside(address: str, line: str, number: int) -> Refused:
    return Refused(
        f"{address} has text outside <doc ...> ... </doc> near line {number}: {line[:40]!r}; "
        "WikiExtractor files hold nothing else: copy the file again if it is damaged, or read it "
        "as it is by --format=text"
    )
