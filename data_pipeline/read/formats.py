"""Detect the format of a file, and refuse one that is not what its name or place promises.

The first bytes tell whether a file is compressed, Parquet or Arrow. A first line with text that
opens <doc ...> makes it a WikiExtractor file; one that opens a JSON object makes it JSON lines, as
WikiExtractor's --json writes into wiki_00. A .json or .jsonl file must be JSON lines. A .csv or
.tsv file is a table, known by its name alone.
"""

import re

from data_pipeline.io import Refused
from data_pipeline.io.file_kinds import find_markup
from data_pipeline.read import parquet, wiki
from data_pipeline.read.lines import FileHead
from data_pipeline.read.options import TextOptions
from data_pipeline.read.records import opens_json_lines

TEXT, WIKI, JSON, CSV, TSV = "text", "wiki", "json", "csv", "tsv"
PARQUET, ARROW, TFDS, EMPTY = "parquet", "arrow", "tfds", "empty"
TABLES = (CSV, TSV)
LINES = (TEXT, WIKI, JSON, *TABLES)  # formats read by read_lines
KEYED = (JSON, *TABLES, PARQUET, ARROW, TFDS)  # the text is under --text_key

_COMPRESSIONS = {
    **dict.fromkeys(("gz", "gzip", "tgz"), "gzip"),
    **dict.fromkeys(("bz2", "bzip2", "tbz2"), "bzip2"),
    **dict.fromkeys(("xz", "txz"), "xz"),
    **dict.fromkeys(("zst", "zstd"), "Zstandard"),
    **{name: name for name in ("zip", "7z", "rar", "lz4")},
}
_NAME = re.compile(
    rf"(?:\.(jsonl?|ndjson|csv|tsv|parquet|arrow))?(?:\.({'|'.join(_COMPRESSIONS)}))?$"
)
_BLANK = "\ufeff\u200b\u2060 \t\r\n"
# Matches lists, and an object over several lines too: the JSON reader names the fault.
_OPENS_JSON = re.compile(
    r'(?:\[\s*)?\{\s*"(?:[^"\\\n]|\\.){0,200}"\s*:'
    r'|(?:\[\s*){1,2}"(?:[^"\\\n]|\\.)*+"\s*(?:,\s*["\d]|\]\s*(?:[,\[\]]|\Z))'
).match
_BINARY = {PARQUET: parquet.is_parquet, ARROW: parquet.is_arrow}
_AS_IT_IS = "or read it as it is by --format=text"


def find_format(address: str, head: FileHead, options: TextOptions) -> str:
    """Return the format of a file by its head and its name.

    Raises Refused for a git-lfs pointer, a web page, a dump, a compressed table, and a name that
    promises another format or a compression; with --format=text none of these is refused.
    """
    if not head.data:
        return EMPTY
    if options.format == TEXT:
        return TEXT
    if table := next((kind for kind, is_kind in _BINARY.items() if is_kind(head.data)), ""):
        if head.is_compressed:
            raise Refused(f"{address} is a compressed {table} file, which is not read; unpack it")
        return table
    if kind := find_markup(head.data):
        raise Refused(
            f"{address} looks like {kind.looks}, not text; {kind.makes_text}, {_AS_IT_IS}"
        )
    likely = _find_format_of_text(head)
    named, packed = _NAME.findall(address.lower())[0]
    if named in _BINARY or (packed and not head.is_compressed):
        promise = _COMPRESSIONS[packed] if packed else named.capitalize()
        content = "binary data of another kind" if b"\0" in head.data else _WORDS[likely]
        raise Refused(
            f"{address} is named like {promise} and holds {content}; copy or download it again, "
            f"give it the name that it should have, {_AS_IT_IS}"
        )
    if named in TABLES:
        return named
    return JSON if named else likely


_WORDS = {TEXT: "plain text", WIKI: "WikiExtractor's <doc> text", JSON: "JSON lines"}


def _find_format_of_text(head: FileHead) -> str:
    text = head.data.decode("utf-8", "replace").lstrip(_BLANK)
    # Not only at the start: a log line may stand before, which the reader refuses.
    if text.startswith(wiki.OPENING) or f"\n{wiki.OPENING}id=" in text:
        return WIKI
    first = re.split("[\r\n]", text, maxsplit=1)[0]
    return JSON if _OPENS_JSON(text) or opens_json_lines(first) else TEXT
