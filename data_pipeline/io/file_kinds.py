"""Recognize files in the place of another: a git-lfs pointer, a web page, a dump.

A clone without git-lfs, a download that a server refused and a site saved as text all leave a file
under the right name. The first bytes show it.
"""

import dataclasses
import http
import re

HEAD_BYTES = 4096  # enough to recognize a file that declares its kind

_SPACE = b" \t\r\n\x0b\x0c"
_MARK = b"\xef\xbb\xbf"
_MAX_DECLARATIONS = 64  # comments and declarations before the first tag
_POINTER = re.compile(rb"version https?://[\w./-]{1,80}/spec/v?\d")  # git-lfs, formerly hawser
_POINTER_SIZE = re.compile(rb"^size (\d{1,18})\s*$", re.MULTILINE)
_ANNEX = re.compile(rb"(?:\.\./)*(?:\.git|/)?/?annex/objects/\S{1,300}\s*")
_TAG_NAME = re.compile(rb"<([A-Za-z][\w:.-]{0,60})(?=[\s/>])")
_TAG = re.compile(rb"</?[A-Za-z][^<>]{0,1000}>")
_MIN_TAGS = 4  # a page without a doctype has as many
# Server messages that may be a whole file: an HTTP status and its phrase, GitHub's, the Hub's.
_STATUS = "|".join(status.phrase for status in http.HTTPStatus if status >= 300)
_ANSWERS = re.compile(
    rf"\s*(?:(?:http(?:/[\d.]+)?|error)?[ :-]*[345]\d\d[ :-]+(?:{_STATUS}|page not found)"
    rf"(?:\.?\s*\n(?s:.*))?|(?:{_STATUS})\. redirecting to \S+"
    r"|(?:entry|repository|file|page)?\s?not found|access denied|forbidden"
    r"|(?:internal )?server error|service unavailable|too many requests|unauthorized"
    r"|bad (?:gateway|request|credentials)|gateway time-?out|error code: \d+|rate limit exceeded"
    r"|default backend - 404|no healthy upstream|upstream (?:connect error|request timeout).*"
    r"|invalid username or password|access to (?:model|dataset|space) \S+ is restricted.*"
    r")\.?\s*".encode(),
    re.IGNORECASE,
)
_PAGE_TAGS = frozenset(b"html head body title meta script style link base".split())
_HTML_TAGS = _PAGE_TAGS | frozenset(
    b"a abbr address article aside b blockquote br button center code dd div dl dt em font footer "
    b"form h1 h2 h3 h4 h5 h6 header hr i iframe img input li main nav ol p pre section small span "
    b"strong sub sup table tbody td th tr u ul".split()
)


@dataclasses.dataclass(frozen=True)
class FileKind:
    """Hold parts of an error: what a file looks like, how to extract its text, or refetch it."""

    looks: str
    makes_text: str
    gets_file: str


_AGAIN = "download the file again, and look at what the server says"
_HTML = FileKind("an HTML page", "an HTML extractor, such as trafilatura, makes text of it", _AGAIN)
_XML = FileKind("an XML file", "take the text out of its tags with an XML parser", _AGAIN)
_MEDIAWIKI = FileKind(
    "a MediaWiki dump",
    "WikiExtractor (python -m wikiextractor.WikiExtractor) makes text of it",
    _AGAIN,
)
_ANSWER = FileKind("the error message of a server", _AGAIN, _AGAIN)
_WITH_HEADERS = FileKind(
    "a server's answer with its headers", *["download the file again without them"] * 2
)
_WARC = FileKind("a WARC file of a web crawl", "warcio takes the texts out of its records", _AGAIN)
_PDF = FileKind("a PDF", "pdftotext makes text of it", _AGAIN)
_RTF = FileKind("an RTF document", "pandoc makes text of it", _AGAIN)
_POSTSCRIPT = FileKind("a PostScript file", "ps2ascii makes text of it", _AGAIN)
_SQL = FileKind("an SQL dump", "load it into a database and export the column of text", _AGAIN)
_OPENINGS = {
    re.compile(rb"HTTP/\d(?:\.\d)? \d{3}[^\r\n]{0,80}\r?\n[\w-]+: "): _WITH_HEADERS,
    re.compile(rb"WARC/\d\.\d\r?\n"): _WARC,
    re.compile(rb"%PDF-"): _PDF,
    re.compile(rb"%!PS-Adobe-"): _POSTSCRIPT,
    re.compile(rb"\{\\rtf"): _RTF,
    re.compile(
        rb"(?:/\*M?![^\n]{0,80}\*/\s)?[-\s]{2,9}(?:MySQL|MariaDB|PostgreSQL database) dump"
    ): _SQL,
    re.compile(rb"From: [<\"]Saved by "): _HTML,  # MHTML
}
# Formats whose lines are not plain text. Not among _OPENINGS, as a tagger reads CoNLL files.
_SUBTITLES = rb"(?:WEBVTT\b(?s:.{1,9999}?)\n|\d+\r?\n)(?:\d+:)?\d\d:\d\d[.,]\d{3} --> "
_CONLL = rb"(?:#[^\n]*\n)*1(?:-\d+)?(?:\t[^\t\n]+){9}\n|-DOCSTART-(?: (?:-X-|O))+\s"
# Three lines are no chance: an index of pandas counts from 0, others from 1.
_NUMBERED = rb"(?:0\t[^\n]*\n *)?1\t[^\n]*\n *2\t[^\n]*\n *3\t"
_TAGGED_DOC = rb"<doc\s[^>\n]*>\s*</?(?!doc\b)[A-Za-z][\w-]*[\s/>]"  # not WikiExtractor's
_LAYOUTS = {
    re.compile(_SUBTITLES): FileKind("subtitles", "pysubs2 takes the texts out of them", _AGAIN),
    re.compile(_CONLL): FileKind(
        "words with tags in CoNLL's format", "join the words of a sentence to a line", _AGAIN
    ),
    re.compile(_TAGGED_DOC): FileKind(
        "a corpus with tags within its <doc>, as in the vertical format",
        "take the words out of the tags",
        _AGAIN,
    ),
    re.compile(_NUMBERED): FileKind(
        "lines with a running number before each", "cut -f2- takes the numbers off", _AGAIN
    ),
}
_ANNEXED = FileKind("a git-annex pointer", *["fetch the file itself by: git annex get"] * 2)


def find_stand_in(head: bytes) -> FileKind | None:
    """Recognize a pointer, a page or a dump that declares itself in its first bytes; else None."""
    head = head.removeprefix(_MARK).lstrip(_SPACE)
    if head.startswith(b"<"):
        return _find_declared(head)[0]
    if head.startswith(b"version "):
        return _find_pointer(head)
    if len(head) < 500 and _ANNEX.fullmatch(head):
        return _ANNEXED
    if len(head) < 300 and _ANSWERS.fullmatch(head):
        return _ANSWER
    return next((kind for opening, kind in _OPENINGS.items() if opening.match(head)), None)


def find_markup(head: bytes) -> FileKind | None:
    """Recognize what find_stand_in does, and also subtitles, tagged words, text with many tags.

    Text with many tags opens with a tag. Either that tag is closed at the end or on a line of its
    own, or every other line has a tag and a third of all tags are closing ones, which a chat's
    `<name> words` has none of (text that opens with a tag of HTML needs none). The <doc ...> of
    WikiExtractor is not markup.
    """
    if (kind := find_stand_in(head)) is not None:
        return kind
    head = head.removeprefix(_MARK).lstrip(_SPACE)
    if not head.startswith(b"<") or head.startswith(b"<doc "):
        return next((kind for opening, kind in _LAYOUTS.items() if opening.match(head)), None)
    _, name = _find_declared(head)
    if not name:
        return None
    is_closed = re.search(rb"(?im)^[ \t]*</%b>\s*$|</%b>\s*\Z" % ((re.escape(name),) * 2), head)
    tags, lines = len(_TAG.findall(head)), head.count(b"\n") + 1
    is_html = name in _HTML_TAGS
    closes = is_html or 3 * head.count(b"</") >= tags
    if is_closed or (closes and tags >= max(_MIN_TAGS, lines // 2)):
        return _HTML if is_html else _XML
    return None


def _find_pointer(head: bytes) -> FileKind | None:
    if not _POINTER.match(head):
        return None
    size = _POINTER_SIZE.search(head[:HEAD_BYTES])
    of_size = f" to a file of {int(size[1]):,} bytes" if size else ""
    fix = "fetch the file itself by: git lfs pull"
    return FileKind(f"a git-lfs pointer{of_size}", fix, fix)


def _find_declared(head: bytes) -> tuple[FileKind | None, bytes]:
    """Return what a text that opens with "<" declares itself to be, and its first tag's name."""
    is_xml = False
    for _ in range(_MAX_DECLARATIONS):
        start = head[:9].lower()
        if start.startswith((b"<?xml", b"<!--")):
            is_xml |= start.startswith(b"<?xml")
            end = head.find(b"?>" if start.startswith(b"<?") else b"-->")
        elif is_xml and start.startswith(b"<?"):
            end = head.find(b"?>")
        elif start == b"<!doctype":
            is_html = head[9:40].lstrip(_SPACE)[:4].lower() == b"html"
            return (_HTML if is_html else _XML), b""
        else:
            break
        if end < 0:
            break
        head = head[end:].lstrip(b"?->").lstrip(_SPACE)
    match = _TAG_NAME.match(head)
    name = match[1].lower() if match else b""
    if name == b"mediawiki":
        return _MEDIAWIKI, name
    if name in _PAGE_TAGS:
        return _HTML, name
    return (_XML if is_xml else None), name
