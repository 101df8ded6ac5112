"""Masked examples with their original tokens put back."""

from collections.abc import Mapping

import numpy as np

from data_pipeline import hashing

_FIRST_SEGMENT = hashing.subkey(0, 201)


def unmasked_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """The input_ids of examples as they were before masking.

    Shapes: input_ids[B,S], masked_lm_positions, _ids and _weights [B,P] -> input_ids' [B,S].
    """
    ids_BS = batch["input_ids"].copy()
    row_N, slot_N = np.nonzero(batch["masked_lm_weights"])
    position_N = batch["masked_lm_positions"][row_N, slot_N]
    ids_BS[row_N, position_N] = batch["masked_lm_ids"][row_N, slot_N]
    return ids_BS


def first_segment_hashes(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """A hash of the text of each example's first segment, whatever its masks and its second one.

    Copies of an example that differ in their masks, or in the random segment that follows, agree.

    Shapes: the fields of a batch -> uint64[B].
    """
    ids_BS = unmasked_ids(batch).astype(np.uint64)
    position_S = np.arange(ids_BS.shape[1], dtype=np.uint64)
    bits_BS = hashing.hash64(_FIRST_SEGMENT, ids_BS << np.uint64(32) | position_S)
    bits_BS[(batch["input_mask"] == 0) | (batch["segment_ids"] != 0)] = 0
    return hashing.hash64(_FIRST_SEGMENT, bits_BS.sum(axis=1, dtype=np.uint64))
