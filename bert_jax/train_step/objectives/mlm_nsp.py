"""BERT's objective: the masked language model, alone or with next sentence prediction."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    encode_batch,
    sum_losses,
    sum_term,
)


def _predict_words(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    losses = bert.compute_mlm_losses(
        hidden_BSD, batch["masked_lm_positions"], batch["masked_lm_ids"]
    )
    return sum_losses(losses, batch["masked_lm_weights"])


def _predict_next_sentences(bert: Bert, batch: Batch, hidden_BSD: jax.Array) -> Term:
    logits = bert.compute_nsp_logits(hidden_BSD, batch.get("cls_positions"))
    return sum_term(logits, batch["next_sentence_labels"], batch["next_sentence_weights"])


# Term -> the field of a batch with its weights, and the function that sums it from hidden vectors.
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


# The masked language model alone, a mean over its predictions. The pooler stays as initialized for
# fine-tuning: weight decay without a gradient would shrink it to zero (LAMB within 1,000 steps).
# Source: Liu et al. 2019 (RoBERTa), section 4.2; Devlin et al. 2019, section 5.1, "No NSP".
MLM = _combine("mlm", untrained=("pooler", "nsp"))

# BERT's objective: masked language model plus next sentence prediction, each a mean over its
# predictions. With sop segments the second is ALBERT's sentence order: label 1 means swapped.
# Source: Devlin et al. 2019, section 3.1; run_pretraining.py@eedf5716ce; Lan et al. 2020, 3.1.
MLM_NSP = _combine("mlm", "nsp")
