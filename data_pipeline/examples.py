"""Rows of pre-training batches as a pure function of their positions in an endless stream.

Position p of the stream lies in epoch e at index i; epochs follow each other without a gap. Epoch e
takes its pairs from walk e mod dupe_factor, in an order, with masks and with truncation of its own.
"""

import dataclasses
import pathlib

import numpy as np

from data_pipeline import hashing, masking, pairs
from data_pipeline.options import PretrainOptions
from data_pipeline.schema import RowShape, row_shape
from data_pipeline.store import Split
from data_pipeline.walks import WalkCache, pair_counts

_EPOCH, _ORDER, _MASKS = range(101, 104)
_SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class PretrainSource:
    """The stream of examples of one split at one sequence length. Made by open_source."""

    split: Split
    vocab_size: int
    special_ids: dict[str, int]  # by the names pad, unk, cls, sep, mask
    options: PretrainOptions
    seq_len: int
    max_predictions_per_seq: int
    pairs_of_walk: tuple[int, ...]
    walks: WalkCache

    @property
    def shape(self) -> RowShape:
        """The shape of its rows."""
        return row_shape(self.options, self.seq_len, self.max_predictions_per_seq)

    def examples_per_epoch(self, epoch: int) -> int:
        """How many examples, each pair of the epoch's walk once, epoch number `epoch` has."""
        return self.pairs_of_walk[epoch % len(self.pairs_of_walk)]

    def epoch_of(self, position: int) -> tuple[int, int]:
        """Epoch of a position in the stream, and the index within that epoch."""
        epoch, index = self._locate(np.asarray([position], np.int64))
        return int(epoch[0]), int(index[0])

    def rows(self, example_positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at the given positions of the stream, in the order given.

        A pure function: a row is the same alone, among any others, and in any process.

        Shapes: int64[B], 0 or more -> the fields of `shape`.

        Raises:
          ValueError: a negative position, or a token id beyond the vocabulary.
        """
        positions = np.asarray(example_positions, np.int64)
        if len(positions) and positions.min() < 0:
            raise ValueError(f"example position {positions.min()} is negative; the first is 0")
        epoch_B, index_B = self._locate(positions)
        batch = _empty_rows(self, len(positions))
        for epoch in np.unique(epoch_B):
            members = np.flatnonzero(epoch_B == epoch)
            rows = self._rows_of_epoch(int(epoch), index_B[members])
            if len(members) == len(positions):
                return rows
            for name, array in rows.items():
                batch[name][members] = array
        return batch

    def _locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends_K = np.cumsum(np.asarray(self.pairs_of_walk, np.int64))
        round_N, rest_N = np.divmod(positions, ends_K[-1])
        walk_N = np.searchsorted(ends_K, rest_N, side="right")
        index_N = rest_N - (ends_K - self.pairs_of_walk)[walk_N]
        return round_N * len(ends_K) + walk_N, index_N

    def _rows_of_epoch(self, epoch: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        walk_number = epoch % len(self.pairs_of_walk)
        walk = self.walks.get(walk_number)
        # From half-way through an epoch on there is need of the next one soon enough.
        if len(index_B) and 2 * int(index_B.max()) >= len(walk):
            self.walks.build_ahead((walk_number + 1) % len(self.pairs_of_walk))
        epoch_key = hashing.subkey(self.options.random_seed, _EPOCH, self.seq_len, epoch)
        order_key = hashing.subkey(epoch_key, _ORDER)
        spans = pairs.resolve(
            self.split, walk, hashing.permuted(order_key, index_B, len(walk)), epoch_key
        )
        row_keys_B = hashing.hash64(hashing.subkey(epoch_key, _MASKS), spans.first_sentence_B)
        return self._assemble(spans, row_keys_B)

    def _assemble(self, spans: pairs.Spans, row_keys_B: np.ndarray) -> dict[str, np.ndarray]:
        """[CLS] A [SEP] B [SEP], padded, with its masks."""
        special = self.special_ids
        middle_sep_B1 = (spans.a_tokens_B + 1)[:, None]
        last_sep_B1 = middle_sep_B1 + spans.b_tokens_B[:, None] + 1
        position_S = np.arange(self.seq_len)
        is_after_a_BS = position_S > middle_sep_B1
        # The token at position p is A's number p - 1, or B's number p - middle - 1. Special pieces
        # and padding read some token near by, and out of range the nearest one.
        a_zero_B1 = (spans.a_start_B - 1)[:, None]
        b_zero_B1 = spans.b_start_B[:, None] - middle_sep_B1 - 1
        source_BS = np.where(is_after_a_BS, b_zero_B1, a_zero_B1)
        source_BS += position_S
        stored_BS = self.split.token_ids.take(source_BS, mode="clip")
        self._check_ids(stored_BS)
        ids_BS = stored_BS.astype(np.int32)
        is_token_BS = position_S <= last_sep_B1
        ids_BS[~is_token_BS] = special["pad"]
        ids_BS[:, 0] = special["cls"]
        row_B = np.arange(len(ids_BS))
        ids_BS[row_B, middle_sep_B1[:, 0]] = special["sep"]
        ids_BS[row_B, last_sep_B1[:, 0]] = special["sep"]
        is_text_BS = position_S < last_sep_B1
        is_text_BS[:, 0] = False
        is_text_BS[row_B, middle_sep_B1[:, 0]] = False

        positions_BP, labels_BP, weights_BP = masking.mask_rows(
            ids_BS, is_text_BS, last_sep_B1[:, 0] + 1, row_keys_B, self._mask_rules()
        )
        return {
            "input_ids": ids_BS,
            "input_mask": is_token_BS.astype(np.int32),
            "segment_ids": (is_after_a_BS & is_token_BS).astype(np.int32),
            "masked_lm_positions": positions_BP,
            "masked_lm_ids": labels_BP,
            "masked_lm_weights": weights_BP,
            "next_sentence_labels": spans.is_random_B.astype(np.int32),
            "next_sentence_weights": np.ones(len(ids_BS), np.float32),
        }

    def _mask_rules(self) -> masking.MaskRules:
        return masking.MaskRules(
            masked_lm_prob=self.options.masked_lm_prob,
            max_predictions_per_seq=self.max_predictions_per_seq,
            vocab_size=self.vocab_size,
            mask_id=self.special_ids["mask"],
        )

    def _check_ids(self, stored_BS: np.ndarray) -> None:
        if stored_BS.size and stored_BS.max() >= self.vocab_size:
            raise ValueError(
                f"token id {stored_BS.max()} in split {self.split.name} is beyond the vocabulary "
                f"of {self.vocab_size} ids; the store is damaged or was built with another one"
            )


def open_source(
    split: Split,
    vocab_size: int,
    special_ids: dict[str, int],
    options: PretrainOptions,
    seq_len: int,
    max_predictions_per_seq: int,
    sidecar_dir: pathlib.Path | None,
) -> PretrainSource:
    """Make the stream of examples of a split; counts its walks the first time.

    Args:
      special_ids: ids of the pieces pad, unk, cls, sep and mask.
      sidecar_dir: the store's folder, where the counts are kept; None counts them each time.

    Raises:
      ValueError: a setting, or a corpus that cannot give pairs with these settings.
    """
    options.check()
    _check_lengths(seq_len, max_predictions_per_seq)
    _check_split(split)
    _check_vocabulary(split, vocab_size, special_ids)
    # A memory map seen as a plain array: slicing np.memmap costs more than what it slices.
    plain = dataclasses.replace(
        split,
        token_ids=np.asarray(split.token_ids),
        sentence_offsets=np.asarray(split.sentence_offsets),
        document_offsets=np.asarray(split.document_offsets),
    )
    counts = pair_counts(plain, options, seq_len, sidecar_dir)
    return PretrainSource(
        split=plain,
        vocab_size=vocab_size,
        special_ids=dict(special_ids),
        options=options,
        seq_len=seq_len,
        max_predictions_per_seq=max_predictions_per_seq,
        pairs_of_walk=counts,
        walks=WalkCache(plain, options, seq_len, counts),
    )


def _check_lengths(seq_len: int, max_predictions_per_seq: int) -> None:
    if not pairs.SHORTEST_SEQ_LEN <= seq_len <= pairs.LONGEST_SEQ_LEN:
        raise ValueError(
            f"seq_len is {seq_len}; [CLS] A [SEP] B [SEP] needs {pairs.SHORTEST_SEQ_LEN} or more, "
            f"and {pairs.LONGEST_SEQ_LEN} is the most (BERT: 128 and 512): change config.phases"
        )
    if max_predictions_per_seq < 1:
        raise ValueError(
            f"max_predictions_per_seq is {max_predictions_per_seq}; it must be 1 or more "
            f"(about 0.15 * seq_len, here {max(1, round(0.15 * seq_len))}): change config.phases"
        )


def _check_split(split: Split) -> None:
    if split.documents < 1 or split.tokens < 1:
        raise ValueError(
            f"split {split.name} is empty; it needs 2 or more documents: build the store from "
            "more text"
        )
    if split.documents < 2:
        raise ValueError(
            f"split {split.name} has 1 document; next-sentence prediction takes its random second "
            "segments from another one and needs 2 or more: build the store from more text, with "
            "another --documents rule, or with a larger --holdout if this is the held-out split"
        )
    if split.sentences >= 2**32:
        raise ValueError(
            f"split {split.name} has {split.sentences} sentences; walks number up to {2**32 - 1}: "
            "build several stores"
        )
    if split.sentence_offsets[-1] != split.tokens or split.document_offsets[-1] != split.sentences:
        raise ValueError(
            f"split {split.name} is damaged: its offsets end at token {split.sentence_offsets[-1]} "
            f"and sentence {split.document_offsets[-1]}, but it has {split.tokens} tokens and "
            f"{split.sentences} sentences; build the store again"
        )


def _check_vocabulary(split: Split, vocab_size: int, special_ids: dict[str, int]) -> None:
    counted = np.flatnonzero(split.token_counts)
    if len(counted) and counted[-1] >= vocab_size:
        raise ValueError(
            f"split {split.name} holds token id {counted[-1]}, the vocabulary has "
            f"{vocab_size} ids; the store was built with another vocabulary"
        )
    for name in _SPECIAL_NAMES:
        if not 0 <= special_ids.get(name, -1) < vocab_size:
            raise ValueError(
                f"the id of the special piece {name!r} is {special_ids.get(name)}; it must lie "
                f"from 0 to {vocab_size - 1}: use a vocabulary that has it"
            )


def _empty_rows(source: PretrainSource, rows: int) -> dict[str, np.ndarray]:
    return {
        name: np.zeros(dims, dtype) for name, (dims, dtype) in source.shape.arrays(rows).items()
    }
