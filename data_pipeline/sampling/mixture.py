"""Mix the streams of several stores: find the store of each position, and its row there."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.sampling.batches import ExampleSource

MIXTURE_VERSION = 2  # increment it when the same weights assign rows to other stores
PARTS = 100_000  # weights are rounded to multiples of 1 / PARTS


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Assign each row of an endless sequence to one of K stores, with a period of P rows.

    Among the first n rows, the count of each store differs from n times its weight by less than 1.
    """

    store_P: np.ndarray  # int64
    earlier_P: np.ndarray  # int64: earlier rows of the same store in the period
    quotas_K: np.ndarray  # int64: rows of each store in the period

    def locate(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the store of each row, and the number of earlier rows from the same store.

        Shapes: int[B] -> int64[B], int64[B].
        """
        period_B, rest_B = np.divmod(np.asarray(rows_B, np.int64), len(self.store_P))
        store_B = self.store_P[rest_B]
        return store_B, period_B * self.quotas_K[store_B] + self.earlier_P[rest_B]

    def count(self, rows: int) -> np.ndarray:
        """Count the rows of each store among the first `rows`: int64[K]."""
        periods, rest = divmod(rows, len(self.store_P))
        counts_K = np.bincount(self.store_P[:rest], minlength=len(self.quotas_K))
        return periods * self.quotas_K + counts_K

    @property
    def weights_K(self) -> np.ndarray:
        """Return the share of each store, as rounded: float64[K]."""
        return self.quotas_K / len(self.store_P)


@functools.cache
def make_schedule(weights: tuple[float, ...]) -> Schedule:
    """Make the schedule for store weights, each 0 or more, that sum to 1; cached by the weights.

    Among the stores that may take another row without exceeding their share, the one whose next row
    is due first takes it. Source: Tijdeman 1980, "The chairman assignment problem".

    Raises:
      Refused: a positive weight would be rounded to 0.
    """
    quotas_K = _round_to_parts(weights)
    quotas_K //= math.gcd(*quotas_K.tolist())
    # A store of weight 0 changes nothing, not even the order of the other stores.
    period, slack = int(quotas_K.sum()), 2 * max(2, int((quotas_K > 0).sum())) - 2
    counts_K, store_P = np.zeros_like(quotas_K), np.empty(period, np.int64)
    earlier_P = np.empty(period, np.int64)
    divisors_K = np.maximum(quotas_K, 1)
    for row in range(period):
        owed_K = slack * (quotas_K * (row + 1) - period * counts_K)  # rows x slack x period
        delay_K = (slack * period - period - owed_K) / divisors_K
        store = int(np.argmin(np.where(owed_K >= period, delay_K, np.inf)))
        store_P[row], earlier_P[row] = store, counts_K[store]
        counts_K[store] += 1
    return Schedule(store_P, earlier_P, quotas_K)


def _round_to_parts(weights: Sequence[float]) -> np.ndarray:
    """Return the weights as integers that sum to PARTS: float64[K] -> int64[K]."""
    exact_K = np.asarray(weights, np.float64) * PARTS
    parts_K = np.floor(exact_K + 1e-6).astype(np.int64)  # 0.29 * 100,000 is below 29,000
    missing = PARTS - int(parts_K.sum())
    parts_K[np.argsort(parts_K - exact_K, kind="stable")[:missing]] += 1
    for number, (weight, parts) in enumerate(zip(weights, parts_K, strict=True)):
        if weight > 0 and parts == 0:
            raise Refused(
                f"store {number} of config.data.store has {weight:.2g} of the rows; the least is "
                f"{1 / PARTS:g}: set config.data.store_weights, lower store_temperature, or leave "
                "the store out"
            )
    return parts_K


@dataclasses.dataclass(frozen=True)
class ScheduleSpan:
    """Hold a schedule that begins at position `start`, where store k is at its row first_K[k]."""

    start: int
    schedule: Schedule
    first_K: np.ndarray  # int64


def chain(schedules: Sequence[tuple[int, Schedule]]) -> tuple[ScheduleSpan, ...]:
    """Concatenate schedules, given as (rows, schedule) pairs; the last schedule never ends.

    No store skips or repeats a row where the schedule changes. Equal neighbors are merged.
    """
    spans: list[ScheduleSpan] = []
    start = 0
    for rows, schedule in schedules:
        if not spans:
            spans = [ScheduleSpan(0, schedule, np.zeros_like(schedule.quotas_K))]
        elif schedule is not spans[-1].schedule:
            last = spans[-1]
            first_K = last.first_K + last.schedule.count(start - last.start)
            spans.append(ScheduleSpan(start, schedule, first_K))
        start += rows
    return tuple(spans)


def find_stores(
    spans: Sequence[ScheduleSpan], positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the store of each position, and the position in the stream of that store.

    Shapes: int[B] -> int64[B], int64[B].
    """
    positions = np.asarray(positions, np.int64)
    starts = [span.start for span in spans]
    span_B = np.searchsorted(starts, positions, side="right") - 1
    store_B, own_B = np.empty_like(positions), np.empty_like(positions)
    for number, span in enumerate(spans):
        is_in = span_B == number
        stores, earlier = span.schedule.locate(positions[is_in] - span.start)
        store_B[is_in], own_B[is_in] = stores, span.first_K[stores] + earlier
    return store_B, own_B


class MixedSource(ExampleSource):
    """Mix several stores into one stream; the rows of each store keep their order."""

    def __init__(
        self, sources: Sequence[ExampleSource], spans: Sequence[ScheduleSpan], weights_K: np.ndarray
    ) -> None:
        """Mix one source per store, all of one shape.

        `weights_K`, float64[K], are the stores' shares, which weight the mean_* properties.
        """
        first = sources[0]
        self.shape, self.options, self.special_ids = first.shape, first.options, first.special_ids
        self.sources, self.spans, self.weights_K = sources, spans, weights_K

    @property
    def mean_rows_per_epoch(self) -> float:
        """Return the number of rows of the mixture after which a first store has been read once."""
        return min(
            source.mean_rows_per_epoch / weight
            for source, weight in zip(self.sources, self.weights_K.tolist(), strict=True)
            if weight
        )

    @property
    def mean_examples_in_row(self) -> float:
        return float(self.weights_K @ [source.mean_examples_in_row for source in self.sources])

    def rows_in_epoch(self, epoch: int) -> int:
        """Return mean_rows_per_epoch, rounded down, but at least 1; equal for every epoch."""
        del epoch
        return max(1, int(self.mean_rows_per_epoch))

    def find_stores(self, positions: np.ndarray) -> np.ndarray:
        return find_stores(self.spans, positions)[0]

    def find_parts(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return find_stores(self.spans, positions)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's epoch and index within the epoch, both in the stream of its store."""
        store_B, own_B = self.find_parts(positions)
        epoch_B, index_B = np.empty_like(own_B), np.empty_like(own_B)
        for number, source in enumerate(self.sources):
            is_own_B = store_B == number
            epoch_B[is_own_B], index_B[is_own_B] = source.locate(own_B[is_own_B])
        return epoch_B, index_B

    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        return self.sources[part].rows(index_B)
