"""What a model that has learned nothing of context would score on the same held-out predictions."""

from collections.abc import Sequence

import numpy as np

from data_pipeline.store import Store

# Never a target of the masked language model, so no probability is spent on them.
NEVER_TARGETS = ("pad", "cls", "sep", "mask")


def unigram_mlm_loss(store: Store, batches: Sequence[dict[str, np.ndarray]]) -> float:
    """Mean nats of guessing each masked piece by its frequency in the training split.

    Add-one smoothing over the vocabulary less [PAD], [CLS], [SEP] and [MASK].
    """
    counts_V = np.asarray(store.train.token_counts, np.float64) + 1.0
    counts_V[[store.special_ids[name] for name in NEVER_TARGETS]] = 0.0
    nats_V = -np.log(np.maximum(counts_V, 1e-300) / counts_V.sum())
    total = sum(float((nats_V[b["masked_lm_ids"]] * b["masked_lm_weights"]).sum()) for b in batches)
    weight = sum(float(b["masked_lm_weights"].sum()) for b in batches)
    return total / max(weight, 1.0)


def majority_nsp_accuracy(batches: Sequence[dict[str, np.ndarray]]) -> float:
    """Share of the pairs that have the commoner next-sentence label."""
    weight = sum(float(b["next_sentence_weights"].sum()) for b in batches)
    random_next = sum(
        float((b["next_sentence_labels"] * b["next_sentence_weights"]).sum()) for b in batches
    )
    share = random_next / max(weight, 1.0)
    return max(share, 1.0 - share)
