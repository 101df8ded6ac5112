"""The examples of a fine-tuning step side by side in rows: little padding, one shape for all steps.

What lies where is a function of the lengths alone, so it is the same on every mesh.

Dimensions: K steps, B examples of a step, R rows, N examples in a row at most, S sequence.
"""

import dataclasses
from collections.abc import Generator

import numpy as np

from data_pipeline.finetune import SEQ_LENS, Batch, EncodedRows, ExampleStream, seq_len_for

VERSION = 1  # of where examples lie, and so of their dropout; raised with any change to it
_LONGEST_ROW = 512
# Attention costs as much as this many tokens' other work would at a width of 384, and half at 768.
_TOKENS_OF_ATTENTION = 2304


@dataclasses.dataclass(frozen=True)
class Packing:
    """The rows that hold the examples of any step of a run."""

    seq_len: int  # S
    rows: int  # R
    examples: int  # N


@dataclasses.dataclass(frozen=True)
class Places:
    """Where each example lies, int64[K,B]: the first that fits of rows of one length."""

    row_KB: np.ndarray
    slot_KB: np.ndarray  # among the examples of the row
    start_KB: np.ndarray  # its first position


def placed(lengths_KB: np.ndarray, seq_len: int) -> Places:
    """Put the examples of each step, the longest first, into the first row with room for them."""
    steps, examples = lengths_KB.shape
    order_KB = np.argsort(-lengths_KB, axis=1, kind="stable")
    used_KR = np.zeros((steps, examples), np.int64)  # as many rows as could be needed
    held_KR = np.zeros_like(used_KR)
    places = Places(*(np.zeros_like(lengths_KB, np.int64) for _ in range(3)))
    at_K = np.arange(steps)
    for number in range(examples):
        example_K = order_KB[:, number]
        length_K = lengths_KB[at_K, example_K]
        row_K = np.argmax(used_KR + length_K[:, None] <= seq_len, axis=1)
        places.row_KB[at_K, example_K] = row_K
        places.slot_KB[at_K, example_K] = held_KR[at_K, row_K]
        places.start_KB[at_K, example_K] = used_KR[at_K, row_K]
        used_KR[at_K, row_K] += length_K
        held_KR[at_K, row_K] += 1
    return places


def packing_for(lengths_KB: np.ndarray) -> Packing:
    """The length of rows, and how many of them, that cost least and hold every step."""
    longest = seq_len_for(int(lengths_KB.max()))
    lengths = [length for length in SEQ_LENS if longest <= length <= _LONGEST_ROW] or [longest]
    return min((_held(lengths_KB, length) for length in lengths), key=_cost)


def _held(lengths_KB: np.ndarray, seq_len: int) -> Packing:
    places = placed(lengths_KB, seq_len)
    rows, examples = int(places.row_KB.max()) + 1, int(places.slot_KB.max()) + 1
    return Packing(seq_len, rows, examples)


def _cost(packing: Packing) -> float:
    return packing.rows * packing.seq_len * (1.0 + packing.seq_len / _TOKENS_OF_ATTENTION)


def packed(rows: EncodedRows, index_B: np.ndarray, packing: Packing, pad_id: int) -> Batch:
    """The examples at these places in packing.rows rows.

    Shapes: int64[B] -> input_ids, input_mask, segment_ids, example_ids, position_ids and the token
    labels [R,S]; cls_positions, example_weights and the labels [R,N]. As data_pipeline.schema
    has the fields of packed rows; slots without an example have no weight.

    Raises:
      ValueError: an example has several rows, or the packing has no room for all of them.
    """
    if rows.rows_per_example != 1:
        raise ValueError("examples of several rows are not packed")
    length_B = rows.offsets[index_B + 1] - rows.offsets[index_B]
    if length_B.max() > packing.seq_len:
        raise ValueError(f"an example of {length_B.max()} tokens in rows of {packing.seq_len}")
    places = placed(length_B[None], packing.seq_len)
    row_B, slot_B, start_B = places.row_KB[0], places.slot_KB[0], places.start_KB[0]
    if row_B.max() >= packing.rows or slot_B.max() >= packing.examples:
        raise ValueError(f"{len(index_B)} examples do not fit into {packing}")

    ahead_B = np.cumsum(length_B) - length_B  # tokens of the examples before it
    within = np.arange(length_B.sum()) - np.repeat(ahead_B, length_B)  # place in the example
    source = np.repeat(rows.offsets[index_B], length_B) + within
    target = np.repeat(row_B * packing.seq_len + start_B, length_B) + within

    def laid_out(values: np.ndarray, filler: int = 0) -> np.ndarray:
        line = np.full(packing.rows * packing.seq_len, filler, values.dtype)
        line[target] = values
        return line.reshape(packing.rows, packing.seq_len)

    def in_slots(values_B: np.ndarray) -> np.ndarray:
        slots = np.zeros((packing.rows, packing.examples, *values_B.shape[1:]), values_B.dtype)
        slots[row_B, slot_B] = values_B
        return slots

    second = within >= np.repeat(rows.second_starts[index_B], length_B)
    return {
        "input_ids": laid_out(rows.token_ids[source].astype(np.int32), pad_id),
        "input_mask": laid_out(np.ones(len(target), np.int32)),
        "segment_ids": laid_out(second.astype(np.int32)),
        "example_ids": laid_out(np.repeat(slot_B + 1, length_B).astype(np.int32)),
        "position_ids": laid_out(within.astype(np.int32)),
        "cls_positions": in_slots(start_B.astype(np.int32)),
        "example_weights": in_slots(np.ones(len(index_B), np.float32)),
        **{name: in_slots(array[index_B]) for name, array in rows.labels.items()},
        **{name: laid_out(array[source]) for name, array in rows.token_labels.items()},
    }


class PackedSteps:
    """The batches of the first steps of a stream, all of one shape."""

    def __init__(self, stream: ExampleStream, steps: int, unit: int) -> None:
        """Rows without an example fill up to a multiple of unit."""
        self._stream = stream
        needed = packing_for(stream.rows.lengths_N[stream.of_steps(0, steps)])
        self.packing = dataclasses.replace(needed, rows=-(-needed.rows // unit) * unit)

    def batches(
        self, first_step: int, last_step: int, rows_of_process: np.ndarray
    ) -> Generator[Batch, None, None]:
        """Some rows of the batch of each step from first_step to last_step - 1."""
        for step in range(first_step, last_step):
            (index_B,) = self._stream.of_steps(step, step + 1)
            batch = packed(self._stream.rows, index_B, self.packing, self._stream.pad_id)
            yield {name: array[rows_of_process] for name, array in batch.items()}
