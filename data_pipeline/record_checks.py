"""Refuses examples that no vocabulary of this size, and no BERT, can have made."""

import pathlib
from collections.abc import Mapping

import numpy as np

from data_pipeline.schema import RowShape
from data_pipeline.vocab import Vocabulary


def check_examples(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    shape: RowShape,
    vocabulary: Vocabulary,
    first_number: int,
) -> None:
    """Raise at the first value that cannot be right.

    Shapes: as tfrecord.read_examples gives them; `first_number` is that of the batch's first
    record in the file.

    Raises:
      ValueError: names the record, the feature and the value.
    """
    vocab = (
        vocabulary.size - 1,
        f"--vocab={vocabulary.path} has {vocabulary.size} pieces: give the one that made the ids",
    )
    position = (shape.seq_len - 1, "a position counts from 0 and lies within the example")
    flag = (1, "the feature knows 0 and 1 alone")
    for name, values in batch.items():
        largest, why = {
            "input_ids": vocab,
            "masked_lm_ids": vocab,
            "masked_lm_positions": position,
        }.get(name, flag)
        is_wrong = (values < 0) | (values > largest)
        if name == "masked_lm_weights":
            is_wrong = (values != 0) & (values != 1)
        if is_wrong.any():
            row, slot = np.argwhere(is_wrong)[0]
            raise ValueError(
                f"{name} of record {first_number + row} of {path} has {values[row, slot]}, it must "
                f"lie from 0 to {largest}; {why}"
            )
    _check_first_piece(path, batch, vocabulary, first_number)


def _check_first_piece(
    path: pathlib.Path,
    batch: Mapping[str, np.ndarray],
    vocabulary: Vocabulary,
    first_number: int,
) -> None:
    """Ids of another vocabulary are within bounds more often than not; [CLS] gives them away."""
    first_ids = batch["input_ids"][:, 0]
    is_wrong = (first_ids != vocabulary.special_ids["cls"]) | (batch["input_mask"][:, 0] == 0)
    if not is_wrong.any():
        return
    row = int(np.argmax(is_wrong))
    raise ValueError(
        f"record {first_number + row} of {path} begins with the id {first_ids[row]}, which is "
        f"{vocabulary.pieces()[first_ids[row]]!r} in --vocab={vocabulary.path}, or hides it; every "
        f"example begins with [CLS] = {vocabulary.special_ids['cls']}: give the vocabulary that "
        "made the ids"
    )
