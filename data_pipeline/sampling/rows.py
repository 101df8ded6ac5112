"""Make rows of one or more examples: add special tokens and padding, mask, and pack."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data_pipeline.io.refused import Refused
from data_pipeline.sampling.masking import MaskRules, mask_rows
from data_pipeline.sampling.pairs import Spans
from data_pipeline.spec.schema import RowShape


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Hold the settings that turn spans of text into rows."""

    seq_len: int
    special_ids: Mapping[str, int]  # keys: pad, unk, cls, sep, mask
    mask_rules: MaskRules


@dataclasses.dataclass(frozen=True)
class Text:
    """Hold padded rows of text and special tokens, before anything is masked."""

    ids_BS: np.ndarray  # int32
    is_token_BS: np.ndarray  # bool, False at padding
    is_text_BS: np.ndarray  # bool, False at special tokens, too
    is_b_BS: np.ndarray  # bool, True in the second segment


@dataclasses.dataclass(frozen=True)
class Masks:
    """Hold the tokens to predict in each row."""

    positions_BP: np.ndarray  # int32, ascending
    ids_BP: np.ndarray  # int32
    weights_BP: np.ndarray  # float32, 0 in unused slots


def gather_text(spans: Spans, token_ids_T: np.ndarray, layout: RowLayout) -> Text:
    """Gather the text of examples from the store and put the special tokens around it.

    Raises:
      Refused: a token id is beyond the vocabulary.
    """
    special = layout.special_ids
    position_S = np.arange(layout.seq_len)
    first_sep_B, last_B = spans.a_and_ends_B + 1, spans.length_B - 1
    is_after_a_BS = position_S > first_sep_B[:, None]
    # Position p has token p - 1 of A, or token p - first_sep - 1 of B, both counted from 0. Special
    # tokens and padding first read any token nearby, clipped to the range of the store.
    a_zero_B, b_zero_B = spans.a_start_B - 1, spans.b_start_B - first_sep_B - 1
    source_BS = np.where(is_after_a_BS, b_zero_B[:, None], a_zero_B[:, None])
    source_BS += position_S
    end_rows_K, end_positions_K = _locate_document_ends(spans)
    if len(end_rows_K):  # each [SEP] shifts later tokens by one position
        is_end_BS = np.zeros(source_BS.shape, bool)
        is_end_BS[end_rows_K, end_positions_K] = True
        source_BS -= np.cumsum(is_end_BS, axis=1)
    stored_BS = token_ids_T.take(source_BS, mode="clip")
    _check_ids(stored_BS, layout.mask_rules.vocab_size)
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


def _locate_document_ends(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Return row and position of each [SEP] between two documents: int64[K], int64[K]."""
    of_K = np.repeat(np.arange(len(spans.document_ends_B)), spans.document_ends_B)
    before_B = np.cumsum(spans.document_ends_B) - spans.document_ends_B
    number_K = np.arange(len(of_K)) - before_B[of_K]
    return of_K, 1 + spans.tokens_before_K + number_K


def _check_ids(stored_BS: np.ndarray, vocab_size: int) -> None:
    if stored_BS.size and stored_BS.max() >= vocab_size:
        raise Refused(
            f"token id {stored_BS.max()} of the store is beyond its vocabulary of {vocab_size} "
            "ids; it is damaged or was built with another vocabulary: copy or build it again"
        )


def mask_text(text: Text, spans: Spans, keys_B: np.ndarray, rules: MaskRules) -> Masks:
    """Mask tokens of the text in place, by the key of each example: uint64[B]."""
    return Masks(*mask_rows(text.ids_BS, text.is_text_BS, spans.length_B, keys_B, rules))


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
    rows, seq_len = len(examples_in_row_B), shape.seq_len
    row_M = np.repeat(np.arange(rows), examples_in_row_B)
    slot_M = np.arange(len(row_M)) - _starts(examples_in_row_B)[row_M]
    filled_B = np.bincount(row_M, weights=spans.length_B, minlength=rows).astype(np.int64)
    start_M = _starts(spans.length_B) - _starts(filled_B)[row_M]

    # Rows are laid end to end: the examples of each row, then its padding.
    piece_M = np.arange(len(row_M)) + row_M
    padding_B = np.cumsum(examples_in_row_B) + np.arange(rows)
    lengths = np.empty(len(row_M) + rows, np.int64)
    lengths[piece_M], lengths[padding_B] = spans.length_B, seq_len - filled_B
    numbers = np.zeros(len(lengths), np.int32)
    numbers[piece_M] = slot_M + 1
    # Map each packed position to its position in `text`; padding maps to any position.
    moves = np.zeros(len(lengths), np.int64)
    moves[piece_M] = np.arange(len(row_M)) * seq_len - (row_M * seq_len + start_M)
    moves[padding_B] = -_starts(lengths)[padding_B]
    source = np.repeat(moves, lengths) + np.arange(rows * seq_len)
    example_ids = np.repeat(numbers, lengths)
    is_padding = example_ids == 0

    line = {
        "input_ids": text.ids_BS.ravel().take(source),
        "input_mask": (~is_padding).astype(np.int32),
        "segment_ids": text.is_b_BS.ravel().take(source).astype(np.int32),
        "example_ids": example_ids,
        "position_ids": (source % seq_len).astype(np.int32),
    }
    for name, filler in (("input_ids", pad_id), ("segment_ids", 0), ("position_ids", 0)):
        np.putmask(line[name], is_padding, filler)
    return {
        **{name: array.reshape(rows, seq_len) for name, array in line.items()},
        **_pack_masks(masks, row_M, start_M, rows, shape.predictions),
        **_pack_labels(spans, row_M, slot_M, start_M, rows, shape.examples),
    }


def _pack_masks(
    masks: Masks, row_M: np.ndarray, start_M: np.ndarray, rows: int, slots: int
) -> dict[str, np.ndarray]:
    is_used_MP = masks.weights_BP > 0
    used_M = np.count_nonzero(is_used_MP, axis=1)
    is_slot_BP = np.arange(slots) < np.bincount(row_M, weights=used_M, minlength=rows)[:, None]
    moved_MP = masks.positions_BP + start_M[:, None].astype(np.int32)
    made = {}
    for name, values_MP in (
        ("masked_lm_positions", moved_MP),
        ("masked_lm_ids", masks.ids_BP),
        ("masked_lm_weights", masks.weights_BP),
    ):
        made[name] = np.zeros((rows, slots), values_MP.dtype)
        made[name][is_slot_BP] = values_MP[is_used_MP]
    return made


def _pack_labels(
    spans: Spans,
    row_M: np.ndarray,
    slot_M: np.ndarray,
    start_M: np.ndarray,
    rows: int,
    examples: int,
) -> dict[str, np.ndarray]:
    made = {}
    for name, values_M, dtype in (
        ("cls_positions", start_M, np.int32),
        ("next_sentence_labels", spans.label_B, np.int32),
        ("next_sentence_weights", spans.has_label_B, np.float32),
    ):
        made[name] = np.zeros((rows, examples), dtype)
        made[name][row_M, slot_M] = values_M
    return made


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Return the start of each of several consecutive parts, given their sizes."""
    return np.cumsum(sizes) - sizes
