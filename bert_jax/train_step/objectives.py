"""Define objectives: functions from a batch and a bound model to weighted sums.

Objectives return sums: train_step/step.py adds sums and weights over micro-batches and devices, and
divides once. The loss is the sum over terms of loss_sum / weight.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from bert_jax.model.attention import Visible, hide_other_examples, hide_padding
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.model.losses import Losses, cross_entropy

Batch = Mapping[str, jax.Array]
SMALLEST_WEIGHT = 1e-5  # a batch without any prediction has loss 0 (Google adds as much instead)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """Hold sums over the predictions of one kind in a batch, each multiplied by its weight."""

    loss_sum: jax.Array  # float32 [], nats
    correct_sum: jax.Array | None  # float32 [], predictions whose likeliest class is right; None
    #                                if numbers are predicted instead of classes


@dataclasses.dataclass(frozen=True)
class Objective:
    """Describe a loss as sums; both functions return the same keys, the names of the terms."""

    weights: Callable[[Batch], dict[str, jax.Array]]  # float32 [] each, from the batch alone
    terms: Callable[[Bert, Batch, Dropout | None], dict[str, Term]]
    untrained: tuple[str, ...] = ()  # parts of the model that no term uses: as initialized
    # Per-row outputs that an evaluation returns besides the sums: float32[B,...].
    outputs: Callable[[Bert, Batch], jax.Array] | None = None


def sum_term(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Term:
    """Sum the cross entropy of float32[...,C] against int32[...], weighted by float32[...]."""
    return _sum_losses(cross_entropy(logits, labels), weights)


def _sum_losses(losses: Losses, weights: jax.Array) -> Term:
    nll, right = losses
    return Term(loss_sum=jnp.sum(nll * weights), correct_sum=jnp.sum(right * weights))


def find_visible(batch: Batch) -> Visible:
    """Return which keys a query may attend to, in packed or plain rows."""
    if "example_ids" in batch:
        return hide_other_examples(batch["example_ids"])
    return hide_padding(batch["input_mask"])


def encode_batch(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """Compute the last layer's hidden vectors for packed or plain rows: float[B,S,D]."""
    return bert.encode(
        batch["input_ids"],
        batch["segment_ids"],
        find_visible(batch),
        dropout,
        batch.get("position_ids"),
    )


def _predict_words(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    losses = bert.compute_mlm_losses(
        hidden_BSD, batch["masked_lm_positions"], batch["masked_lm_ids"]
    )
    return _sum_losses(losses, batch["masked_lm_weights"])


def _predict_next_sentences(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    logits = bert.compute_nsp_logits(hidden_BSD, batch.get("cls_positions"))
    return sum_term(logits, batch["next_sentence_labels"], batch["next_sentence_weights"])


# Pre-training's terms: the field of a batch with their weights, and their sums from hidden vectors.
_TERMS: dict[str, tuple[str, Callable[[Bert, Batch, jax.Array], Term]]] = {
    "mlm": ("masked_lm_weights", _predict_words),
    "nsp": ("next_sentence_weights", _predict_next_sentences),
}


def _combine(*names: str, untrained: tuple[str, ...] = ()) -> Objective:
    """Make the objective of these terms, all from one pass through the encoder."""

    def weights(batch: Batch) -> dict[str, jax.Array]:
        return {name: jnp.sum(batch[_TERMS[name][0]]) for name in names}

    def terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        hidden_BSD = encode_batch(bert, batch, dropout)
        return {name: _TERMS[name][1](bert, batch, hidden_BSD) for name in names}

    return Objective(weights, terms, untrained)


# Masked language model alone, a mean over its predictions. Weight decay without a gradient would
# shrink the pooler to zero (LAMB within 1,000 steps); fine-tuning requires it as initialized.
# Source: Liu et al. 2019 (RoBERTa), section 4.2; Devlin et al. 2019, section 5.1, "No NSP".
MLM = _combine("mlm", untrained=("pooler", "nsp"))

# BERT's: masked language model plus next sentence prediction, each a mean over its predictions.
# With sop segments the second one is ALBERT's sentence order prediction: label 1 means swapped.
# Source: Devlin et al. 2019, section 3.1; run_pretraining.py@eedf5716ce; Lan et al. 2020, 3.1.
MLM_NSP = _combine("mlm", "nsp")

OBJECTIVES: dict[str, Objective] = {"mlm_nsp": MLM_NSP, "mlm": MLM}


def find(name: str) -> Objective:
    """Return the objective of this name; raise ValueError if there is none."""
    if name not in OBJECTIVES:
        raise ValueError(f"config.objective is {name!r}; it must be one of {sorted(OBJECTIVES)}")
    return OBJECTIVES[name]
