"""The fields of a pre-training batch: names, dtypes and shapes, as Google BERT named them."""

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a batch: its dtype and its dimensions, a letter each."""

    dtype: type[np.generic]
    dims: str


# B sequences, S positions, P predictions a sequence. Order and names are those of
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


def pretrain_shapes(
    batch_size: int, seq_len: int, max_predictions_per_seq: int
) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Shape and dtype of each field of a batch, for placeholders and ahead-of-time compiles."""
    sizes = {"B": batch_size, "S": seq_len, "P": max_predictions_per_seq}
    return {
        name: (tuple(sizes[dim] for dim in field.dims), field.dtype)
        for name, field in PRETRAIN_FIELDS.items()
    }


def check_pretrain_batch(batch: Mapping[str, np.ndarray], seq_len: int) -> None:
    """Raise if a batch lacks a field, has one too many, or one of another dtype or shape.

    Raises:
      ValueError: names the field, what it is and what it should be.
    """
    missing = sorted(PRETRAIN_FIELDS.keys() - batch.keys())
    unknown = sorted(batch.keys() - PRETRAIN_FIELDS.keys())
    if missing or unknown:
        raise ValueError(
            f"batch fields missing: {missing}, unknown: {unknown}; known: {list(PRETRAIN_FIELDS)}"
        )
    batch_size, predictions = batch["masked_lm_positions"].shape
    for name, (shape, dtype) in pretrain_shapes(batch_size, seq_len, predictions).items():
        array = batch[name]
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise ValueError(
                f"batch field {name} is {array.dtype}{list(array.shape)}, "
                f"should be {np.dtype(dtype)}{list(shape)}"
            )
