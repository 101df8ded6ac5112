"""Batches of labelled examples: rows kept flat, dealt out in a seeded order, cut to their longest.

Knows no task: labels go into a batch under the names that their arrays have. Every batch is a
function of its step, so any step can be made again. NumPy alone: a batch of a task is small enough
to be copied together while the step before it runs.
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from data_pipeline.framing import Row, flat_rows
from data_pipeline.hashing import hash64, subkey

Batch = dict[str, np.ndarray]
_ORDER = 71  # what the key of an order is for
# Lengths that batches are cut to: each costs a compile, and a gap costs padding.
SEQ_LENS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclasses.dataclass(frozen=True)
class EncodedRows:
    """N labelled examples as R = N * rows_per_example framed rows of token ids, T tokens in all.

    Rows of an example follow each other: the choices of a question. `labels` are arrays of N;
    `token_labels` arrays of T, which become [N,S] fields filled up with zeros.
    """

    token_ids: np.ndarray  # int32[T]
    offsets: np.ndarray  # int64[R+1]: row r is token_ids[offsets[r]:offsets[r + 1]]
    second_starts: (
        np.ndarray
    )  # int32[R]: where segment 1 begins; the row's length where it has none
    labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows_per_example: int = 1

    @property
    def examples(self) -> int:
        """N."""
        return (len(self.offsets) - 1) // self.rows_per_example

    @property
    def lengths_N(self) -> np.ndarray:
        """int64[N]: tokens of each example's longest row."""
        lengths_R = np.diff(self.offsets)
        return lengths_R.reshape(self.examples, self.rows_per_example).max(axis=1)

    def first(self, examples: int) -> "EncodedRows":
        """The first so many examples; all if there are fewer."""
        kept = min(examples, self.examples)
        rows = kept * self.rows_per_example
        tokens = self.offsets[rows]
        return EncodedRows(
            self.token_ids[:tokens],
            self.offsets[: rows + 1],
            self.second_starts[:rows],
            {name: array[:kept] for name, array in self.labels.items()},
            {name: array[:tokens] for name, array in self.token_labels.items()},
            self.rows_per_example,
        )

    def labelled_as(self, other: "EncodedRows") -> "EncodedRows":
        """The same rows with zeros for the labels that another split has and these lack."""
        labels = {
            name: np.zeros((self.examples, *array.shape[1:]), array.dtype)
            for name, array in other.labels.items()
        }
        tokens = len(self.token_ids)
        token_labels = {
            name: np.zeros(tokens, array.dtype) for name, array in other.token_labels.items()
        }
        return dataclasses.replace(
            self,
            labels=labels | dict(self.labels),
            token_labels=token_labels | dict(self.token_labels),
        )

    def batch(self, index_B: np.ndarray, seq_len: int, pad_id: int) -> Batch:
        """The examples at these places; -1 is none: a row of one visible pad, without weight.

        Shapes: int64[B] -> input_ids, input_mask, segment_ids int32[B,S], or [B,C,S] where an
        example has C > 1 rows; the labels, and example_weights float32[B]. Longer rows are cut.
        """
        is_example_B = index_B >= 0
        rows = np.maximum(index_B, 0)[:, None] * self.rows_per_example
        rows = (rows + np.arange(self.rows_per_example)).ravel()
        starts, ends = self.offsets[rows][:, None], self.offsets[rows + 1][:, None]
        at = starts + np.arange(seq_len)
        inside = (at < ends) & np.repeat(is_example_B, self.rows_per_example)[:, None]
        at = np.where(inside, at, 0)
        second = (np.arange(seq_len) >= self.second_starts[rows][:, None]) & inside

        def shaped(array: np.ndarray) -> np.ndarray:
            if self.rows_per_example == 1:
                return array
            return array.reshape(len(index_B), self.rows_per_example, seq_len)

        mask = inside.copy()
        mask[:, 0] = True
        fields = {
            "input_ids": shaped(np.where(inside, self.token_ids[at], pad_id).astype(np.int32)),
            "input_mask": shaped(mask.astype(np.int32)),
            "segment_ids": shaped(second.astype(np.int32)),
            "example_weights": is_example_B.astype(np.float32),
        }
        for name, array in self.labels.items():
            fields[name] = array[np.maximum(index_B, 0)]
        for name, array in self.token_labels.items():
            fields[name] = np.where(inside, array[at], np.zeros((), array.dtype))
        return fields


def encoded(
    rows: Sequence[Row],
    labels: Mapping[str, np.ndarray] | None = None,
    rows_per_example: int = 1,
    token_labels: Mapping[str, np.ndarray] | None = None,
) -> EncodedRows:
    """Rows as framing.frame gives them, with the labels of their examples and tokens."""
    flat = flat_rows(rows)
    return EncodedRows(*flat, labels or {}, token_labels or {}, rows_per_example)


def seq_len_for(tokens: int, positions: int | None = None) -> int:
    """The length that a batch is cut to whose longest row has so many tokens.

    At most `positions`, those of the model, which may have fewer than the next of these lengths.
    """
    seq_len = next((length for length in SEQ_LENS if tokens <= length), -(-tokens // 128) * 128)
    return seq_len if positions is None else min(seq_len, positions)


class ExampleStream:
    """The training examples in an endless stream, epoch after epoch, each in its own order."""

    def __init__(
        self,
        rows: EncodedRows,
        order_seed: int,
        batch_size: int,
        pad_id: int,
        positions: int | None = None,
    ) -> None:
        """Rows are never padded past `positions`, as by seq_len_for."""
        self.rows, self.batch_size, self.pad_id = rows, batch_size, pad_id
        self._positions_of_model = positions
        self._seed = order_seed
        self._orders: dict[int, np.ndarray] = {}
        self._lengths_N = rows.lengths_N

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:  # a batch may begin in one epoch and end in the next
            self._orders = {
                known: self._orders[known] for known in self._orders.keys() & {epoch - 1}
            }
            bits_N = hash64(subkey(self._seed, _ORDER, epoch), np.arange(self.rows.examples))
            self._orders[epoch] = np.argsort(bits_N, kind="stable")
        return self._orders[epoch]

    def locate(self, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position, and the example's number in the split: int64[B] each."""
        epoch_B, place_B = np.divmod(positions_B, self.rows.examples)
        index_B = np.empty_like(place_B)
        for epoch in np.unique(epoch_B):
            of_epoch = epoch_B == epoch
            index_B[of_epoch] = self._order(int(epoch))[place_B[of_epoch]]
        return epoch_B, index_B

    def of_steps(self, first_step: int, last_step: int) -> np.ndarray:
        """int64[K,B]: the examples of each step from first_step to last_step - 1, from 0 on."""
        positions = np.arange(first_step * self.batch_size, last_step * self.batch_size)
        return self.locate(positions)[1].reshape(-1, self.batch_size)

    def seq_len(self, step: int) -> int:
        """The length that the batch of a step is cut to."""
        return self._seq_len_of(self.of_steps(step, step + 1)[0])

    def _seq_len_of(self, index_B: np.ndarray) -> int:
        return seq_len_for(int(self._lengths_N[index_B].max()), self._positions_of_model)

    def batches(
        self, first_step: int, last_step: int, rows_of_process: np.ndarray
    ) -> Generator[Batch, None, None]:
        """Some rows of the global batch of each step from first_step to last_step - 1."""
        for step in range(first_step, last_step):
            (index_B,) = self.of_steps(step, step + 1)
            yield self.rows.batch(index_B[rows_of_process], self._seq_len_of(index_B), self.pad_id)


@dataclasses.dataclass(frozen=True)
class EvaluationBatch:
    """Examples of about one length, and where their results belong."""

    index_B: np.ndarray  # int64[B], -1 for rows that fill up
    fields: Batch


def by_length(
    rows: EncodedRows, batch_size: int, pad_id: int, positions: int | None = None
) -> Iterator[EvaluationBatch]:
    """Every example once, the longest first, in whole batches cut to their longest row.

    Rows are never padded past `positions`, those of a model that has not 512 of them.
    """
    order = np.argsort(-rows.lengths_N, kind="stable")
    for start in range(0, len(order), batch_size):
        index = order[start : start + batch_size]
        filled = np.full(batch_size, -1, np.int64)
        filled[: len(index)] = index
        seq_len = seq_len_for(int(rows.lengths_N[index].max()), positions)
        yield EvaluationBatch(filled, rows.batch(filled, seq_len, pad_id))
