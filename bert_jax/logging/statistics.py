"""Summarize runs over seeds, and compare two systems with the noise between seeds."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
import scipy.stats

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Interval:
    """Hold a mean difference and the half width of its confidence interval."""

    mean: float
    half_width: float

    @property
    def is_beyond_chance(self) -> bool:
        """Return whether the interval excludes zero."""
        return abs(self.mean) > self.half_width

    def describe(self, digits: int) -> str:
        """Write the difference ± the half width, with `digits` decimals."""
        return f"{self.mean:+.{digits}f} ± {self.half_width:.{digits}f}"


def compare_paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Compute the mean of ours - theirs, paired by seed, with its Student's t interval.

    At least two pairs are required.
    """
    differences = np.asarray(ours) - np.asarray(theirs)
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    t = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, differences.size - 1)
    return Interval(float(differences.mean()), float(t * error))


def summarize_values(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (N - 1), which is None for a single run."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def describe_mean(values: Sequence[float], digits: int = 3) -> str:
    """Write the mean ± the standard deviation, to `digits` decimals; of a single run the mean."""
    mean, deviation = summarize_values(values)
    spread = "" if deviation is None else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"


def compare_unpaired(
    ours: Sequence[float], theirs: Sequence[float], groups: Sequence[Sequence[float]]
) -> Interval | None:
    """Compute the mean of ours less the mean of theirs, with its interval by Student's t.

    The variance is pooled over `groups`, which include ours and theirs, as in the least significant
    difference after an analysis of variance. None if no group has two runs.
    """
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return None
    squares = sum(statistics.pvariance(group) * len(group) for group in groups)
    error = np.sqrt(squares / degrees * (1 / len(ours) + 1 / len(theirs)))
    t = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees)
    return Interval(statistics.fmean(ours) - statistics.fmean(theirs), float(t * error))
