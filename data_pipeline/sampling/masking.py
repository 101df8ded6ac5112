"""Choose the masked-LM targets of each row, and replace them 80/10/10."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.spec import hashing
from data_pipeline.spec.schema import restore_ids

# First counters of a row's draws: order of positions, replacements, random ids, run lengths.
_CHOOSE, _REPLACE, _RANDOM_ID, _RUN_LENGTH = 0, 1 << 16, 2 << 16, 3 << 16


@dataclasses.dataclass(frozen=True)
class MaskRules:
    """Hold the rules for which tokens are predicted, how many, and what replaces them."""

    masked_lm_prob: float  # share of the row's tokens, special ones included
    max_predictions_per_seq: int
    vocab_size: int  # random ids are uniform over all of it, special tokens included
    mask_id: int
    mask_token_share: float = 0.8  # share of the predicted tokens shown as mask_id
    random_token_share: float = 0.1  # share of the predicted tokens shown as any id; the rest stays
    masking: str = "token"  # or "whole_word", or "ngram": runs of 1 to longest_ngram whole words
    longest_ngram: int = 3
    is_continuation_V: np.ndarray | None = (
        None  # bool per id: continues a word; None for token masking
    )
    exact: bool = False  # Google's rule for whole words, which may continue past the [SEP] of A
    weights_V: np.ndarray | None = None  # float64, per id; 0: never chosen; None: all equal

    @property
    def longest_run(self) -> int:
        """Return the most whole words that are chosen together."""
        return self.longest_ngram if self.masking == "ngram" else 1


class Masks(NamedTuple):
    """Hold the tokens to predict in each row; unused slots hold 0."""

    positions_BP: np.ndarray  # int32, ascending
    ids_BP: np.ndarray  # int32, before they were replaced
    weights_BP: np.ndarray  # float32


def count_predictions(length_B: np.ndarray, text_B: np.ndarray, rules: MaskRules) -> np.ndarray:
    """Count the tokens to predict in each row.

    length_B counts all tokens of a row, text_B those that are not special. Halves are rounded to
    the nearest even number, like Python's round.

    Shapes: int[B], int[B] -> int64[B], from 1 (0 if text_B is 0) to the smaller of
    max_predictions_per_seq and text_B.
    """
    wanted_B = np.maximum(np.rint(length_B * rules.masked_lm_prob).astype(np.int64), 1)
    return np.minimum(wanted_B, np.minimum(rules.max_predictions_per_seq, text_B))


def weigh_rare_tokens(
    counts_V: np.ndarray, smoothing: float, special_ids: Mapping[str, int]
) -> np.ndarray:
    """Return max(count, 1)**-smoothing per id, but 0 for special tokens: int64[V] -> float64[V].

    Source: train.py and distiller.py of DistilBERT in transformers' research projects, where
    mlm_smoothing is 0.7 and special tokens in the text, such as [UNK], are never predicted.
    """
    weights_V = np.maximum(counts_V, 1).astype(np.float64) ** -smoothing
    weights_V[list(special_ids.values())] = 0.0
    return weights_V


def mask_rows(
    input_ids_BS: np.ndarray,
    is_text_BS: np.ndarray,
    length_B: np.ndarray,
    row_keys_B: np.ndarray,
    rules: MaskRules,
) -> Masks:
    """Choose the tokens to predict, and replace them in place.

    Of the chosen tokens 80% become [MASK], 10% stay, 10% become any id, unless the rules have
    other shares. Each draw depends only on the row's key and the position, and with weights_V also
    on the row's tokens. Single tokens always fill the slots that count_predictions counts; whole
    words may fill fewer, when no remaining word fits. Other slots are unused.

    Shapes: int32[B,S] (changed), bool[B,S] False at [CLS], [SEP] and padding, int[B] the number of
    tokens, uint64[B] -> Masks of B rows and P slots.

    Source: Devlin et al. 2019, section 3.1; create_pretraining_data.py@eedf5716ce,
    create_masked_lm_predictions.
    """
    slots = rules.max_predictions_per_seq
    weight_BS = None if rules.weights_V is None else rules.weights_V.take(input_ids_BS)
    if weight_BS is not None:
        is_text_BS = is_text_BS & (weight_BS > 0)
    count_B = count_predictions(length_B, np.count_nonzero(is_text_BS, axis=1), rules)
    if rules.masking == "token":
        if weight_BS is None:
            keys_BS, low_mask = _make_sort_keys(is_text_BS, row_keys_B)
        else:
            keys_BS, low_mask = _make_weighted_keys(weight_BS, is_text_BS, row_keys_B)
        positions_BP = (_take_smallest(keys_BS, slots) & low_mask).astype(np.int32)
        used_BP = np.arange(slots) < count_B[:, None]
        # Unused slots sort after all positions, then become 0 = [CLS].
        positions_BP[~used_BP] = np.iinfo(np.int32).max
        positions_BP.sort(axis=1)
        positions_BP[~used_BP] = 0
    else:
        chosen_BS = choose_words(input_ids_BS, is_text_BS, count_B, row_keys_B, rules)
        used_BP = np.arange(slots) < np.count_nonzero(chosen_BS, axis=1)[:, None]
        positions_BP = np.zeros(used_BP.shape, np.int32)
        positions_BP[used_BP] = np.nonzero(chosen_BS)[1]
    original_BP = _replace(input_ids_BS, positions_BP, used_BP, row_keys_B, rules)
    return Masks(positions_BP, original_BP, used_BP.astype(np.float32))


def _take_smallest(keys_BS: np.ndarray, slots: int) -> np.ndarray:
    """Return the `slots` smallest keys per row, ascending, [B,P]; reorder `keys_BS` in place."""
    rows, seq_len = keys_BS.shape
    if slots < seq_len:
        keys_BS.partition(slots - 1, axis=1)
    keys_BP = np.full((rows, slots), _last_key(keys_BS), keys_BS.dtype)
    keys_BP[:, : min(slots, seq_len)] = keys_BS[:, :slots]
    keys_BP.sort(axis=1)
    return keys_BP


def _last_key(keys: np.ndarray) -> int:
    """Return the key that sorts after all candidates."""
    return int(np.iinfo(keys.dtype).max)


def _make_weighted_keys(
    weight_BS: np.ndarray, is_text_BS: np.ndarray, row_keys_B: np.ndarray
) -> tuple[np.ndarray, np.unsignedinteger[Any]]:
    """Make keys like _make_sort_keys, but uint64[B,S], whose order samples positions by weight.

    Draw an exponential time per position, with the weight as its rate: the smallest times are a
    sample without replacement (Efraimidis and Spirakis 2006).
    """
    position_S = np.arange(is_text_BS.shape[1], dtype=np.uint32)
    bits_BS = hashing.hash32(row_keys_B, position_S + np.uint32(_CHOOSE))
    rate_BS = np.where(is_text_BS, weight_BS, 1.0)
    # float32, so that processors whose float64 logarithms differ in the last bit sort alike.
    time_BS = (-np.log((bits_BS + 0.5) / 2**32) / rate_BS).astype(np.float32)
    # Positive floats sort like their bits; the position in the lower bits breaks ties.
    keys_BS = time_BS.view(np.uint32).astype(np.uint64) << np.uint64(32) | position_S
    keys_BS[~is_text_BS] = _last_key(keys_BS)
    return keys_BS, np.uint64(0x7FFFFFFF)


def _make_sort_keys(
    is_candidate_BS: np.ndarray, row_keys_B: np.ndarray
) -> tuple[np.ndarray, np.unsignedinteger[Any]]:
    """Make keys that sort each row's candidates into random order: uint32[B,S], and a bit mask.

    The lowest bits of a key hold its position and the others a hash, so the keys can be sorted in
    place; key & mask is the position. Positions that are not candidates get _last_key.
    """
    position_S = np.arange(is_candidate_BS.shape[1], dtype=np.uint32)
    low_mask = np.uint32((1 << max(1, (len(position_S) - 1).bit_length())) - 1)
    keys_BS = hashing.hash32(row_keys_B, position_S + np.uint32(_CHOOSE))
    keys_BS &= ~low_mask
    keys_BS |= position_S
    np.putmask(keys_BS, ~is_candidate_BS, _last_key(keys_BS))
    return keys_BS, low_mask


@dataclasses.dataclass(frozen=True)
class _Words:
    """Hold the W words of B rows, row after row; as many empty words follow as a run may have.

    Tokens of text are numbered consecutively over all rows, without special tokens and padding.
    """

    first_token_W: np.ndarray  # int32
    opens_segment_W: np.ndarray  # bool, the first word of its segment
    starts_BS: np.ndarray  # bool
    number_BS: np.ndarray  # int32, number of the word that starts here; undefined elsewhere
    is_taken_W: np.ndarray  # bool


def choose_words(
    input_ids_BS: np.ndarray,
    is_text_BS: np.ndarray,
    count_B: np.ndarray,
    row_keys_B: np.ndarray,
    rules: MaskRules,
) -> np.ndarray:
    """Choose up to count_B tokens of each row, as whole words or runs of up to longest_ngram words.

    Words are visited in random order until count_B tokens are chosen. Each visited word starts a
    run of n words, with n drawn with probability proportional to 1/n. A run ends at the end of its
    segment at the latest, and loses its last words until its tokens fit into the remaining count.
    The run is skipped if not even one word fits, or if one of its words is already chosen. With
    runs of one word this is Google's rule for whole words.

    Shapes: int32[B,S], bool[B,S] False at [CLS], [SEP] and padding, int64[B], uint64[B]
    -> bool[B,S], at most count_B True per row; fewer if all remaining words are too long.

    Source: create_masked_lm_predictions in create_pretraining_data.py, google-research/
    bert@eedf5716ce and albert@0cf7f5745e, which lets a run continue after a [SEP].
    """
    words = _find_words(input_ids_BS, is_text_BS, rules)
    keys_BS, low_mask = _make_sort_keys(words.starts_BS, row_keys_B)
    keys_BS.sort(axis=1)

    room_B = count_B.copy()
    rows = np.arange(len(count_B))  # rows with room for tokens and with unvisited words
    for rank in range(keys_BS.shape[1]):
        keys = keys_BS[rows, rank]
        is_open = (keys != _last_key(keys)) & (room_B[rows] > 0)
        rows, keys = rows[is_open], keys[is_open]
        if not len(rows):
            break
        position = keys & low_mask
        drawn = np.ones(len(rows), np.int64)
        if rules.longest_run > 1:
            bits = hashing.hash32(row_keys_B[rows], (position + np.uint32(_RUN_LENGTH))[:, None])
            drawn = _draw_run_lengths(bits[:, 0], rules.longest_run)
        room_B[rows] -= _take_runs(words, words.number_BS[rows, position], room_B[rows], drawn)

    tokens_W = np.diff(words.first_token_W, append=words.first_token_W[-1])
    chosen_BS = np.zeros(is_text_BS.shape, bool)
    chosen_BS[is_text_BS] = np.repeat(words.is_taken_W, tokens_W)
    return chosen_BS


def _find_words(input_ids_BS: np.ndarray, is_text_BS: np.ndarray, rules: MaskRules) -> _Words:
    """Split each row into words, which end with their segment unless rules.exact."""
    assert rules.is_continuation_V is not None
    opens_segment_BS = is_text_BS.copy()
    opens_segment_BS[:, 1:] &= ~is_text_BS[:, :-1]
    starts_BS = ~rules.is_continuation_V.take(input_ids_BS)
    starts_BS &= is_text_BS
    if rules.exact:
        starts_BS[np.arange(len(is_text_BS)), is_text_BS.argmax(axis=1)] = True
        starts_BS &= is_text_BS  # a row without text
    else:
        starts_BS |= opens_segment_BS
    first_token_W = np.flatnonzero(starts_BS[is_text_BS]).astype(np.int32)
    number_BS = np.cumsum(starts_BS, dtype=np.int32).reshape(starts_BS.shape)
    number_BS -= 1
    tokens = np.int32(np.count_nonzero(is_text_BS))
    first_token_W = np.append(first_token_W, np.full(rules.longest_run, tokens))
    return _Words(
        first_token_W=first_token_W,
        opens_segment_W=np.append(opens_segment_BS[starts_BS], np.ones(rules.longest_run, bool)),
        starts_BS=starts_BS,
        number_BS=number_BS,
        is_taken_W=np.zeros(len(first_token_W), bool),
    )


def _draw_run_lengths(bits_N: np.ndarray, longest: int) -> np.ndarray:
    """Draw n from 1 to `longest` with probability proportional to 1/n: uint32[N] -> int64[N]."""
    share = np.cumsum(1.0 / np.arange(1, longest + 1))
    limits = (share[:-1] / share[-1] * 2**32).astype(np.uint32)
    return 1 + np.searchsorted(limits, bits_N, side="right")


def _take_runs(
    words: _Words, first_N: np.ndarray, room_N: np.ndarray, drawn_N: np.ndarray
) -> np.ndarray:
    """Take a run of up to drawn_N words from first_N on in each of N rows, as far as room_N allows.

    Marks the words of the runs in is_taken_W; a run with a word that is already taken is skipped.

    Returns:
      int64[N], the tokens of each run; 0 for a run not taken.
    """
    token_N = words.first_token_W[first_N]
    is_free_N = ~words.is_taken_W[first_N]
    fits_N = words.first_token_W[first_N + 1] - token_N <= room_N
    length_N = fits_N.astype(np.int64)
    longest = int(drawn_N.max())
    for number in range(1, longest):
        fits_N &= drawn_N > number
        fits_N &= ~words.opens_segment_W[first_N + number]
        fits_N &= words.first_token_W[first_N + number + 1] - token_N <= room_N
        is_free_N &= ~(fits_N & words.is_taken_W[first_N + number])
        length_N += fits_N
    length_N *= is_free_N
    for number in range(longest):
        words.is_taken_W[first_N[length_N > number] + number] = True
    return words.first_token_W[first_N + length_N] - token_N


def _replace(
    input_ids_BS: np.ndarray,
    positions_BP: np.ndarray,
    used_BP: np.ndarray,
    row_keys_B: np.ndarray,
    rules: MaskRules,
) -> np.ndarray:
    """Put [MASK], a random id or the same id at used positions; return the old ids: int32[B,P].

    Unused slots point to position 0, and their entries in the result are 0.
    """
    original_BP = np.take_along_axis(input_ids_BS, positions_BP, axis=1)
    counters_BP = positions_BP.astype(np.uint32)
    # uint64, since a share of 1 is 2**32.
    fate_BP = hashing.hash32(row_keys_B, counters_BP + np.uint32(_REPLACE)).astype(np.uint64)
    bits_BP = hashing.hash32(row_keys_B, counters_BP + np.uint32(_RANDOM_ID)).astype(np.uint64)
    random_BP = (bits_BP * np.uint64(rules.vocab_size) >> np.uint64(32)).astype(np.int32)
    is_mask_BP = fate_BP < np.uint64(rules.mask_token_share * 2**32)
    is_kept_BP = fate_BP < np.uint64((1.0 - rules.random_token_share) * 2**32)
    shown_BP = np.where(is_kept_BP, original_BP, random_BP)
    shown_BP[is_mask_BP] = rules.mask_id
    # Unused slots point at [CLS] and write it back.
    shown_BP = np.where(used_BP, shown_BP, original_BP)
    np.put_along_axis(input_ids_BS, positions_BP, shown_BP, axis=1)
    original_BP[~used_BP] = 0
    return original_BP


def restore_masked(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return rows with the tokens from before masking, and all prediction slots unused."""
    nothing_BP = np.zeros_like(rows["masked_lm_weights"])
    return {**rows, "input_ids": restore_ids(rows), "masked_lm_weights": nothing_BP}
