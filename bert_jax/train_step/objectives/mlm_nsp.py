"""Define BERT's objective: the masked language model, alone or with next sentence prediction."""

import jax
import jax.numpy as jnp

from bert_jax.model import ops
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    encode_batch,
    encode_masked_slots,
    sum_losses,
    sum_term,
)


def count_masked_tokens(batch: Batch) -> dict[str, jax.Array]:
    """Count the masked tokens of a batch."""
    return {"mlm": jnp.sum(batch["masked_lm_weights"])}


def sum_masked_tokens(bert: Bert, batch: Batch, vectors_BPD: jax.Array) -> Term:
    """Sum the losses of the masked tokens from the vectors that predict them, float[B,P,D]."""
    losses = bert.compute_target_losses(vectors_BPD, batch["masked_lm_ids"])
    return sum_losses(losses, batch["masked_lm_weights"])


def _predict_masked_tokens(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return {"mlm": sum_masked_tokens(bert, batch, encode_masked_slots(bert, batch, dropout))}


def _predict_both(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    hidden_BSD = encode_batch(bert, batch, dropout)
    vectors_BPD = ops.gather_positions(hidden_BSD, batch["masked_lm_positions"])
    words = sum_masked_tokens(bert, batch, vectors_BPD)
    logits = bert.compute_nsp_logits(hidden_BSD, batch.get("cls_positions"))
    pairs = sum_term(logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
    return {"mlm": words, "nsp": pairs}


# The masked language model alone, a mean over its predictions. The pooler stays as initialized for
# fine-tuning: weight decay without a gradient would shrink it to zero (LAMB within 1,000 steps).
# Source: Liu et al. 2019 (RoBERTa), section 4.2; Devlin et al. 2019, section 5.1, "No NSP".
MLM = Objective(count_masked_tokens, _predict_masked_tokens, untrained=("pooler", "nsp"))

# BERT's objective: masked language model plus next sentence prediction, each a mean over its
# predictions. With sop segments the second is ALBERT's sentence order: label 1 means swapped.
# Source: Devlin et al. 2019, section 3.1; run_pretraining.py@eedf5716ce; Lan et al. 2020, 3.1.
MLM_NSP = Objective(
    lambda batch: count_masked_tokens(batch) | {"nsp": jnp.sum(batch["next_sentence_weights"])},
    _predict_both,
)
