"""Define the fields of a pre-training batch: names, dtypes and shapes, as in Google's BERT."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions

GOOGLE, TRANSFORMERS = "google", "transformers"  # rules that truncate pairs of texts

# The shortest example: [CLS] a [SEP] b [SEP], or [CLS] a [SEP] where there is no second segment.
MIN_EXAMPLE_TOKENS = 3


@dataclasses.dataclass(frozen=True)
class Field:
    """Describe an array of a batch: its dtype, and a letter for each dimension."""

    dtype: type[np.generic]
    dims: str


# B rows, S positions, P predictions per row. Order and names follow
# create_pretraining_data.py@eedf5716ce; unused slots hold 0.
PRETRAIN_FIELDS: dict[str, Field] = {
    "input_ids": Field(np.int32, "BS"),
    "input_mask": Field(np.int32, "BS"),
    "segment_ids": Field(np.int32, "BS"),
    "masked_lm_positions": Field(np.int32, "BP"),
    "masked_lm_ids": Field(np.int32, "BP"),
    "masked_lm_weights": Field(np.float32, "BP"),
    "next_sentence_labels": Field(np.int32, "B"),
    "next_sentence_weights": Field(np.float32, "B"),
}

# Fields of Google's TFRecords: all but next_sentence_weights, as every example has a label there.
TFRECORD_FIELDS: dict[str, Field] = {
    name: field for name, field in PRETRAIN_FIELDS.items() if name != "next_sentence_weights"
}

# Fields of a row that holds up to N examples, one after another. example_ids count from 1, and
# are 0 at padding (JAX's attention calls them segment_ids; here those distinguish A from B).
# position_ids begin again at 0 with each example; cls_positions has the start of each.
PACKED_FIELDS: dict[str, Field] = PRETRAIN_FIELDS | {
    "next_sentence_labels": Field(np.int32, "BN"),
    "next_sentence_weights": Field(np.float32, "BN"),
    "example_ids": Field(np.int32, "BS"),
    "position_ids": Field(np.int32, "BS"),
    "cls_positions": Field(np.int32, "BN"),
}


@dataclasses.dataclass(frozen=True)
class RowShape:
    """Hold the sizes of one row of a batch."""

    seq_len: int  # S, positions
    predictions: int  # P, slots for masked tokens, of all its examples together
    examples: int  # N; 1: rows are not packed

    @property
    def fields(self) -> dict[str, Field]:
        return PRETRAIN_FIELDS if self.examples == 1 else PACKED_FIELDS

    def arrays(self, rows: int) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
        """Return shape and dtype of each field of a batch, for ahead-of-time compiles."""
        sizes = {"B": rows, "S": self.seq_len, "P": self.predictions, "N": self.examples}
        return {
            name: (tuple(sizes[dim] for dim in field.dims), field.dtype)
            for name, field in self.fields.items()
        }

    def zeros(self, rows: int) -> dict[str, np.ndarray]:
        """Return a batch of zeros."""
        return {name: np.zeros(dims, dtype) for name, (dims, dtype) in self.arrays(rows).items()}


def row_shape(options: PretrainOptions, seq_len: int, max_predictions_per_seq: int) -> RowShape:
    """Return the shape of a row; `max_predictions_per_seq` is the limit per example.

    A packed row has a slot for every mask that its examples can have: an example of l tokens has
    max(1, round(l * masked_lm_prob)) masks, and the lengths add up to at most seq_len.

    Raises:
      Refused: there is no slot (0 stands for unresolved): the head would learn nothing.
    """
    if max_predictions_per_seq < 1:
        raise Refused(
            f"max_predictions_per_seq is {max_predictions_per_seq}; a row needs 1 or more"
        )
    examples = options.packed_examples
    if examples == 1:
        return RowShape(seq_len, max_predictions_per_seq, 1)
    prob = options.masked_lm_prob
    # The most by which rounding, or the minimum of one mask, exceeds an example's share.
    most_over_share = max(0.5, 1.0 - prob * MIN_EXAMPLE_TOKENS)
    slots = math.floor(seq_len * prob + examples * most_over_share)
    return RowShape(seq_len, min(slots, examples * max_predictions_per_seq), examples)


def describe_stored_fields(
    shape: RowShape, vocab_size: int
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the dimensions of a row and the dtype of each field of ready-made examples on disk.

    The dtype is the smallest that holds the values: uint8, uint16 or uint32.
    """
    sizes = {"S": shape.seq_len, "P": shape.predictions}
    largest = dict.fromkeys(TFRECORD_FIELDS, 1) | {
        "input_ids": vocab_size - 1,
        "masked_lm_ids": vocab_size - 1,
        "masked_lm_positions": shape.seq_len - 1,
    }
    return {
        name: (tuple(sizes[dim] for dim in field.dims[1:]), np.min_scalar_type(largest[name]))
        for name, field in TFRECORD_FIELDS.items()
    }


def restore_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Restore the input_ids of examples to what they were before masking.

    Shapes: input_ids[B,S], masked_lm_positions, _ids and _weights [B,P] -> input_ids' [B,S].
    """
    ids_BS = batch["input_ids"].copy()
    row_N, slot_N = np.nonzero(batch["masked_lm_weights"])
    position_N = batch["masked_lm_positions"][row_N, slot_N]
    ids_BS[row_N, position_N] = batch["masked_lm_ids"][row_N, slot_N]
    return ids_BS
