"""Make rows of one or more examples: add special tokens and padding, mask, and pack."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.sampling.masking import Masks
from data_pipeline.sampling.pairs import Spans
from data_pipeline.spec.schema import RowShape


@dataclasses.dataclass(frozen=True)
class Text:
    """Hold padded rows of text and special tokens, before anything is masked."""

    ids_BS: np.ndarray  # int32
    is_token_BS: np.ndarray  # bool, False at padding
    is_text_BS: np.ndarray  # bool, False at special tokens, too
    is_b_BS: np.ndarray  # bool, True in the second segment


def gather_text(
    spans: Spans,
    token_ids_T: np.ndarray,
    seq_len: int,
    vocab_size: int,
    special_ids: Mapping[str, int],
) -> Text:
    """Gather the text of examples from the store and put the special tokens around it.

    `special_ids` has the keys pad, cls and sep.

    Raises:
      Refused: a token id is beyond the vocabulary.
    """
    position_S = np.arange(seq_len)
    first_sep_B, last_B = spans.a_and_ends_B + 1, spans.length_B - 1
    is_after_a_BS = position_S > first_sep_B[:, None]
    # Position p has token p - 1 of A, or token p - first_sep - 1 of B, both counted from 0. Special
    # tokens and padding first read any token nearby, clipped to the range of the store.
    a_zero_B, b_zero_B = spans.a_start_B - 1, spans.b_start_B - first_sep_B - 1
    source_BS = np.where(is_after_a_BS, b_zero_B[:, None], a_zero_B[:, None])
    source_BS += position_S
    if len(spans.end_rows_K):  # each [SEP] shifts later tokens by one position
        is_end_BS = np.zeros(source_BS.shape, bool)
        is_end_BS[spans.end_rows_K, spans.end_positions_K] = True
        source_BS -= np.cumsum(is_end_BS, axis=1)
    stored_BS = token_ids_T.take(source_BS, mode="clip")
    largest = stored_BS.max(initial=0)
    if largest >= vocab_size:
        raise Refused(
            f"token id {largest} of the store is beyond its vocabulary of {vocab_size} ids; it is "
            "damaged or was built with another vocabulary: copy or build it again"
        )
    ids_BS = stored_BS.astype(np.int32)
    is_token_BS = position_S <= last_B[:, None]
    ids_BS[~is_token_BS] = special_ids["pad"]

    row_B = np.arange(len(ids_BS))
    is_text_BS = is_token_BS.copy()
    for rows, positions, name in (
        (row_B, np.zeros_like(row_B), "cls"),
        (row_B, first_sep_B, "sep"),
        (row_B, last_B, "sep"),
        (spans.end_rows_K, spans.end_positions_K, "sep"),
    ):
        ids_BS[rows, positions] = special_ids[name]
        is_text_BS[rows, positions] = False
    return Text(ids_BS, is_token_BS, is_text_BS, is_after_a_BS & is_token_BS)


def make_rows(text: Text, masks: Masks, spans: Spans) -> dict[str, np.ndarray]:
    """Make one row per example, with the fields schema.PRETRAIN_FIELDS."""
    return {
        "input_ids": text.ids_BS,
        "input_mask": text.is_token_BS.astype(np.int32),
        "segment_ids": text.is_b_BS.astype(np.int32),
        "masked_lm_positions": masks.positions_BP,
        "masked_lm_ids": masks.ids_BP,
        "masked_lm_weights": masks.weights_BP,
        "next_sentence_labels": spans.label_B.astype(np.int32),
        "next_sentence_weights": spans.has_label_B.astype(np.float32),
    }


def pack_rows(
    text: Text,
    masks: Masks,
    spans: Spans,
    examples_in_row_B: np.ndarray,
    shape: RowShape,
    pad_id: int,
) -> dict[str, np.ndarray]:
    """Pack examples into rows, one after another, without changing their text or masks.

    Shapes: text, masks and spans hold M examples in the order of the rows; examples_in_row_B is
    int64[B] with sum M -> schema.PACKED_FIELDS of B rows of `shape`.
    """
    rows = len(examples_in_row_B)
    row_M = np.repeat(np.arange(rows), examples_in_row_B)
    slot_M = np.arange(len(row_M)) - _compute_starts(examples_in_row_B)[row_M]
    filled_B = np.bincount(row_M, weights=spans.length_B, minlength=rows).astype(np.int64)
    start_M = _compute_starts(spans.length_B) - _compute_starts(filled_B)[row_M]
    is_used_MP = masks.weights_BP > 0
    used_B = np.bincount(row_M, weights=np.count_nonzero(is_used_MP, axis=1), minlength=rows)
    # Tokens, predictions and labels keep the order of the examples; the rest of a row is unused.
    is_token_BS = np.arange(shape.seq_len) < filled_B[:, None]
    is_used_BP = np.arange(shape.predictions) < used_B[:, None]
    is_example_BN = np.arange(shape.examples) < examples_in_row_B[:, None]
    # The position in `text` of each token; padding reads the first [CLS], which is not in B.
    source_BS = _fill(is_token_BS, np.flatnonzero(text.is_token_BS), np.int64)
    moved_MP = masks.positions_BP + start_M[:, None]
    return {
        "input_ids": np.where(is_token_BS, text.ids_BS.ravel().take(source_BS), np.int32(pad_id)),
        "input_mask": is_token_BS.astype(np.int32),
        "segment_ids": text.is_b_BS.ravel().take(source_BS).astype(np.int32),
        "example_ids": _fill(is_token_BS, np.repeat(slot_M + 1, spans.length_B)),
        "position_ids": (source_BS % shape.seq_len).astype(np.int32),
        "masked_lm_positions": _fill(is_used_BP, moved_MP[is_used_MP]),
        "masked_lm_ids": _fill(is_used_BP, masks.ids_BP[is_used_MP]),
        "masked_lm_weights": _fill(is_used_BP, masks.weights_BP[is_used_MP], np.float32),
        "cls_positions": _fill(is_example_BN, start_M),
        "next_sentence_labels": _fill(is_example_BN, spans.label_B),
        "next_sentence_weights": _fill(is_example_BN, spans.has_label_B, np.float32),
    }


def _fill(
    is_place: np.ndarray, values: np.ndarray, dtype: type[np.generic] = np.int32
) -> np.ndarray:
    """Make an array with the values, in order, where is_place is True, and 0 elsewhere."""
    made = np.zeros(is_place.shape, dtype)
    made[is_place] = values
    return made


def _compute_starts(sizes: np.ndarray) -> np.ndarray:
    """Return the start of each of consecutive parts with these sizes."""
    return np.cumsum(sizes) - sizes
