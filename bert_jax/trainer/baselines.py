"""Compute baseline scores on held-out batches, from token and n-gram counts alone."""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from bert_jax.train_step.objectives import Objective
from bert_jax.trainer.feed import HostBatch
from data_pipeline.sampling.masking import restore_masked
from data_pipeline.store import REFERENCES, TEXT, Store, ngrams

# Never masked-language-model targets, so the baseline gives them no probability.
NEVER_TARGETS = ("pad", "cls", "sep", "mask")


def _count_tokens(store: Store) -> np.ndarray:
    """Return the training split's token counts plus one, but 0 for NEVER_TARGETS: float64[V]."""
    counts_V = np.asarray(store.train.token_counts, np.float64) + 1.0
    counts_V[[store.special_ids[name] for name in NEVER_TARGETS]] = 0.0
    return counts_V


def compute_unigram_mlm_loss(store: Store, batches: Sequence[HostBatch]) -> float:
    """Compute the masked-token cross-entropy (nats) of training-split unigram frequencies.

    Uses add-one smoothing over the vocabulary without [PAD], [CLS], [SEP] and [MASK].
    """
    counts_V = _count_tokens(store)
    nats_V = -np.log(np.maximum(counts_V, 1e-300) / counts_V.sum())
    total = sum(float((nats_V[b["masked_lm_ids"]] * b["masked_lm_weights"]).sum()) for b in batches)
    weight = sum(float(b["masked_lm_weights"].sum()) for b in batches)
    return total / max(weight, 1.0)


def compute_unigram_causal_loss(store: Store, batches: Sequence[HostBatch]) -> float:
    """Compute the next-token cross-entropy (nats) of training-split unigram frequencies.

    Like compute_unigram_mlm_loss, but over all tokens of each row but the first, with masked tokens
    restored. The store has no count for [SEP], so its frequency is taken from these rows.
    """
    ids_N = np.concatenate([list_next_tokens(batch) for batch in batches])
    separator = store.special_ids["sep"]
    counts_V = _count_tokens(store)
    separators = np.count_nonzero(ids_N == separator)
    counts_V[separator] = counts_V.sum() * separators / max(len(ids_N) - separators, 1)
    nats_V = -np.log(np.maximum(counts_V, 1e-300) / counts_V.sum())
    return float(nats_V[ids_N].mean()) if len(ids_N) else 0.0


def list_next_tokens(batch: HostBatch) -> np.ndarray:
    """Return all tokens of each unpacked row but the first, with masked ones restored: int32[N]."""
    return restore_masked(batch)["input_ids"][:, 1:][batch["input_mask"][:, 1:] > 0]


def compute_majority_nsp_accuracy(batches: Sequence[HostBatch]) -> float:
    """Compute the accuracy of always predicting the more frequent label, 0.5 without labels."""
    weight = sum(float(b["next_sentence_weights"].sum()) for b in batches)
    random_next = sum(
        float((b["next_sentence_labels"] * b["next_sentence_weights"]).sum()) for b in batches
    )
    share = random_next / weight if weight else 0.5
    return max(share, 1.0 - share)


Show = Callable[[str], None]  # shows a text on the live line


def compute_ngram_mlm_loss(
    store: Store, batches: Sequence[HostBatch], show: Show, hides_targets: bool = False
) -> float:
    """Compute the masked-token cross-entropy (nats) of n-gram counts of both neighboring tokens.

    Neighbors are read from the masked row, as an encoder sees it: a neighbor replaced by a random
    token is used as it is. [MASK] and other special tokens count as unknown; then the prediction
    uses the other neighbor, or the unigram counts. The token shown at the target position is not
    read. With hides_targets, neighbors that are targets themselves also count as unknown.
    """
    tokens, neighbors = [], []
    for batch in batches:
        ids_BS = batch["input_ids"]
        row_N, slot_N = np.nonzero(batch["masked_lm_weights"])
        places_N = batch["masked_lm_positions"][row_N, slot_N]
        if hides_targets:
            ids_BS = ids_BS.copy()
            ids_BS[row_N, places_N] = store.special_ids["mask"]
        ids_BS = np.pad(ids_BS, [(0, 0), (1, 1)], constant_values=store.special_ids["pad"])
        tokens.append(batch["masked_lm_ids"][row_N, slot_N])
        neighbors.append(np.stack([ids_BS[row_N, places_N], ids_BS[row_N, places_N + 2]]))
    first_N, second_N = _hide_special(store, np.concatenate(neighbors, axis=1))
    predictions = ngrams.Predictions(np.concatenate(tokens), first_N, second_N)
    return _compute_ngram_loss(store, predictions, ngrams.BOTH_SIDES, show)


def compute_ngram_causal_loss(store: Store, batches: Sequence[HostBatch], show: Show) -> float:
    """Compute the next-token cross-entropy (nats) of n-gram counts of the two preceding tokens.

    [SEP] is treated as in compute_unigram_causal_loss. After a special token only unigram counts
    are used.
    """
    tokens, neighbors = [], []
    for batch in batches:
        ids_BS = restore_masked(batch)["input_ids"]
        before_BS = np.pad(ids_BS, [(0, 0), (1, 0)], constant_values=store.special_ids["pad"])
        is_next_BS = batch["input_mask"][:, 1:] > 0
        tokens.append(ids_BS[:, 1:][is_next_BS])
        neighbors.append(np.stack([before_BS[:, :-2][is_next_BS], ids_BS[:, :-1][is_next_BS]]))
    first_N, second_N = _hide_special(store, np.concatenate(neighbors, axis=1))
    first_N[second_N == store.vocab_size] = store.vocab_size
    tokens_N = np.concatenate(tokens)
    is_text_N = tokens_N != store.special_ids["sep"]
    chosen = (values_N[is_text_N] for values_N in (tokens_N, first_N, second_N))
    nats = _compute_ngram_loss(store, ngrams.Predictions(*chosen), ngrams.LEFT_SIDE, show)
    share = float(is_text_N.mean())
    return share * nats + sum(-part * math.log(part) for part in (share, 1.0 - share) if part)


def _hide_special(store: Store, ids: np.ndarray) -> np.ndarray:
    is_special = np.isin(ids, [store.special_ids[name] for name in NEVER_TARGETS])
    return np.where(is_special, store.vocab_size, ids)


def _compute_ngram_loss(
    store: Store, predictions: ngrams.Predictions, places: tuple[int, int], show: Show
) -> float:
    if not len(predictions.tokens_N):
        return 0.0
    counts_V = np.maximum(_count_tokens(store), 1e-300)
    return ngrams.compute_loss(
        store.train,
        store.digest,
        predictions,
        places,
        counts_V / counts_V.sum(),
        store.directory / REFERENCES,
        lambda share: show(f"counting the neighbors of held-out tokens: {share:.0%}"),
    )


def compute_baselines(
    store: Store,
    objective: Objective,
    batches: Sequence[HostBatch],
    show: Show = lambda words: None,
    counts_neighbors: bool = True,
) -> dict[str, float]:
    """Compute the baseline scores for each term of an objective that has a baseline.

    counts_neighbors: whether to compute n-gram losses from the text of the training split; False
    if the batches contain this text. Ready-made examples have no text and so no n-gram losses.
    """
    terms = jax.eval_shape(objective.weights, batches[0])
    baselines = {}
    has_text = store.kind == TEXT and store.train.tokens > 0 and counts_neighbors
    for name in ("mlm", "permutation", "causal"):
        if name not in terms:
            continue
        baselines[f"uniform_{name}_loss"] = math.log(store.vocab_size)
        if name == "causal":
            baselines["unigram_causal_loss"] = compute_unigram_causal_loss(store, batches)
            if has_text:
                baselines["ngram_causal_loss"] = compute_ngram_causal_loss(store, batches, show)
            continue
        baselines[f"unigram_{name}_loss"] = compute_unigram_mlm_loss(store, batches)
        if has_text:
            loss = compute_ngram_mlm_loss(store, batches, show, hides_targets=name == "permutation")
            baselines[f"ngram_{name}_loss"] = loss
    if "nsp" in terms:
        baselines["majority_nsp_accuracy"] = compute_majority_nsp_accuracy(batches)
    return baselines
