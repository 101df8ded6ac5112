"""Choose the tokens to predict as whole words, or runs of words, that are masked together."""

import dataclasses

import numpy as np

from data_pipeline.spec import hashing

NEVER = np.uint32(0xFFFFFFFF)


@dataclasses.dataclass(frozen=True)
class _Words:
    """Hold the W words of B rows, row after row, followed by empty words as padding.

    Number the text tokens consecutively over all rows, without special tokens and padding.
    """

    first_token_W: np.ndarray  # int32
    opens_segment_W: np.ndarray  # bool, no word precedes it directly in its row
    starts_BS: np.ndarray  # bool
    number_BS: np.ndarray  # int32, number of the word that starts here; undefined elsewhere


def choose_words(
    input_ids_BS: np.ndarray,
    is_text_BS: np.ndarray,
    count_B: np.ndarray,
    row_keys_B: np.ndarray,
    is_continuation_V: np.ndarray,
    longest_ngram: int,
    joins_segments: bool,
    counters: tuple[int, int],
) -> np.ndarray:
    """Choose up to count_B tokens of each row, as runs of 1 to longest_ngram whole words.

    Words are visited in random order until count_B tokens are chosen. Each visited word starts a
    run of n words, with n drawn with probability proportional to 1/n. A run ends at the end of its
    segment at the latest, and loses its last words until its tokens fit into the remaining count.
    The run is skipped if not even one word fits, or if one of its words is already chosen. With
    longest_ngram = 1 this is Google's rule for whole words.

    Args:
      is_continuation_V: whether a piece continues the word of the piece before it.
      joins_segments: whether a word may continue after a special token, as in Google's code;
        requires longest_ngram = 1.
      counters: counters of the hash for the two draws per position: order of words, run length.

    Shapes: int32[B,S], bool[B,S] False at [CLS], [SEP] and padding, int64[B], uint64[B], bool[V]
    -> bool[B,S], at most count_B True per row; fewer if all remaining words are too long.

    Source: create_masked_lm_predictions in create_pretraining_data.py, google-research/
    bert@eedf5716ce and albert@0cf7f5745e, which lets a run continue after a [SEP].
    """
    words = _find_words(input_ids_BS, is_text_BS, is_continuation_V, longest_ngram, joins_segments)
    order_key, length_key = counters
    keys_BS, low_mask = make_sort_keys(words.starts_BS, row_keys_B, order_key)
    keys_BS.sort(axis=1)

    is_taken_W = np.zeros(len(words.first_token_W), bool)
    room_B = count_B.copy()
    rows = np.arange(len(count_B))  # rows with room for tokens and with unvisited words
    for rank in range(keys_BS.shape[1]):
        keys = keys_BS[rows, rank]
        is_open = (keys != NEVER) & (room_B[rows] > 0)
        rows, keys = rows[is_open], keys[is_open]
        if not len(rows):
            break
        position = keys & low_mask
        drawn = None
        if longest_ngram > 1:
            bits = hashing.hash32(row_keys_B[rows], (position + np.uint32(length_key))[:, None])
            drawn = _draw_run_lengths(bits[:, 0], longest_ngram)
        room_B[rows] -= _take_runs(
            words, words.number_BS[rows, position], room_B[rows], drawn, longest_ngram, is_taken_W
        )

    tokens_W = np.diff(words.first_token_W, append=words.first_token_W[-1])
    chosen_BS = np.zeros(is_text_BS.shape, bool)
    chosen_BS[is_text_BS] = np.repeat(is_taken_W, tokens_W)
    return chosen_BS


def make_sort_keys(
    is_candidate_BS: np.ndarray, row_keys_B: np.ndarray, counter: int
) -> tuple[np.ndarray, np.uint32]:
    """Make keys that sort each row's candidates into random order: uint32[B,S], and a bit mask.

    The lowest bits of a key hold its position and the others a hash, so the keys can be sorted in
    place; key & mask is the position. Positions that are not candidates get the key NEVER, which
    sorts last.
    """
    position_S = np.arange(is_candidate_BS.shape[1], dtype=np.uint32)
    low_mask = np.uint32((1 << max(1, (len(position_S) - 1).bit_length())) - 1)
    keys_BS = hashing.hash32(row_keys_B, position_S + np.uint32(counter))
    keys_BS &= ~low_mask
    keys_BS |= position_S
    np.putmask(keys_BS, ~is_candidate_BS, NEVER)
    return keys_BS, low_mask


def _find_words(
    input_ids_BS: np.ndarray,
    is_text_BS: np.ndarray,
    is_continuation_V: np.ndarray,
    empty_words: int,
    joins_segments: bool,
) -> _Words:
    """Split each row into words, which end with their segment unless joins_segments is set."""
    opens_segment_BS = is_text_BS.copy()
    opens_segment_BS[:, 1:] &= ~is_text_BS[:, :-1]
    starts_BS = ~is_continuation_V.take(input_ids_BS)
    starts_BS &= is_text_BS
    if joins_segments:
        starts_BS[np.arange(len(is_text_BS)), is_text_BS.argmax(axis=1)] = True
        starts_BS &= is_text_BS  # a row without text
    else:
        starts_BS |= opens_segment_BS
    first_token_W = np.flatnonzero(starts_BS[is_text_BS]).astype(np.int32)
    number_BS = np.cumsum(starts_BS, dtype=np.int32).reshape(starts_BS.shape)
    number_BS -= 1
    tokens = np.int32(np.count_nonzero(is_text_BS))
    return _Words(
        first_token_W=np.append(first_token_W, np.full(empty_words, tokens)),
        opens_segment_W=np.append(opens_segment_BS[starts_BS], np.ones(empty_words, bool)),
        starts_BS=starts_BS,
        number_BS=number_BS,
    )


def _draw_run_lengths(bits_N: np.ndarray, longest: int) -> np.ndarray:
    """Draw n from 1 to `longest` with probability proportional to 1/n: uint32[N] -> int64[N]."""
    share = np.cumsum(1.0 / np.arange(1, longest + 1))
    limits = (share[:-1] / share[-1] * 2**32).astype(np.uint32)
    return 1 + np.searchsorted(limits, bits_N, side="right")


def _take_runs(
    words: _Words,
    first_N: np.ndarray,
    room_N: np.ndarray,
    drawn_N: np.ndarray | None,
    longest: int,
    is_taken_W: np.ndarray,
) -> np.ndarray:
    """Take a run of words that begins at first_N in each of N rows, if its tokens fit in room_N.

    Mark its words in is_taken_W. drawn_N are the lengths of runs in words; None means 1.

    Returns:
      int64[N], the tokens of each run; 0 for a run not taken.
    """
    token_N = words.first_token_W[first_N]
    is_free_N = ~is_taken_W[first_N]
    fits_N = words.first_token_W[first_N + 1] - token_N <= room_N
    length_N = fits_N.astype(np.int64)
    if drawn_N is not None:
        for number in range(1, longest):
            fits_N &= drawn_N > number
            fits_N &= ~words.opens_segment_W[first_N + number]
            fits_N &= words.first_token_W[first_N + number + 1] - token_N <= room_N
            is_free_N &= ~(fits_N & is_taken_W[first_N + number])
            length_N += fits_N
    length_N *= is_free_N
    for number in range(longest):
        is_taken_W[first_N[length_N > number] + number] = True
    return words.first_token_W[first_N + length_N] - token_N
