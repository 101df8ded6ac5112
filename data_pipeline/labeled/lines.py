"""Turn lines of text, each a sentence or a pair `A ||| B`, into rows of token ids."""

import dataclasses
import io
import itertools
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import cast

from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.io.errors import explain_errors
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import EncodedRows, build_rows
from data_pipeline.read.lines import read_lines, read_stream
from data_pipeline.spec.schema import GOOGLE
from data_pipeline.vocab import Vocabulary, split_ids
from data_pipeline.vocab.wordpiece import refuse_one_text

STDIN = "-"
# The last ||| separates: extract_features.py@eedf5716ce. A text from Python may have line breaks.
_PAIR = re.compile(r"(.*) \|\|\| (.*)", re.DOTALL)
_TABLE = re.compile(r"\.(jsonl?|ndjson|csv|tsv|parquet|arrow)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_LINES_AT_ONCE = 512  # encoded in one call


@dataclasses.dataclass
class LineCounts:
    """Count the lines read so far."""

    lines: int = 0
    empty: int = 0  # lines of white space alone
    without_tokens: int = 0  # lines with text that have no token
    cut: int = 0  # lines that are longer than a row
    kept_long: int = 0  # such lines that were kept whole


def check_lines(address: str, flag: str) -> None:
    """Raise if open_lines would find no file, or a table by its name; `flag` gave the address."""
    if _TABLE.search(address):
        raise Refused(
            f"{flag} is {address}, a table by its name, and here a line is a text: write the texts "
            "alone to a file, a line each, or pipe the file in (-) to read it as it is"
        )
    if address == STDIN or is_address(address):
        return
    if not (pathlib.Path(address).is_file() or _is_pipe(address)):
        raise Refused(
            f"{flag} is {address}, which is not a file; give a text file, a pipe, or - for stdin"
        )


def _is_pipe(address: str) -> bool:
    """Return whether a path is a pipe or a terminal, as /dev/stdin or a shell's <(command) is."""
    path = pathlib.Path(address)
    return path.is_fifo() or path.is_char_device()


def open_lines(address: str) -> Iterator[str]:
    """Open the lines of a file, plain or compressed, local or in a bucket, or of a pipe.

    "-" is standard input. Pipes hold plain text; lines end by the same rules in all of them.

    Raises:
      Refused: it cannot be read, is not text or not UTF-8.
    """
    if address == STDIN:
        yield from read_stream("/dev/stdin", cast(io.BufferedReader, sys.stdin.buffer))
    elif not is_address(address) and _is_pipe(address):
        with explain_errors(address), open(address, "rb") as stream:
            yield from read_stream(address, stream)
    else:
        yield from read_lines(address, lambda _: None)


def group_rows(
    lines: Iterable[str],
    vocabulary: Vocabulary,
    max_seq_length: int,
    most_tokens: int,
    counts: LineCounts,
    keeps_long: bool = False,
    pair_truncation: str = GOOGLE,
    has_pairs: bool = True,
) -> Iterator[EncodedRows]:
    """Yield the rows of all lines in their order, in groups of at most most_tokens tokens.

    Lines over max_seq_length are cut, pairs by the rule of pair_truncation; with keeps_long, only
    pairs are cut. An empty line is a row of [CLS] [SEP]: rows and lines keep the same numbers.
    `counts` includes one line beyond the groups so far. Without has_pairs, `|||` is plain text.
    """
    refuse_one_text(lines)
    template = vocabulary.template
    group: list[FramedRow] = []
    group_tokens = 0
    for text, first, second in _encode_lines(iter(lines), vocabulary, has_pairs):
        specials = template.count_specials(bool(second))
        longest = len(first) + specials if keeps_long and not second else max_seq_length
        row = frame(first, second or None, template, longest, pair_truncation)
        tokens, kept_tokens = len(first) + len(second), len(row.token_ids)
        counts.lines += 1
        counts.empty += not text
        counts.without_tokens += bool(text) and tokens == 0
        counts.cut += tokens + specials > kept_tokens
        counts.kept_long += kept_tokens > max_seq_length
        if group and group_tokens + kept_tokens > most_tokens:
            yield build_rows(group)
            group, group_tokens = [], 0
        group.append(row)
        group_tokens += kept_tokens
    if group:
        yield build_rows(group)


def _encode_lines(
    lines: Iterator[str], vocabulary: Vocabulary, has_pairs: bool
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield each line without white space at its ends, and the token ids of A and of B if any."""
    while texts := [line.strip() for line in itertools.islice(lines, _LINES_AT_ONCE)]:
        matches = [_PAIR.fullmatch(text) if has_pairs else None for text in texts]
        pairs = [
            match.groups() if match else (text,) for match, text in zip(matches, texts, strict=True)
        ]
        encoded = vocabulary.encode([segment for pair in pairs for segment in pair])
        segments = iter(split_ids(*encoded))
        for text, pair in zip(texts, pairs, strict=True):
            first, *rest = (next(segments).tolist() for _ in pair)
            yield text, first, rest[0] if rest else []
