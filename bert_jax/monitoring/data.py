"""Check the data of a run before its first step: vocabulary, copies, labels.

True next sentences share more words with the sentence before them than random ones do, and the
tokens beside a masked one say more about it than word frequencies do.
"""

from collections.abc import Mapping

import numpy as np

from bert_jax.monitoring.rules import Finding
from data_pipeline.sampling.masking import restore_masked
from data_pipeline.store import EXAMPLES, Store
from data_pipeline.store.findings import find_before_training

_FREQUENT = 200  # tokens that any two texts share
_MIN_DIFFERENCE = 0.01  # between the two labels' shares of words
_SURE = 5.0  # standard errors of that difference
# Nats by which counts of neighbors predict worse than word frequencies. Five corpora had 0.9 to 2.8
# fewer, and 0.35 to 4.6 more once their targets were shuffled.
_WORSE_BY_NEIGHBORS = 0.1


def find_in_store(store: Store) -> list[Finding]:
    """Check the text of a store; ready-made examples have none."""
    if store.kind == EXAMPLES:
        return []
    parts = [(each.name, *each.text.partition(". ")) for each in find_before_training(store)]
    return [Finding(name, 0, f"{sentence}.", advice) for name, sentence, _, advice in parts]


def find_in_pairs(rows: Mapping[str, np.ndarray], counts_V: np.ndarray) -> list[Finding]:
    """Check whether the labels of next sentences are inverted in these rows.

    rows are the arrays of data_pipeline.spec.schema; counts_V, int64[V], counts the store's tokens.
    """
    text = restore_masked(rows)
    example_BS = text.get("example_ids", text["input_mask"])
    examples_M, share_M = share_words(text["input_ids"], text["segment_ids"], example_BS, counts_V)
    row_M, slot_M = np.divmod(examples_M, example_BS.shape[1])
    labels_BN, is_labelled_BN = (
        text[name].reshape(len(example_BS), -1)
        for name in ("next_sentence_labels", "next_sentence_weights")
    )
    is_used_M = is_labelled_BN[row_M, slot_M] > 0
    is_random_M = labels_BN[row_M, slot_M] == 1
    if not are_inverted(share_M[is_used_M], is_random_M[is_used_M]):
        return []
    shares = (share_M[is_used_M & is_random_M].mean(), share_M[is_used_M & ~is_random_M].mean())
    return [
        Finding(
            "next_sentence_inverted",
            0,
            f"texts labelled as random share {shares[0]:.1%} of their words with the text before, "
            f"those labelled as next {shares[1]:.1%}: the labels look inverted.",
            "Label 0 is the true next sentence, 1 a random one. The loss looks as good if they are "
            "inverted, but software that reads the checkpoint by BERT's convention will be wrong.",
        )
    ]


def find_in_targets(baseline: Mapping[str, float]) -> list[Finding]:
    """Check whether masked tokens fit their neighbors, from the baselines of held-out examples.

    baseline has losses in nats by their names in metrics.jsonl. Ready-made examples have no n-gram
    loss, and are not checked.
    """
    for term in ("mlm", "permutation"):
        unigram, ngram = (baseline.get(f"{line}_{term}_loss") for line in ("unigram", "ngram"))
        if unigram is None or ngram is None or ngram < unigram + _WORSE_BY_NEIGHBORS:
            continue
        return [
            Finding(
                "targets_misplaced",
                0,
                f"the tokens beside a masked one predict it worse ({ngram:.2f} nats) than word "
                f"frequencies do ({unigram:.2f}): targets seem to belong to other places.",
                "Check that masked_lm_ids are the tokens at masked_lm_positions (python -m "
                "bert_jax.replay shows them). Text without any order looks like this too.",
            )
        ]
    return []


def share_words(
    ids_BS: np.ndarray,
    segment_BS: np.ndarray,
    example_BS: np.ndarray,
    counts_V: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the share of words of each second text that its first text has too.

    Shapes: int[B,S] three times, int[V] counts of tokens -> int64[M], float64[M]. example_BS
    numbers the examples of a row from 1 and is 0 for padding. The first result identifies each
    example by row * S + number - 1. The most frequent tokens are ignored.
    """
    rows, seq_len = ids_BS.shape
    is_frequent_V = np.zeros(len(counts_V), bool)
    is_frequent_V[np.argsort(-counts_V, kind="stable")[:_FREQUENT]] = True
    is_word_BS = (example_BS > 0) & ~is_frequent_V[ids_BS] & (counts_V[ids_BS] > 0)
    example_N = (np.arange(rows)[:, None] * seq_len + example_BS - 1)[is_word_BS]
    word_N = example_N * len(counts_V) + ids_BS[is_word_BS]
    is_second_N = segment_BS[is_word_BS] == 1
    first, second = np.unique(word_N[~is_second_N]), np.unique(word_N[is_second_N])
    is_shared = np.isin(second, first, assume_unique=True)
    example_K = second // len(counts_V)
    examples_M, where_K, words_M = np.unique(example_K, return_inverse=True, return_counts=True)
    return examples_M, np.bincount(where_K, weights=is_shared) / words_M


def are_inverted(share_M: np.ndarray, is_random_M: np.ndarray) -> bool:
    """Return whether texts labelled as random share clearly more words: float64[M], bool[M]."""
    random_N, true_N = share_M[is_random_M], share_M[~is_random_M]
    if min(len(random_N), len(true_N)) < 30:
        return False
    difference = random_N.mean() - true_N.mean()
    deviation = np.sqrt(random_N.var() / len(random_N) + true_N.var() / len(true_N))
    return bool(difference > max(_SURE * deviation, _MIN_DIFFERENCE))
