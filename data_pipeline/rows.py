"""Examples as rows of a batch: special pieces, padding and masks; several of them in one row."""

import dataclasses

import numpy as np

from data_pipeline import masking
from data_pipeline.masking import MaskRules
from data_pipeline.pairs import Spans
from data_pipeline.schema import RowShape


@dataclasses.dataclass(frozen=True)
class Assembly:
    """What turns spans into rows, beside the text."""

    seq_len: int
    special_ids: dict[str, int]  # by the names pad, unk, cls, sep, mask
    mask_rules: MaskRules


@dataclasses.dataclass(frozen=True)
class Text:
    """Padded rows of text and special pieces, before anything is masked."""

    ids_BS: np.ndarray  # int32
    is_token_BS: np.ndarray  # bool, no padding
    is_text_BS: np.ndarray  # bool, no special piece either
    is_b_BS: np.ndarray  # bool, of the second segment


def assemble(
    spans: Spans, token_ids_T: np.ndarray, keys_B: np.ndarray, assembly: Assembly
) -> dict[str, np.ndarray]:
    """[CLS] A [SEP] B [SEP] or [CLS] A [SEP], padded, with masks drawn from each example's key.

    Shapes: Spans of B, integer[T] the split's ids, uint64[B] -> schema.PRETRAIN_FIELDS of B rows.

    Raises:
      ValueError: a token id beyond the vocabulary.
    """
    text = gather(spans, token_ids_T, assembly)
    positions_BP, labels_BP, weights_BP = masking.mask_rows(
        text.ids_BS, text.is_text_BS, spans.length_B, keys_B, assembly.mask_rules
    )
    return {
        "input_ids": text.ids_BS,
        "input_mask": text.is_token_BS.astype(np.int32),
        "segment_ids": text.is_b_BS.astype(np.int32),
        "masked_lm_positions": positions_BP,
        "masked_lm_ids": labels_BP,
        "masked_lm_weights": weights_BP,
        "next_sentence_labels": spans.label_B.astype(np.int32),
        "next_sentence_weights": spans.has_label_B.astype(np.float32),
    }


def gather(spans: Spans, token_ids_T: np.ndarray, assembly: Assembly) -> Text:
    """The text of examples from the store, between its special pieces.

    Raises:
      ValueError: a token id beyond the vocabulary.
    """
    special = assembly.special_ids
    position_S = np.arange(assembly.seq_len)
    first_sep_B, last_B = spans.a_and_ends_B + 1, spans.length_B - 1
    is_after_a_BS = position_S > first_sep_B[:, None]
    # The token at position p is A's number p - 1, or B's number p - first_sep - 1. Special pieces
    # and padding read some token near by, and out of range the nearest one.
    a_zero_B, b_zero_B = spans.a_start_B - 1, spans.b_start_B - first_sep_B - 1
    source_BS = np.where(is_after_a_BS, b_zero_B[:, None], a_zero_B[:, None])
    source_BS += position_S
    end_rows_K, end_positions_K = _document_ends(spans)
    if len(end_rows_K):  # each pushes what follows it one position on
        is_end_BS = np.zeros(source_BS.shape, bool)
        is_end_BS[end_rows_K, end_positions_K] = True
        source_BS -= np.cumsum(is_end_BS, axis=1)
    stored_BS = token_ids_T.take(source_BS, mode="clip")
    _check_ids(stored_BS, assembly.mask_rules.vocab_size)
    ids_BS = stored_BS.astype(np.int32)
    is_token_BS = position_S <= last_B[:, None]
    ids_BS[~is_token_BS] = special["pad"]

    row_B = np.arange(len(ids_BS))
    is_text_BS = is_token_BS.copy()
    for rows, positions, name in (
        (row_B, np.zeros_like(row_B), "cls"),
        (row_B, first_sep_B, "sep"),
        (row_B, last_B, "sep"),
        (end_rows_K, end_positions_K, "sep"),
    ):
        ids_BS[rows, positions] = special[name]
        is_text_BS[rows, positions] = False
    return Text(ids_BS, is_token_BS, is_text_BS, is_after_a_BS & is_token_BS)


def _document_ends(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Row and position of each [SEP] between two documents: int64[K], int64[K]."""
    of_K = np.repeat(np.arange(len(spans.document_ends_B)), spans.document_ends_B)
    before_B = np.cumsum(spans.document_ends_B) - spans.document_ends_B
    number_K = np.arange(len(of_K)) - before_B[of_K]
    return of_K, 1 + spans.tokens_before_K + number_K


def _check_ids(stored_BS: np.ndarray, vocab_size: int) -> None:
    if stored_BS.size and stored_BS.max() >= vocab_size:
        raise ValueError(
            f"token id {stored_BS.max()} of the store is beyond its vocabulary of {vocab_size} "
            "ids; it is damaged or was built with another vocabulary: copy or build it again"
        )


def pack(
    made: dict[str, np.ndarray], examples_in_row_B: np.ndarray, shape: RowShape, pad_id: int
) -> dict[str, np.ndarray]:
    """Put examples into rows, one after another; masks and text stay as they are.

    Shapes: PRETRAIN_FIELDS of M examples in the order of the rows, int64[B] that add up to M ->
    schema.PACKED_FIELDS of B rows of `shape`.
    """
    rows = len(examples_in_row_B)
    batch = {name: np.zeros(dims, dtype) for name, (dims, dtype) in shape.arrays(rows).items()}
    is_token_MS = made["input_mask"].astype(bool)
    length_M = np.count_nonzero(is_token_MS, axis=1)
    row_M = np.repeat(np.arange(rows), examples_in_row_B)
    slot_M = np.arange(len(row_M)) - _starts(examples_in_row_B)[row_M]
    token_M = _starts(length_M)  # where each example begins if all are laid out in one line
    filled_B = np.bincount(row_M, weights=length_M, minlength=rows).astype(np.int64)
    start_M = token_M - _starts(filled_B)[row_M]

    is_filled_BS = np.arange(shape.seq_len) < filled_B[:, None]
    batch["input_ids"][~is_filled_BS] = pad_id
    for name in ("input_ids", "input_mask", "segment_ids"):
        batch[name][is_filled_BS] = made[name][is_token_MS]
    batch["example_ids"][is_filled_BS] = np.repeat(slot_M + 1, length_M)
    batch["position_ids"][is_filled_BS] = np.arange(length_M.sum()) - np.repeat(token_M, length_M)

    is_mask_MP = made["masked_lm_weights"] > 0
    masks_B = np.bincount(row_M, weights=is_mask_MP.sum(axis=1), minlength=rows)
    is_used_BP = np.arange(shape.predictions) < masks_B[:, None]
    moved_MP = made["masked_lm_positions"] + start_M[:, None].astype(np.int32)
    batch["masked_lm_positions"][is_used_BP] = moved_MP[is_mask_MP]
    for name in ("masked_lm_ids", "masked_lm_weights"):
        batch[name][is_used_BP] = made[name][is_mask_MP]

    batch["cls_positions"][row_M, slot_M] = start_M
    for name in ("next_sentence_labels", "next_sentence_weights"):
        batch[name][row_M, slot_M] = made[name]
    return batch


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where each of consecutive parts of these sizes begins."""
    return np.cumsum(sizes) - sizes
