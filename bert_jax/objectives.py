"""What is learned: one function per objective, from a batch and a bound model to weighted sums.

An objective never divides: sums and their weights are added over micro-batches and devices first,
and step.py divides once. The loss is the sum over terms of loss_sum / weight.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from bert_jax.attention import Visible, same_example, unpadded
from bert_jax.cross_entropy import Losses, cross_entropy
from bert_jax.dropout import Dropout
from bert_jax.models.bert import Bert

Batch = Mapping[str, jax.Array]
SMALLEST_WEIGHT = 1e-5  # a batch without any prediction has loss 0 (Google adds as much instead)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """Sums over the predictions of one kind in a batch, each counted with its weight."""

    loss_sum: jax.Array  # float32 [], nats
    correct_sum: jax.Array | None  # float32 [], predictions whose likeliest class is right; None
    #                                where numbers are predicted and not classes


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss as sums. Both functions give the same keys, the names of the terms."""

    weights: Callable[[Batch], dict[str, jax.Array]]  # float32 [] each, from the batch alone
    terms: Callable[[Bert, Batch, Dropout | None], dict[str, Term]]
    untrained: tuple[str, ...] = ()  # parts of the model that no term reads: they stay as drawn
    # What an evaluation keeps of each row besides the sums: float32[B,...].
    outputs: Callable[[Bert, Batch], jax.Array] | None = None


def weighted_term(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Term:
    """Sums of the cross entropy of float32[...,C] against int32[...], weighted by float32[...]."""
    return _weighted(cross_entropy(logits, labels), weights)


def _weighted(losses: Losses, weights: jax.Array) -> Term:
    nll, right = losses
    return Term(loss_sum=jnp.sum(nll * weights), correct_sum=jnp.sum(right * weights))


def visible(batch: Batch) -> Visible:
    """Which keys a query may attend to, in packed rows and in others."""
    if "example_ids" in batch:
        return same_example(batch["example_ids"])
    return unpadded(batch["input_mask"])


def hidden(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """float[B,S,D]: the vectors of the last layer, of packed rows and of others."""
    return bert.encode(
        batch["input_ids"],
        batch["segment_ids"],
        visible(batch),
        dropout,
        batch.get("position_ids"),
    )


def _mlm(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    losses = bert.mlm_cross_entropy(
        hidden_BSD, batch["masked_lm_positions"], batch["masked_lm_ids"]
    )
    return _weighted(losses, batch["masked_lm_weights"])


def _nsp(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    return weighted_term(
        bert.nsp_logits(hidden_BSD, batch.get("cls_positions")),
        batch["next_sentence_labels"],
        batch["next_sentence_weights"],
    )


def _mlm_weights(batch: Batch) -> dict[str, jax.Array]:
    return {"mlm": jnp.sum(batch["masked_lm_weights"])}


def _mlm_terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return {"mlm": _mlm(bert, batch, hidden(bert, batch, dropout))}


def _mlm_nsp_weights(batch: Batch) -> dict[str, jax.Array]:
    return _mlm_weights(batch) | {"nsp": jnp.sum(batch["next_sentence_weights"])}


def _mlm_nsp_terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    hidden_BSD = hidden(bert, batch, dropout)
    return {"mlm": _mlm(bert, batch, hidden_BSD), "nsp": _nsp(bert, batch, hidden_BSD)}


# Masked language model alone, a mean over its predictions. Weight decay without a gradient would
# take the pooler to nothing (LAMB within a thousand steps); fine-tuning wants it as it was drawn.
# Source: Liu et al. 2019 (RoBERTa), section 4.2; Devlin et al. 2019, section 5.1, "No NSP".
MLM = Objective(weights=_mlm_weights, terms=_mlm_terms, untrained=("pooler", "nsp"))

# BERT's: masked language model plus next sentence prediction, each a mean over its predictions.
# With sop segments the second one is ALBERT's sentence order prediction: label 1 means swapped.
# Source: Devlin et al. 2019, section 3.1; run_pretraining.py@eedf5716ce; Lan et al. 2020, 3.1.
MLM_NSP = Objective(weights=_mlm_nsp_weights, terms=_mlm_nsp_terms)

OBJECTIVES: dict[str, Objective] = {"mlm_nsp": MLM_NSP, "mlm": MLM}


def find(name: str) -> Objective:
    """The objective of this name.

    Raises:
      ValueError: there is none.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"config.objective is {name!r}; it must be one of {sorted(OBJECTIVES)}")
    return OBJECTIVES[name]
