"""Which examples share a row: a plan for a whole epoch, from the lengths of its examples alone."""

import bisect
import dataclasses

import numpy as np

from data_pipeline import hashing

# Purpose of the key: which of the examples of one length meet which others.
_DEAL = 201
# Examples worked on at once; their numbers and hashes stay in the cache.
_BLOCK_EXAMPLES = 1 << 15
_MOST_EXAMPLES = 2**32


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """The rows of an epoch and the examples in each, any of them found without the others.

    Rows of the same composition, the lengths of their examples, stand together: C compositions are
    kept, not the rows. The k-th row of a composition takes, for its n-th example, the k-th of a
    series of places in `order_E`, where the E examples stand sorted by length. Made by plan_rows.
    """

    rows: int
    order_E: np.ndarray  # uint32, examples by length and, where they are equal, in hashed order
    first_row_C: np.ndarray  # int64
    first_place_CN: np.ndarray  # int64
    place_step_CN: np.ndarray  # int64, how many of the row's examples are of this length; 0: none

    def examples_of(self, rows_B: np.ndarray) -> np.ndarray:
        """The examples of the given rows, longest first.

        Shapes: int64[B] -> int64[B,N], N the most examples in a row; -1 where a row has fewer.

        Raises:
          ValueError: a row that the plan does not have.
        """
        if len(rows_B) and not 0 <= rows_B.min() <= rows_B.max() < self.rows:
            raise ValueError(
                f"rows {rows_B.min()} to {rows_B.max()} are asked for; the plan has "
                f"{self.rows}, numbered from 0"
            )
        composition_B = np.searchsorted(self.first_row_C, rows_B, side="right") - 1
        number_B = rows_B - self.first_row_C[composition_B]
        step_BN = self.place_step_CN[composition_B]
        place_BN = self.first_place_CN[composition_B] + number_B[:, None] * step_BN
        return np.where(step_BN > 0, self.order_E[place_BN].astype(np.int64), -1)


def plan_rows(lengths_E: np.ndarray, key: int, seq_len: int, most_examples: int) -> RowPlan:
    """Put every example into exactly one row of at most seq_len tokens and most_examples examples.

    Best fit, longest first: each example goes where it leaves the least room. Which of the examples
    of one length goes where is hashed from the key. The rows of one composition follow each other:
    use them in another order.

    Shapes: uint16[E] or another integer, tokens of each example with its special pieces.
    Memory: 4 bytes an example, 8 more while the plan is made.

    Raises:
      ValueError: a length that no row can have, most_examples below 1, or 2**32 examples or more.

    Source: Krell et al. 2021, "Efficient sequence packing without cross-contamination", whose
    packing works on the histogram of lengths too.
    """
    _check(lengths_E, seq_len, most_examples)
    order_E, examples_L = _sorted_by_length(lengths_E, key, seq_len)
    rows_of = _best_fit(examples_L, seq_len, most_examples)
    compositions = len(rows_of)
    first_place_CN = np.zeros((compositions, most_examples), np.int64)
    place_step_CN = np.zeros((compositions, most_examples), np.int64)
    free_place_L = (np.cumsum(examples_L) - examples_L).tolist()
    for composition, (lengths, rows) in enumerate(rows_of.items()):
        for slot, length in enumerate(lengths):
            place_step_CN[composition, slot] = lengths.count(length)
            first_place_CN[composition, slot] = free_place_L[length] + slot - lengths.index(length)
        for length in set(lengths):
            free_place_L[length] += rows * lengths.count(length)
    end_row_C = np.cumsum(np.fromiter(rows_of.values(), np.int64, compositions))
    return RowPlan(
        rows=sum(rows_of.values()),
        order_E=order_E,
        first_row_C=end_row_C - np.fromiter(rows_of.values(), np.int64, compositions),
        first_place_CN=first_place_CN,
        place_step_CN=place_step_CN,
    )


def _check(lengths_E: np.ndarray, seq_len: int, most_examples: int) -> None:
    if most_examples < 1:
        raise ValueError(f"most_examples is {most_examples}; a row holds 1 or more")
    if len(lengths_E) >= _MOST_EXAMPLES:
        raise ValueError(
            f"{len(lengths_E)} examples are to be packed; a plan holds {_MOST_EXAMPLES - 1}: use "
            "config.data.packed_examples=1, or build several stores"
        )
    for at in (lengths_E.argmax(), lengths_E.argmin()) if len(lengths_E) else ():
        if not 1 <= lengths_E[at] <= seq_len:
            raise ValueError(
                f"example {at} has {lengths_E[at]} tokens; to share a row of seq_len {seq_len} it "
                f"must have from 1 to {seq_len}: draw the examples with that seq_len"
            )


def _sorted_by_length(
    lengths_E: np.ndarray, key: int, seq_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """The examples by length, equal ones in hashed order, and how many of each length there are.

    A sort key is the length, a hash and the example's number in one word: no second array to sort.
    """
    number_bits = max(1, (len(lengths_E) - 1).bit_length())
    hash_bits = 64 - number_bits - seq_len.bit_length()
    length_shift, number_shift = np.uint64(64 - seq_len.bit_length()), np.uint64(number_bits)
    deal_key = hashing.subkey(key, _DEAL)
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


def _best_fit(examples_L: np.ndarray, seq_len: int, most: int) -> dict[tuple[int, ...], int]:
    """How many rows of each composition best fit, longest first, makes of so many of each length.

    Among rows with the same room the one with the fewest examples is taken. Rows that are alike are
    filled at one go, so that the work does not grow with the number of examples: a row that took an
    example and has room for another of its length is then the one with the least room for it.
    """
    open_rows = _OpenRows()
    closed: dict[tuple[int, ...], int] = {}
    # Empty rows, more than can be needed, are the ones with the most room.
    open_rows.put(seq_len, (), int(examples_L.sum()))
    for length in reversed(np.flatnonzero(examples_L).tolist()):
        left = int(examples_L[length])
        while left:
            room, held, rows = open_rows.take(length)
            each = min(room // length, most - len(held), left)
            filled = min(rows, left // each)
            left -= filled * each
            open_rows.put(room, held, rows - filled)
            composition = held + (length,) * each
            if len(composition) == most:
                closed[composition] = closed.get(composition, 0) + filled
            else:
                open_rows.put(room - each * length, composition, filled)
    closed |= open_rows.all_but_empty()
    return closed


class _OpenRows:
    """Rows that may take more examples, by their room and how many examples they hold."""

    def __init__(self) -> None:
        self._kinds: list[tuple[int, int]] = []  # (room, examples held), ascending
        self._rows: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}

    def put(self, room: int, held: tuple[int, ...], rows: int) -> None:
        """Add rows that hold examples of the lengths `held`."""
        kind = (room, len(held))
        if rows and kind not in self._rows:
            bisect.insort(self._kinds, kind)
            self._rows[kind] = {}
        if rows:
            self._rows[kind][held] = self._rows[kind].get(held, 0) + rows

    def take(self, length: int) -> tuple[int, tuple[int, ...], int]:
        """Remove the rows with the least room for `length`: room, lengths held, how many rows."""
        at = bisect.bisect_left(self._kinds, (length, 0))
        kind = self._kinds[at]
        held, rows = self._rows[kind].popitem()
        if not self._rows[kind]:
            del self._rows[kind], self._kinds[at]
        return kind[0], held, rows

    def all_but_empty(self) -> dict[tuple[int, ...], int]:
        """The rows that hold an example."""
        return {held: n for rows in self._rows.values() for held, n in rows.items() if held}
