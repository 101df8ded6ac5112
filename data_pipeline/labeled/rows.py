"""Make batches of labeled examples: stored flat, shuffled by a seed, cut to their longest row.

Independent of the task: labels enter a batch under the names of their arrays. Every batch is a
function of its step, so any step can be repeated. NumPy suffices, as a batch is made while the
previous step runs.
"""

import dataclasses
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from data_pipeline.labeled.framing import FramedRow
from data_pipeline.spec.hashing import Purpose, derive_key, hash64

Batch = dict[str, np.ndarray]
# Lengths to cut batches to: each length costs a compile, each gap between lengths padding.
SEQ_LENS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclasses.dataclass(frozen=True)
class EncodedRows:
    """Hold N labeled examples as R = N * rows_per_example framed rows, T token ids in all.

    Rows of an example follow each other: the choices of a question. `labels` are arrays of N;
    `token_labels` arrays of T, which become [N,S] fields padded with zeros.
    """

    token_ids: np.ndarray  # int32[T]
    offsets: np.ndarray  # int64[R+1]: row r is token_ids[offsets[r]:offsets[r + 1]]
    second_starts: np.ndarray  # int32[R]: start of the second text; the row's length without one
    segment_ids: np.ndarray  # int8[T]
    cls_positions: np.ndarray  # int32[R]
    labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    token_labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows_per_example: int = 1

    @property
    def examples(self) -> int:
        """Return N."""
        return (len(self.offsets) - 1) // self.rows_per_example

    @functools.cached_property
    def lengths_N(self) -> np.ndarray:
        """Return the tokens of each example's longest row: int64[N]."""
        lengths_R = np.diff(self.offsets)
        return lengths_R.reshape(self.examples, self.rows_per_example).max(axis=1)

    @functools.cached_property
    def has_cls_elsewhere(self) -> bool:
        """Return whether [CLS] is not at position 0 in some row."""
        return bool(np.any(self.cls_positions))

    def row(self, number: int) -> FramedRow:
        """Return a row by its number."""
        tokens = slice(*self.offsets[number : number + 2])
        return FramedRow(
            self.token_ids[tokens].tolist(),
            int(self.second_starts[number]),
            self.segment_ids[tokens].tolist(),
            int(self.cls_positions[number]),
        )

    def first(self, examples: int) -> "EncodedRows":
        """Return the first `examples` examples; all if there are fewer."""
        kept = min(examples, self.examples)
        rows = kept * self.rows_per_example
        tokens = self.offsets[rows]
        return EncodedRows(
            self.token_ids[:tokens],
            self.offsets[: rows + 1],
            self.second_starts[:rows],
            self.segment_ids[:tokens],
            self.cls_positions[:rows],
            {name: array[:kept] for name, array in self.labels.items()},
            {name: array[:tokens] for name, array in self.token_labels.items()},
            self.rows_per_example,
        )

    def labeled_as(self, other: "EncodedRows") -> "EncodedRows":
        """Return the same rows, with zeros for labels that only `other` has."""
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
        """Make a batch of the examples with these numbers; -1 makes a padding row without weight.

        Shapes: int64[B] -> input_ids, input_mask, segment_ids int32[B,S], or [B,C,S] where an
        example has C > 1 rows; the labels, and example_weights float32[B]. Longer rows are cut.
        If has_cls_elsewhere: cls_positions int32[B] or [B,C].
        """
        is_example_B = index_B >= 0
        rows = np.maximum(index_B, 0)[:, None] * self.rows_per_example
        rows = (rows + np.arange(self.rows_per_example)).ravel()
        starts, ends = self.offsets[rows][:, None], self.offsets[rows + 1][:, None]
        token_RS = starts + np.arange(seq_len)
        inside = (token_RS < ends) & np.repeat(is_example_B, self.rows_per_example)[:, None]
        token_RS = np.where(inside, token_RS, 0)

        def add_rows_dim(array: np.ndarray) -> np.ndarray:
            if self.rows_per_example == 1:
                return array
            return array.reshape(len(index_B), self.rows_per_example, *array.shape[1:])

        mask = inside.copy()
        mask[:, 0] = True
        fields = {
            "input_ids": add_rows_dim(
                np.where(inside, self.token_ids[token_RS], pad_id).astype(np.int32)
            ),
            "input_mask": add_rows_dim(mask.astype(np.int32)),
            "segment_ids": add_rows_dim(
                np.where(inside, self.segment_ids[token_RS], 0).astype(np.int32)
            ),
            "example_weights": is_example_B.astype(np.float32),
        }
        if self.has_cls_elsewhere:
            is_row = np.repeat(is_example_B, self.rows_per_example)
            fields["cls_positions"] = add_rows_dim(np.where(is_row, self.cls_positions[rows], 0))
        for name, array in self.labels.items():
            fields[name] = array[np.maximum(index_B, 0)]
        for name, array in self.token_labels.items():
            fields[name] = np.where(inside, array[token_RS], np.zeros((), array.dtype))
        return fields


def build_rows(
    rows: Sequence[FramedRow], labels: Mapping[str, np.ndarray] | None = None
) -> EncodedRows:
    """Build EncodedRows of framed rows, each an example, and their labels."""
    rows = [FramedRow(*row) for row in rows]
    lengths = np.fromiter((len(row.token_ids) for row in rows), np.int64, len(rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    token_ids, segment_ids = (np.empty(int(offsets[-1]), dtype) for dtype in (np.int32, np.int8))
    for row, start, end in zip(rows, offsets[:-1], offsets[1:], strict=True):
        token_ids[start:end] = row.token_ids
        segment_ids[start:end] = row.segment_ids or np.arange(end - start) >= row.second_start
    return EncodedRows(
        token_ids,
        offsets,
        np.array([row.second_start for row in rows], np.int32),
        segment_ids,
        np.array([row.cls_position for row in rows], np.int32),
        labels or {},
    )


def make_plain_rows(token_ids: np.ndarray, offsets: np.ndarray) -> EncodedRows:
    """Build rows of one segment from token ids int32[T] and offsets int64[R+1], unchanged."""
    lengths_R = np.diff(offsets)
    segment_ids, cls_positions = np.zeros(len(token_ids), np.int8), np.zeros_like(lengths_R)
    return EncodedRows(
        token_ids, offsets, lengths_R.astype(np.int32), segment_ids, cls_positions.astype(np.int32)
    )


def join_rows(parts: Sequence[EncodedRows]) -> EncodedRows:
    """Join rows without labels, part after part."""
    lengths = [np.diff(part.offsets) for part in parts]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
    return EncodedRows(
        np.concatenate([part.token_ids for part in parts]),
        offsets,
        np.concatenate([part.second_starts for part in parts]),
        np.concatenate([part.segment_ids for part in parts]),
        np.concatenate([part.cls_positions for part in parts]),
    )


def choose_seq_len(tokens: int, positions: int | None = None) -> int:
    """Choose the length of a batch whose longest row has `tokens` tokens.

    It is the next of SEQ_LENS, but at most `positions`, the model's maximum.
    """
    seq_len = next((length for length in SEQ_LENS if tokens <= length), -(-tokens // 128) * 128)
    return seq_len if positions is None else min(seq_len, positions)


class ExampleStream:
    """Stream the training examples without end, each epoch in an order of its own."""

    def __init__(
        self,
        rows: EncodedRows,
        order_seed: int,
        batch_size: int,
        pad_id: int,
        positions: int | None = None,
    ) -> None:
        """Open the stream; rows are never padded past `positions`, as in choose_seq_len."""
        self.rows, self.batch_size, self.pad_id = rows, batch_size, pad_id
        self._positions_of_model = positions
        self._seed = order_seed
        # A batch may begin in one epoch and end in the next.
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)
        self._lengths_N = rows.lengths_N

    def _draw_order(self, epoch: int) -> np.ndarray:
        key = derive_key(self._seed, Purpose.LABELED_ORDER, epoch)
        return np.argsort(hash64(key, np.arange(self.rows.examples)), kind="stable")

    def locate(self, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch of each position and its example in the split: int64[B] each."""
        epoch_B, place_B = np.divmod(positions_B, self.rows.examples)
        index_B = np.empty_like(place_B)
        for epoch in np.unique(epoch_B):
            members = epoch_B == epoch
            index_B[members] = self._order(int(epoch))[place_B[members]]
        return epoch_B, index_B

    def examples_of_steps(self, first_step: int, last_step: int) -> np.ndarray:
        """Return the examples of the steps first_step to last_step - 1, from 0 on: int64[K,B]."""
        positions = np.arange(first_step * self.batch_size, last_step * self.batch_size)
        return self.locate(positions)[1].reshape(-1, self.batch_size)

    def seq_len(self, step: int) -> int:
        """Return the length that the batch of a step is cut to."""
        return self._choose_seq_len(self.examples_of_steps(step, step + 1)[0])

    def _choose_seq_len(self, index_B: np.ndarray) -> int:
        return choose_seq_len(int(self._lengths_N[index_B].max()), self._positions_of_model)

    def batches(
        self, first_step: int, last_step: int, rows_of_process: np.ndarray
    ) -> Generator[Batch, None, None]:
        """Yield some rows of the global batch of each step from first_step to last_step - 1."""
        for step in range(first_step, last_step):
            (index_B,) = self.examples_of_steps(step, step + 1)
            yield self.rows.batch(
                index_B[rows_of_process], self._choose_seq_len(index_B), self.pad_id
            )


@dataclasses.dataclass(frozen=True)
class EvaluationBatch:
    """Hold examples of about equal length, and their numbers in the split."""

    index_B: np.ndarray  # int64[B], -1 for padding rows
    fields: Batch


def batch_by_length(
    rows: EncodedRows, batch_size: int, pad_id: int, positions: int | None = None
) -> Iterator[EvaluationBatch]:
    """Yield every example once, the longest first, in full batches cut to their longest row.

    Rows are never padded past `positions`, the most that the model has.
    """
    order = np.argsort(-rows.lengths_N, kind="stable")
    for start in range(0, len(order), batch_size):
        index = order[start : start + batch_size]
        filled = np.full(batch_size, -1, np.int64)
        filled[: len(index)] = index
        seq_len = choose_seq_len(int(rows.lengths_N[index].max()), positions)
        yield EvaluationBatch(filled, rows.batch(filled, seq_len, pad_id))
