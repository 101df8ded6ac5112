"""Describe distributions of lengths: exact percentiles, and bins to draw."""

import bisect
import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np

from data_pipeline.io import Refused

PERCENTS = (1, 5, 25, 50, 75, 95, 99)
# Lengths below this are counted in an array; the few above are kept one by one.
_COUNTED = 1 << 16
_MAX_EVEN_BINS = 32
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Bin:
    """Count the lengths from `first` to `last`, both included."""

    first: int
    last: int
    count: int


@dataclasses.dataclass(frozen=True)
class Bar:
    """Place a bar of a histogram; its area is proportional to its share of all lengths."""

    left: float  # a length, or its logarithm to base 2
    right: float
    height: float  # share of all lengths: per bin if bins are even, else per doubling


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Hold a distribution of lengths, each at least 1."""

    count: int
    mean: float
    shortest: int
    longest: int
    percentiles: dict[int, int]  # percent -> smallest length with this share at or below it
    bins: tuple[Bin, ...]
    is_even: bool  # bins of equal width; else four per doubling, for long tails

    def bars(self) -> list[Bar]:
        """Return the bins as bars: on a linear axis if they are even, else on a log2 axis."""
        bars = []
        for each in self.bins:
            left, right = float(each.first), each.last + 1.0
            if not self.is_even:
                left, right = math.log2(left), math.log2(right)
            share = each.count / self.count
            bars.append(Bar(left, right, share if self.is_even else share / (right - left)))
        return bars


def compute_differences(
    offsets: np.ndarray, values: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the differences between neighboring offsets, or between the values at the offsets.

    Shapes: int64[N+1], int64[V] with offsets below V -> int64[N], in chunks.
    """
    for start in range(0, len(offsets) - 1, _CHUNK):
        chunk = offsets[start : start + _CHUNK + 1]
        yield np.diff(chunk if values is None else values[chunk])


def measure_lengths(chunks: Iterable[np.ndarray], is_even: bool = False) -> Lengths:
    """Describe the lengths in all chunks; memory grows only with those above 65,535.

    Raises:
      Refused: there is no length.
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
        raise Refused("there are no lengths to describe; an empty store cannot be inspected")
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
    """Count the values between neighboring starts; drop empty bins at both ends."""
    binned, _ = np.histogram(values, starts, weights=counts)
    filled = np.flatnonzero(binned)
    return tuple(
        Bin(starts[number], starts[number + 1] - 1, int(binned[number]))
        for number in range(filled[0], filled[-1] + 1)
    )


def _doubling_starts(longest: int) -> list[int]:
    """Return 1 to 8, then 10, 12, 14, 16, 20, 24, 28, 32, ... until one exceeds the longest."""
    starts = list(range(1, 8))
    octave = 8
    while starts[-1] <= longest:
        starts += [octave, octave * 5 // 4, octave * 6 // 4, octave * 7 // 4]
        octave *= 2
    return starts[: bisect.bisect_right(starts, longest) + 1]


def _even_starts(longest: int) -> list[int]:
    width = -(-longest // _MAX_EVEN_BINS)
    return list(range(1, longest + width + 1, width))
