"""Frame the token ids of a text or a pair as a row: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

RoBERTa has a pair as [CLS] a [SEP] [SEP] b [SEP]: Vocabulary.pair_separators.
"""

from collections.abc import Mapping, Sequence

import numpy as np

FramedRow = tuple[
    list[int], int
]  # token ids, and the start of the second segment: their number if there is none


def truncate_pair(a_tokens: int, b_tokens: int, most: int) -> tuple[int, int]:
    """Return how many tokens of each text remain, `most` in all: the longer loses its end first.

    Source: run_classifier.py@eedf5716ce _truncate_seq_pair.
    """
    if a_tokens + b_tokens <= most:
        return a_tokens, b_tokens
    half = most // 2
    # A tie takes a token from b, so a keeps the odd one.
    kept_b = min(b_tokens, max(half, most - a_tokens))
    return min(a_tokens, most - kept_b), kept_b


def frame(
    a_ids: Sequence[int],
    b_ids: Sequence[int] | None,
    special_ids: Mapping[str, int],
    max_seq_length: int,
    pair_separators: int = 1,
) -> FramedRow:
    """Frame a text or a pair as a row of at most max_seq_length tokens, special ones included.

    special_ids and pair_separators are of a vocabulary. A pair whose b is None has one segment.

    Source: run_classifier.py@eedf5716ce convert_single_example.
    """
    cls, sep = special_ids["cls"], special_ids["sep"]
    if b_ids is None:
        row = [cls, *a_ids[: max_seq_length - 2], sep]
        return row, len(row)
    a, b = truncate_pair(len(a_ids), len(b_ids), max_seq_length - 2 - pair_separators)
    first = [cls, *a_ids[:a], *[sep] * pair_separators]
    return [*first, *b_ids[:b], sep], len(first)


def flatten_rows(rows: Sequence[FramedRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join rows: int32[T] token ids, int64[R+1] offsets, int32[R] starts of the second segments."""
    lengths = np.fromiter((len(token_ids) for token_ids, _ in rows), np.int64, len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.empty(int(offsets[-1]), np.int32)
    for (token_ids, _), start, end in zip(rows, offsets[:-1], offsets[1:], strict=True):
        flat[start:end] = token_ids
    seconds = np.fromiter((second for _, second in rows), np.int32, len(rows))
    return flat, offsets, seconds
