"""How long documents, sentences and rows are: exact percentiles, and bins for a picture."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

PERCENTS = (1, 5, 25, 50, 75, 95, 99)
# Below this every length is counted by itself; the few above are kept one by one.
_COUNTED = 1 << 16
_MOST_EVEN_BINS = 32
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Bin:
    """How many have a length from `first` to `last`."""

    first: int
    last: int
    count: int


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bin on a picture's axis; its area is in proportion to its share of all."""

    left: float  # a length, or its logarithm to base 2
    right: float
    height: float  # the share of its bin if bins are even, else the share of a doubling
    bin: Bin


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A distribution of lengths of 1 or more."""

    count: int
    mean: float
    shortest: int
    longest: int
    percentiles: dict[int, int]  # percent -> the least length that so many do not exceed
    bins: tuple[Bin, ...]
    is_even: bool  # bins of one width; else four of them for each doubling, for long tails

    def bars(self) -> list[Bar]:
        """The bins as bars, on an axis of lengths if they are even, else of their logarithms."""
        bars = []
        for one in self.bins:
            left, right = self.place(one.first), self.place(one.last + 1)
            share = one.count / self.count
            bars.append(Bar(left, right, share if self.is_even else share / (right - left), one))
        return bars

    def place(self, length: float) -> float:
        """Where a length stands on the axis of the bars."""
        return length if self.is_even else math.log2(length)


def differences(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """The lengths between offsets, in chunks: int[N+1] -> int64[...] that make N together."""
    for start in range(0, len(offsets) - 1, _CHUNK):
        yield np.diff(offsets[start : start + _CHUNK + 1])


def document_tokens(
    document_offsets: np.ndarray, sentence_offsets: np.ndarray
) -> Iterator[np.ndarray]:
    """Tokens of each document, in chunks."""
    for start in range(0, len(document_offsets) - 1, _CHUNK):
        yield np.diff(sentence_offsets[document_offsets[start : start + _CHUNK + 1]])


def lengths_of(chunks: Iterable[np.ndarray], is_even: bool = False) -> Lengths:
    """The distribution of the lengths in all chunks; memory grows only with those above 65,535.

    Raises:
      ValueError: there is no length.
    """
    counted = np.zeros(_COUNTED, np.int64)
    long = [np.zeros(0, np.int64)]
    for chunk in chunks:
        is_short = chunk < _COUNTED
        counted += np.bincount(chunk[is_short], minlength=_COUNTED)
        long.append(chunk[~is_short])
    long_values, long_counts = np.unique(np.concatenate(long), return_counts=True)
    short_values = np.flatnonzero(counted)
    values = np.concatenate([short_values, long_values])
    counts = np.concatenate([counted[short_values], long_counts])
    if not len(values):
        raise ValueError("there are no lengths to describe; an empty store cannot be inspected")
    ends = np.cumsum(counts)
    total = int(ends[-1])
    reached = np.searchsorted(ends, [-(-percent * total // 100) for percent in PERCENTS])
    percentiles = dict(zip(PERCENTS, values[reached].tolist(), strict=True))
    longest = int(values[-1])
    return Lengths(
        count=total,
        mean=float(values @ counts) / total,
        shortest=int(values[0]),
        longest=longest,
        percentiles=percentiles,
        bins=_bins(values, counts, _even_starts(longest) if is_even else _doubling_starts(longest)),
        is_even=is_even,
    )


def _bins(values: np.ndarray, counts: np.ndarray, starts: list[int]) -> tuple[Bin, ...]:
    """Bins from each start up to the next; those before the first and after the last are left out.

    The last start is only an end.
    """
    place = np.searchsorted(values, starts)
    before = np.concatenate([[0], np.cumsum(counts)])[place]
    bins = [
        Bin(first, following - 1, int(after - so_far))
        for (first, following), (so_far, after) in zip(
            itertools.pairwise(starts), itertools.pairwise(before), strict=True
        )
    ]
    filled = [number for number, one in enumerate(bins) if one.count]
    return tuple(bins[filled[0] : filled[-1] + 1])


def _doubling_starts(longest: int) -> list[int]:
    """1 to 8, then 10, 12, 14, 16, 20, 24, 28, 32, ... until one exceeds the longest."""
    starts = list(range(1, 8))
    octave = 8
    while starts[-1] <= longest:
        starts += [octave, octave * 5 // 4, octave * 6 // 4, octave * 7 // 4]
        octave *= 2
    return starts[: bisect.bisect_right(starts, longest) + 1]


def _even_starts(longest: int) -> list[int]:
    width = -(-longest // _MOST_EVEN_BINS)
    return list(range(1, longest + width + 1, width))
