"""What is known of a phase before its first step: its examples, and its held-out baselines."""

import dataclasses

import jax
import numpy as np

from bert_jax import baselines
from bert_jax.feed import Feed
from bert_jax.objectives import Objective


@dataclasses.dataclass(frozen=True)
class PhaseFacts:
    """A phase's held-out batches and what follows from them and from its lengths."""

    heldout_batches: list[dict[str, np.ndarray]]
    baseline: dict[str, float]  # named as in the records
    heldout_examples: int
    tokens_per_sequence: float  # padding not counted; mean over the held-out examples
    predictions_per_sequence: float  # likewise
    epochs: float  # passes over the training split


def facts_of(feed: Feed, index: int, objective: Objective) -> PhaseFacts:
    """Count in the held-out examples of a phase; baselines are of the objective's terms."""
    batches = feed.heldout_batches(index)
    examples = sum(int(batch["next_sentence_weights"].sum()) for batch in batches)
    # Rows that fill up the last batch show one token each, and weigh nothing.
    filler = sum(len(batch["input_ids"]) for batch in batches) - examples
    tokens = sum(int(batch["input_mask"].sum()) for batch in batches) - filler
    predictions = sum(float(batch["masked_lm_weights"].sum()) for batch in batches)
    phase = feed.config.phases[index]
    terms = jax.eval_shape(objective.weights, batches[0])
    baseline = {}
    if "mlm" in terms:
        baseline["unigram_mlm_loss"] = baselines.unigram_mlm_loss(feed.store, batches)
    if "nsp" in terms:
        baseline["majority_nsp_accuracy"] = baselines.majority_nsp_accuracy(batches)
    return PhaseFacts(
        heldout_batches=batches,
        baseline=baseline,
        heldout_examples=examples,
        tokens_per_sequence=tokens / examples,
        predictions_per_sequence=predictions / examples,
        epochs=phase.steps * phase.batch_size / feed.mean_epoch_examples(index),
    )
