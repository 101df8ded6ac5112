"""Turn chunks into the text of examples: choose the tokens of A and B, and cut them to fit."""

import dataclasses

import numpy as np

from data_pipeline.sampling.walk import Walk, WalkRules, draw_targets, split_chunks
from data_pipeline.spec import hashing
from data_pipeline.spec.hashing import Purpose
from data_pipeline.store import Split

# Chunks whose lengths are computed together: a few arrays with 8 bytes per chunk.
_LENGTHS_AT_A_TIME = 1 << 18


@dataclasses.dataclass(frozen=True)
class Spans:
    """Hold the text of B examples as slices of the split's token_ids.

    An example is [CLS] A [SEP] B [SEP]; if B has no tokens, [CLS] A [SEP]. In full_sentences A
    may cross document ends: K of them in the batch, in order, each an additional [SEP].
    """

    first_sentence_B: np.ndarray  # int64, identifies the example within its walk
    a_start_B: np.ndarray  # int64
    a_tokens_B: np.ndarray  # int64, 1 or more, without the [SEP] of documents
    b_start_B: np.ndarray
    b_tokens_B: np.ndarray
    label_B: np.ndarray  # bool: B does not follow A (nsp), or is before it in the text (sop)
    has_label_B: np.ndarray  # bool
    end_rows_K: np.ndarray  # int64, the example of each document end
    end_positions_K: np.ndarray  # int64, the position of its [SEP], after [CLS]

    @property
    def a_and_ends_B(self) -> np.ndarray:
        """Count the tokens of A, the [SEP] tokens at document ends included: int64[B]."""
        return self.a_tokens_B + np.bincount(self.end_rows_K, minlength=len(self.a_tokens_B))

    @property
    def length_B(self) -> np.ndarray:
        """Count the tokens of each example, special tokens included: int64[B]."""
        return self.a_and_ends_B + 2 + np.where(self.b_tokens_B > 0, self.b_tokens_B + 1, 0)


def resolve_spans(split: Split, walk: Walk, examples_B: np.ndarray, epoch_key: int) -> Spans:
    """Find the tokens of the examples with the given numbers in a walk.

    The walk decides the sentences; the epoch decides the tokens cut off to fit seq_len, and the
    order of the segments in sop.

    `epoch_key` is the key for random choices in this epoch. Shapes: int64[B] -> Spans of B.

    Source: create_pretraining_data.py@eedf5716ce, create_instances_from_document; for sop, Lan et
    al. 2020, section 3.1.
    """
    whole, cut = _find_spans(split, walk, examples_B)
    first_B = whole.first_sentence_B
    cut_a_key = hashing.derive_key(epoch_key, Purpose.CUT_A)
    cut_b_key = hashing.derive_key(epoch_key, Purpose.CUT_B)
    a_front_B = hashing.draw_binomial_half(cut_a_key, first_B, whole.a_tokens_B - cut.a_tokens_B)
    b_front_B = hashing.draw_binomial_half(cut_b_key, first_B, whole.b_tokens_B - cut.b_tokens_B)
    spans = dataclasses.replace(
        cut, a_start_B=whole.a_start_B + a_front_B, b_start_B=whole.b_start_B + b_front_B
    )
    if walk.rules.segments != "sop":
        return spans
    return _swap_segments(spans, hashing.derive_key(epoch_key, Purpose.SWAP))


def measure_examples(split: Split, walk: Walk) -> np.ndarray:
    """Count the tokens of each example of a walk, special tokens included: uint16[N].

    The counts are the same in every epoch.
    """
    lengths_N = np.empty(len(walk), np.uint16)
    for start in range(0, len(walk), _LENGTHS_AT_A_TIME):
        examples_B = np.arange(start, min(start + _LENGTHS_AT_A_TIME, len(walk)))
        _, cut = _find_spans(split, walk, examples_B)
        lengths_N[start : start + len(examples_B)] = cut.length_B
    return lengths_N


def truncate_pairs(
    a_tokens_B: np.ndarray, b_tokens_B: np.ndarray, rules: WalkRules
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the lengths of A and B after cutting the longer (B on a tie) until both fit.

    resolve_spans drops each token from the front or the back with equal chance. An example without
    B may have one token more, as it has no second [SEP].

    Shapes: int64[B], int64[B] -> int64[B], int64[B] with a sum of at most rules.text_tokens.

    Source: create_pretraining_data.py@eedf5716ce, truncate_seq_pair, in closed form.
    """
    if not rules.has_pairs:
        return np.minimum(a_tokens_B, rules.text_tokens), b_tokens_B
    most_B = np.where(b_tokens_B > 0, rules.text_tokens, rules.text_tokens + 1)
    b_kept_B = np.minimum(b_tokens_B, np.maximum(most_B // 2, most_B - a_tokens_B))
    return np.minimum(a_tokens_B, most_B - b_kept_B), b_kept_B


def _find_spans(split: Split, walk: Walk, examples_B: np.ndarray) -> tuple[Spans, Spans]:
    """Find the spans of examples before and after truncation; both depend only on the walk."""
    find = _find_pairs if walk.rules.has_pairs else _find_runs
    whole = find(split, walk, examples_B)
    a_tokens_B, b_tokens_B = truncate_pairs(whole.a_tokens_B, whole.b_tokens_B, walk.rules)
    return whole, dataclasses.replace(whole, a_tokens_B=a_tokens_B, b_tokens_B=b_tokens_B)


def _find_pairs(split: Split, walk: Walk, examples_B: np.ndarray) -> Spans:
    rules, offsets = walk.rules, split.sentence_offsets
    first_B = walk.first_sentence_N[examples_B].astype(np.int64)
    document_B = walk.document_N[examples_B].astype(np.int64)
    sentences_B = walk.sentences_N[examples_B].astype(np.int64)
    a_sentences_B, is_random_B = split_chunks(rules, first_B, sentences_B)
    a_start_B = offsets[first_B]
    a_tokens_B = offsets[first_B + a_sentences_B] - a_start_B

    b_first_B, b_end_B = first_B + a_sentences_B, first_B + sentences_B
    rows = np.flatnonzero(is_random_B)
    wanted = draw_targets(rules, document_B[rows], first_B[rows]) - a_tokens_B[rows]
    b_first_B[rows], b_end_B[rows] = _choose_random_segments(
        split, rules, first_B[rows], document_B[rows], wanted
    )
    b_start_B = offsets[b_first_B]
    b_tokens_B = offsets[b_end_B] - b_start_B
    return Spans(
        first_sentence_B=first_B,
        a_start_B=a_start_B,
        a_tokens_B=a_tokens_B,
        b_start_B=b_start_B,
        b_tokens_B=b_tokens_B,
        label_B=is_random_B,
        has_label_B=b_tokens_B > 0,  # a single sentence has no order (sop)
        end_rows_K=np.zeros(0, np.int64),
        end_positions_K=np.zeros(0, np.int64),
    )


def _find_runs(split: Split, walk: Walk, examples_B: np.ndarray) -> Spans:
    first_B = walk.first_sentence_N[examples_B].astype(np.int64)
    end_B = first_B + walk.sentences_N[examples_B]
    document_B = walk.document_N[examples_B].astype(np.int64)
    a_start_B = split.sentence_offsets[first_B]
    nothing_B = np.zeros(len(first_B), np.int64)
    # Count the documents that end within each example: mostly none, so ever fewer rows remain.
    document_ends_B = nothing_B.copy()
    rows = np.arange(len(first_B))
    last_document = split.documents - 1
    while len(rows):
        next_B = np.minimum(document_B[rows] + document_ends_B[rows] + 1, last_document + 1)
        rows = rows[split.document_offsets[next_B] < end_B[rows]]
        document_ends_B[rows] += 1
    row_K = np.repeat(np.arange(len(first_B)), document_ends_B)
    number_K = np.arange(len(row_K)) - (np.cumsum(document_ends_B) - document_ends_B)[row_K]
    document_K = document_B[row_K] + 1 + number_K
    token_K = split.sentence_offsets[split.document_offsets[document_K]]
    return Spans(
        first_sentence_B=first_B,
        a_start_B=a_start_B,
        a_tokens_B=split.sentence_offsets[end_B] - a_start_B,
        b_start_B=a_start_B,
        b_tokens_B=nothing_B,
        label_B=np.zeros(len(first_B), bool),
        has_label_B=np.zeros(len(first_B), bool),
        end_rows_K=row_K,
        end_positions_K=1 + token_K - a_start_B[row_K] + number_K,
    )


def _swap_segments(spans: Spans, key: int) -> Spans:
    """Exchange A and B in half of the pairs, and label these pairs True."""
    is_swapped_B = spans.has_label_B & hashing.chance(
        hashing.hash64(key, spans.first_sentence_B), 0.5
    )
    return dataclasses.replace(
        spans,
        a_start_B=np.where(is_swapped_B, spans.b_start_B, spans.a_start_B),
        a_tokens_B=np.where(is_swapped_B, spans.b_tokens_B, spans.a_tokens_B),
        b_start_B=np.where(is_swapped_B, spans.a_start_B, spans.b_start_B),
        b_tokens_B=np.where(is_swapped_B, spans.a_tokens_B, spans.b_tokens_B),
        label_B=is_swapped_B,
    )


def _choose_random_segments(
    split: Split,
    rules: WalkRules,
    first_N: np.ndarray,
    document_N: np.ndarray,
    wanted_tokens_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose consecutive sentences of a random document, enough for each pair's wanted tokens.

    With rules.exact it is sometimes the pair's own document, as in Google's code.

    Shapes: int64[N] three times -> first sentence int64[N], sentence after the last int64[N].
    """
    # Draw from all documents except the pair's own.
    bits = hashing.hash64(hashing.derive_key(rules.key, Purpose.OTHER_DOCUMENT), first_N)
    other_N = hashing.draw_below(bits, split.documents - 1)
    other_N += other_N >= document_N
    if rules.exact:
        # Google draws up to ten times and accepts the tenth draw in any case.
        bits = hashing.hash64(hashing.derive_key(rules.key, Purpose.SAME_DOCUMENT), first_N)
        is_same_N = bits < np.uint64(2**64 // split.documents**10)
        other_N = np.where(is_same_N, document_N, other_N)
    document_start_N = split.document_offsets[other_N]
    document_end_N = split.document_offsets[other_N + 1]
    bits = hashing.hash64(hashing.derive_key(rules.key, Purpose.START_OF_B), first_N)
    start_N = document_start_N + hashing.draw_below(bits, document_end_N - document_start_N)

    # The end lies within `wanted` sentences, each holding a token or more: a bisection there
    # stays on a few memory pages, where one over the whole corpus misses the cache at each step.
    offsets = split.sentence_offsets
    enough_N = offsets[start_N] + wanted_tokens_N
    low_N = start_N + 1
    high_N = np.clip(start_N + wanted_tokens_N, low_N, document_end_N)
    while (low_N < high_N).any():
        middle_N = (low_N + high_N) >> 1
        is_enough_N = offsets[middle_N] >= enough_N
        high_N = np.where(is_enough_N, middle_N, high_N)
        low_N = np.where(is_enough_N, low_N, np.minimum(middle_N + 1, high_N))
    return start_N, low_N
