"""Pack the examples of a fine-tuning step into rows: little padding, one shape for all steps.

The placement depends on the lengths alone, so it is the same on every mesh.

Dimensions: K steps, B examples of a step, R rows, N examples in a row at most, S sequence.
"""

import dataclasses
from collections.abc import Generator

import numpy as np

from data_pipeline.labeled.rows import SEQ_LENS, Batch, EncodedRows, ExampleStream, choose_seq_len

VERSION = 1  # raise it when the placement changes: dropout depends on the placement
_MAX_ROW = 512
# Attention over S tokens costs S / 2304 of a layer's other work at width 384, half that at 768.
_TOKENS_OF_ATTENTION = 2304


@dataclasses.dataclass(frozen=True)
class Packing:
    """Set the shape of the rows that hold the examples of every step of a run."""

    seq_len: int  # S
    rows: int  # R
    examples: int  # N


@dataclasses.dataclass(frozen=True)
class Places:
    """Hold where each example of each step goes; fields: int64[K,B]."""

    row_KB: np.ndarray
    slot_KB: np.ndarray  # index among the examples of the row
    start_KB: np.ndarray  # its first position in the row


def place_examples(lengths_KB: np.ndarray, seq_len: int) -> Places:
    """Put the examples of each step, the longest first, into the first row with room for them."""
    steps, examples = lengths_KB.shape
    order_KB = np.argsort(-lengths_KB, axis=1, kind="stable")
    used_KR = np.zeros((steps, examples), np.int64)  # a row per example is the most
    count_KR = np.zeros_like(used_KR)
    places = Places(*(np.zeros_like(lengths_KB, np.int64) for _ in range(3)))
    step_K = np.arange(steps)
    for number in range(examples):
        example_K = order_KB[:, number]
        length_K = lengths_KB[step_K, example_K]
        row_K = np.argmax(used_KR + length_K[:, None] <= seq_len, axis=1)
        places.row_KB[step_K, example_K] = row_K
        places.slot_KB[step_K, example_K] = count_KR[step_K, row_K]
        places.start_KB[step_K, example_K] = used_KR[step_K, row_K]
        used_KR[step_K, row_K] += length_K
        count_KR[step_K, row_K] += 1
    return places


def choose_packing(lengths_KB: np.ndarray) -> Packing:
    """Choose the length and number of rows that cost least and hold every step."""
    longest = choose_seq_len(int(lengths_KB.max()))
    lengths = [length for length in SEQ_LENS if longest <= length <= _MAX_ROW] or [longest]
    return min((_plan_packing(lengths_KB, length) for length in lengths), key=_cost)


def _plan_packing(lengths_KB: np.ndarray, seq_len: int) -> Packing:
    places = place_examples(lengths_KB, seq_len)
    rows, examples = int(places.row_KB.max()) + 1, int(places.slot_KB.max()) + 1
    return Packing(seq_len, rows, examples)


def _cost(packing: Packing) -> float:
    return packing.rows * packing.seq_len * (1.0 + packing.seq_len / _TOKENS_OF_ATTENTION)


def pack_examples(rows: EncodedRows, index_B: np.ndarray, packing: Packing, pad_id: int) -> Batch:
    """Pack the examples with these numbers into packing.rows rows.

    Shapes: int64[B] -> input_ids, input_mask, segment_ids, example_ids, position_ids and the token
    labels [R,S]; cls_positions, example_weights and the labels [R,N]. The fields
    of packed rows are described in data_pipeline.spec.schema; empty slots have no weight. Each
    example has one row, and all fit: choose_packing gave the packing.
    """
    length_B = rows.offsets[index_B + 1] - rows.offsets[index_B]
    places = place_examples(length_B[None], packing.seq_len)
    row_B, slot_B, start_B = places.row_KB[0], places.slot_KB[0], places.start_KB[0]

    ahead_B = np.cumsum(length_B) - length_B  # tokens of the examples before each
    within = np.arange(length_B.sum()) - np.repeat(ahead_B, length_B)  # place in the example
    source = np.repeat(rows.offsets[index_B], length_B) + within
    target = np.repeat(row_B * packing.seq_len + start_B, length_B) + within

    def lay_out(values: np.ndarray, filler: int = 0) -> np.ndarray:
        line = np.full(packing.rows * packing.seq_len, filler, values.dtype)
        line[target] = values
        return line.reshape(packing.rows, packing.seq_len)

    def fill_slots(values_B: np.ndarray) -> np.ndarray:
        slots = np.zeros((packing.rows, packing.examples, *values_B.shape[1:]), values_B.dtype)
        slots[row_B, slot_B] = values_B
        return slots

    return {
        "input_ids": lay_out(rows.token_ids[source].astype(np.int32), pad_id),
        "input_mask": lay_out(np.ones(len(target), np.int32)),
        "segment_ids": lay_out(rows.segment_ids[source].astype(np.int32)),
        "example_ids": lay_out(np.repeat(slot_B + 1, length_B).astype(np.int32)),
        "position_ids": lay_out(within.astype(np.int32)),
        "cls_positions": fill_slots((start_B + rows.cls_positions[index_B]).astype(np.int32)),
        "example_weights": fill_slots(np.ones(len(index_B), np.float32)),
        **{name: fill_slots(array[index_B]) for name, array in rows.labels.items()},
        **{name: lay_out(array[source]) for name, array in rows.token_labels.items()},
    }


class PackedSteps:
    """Pack the batches of the first steps of a stream into one shape."""

    def __init__(self, stream: ExampleStream, steps: int, unit: int) -> None:
        """Find the packing; empty rows bring its number of rows to a multiple of `unit`."""
        self._stream = stream
        needed = choose_packing(stream.rows.lengths_N[stream.examples_of_steps(0, steps)])
        self.packing = dataclasses.replace(needed, rows=-(-needed.rows // unit) * unit)

    def batches(
        self, first_step: int, last_step: int, rows_of_process: np.ndarray
    ) -> Generator[Batch, None, None]:
        """Yield some rows of the batch of each step from first_step to last_step - 1."""
        for step in range(first_step, last_step):
            (index_B,) = self._stream.examples_of_steps(step, step + 1)
            batch = pack_examples(self._stream.rows, index_B, self.packing, self._stream.pad_id)
            yield {name: array[rows_of_process] for name, array in batch.items()}
