"""Plan which examples share a row, for a whole epoch, from the lengths of its examples alone."""

import bisect
import dataclasses

import numpy as np

from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose

# Examples processed at once, so that their numbers and hashes stay in the cache.
_BLOCK_EXAMPLES = 1 << 15


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """Hold which examples each row of an epoch has. Made by plan_rows.

    A composition is the list of example lengths in a row. Rows of the same composition are
    consecutive, so only the C compositions are stored. `order_E` holds the E examples sorted by
    length. Row k of a composition takes as its n-th example the one at index
    first_place_CN[c, n] + k * place_step_CN[c, n] of order_E.
    """

    rows: int
    order_E: np.ndarray  # uint32, examples by length; examples of equal length in hashed order
    first_row_C: np.ndarray  # int64
    first_place_CN: np.ndarray  # int64
    place_step_CN: np.ndarray  # int64, examples of this length in a row; 0: no n-th example

    def find_examples(self, rows_B: np.ndarray) -> np.ndarray:
        """Return the examples of the given rows, longest first.

        Shapes: int64[B] -> int64[B,N], N the most examples in a row; -1 in unused places.
        """
        composition_B = np.searchsorted(self.first_row_C, rows_B, side="right") - 1
        number_B = rows_B - self.first_row_C[composition_B]
        step_BN = self.place_step_CN[composition_B]
        place_BN = self.first_place_CN[composition_B] + number_B[:, None] * step_BN
        return np.where(step_BN > 0, self.order_E[place_BN].astype(np.int64), -1)


def plan_rows(lengths_E: np.ndarray, key: int, seq_len: int, most_examples: int) -> RowPlan:
    """Put every example into exactly one row of at most seq_len tokens and most_examples examples.

    Best fit, longest first: each example goes into the row where it leaves the least free space.
    Examples of equal length are ordered by a hash with `key`. Rows with equal example lengths are
    consecutive, so shuffle the rows before use.

    Shapes: lengths_E is uint16[E] or another integer type: the tokens of each example, special
    tokens included, from 1 to seq_len. E is below 2**32.
    Memory: 4 bytes per example, and 8 more while the plan is being made.

    Source: Krell et al. 2021, "Efficient sequence packing without cross-contamination", which also
    packs from the histogram of lengths.
    """
    order_E, examples_L = _sort_by_length(lengths_E, key, seq_len)
    rows_by_composition = _fit_rows(examples_L, seq_len, most_examples)
    compositions = len(rows_by_composition)
    first_place_CN = np.zeros((compositions, most_examples), np.int64)
    place_step_CN = np.zeros((compositions, most_examples), np.int64)
    free_place_L = (np.cumsum(examples_L) - examples_L).tolist()
    for composition, (lengths, rows) in enumerate(rows_by_composition.items()):
        for slot, length in enumerate(lengths):
            place_step_CN[composition, slot] = lengths.count(length)
            first_place_CN[composition, slot] = free_place_L[length] + slot - lengths.index(length)
        for length in set(lengths):
            free_place_L[length] += rows * lengths.count(length)
    rows_C = np.fromiter(rows_by_composition.values(), np.int64, compositions)
    return RowPlan(
        rows=int(rows_C.sum()),
        order_E=order_E,
        first_row_C=np.cumsum(rows_C) - rows_C,
        first_place_CN=first_place_CN,
        place_step_CN=place_step_CN,
    )


def _sort_by_length(lengths_E: np.ndarray, key: int, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples by length, ties in hashed order, and the number of each length.

    Pack length, hash and example number into one word, so that no second array is sorted.
    """
    number_bits = max(1, (len(lengths_E) - 1).bit_length())
    hash_bits = 64 - number_bits - seq_len.bit_length()
    length_shift, number_shift = np.uint64(64 - seq_len.bit_length()), np.uint64(number_bits)
    deal_key = hashing.derive_key(key, Purpose.DEAL_TO_ROWS)
    keys_E = np.empty(len(lengths_E), np.uint64)
    examples_L = np.zeros(seq_len + 1, np.int64)
    for start in range(0, len(lengths_E), _BLOCK_EXAMPLES):
        lengths = lengths_E[start : start + _BLOCK_EXAMPLES]
        examples_L += np.bincount(lengths, minlength=seq_len + 1)
        number = np.arange(start, start + len(lengths), dtype=np.uint64)
        bits = hashing.hash64(deal_key, number) >> np.uint64(64 - hash_bits)
        keys_E[start : start + len(lengths)] = (
            lengths.astype(np.uint64) << length_shift | bits << number_shift | number
        )
    keys_E.sort()
    keys_E &= np.uint64((1 << number_bits) - 1)
    return keys_E.astype(np.uint32), examples_L


def _fit_rows(examples_L: np.ndarray, seq_len: int, most: int) -> dict[tuple[int, ...], int]:
    """Fit examples into rows, best fit, longest first; return the number of rows per composition.

    Break ties in favor of rows with the fewest examples. Equal rows are filled together, so the
    work does not grow with the number of examples. The result is still best fit, as a row that has
    just taken an example has the least room for another example of the same length.
    """
    open_rows = _OpenRows()
    closed: dict[tuple[int, ...], int] = {}
    # Empty rows, more than can be needed, have the most room.
    open_rows.put(seq_len, (), int(examples_L.sum()))
    for length in reversed(np.flatnonzero(examples_L).tolist()):
        left = int(examples_L[length])
        while left:
            room, lengths, rows = open_rows.take(length)
            each = min(room // length, most - len(lengths), left)
            filled = min(rows, left // each)
            left -= filled * each
            open_rows.put(room, lengths, rows - filled)
            composition = lengths + (length,) * each
            if len(composition) == most:
                closed[composition] = closed.get(composition, 0) + filled
            else:
                open_rows.put(room - each * length, composition, filled)
    for rows_of_kind in open_rows.rows.values():
        closed |= rows_of_kind
    closed.pop((), None)  # rows without an example
    return closed


class _OpenRows:
    """Hold rows that may take more examples, by their room and their number of examples."""

    def __init__(self) -> None:
        self._kinds: list[tuple[int, int]] = []  # (room, examples), ascending
        self.rows: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}

    def put(self, room: int, lengths: tuple[int, ...], rows: int) -> None:
        """Add rows with examples of these lengths."""
        kind = (room, len(lengths))
        if rows and kind not in self.rows:
            bisect.insort(self._kinds, kind)
            self.rows[kind] = {}
        if rows:
            self.rows[kind][lengths] = self.rows[kind].get(lengths, 0) + rows

    def take(self, length: int) -> tuple[int, tuple[int, ...], int]:
        """Take the fullest rows with room for `length`: their room, lengths, and number of rows."""
        place = bisect.bisect_left(self._kinds, (length, 0))
        kind = self._kinds[place]
        lengths, rows = self.rows[kind].popitem()
        if not self.rows[kind]:
            del self.rows[kind], self._kinds[place]
        return kind[0], lengths, rows
