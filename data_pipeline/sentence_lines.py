"""Lines of text, a sentence or a pair `A ||| B` each, to rows of token ids, line by line a row."""

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Iterator

from data_pipeline.finetune import EncodedRows, encoded
from data_pipeline.framing import Row, frame
from data_pipeline.lines import read_lines
from data_pipeline.vocab import Vocabulary

STDIN = "-"
_PAIR = re.compile(r"(.*) \|\|\| (.*)")  # extract_features.py@eedf5716ce: the last bars part it
_LINES_AT_ONCE = 512  # encoded in one call


@dataclasses.dataclass
class LineCounts:
    """What was met so far."""

    lines: int = 0
    empty: int = 0  # white space alone
    without_tokens: int = 0  # text, of which the vocabulary keeps no piece
    cut: int = 0  # longer than a row


def lines_of(address: str) -> Iterator[str]:
    """The lines of a file, plain or compressed, here or in a bucket; "-" is standard input.

    Raises:
      ValueError: it cannot be read, is no text or not UTF-8.
    """
    if address != STDIN:
        return read_lines(address, lambda _: None)
    return _lines_of_stdin()


def _lines_of_stdin() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"line {number:,} of standard input is not UTF-8 ({error.reason}); convert it "
                "first, as in: iconv -f LATIN1 -t UTF-8"
            ) from error


def row_groups(
    lines: Iterable[str],
    vocabulary: Vocabulary,
    max_seq_length: int,
    most_tokens: int,
    counts: LineCounts,
) -> Iterator[EncodedRows]:
    """Yield the rows of all lines in their order, so many at a time as have most_tokens together.

    An empty line is a row of [CLS] [SEP]: rows and lines keep the same numbers. counts is brought
    up to date with each group.
    """
    group: list[Row] = []
    tokens = 0
    for row, seen in _rows(iter(lines), vocabulary, max_seq_length):
        if group and tokens + len(row[0]) > most_tokens:
            yield encoded(group)
            group, tokens = [], 0
        group.append(row)
        tokens += len(row[0])
        counts.lines += 1
        counts.empty += seen.empty
        counts.without_tokens += seen.without_tokens
        counts.cut += seen.cut
    if group:
        yield encoded(group)


def _rows(
    lines: Iterator[str], vocabulary: Vocabulary, max_seq_length: int
) -> Iterator[tuple[Row, LineCounts]]:
    while texts := [line.strip() for line in itertools.islice(lines, _LINES_AT_ONCE)]:
        pairs = [found.groups() if (found := _PAIR.fullmatch(text)) else (text,) for text in texts]
        flat_ids, lengths = vocabulary.encode([segment for pair in pairs for segment in pair])
        ends, ids, start = iter(lengths.cumsum().tolist()), flat_ids.tolist(), 0
        for text, pair in zip(texts, pairs, strict=True):
            segments = []
            for _ in pair:
                end = next(ends)
                segments.append(ids[start:end])
                start = end
            first, second = segments[0], segments[1] if len(segments) > 1 else []
            row = frame(first, second or None, vocabulary.special_ids, max_seq_length)
            tokens = len(first) + len(second)
            yield (
                row,
                LineCounts(
                    empty=not text,
                    without_tokens=bool(text) and tokens == 0,
                    cut=tokens + 2 + bool(second) > len(row[0]),
                ),
            )
