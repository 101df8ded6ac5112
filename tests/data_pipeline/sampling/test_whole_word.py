"""Whole words and runs of words are masked by Google's rules, checked one row at a time."""

import dataclasses
import random

import numpy as np
import pytest

from data_pipeline.sampling.masking import MaskRules, mask_rows
from data_pipeline.spec import hashing
from tests.data_pipeline import pairs_oracle

CLS, SEP, MASK = 2, 3, 4
VOCAB_SIZE = 1009
# Pieces that go on with a word; where a layout below is made by hand, 500 is one and 5 is none.
CONTINUES = np.arange(VOCAB_SIZE) >= 500
WHOLE_WORDS = MaskRules(
    0.15, 20, VOCAB_SIZE, MASK, masking="whole_word", is_continuation_V=CONTINUES
)
EXACT = dataclasses.replace(WHOLE_WORDS, exact=True)
NGRAMS = dataclasses.replace(WHOLE_WORDS, masking="ngram")
SHORT_NGRAMS = dataclasses.replace(NGRAMS, longest_ngram=1)
LONG_NGRAMS = dataclasses.replace(NGRAMS, longest_ngram=6)
# Chosen before looking: of 200 true normal scores one exceeds it once in 700 runs.
MAX_Z = 4.5


def row_of(*segments: list[int], seq_len: int) -> tuple[np.ndarray, np.ndarray, int]:
    """One row of words with the given numbers of tokens: ids, is_text, length."""
    ids, is_text = [CLS], [False]
    for segment in segments:
        for tokens in segment:
            ids += [5] * (tokens > 0) + [500] * (abs(tokens) - (tokens > 0))
            is_text += [True] * abs(tokens)
        ids.append(SEP)
        is_text.append(False)
    padding = seq_len - len(ids)
    return np.asarray(ids + [0] * padding), np.asarray(is_text + [False] * padding), len(ids)


def random_rows(rows: int, seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of text with one to three segments: ids, is_text, length."""
    rng = np.random.default_rng(3)
    length = rng.integers(3, seq_len + 1, rows)
    length[:20] = np.arange(2, 22)
    position = np.arange(seq_len)
    is_text = (position > 0) & (position < (length - 1)[:, None])
    is_text &= rng.random((rows, seq_len)) > 2 / seq_len
    # Between a few long words and hardly any, from row to row.
    share = rng.random((rows, 1))
    ids = np.where(
        rng.random((rows, seq_len)) < share,
        rng.integers(500, VOCAB_SIZE, (rows, seq_len)),
        rng.integers(5, 500, (rows, seq_len)),
    )
    ids = np.where(is_text, ids, SEP)
    ids[:, 0] = CLS
    ids[position >= length[:, None]] = 0
    return ids.astype(np.int32), is_text, length


def words_of(ids: np.ndarray, is_text: np.ndarray, exact: bool) -> list[tuple[int, list[int]]]:
    """The words of a row as (number of its segment, positions)."""
    words: list[tuple[int, list[int]]] = []
    segment = 0
    for position in range(1, len(ids)):
        if not is_text[position]:
            segment += 1
        elif CONTINUES[ids[position]] and words and (exact or is_text[position - 1]):
            words[-1][1].append(position)
        else:
            words.append((segment, [position]))
    return words


def chosen_in_order(
    words: list[tuple[int, list[int]]], order: list[int], lengths: list[int], count: int
) -> list[int]:
    """Positions by the rule in choose_words, given the order of the words and each run's length."""
    chosen: list[int] = []
    for word in order:
        for longest in range(lengths[word], 0, -1):
            run = [at for at in words[word : word + longest] if at[0] == words[word][0]]
            positions = [position for _, word_positions in run for position in word_positions]
            if len(chosen) + len(positions) <= count:
                if not set(positions) & set(chosen):
                    chosen += positions
                break
    return sorted(chosen)


def drawn_length(uniform: float, rules: MaskRules) -> int:
    """n with chance in proportion to 1/n, from a number between 0 and 1."""
    longest = rules.longest_ngram if rules.masking == "ngram" else 1
    uniform *= sum(1 / n for n in range(1, longest + 1))
    for n in range(1, longest):
        uniform -= 1 / n
        if uniform < 0:
            return n
    return longest


@pytest.mark.parametrize(
    ("prob", "most", "seq_len"), [(0.15, 20, 128), (0.4, 19, 64), (0.9, 200, 29)]
)
@pytest.mark.parametrize("rules", [WHOLE_WORDS, EXACT, NGRAMS, SHORT_NGRAMS, LONG_NGRAMS])
def test_each_row_is_what_the_rule_gives_in_plain_python(rules, prob, most, seq_len):
    rules = dataclasses.replace(rules, masked_lm_prob=prob, max_predictions_per_seq=most)
    ids, is_text, length = random_rows(150, seq_len)
    keys = hashing.hash64(1, np.arange(len(ids)))
    position_S = np.arange(seq_len, dtype=np.uint32)
    order_BS = hashing.hash32(keys, position_S)
    length_BS = hashing.hash32(keys, position_S + np.uint32(3 << 16))
    shown = ids.copy()
    positions, labels, weights = mask_rows(shown, is_text, length, keys, rules)
    assert positions.shape == labels.shape == weights.shape == (150, most)
    assert [a.dtype for a in (positions, labels, weights)] == [np.int32, np.int32, np.float32]
    for row in range(len(ids)):
        words = words_of(ids[row], is_text[row], rules.exact)
        starts = [word[0] for _, word in words]
        order = sorted(range(len(words)), key=lambda word: order_BS[row, starts[word]])
        lengths = [drawn_length(int(length_BS[row, start]) / 2**32, rules) for start in starts]
        text = int(is_text[row].sum())
        count = min(most, max(1, round(int(length[row]) * prob)), text)
        expected = chosen_in_order(words, order, lengths, count)
        used = len(expected)
        assert positions[row, :used].tolist() == expected
        assert weights[row].tolist() == [1.0] * used + [0.0] * (most - used)
        assert not positions[row, used:].any() and not labels[row, used:].any()
        assert labels[row, :used].tolist() == ids[row, expected].tolist()
        outside = np.delete(np.arange(seq_len), expected)
        np.testing.assert_array_equal(shown[row, outside], ids[row, outside])


def chosen_shares(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of bool[N,S]: how often each position, each pair of positions, and each count is chosen."""
    both = np.einsum("ns,nt->st", chosen, chosen, dtype=np.float64)[np.triu_indices(len(chosen.T))]
    counts = np.bincount(chosen.sum(axis=1), minlength=len(chosen.T) + 1)
    return np.concatenate([both, counts]) / len(chosen), np.asarray(len(chosen))


def assert_same_shares(ours: np.ndarray, theirs: np.ndarray) -> None:
    (a, rows_a), (b, rows_b) = chosen_shares(ours), chosen_shares(theirs)
    mean = (a * rows_a + b * rows_b) / (rows_a + rows_b)
    deviation = np.sqrt(mean * (1 - mean) * (1 / rows_a + 1 / rows_b))
    is_sure = deviation == 0
    np.testing.assert_array_equal(a[is_sure], b[is_sure])
    assert np.abs((a - b)[~is_sure] / deviation[~is_sure]).max() < MAX_Z


def chosen_by_ours(segments: list[list[int]], rules: MaskRules, rows: int) -> np.ndarray:
    ids, is_text, length = row_of(*segments, seq_len=32)
    ids_BS = np.repeat(ids[None].astype(np.int32), rows, axis=0)
    keys = hashing.hash64(5, np.arange(rows))
    positions, _, _ = mask_rows(
        ids_BS, np.repeat(is_text[None], rows, axis=0), np.full(rows, length), keys, rules
    )
    chosen = np.zeros((rows, 32), bool)
    np.put_along_axis(chosen, positions, True, axis=1)
    chosen[:, 0] = False  # unused slots point there
    return chosen


# A negative number is a word whose first token is a continuation: its segment was cut in front.
@pytest.mark.parametrize(
    "segments", [[[1, 3, 2, 1, 1], [4, 2, 1, 1, 1, 2, 5]], [[-2, 2, 1, 3], [-3, 1, 1, 2, 2, 3]]]
)
def test_whole_words_are_chosen_as_often_as_by_googles_own_rule(segments):
    ids, _, length = row_of(*segments, seq_len=32)
    rules = dataclasses.replace(EXACT, masked_lm_prob=0.3)
    oracle = pairs_oracle.Rules(
        seq_len=32,
        max_predictions=20,
        vocab_size=VOCAB_SIZE,
        cls=CLS,
        sep=SEP,
        mask=MASK,
        masked_lm_prob=0.3,
        whole_words=True,
        continuations=frozenset(np.flatnonzero(CONTINUES).tolist()),
    )
    rng = random.Random(2)
    theirs = np.zeros((8_000, 32), bool)
    for row in theirs:
        row[pairs_oracle.masked(ids[:length].tolist(), oracle, rng)[1]] = True
    assert_same_shares(chosen_by_ours(segments, rules, 16_000), theirs)
