"""Summarize runs over seeds, and compare two systems by the runs whose seeds are the same."""

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
import scipy.stats

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Interval:
    """Mean of paired differences with its interval of confidence, by Student's t."""

    mean: float
    half_width: float

    @property
    def is_beyond_chance(self) -> bool:
        """Return whether the interval leaves zero out."""
        return abs(self.mean) > self.half_width


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Compare two systems by the runs whose seeds are the same; two or more of them."""
    differences = np.asarray(ours) - np.asarray(theirs)
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    t = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, differences.size - 1)
    return Interval(float(differences.mean()), float(t * error))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation of a sample (N - 1); None of a single run."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
