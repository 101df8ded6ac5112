"""Define the loss of each kind of task as an objective of the trainer's step, and its logits.

Dimensions: B examples, S sequence, C classes or choices, D width. Examples of weight 0 fill up a
batch. Where rows hold up to N packed examples (data_pipeline/labeled/packing.py), B counts rows
and a quantity per example has the shape [B,N] instead of [B].
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.config import CAUSAL
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.model.heads import cross_entropy
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.train_step.objectives import (
    Batch,
    Objective,
    Term,
    encode_batch,
    find_pooled,
    sum_term,
)
from bert_jax.train_step.objectives.causal import count_next_tokens, sum_next_tokens

TERM = "task"  # name of the loss in the metrics
PACKED = (CLASSIFY, REGRESS, TAG)  # kinds that are trained on rows of several examples


def _cls_logits(
    bert: Bert, batch: Batch, hidden_BSD: jax.Array, dropout: Dropout | None
) -> jax.Array:
    """Compute float32[B,C] through the pooler.

    The pooler reads [CLS] (the last token in a causal model) or the mean of all tokens. LSTMs on
    the encoder replace the pooler.
    """
    pooled = bert.pool(hidden_BSD, find_pooled(bert, batch), _example_ids(batch))
    return bert.compute_class_logits(pooled, dropout)


def _example_ids(batch: Batch) -> jax.Array:
    """Return the number of each token's example in its row, from 1; padding is 0: int32[B,S]."""
    return batch.get("example_ids", batch["input_mask"])


def _token_logits(
    bert: Bert, batch: Batch, hidden_BSD: jax.Array, dropout: Dropout | None
) -> jax.Array:
    """Compute float32[B,S,C] from every token."""
    tokens_BSD = bert.transform_tokens(hidden_BSD, _example_ids(batch))
    return bert.compute_class_logits(tokens_BSD, dropout)


def _span_logits(
    bert: Bert, batch: Batch, hidden_BSD: jax.Array, dropout: Dropout | None
) -> jax.Array:
    """Compute float32[B,S,2] without dropout, as run_squad.py@eedf5716ce create_model does."""
    return _token_logits(bert, batch, hidden_BSD, None)


def _unfold_choices(batch: Batch, dropout: Dropout | None) -> tuple[Batch, Dropout | None]:
    """Make the choices of an example rows of their own: [B,C,S] -> [B*C,S].

    Source: Devlin et al. 2019, section 4.4.
    """
    if batch["input_ids"].ndim == 2:
        return batch, dropout
    examples, choices, _ = batch["input_ids"].shape
    row_fields = ("input_ids", "input_mask", "segment_ids", "cls_positions")
    rows = {
        name: jnp.reshape(batch[name], (examples * choices, *batch[name].shape[2:]))
        for name in row_fields
        if name in batch
    }
    if dropout is not None:
        rows_BC = dropout.rows_B[:, None] * jnp.uint32(choices)
        rows_BC = rows_BC + jnp.arange(choices, dtype=jnp.uint32)
        rows_R = jnp.reshape(rows_BC, (examples * choices,))
        dropout = dataclasses.replace(dropout, rows_B=rows_R)
    return {**batch, **rows}, dropout


def _sum_labels(logits: jax.Array, batch: Batch, weights: jax.Array) -> Term:
    return sum_term(logits, batch["label_ids"], weights)


def _sum_distances(logits_BC: jax.Array, batch: Batch, weights_B: jax.Array) -> Term:
    """Sum the squared distances to the labels.

    Source: run_classifier.py of huggingface/pytorch-pretrained-BERT, STS-B.
    """
    missed_B = logits_BC[..., 0] - batch["label_values"]
    return Term(jnp.sum(missed_B * missed_B * weights_B), None)


def _sum_spans(logits_BSE: jax.Array, batch: Batch, weights_B: jax.Array) -> Term:
    """Sum the mean of two cross entropies, of start and end among all positions of the row.

    A row counts as correct if its start and its end are both the most likely positions.

    Source: run_squad.py@eedf5716ce model_fn_builder compute_loss. Unlike there, padding is masked
    out of the softmax, so that the length of a batch does not change the loss.
    """
    seen_BS = batch["input_mask"] > 0
    nll, right = [], []
    for number, name in enumerate(("start_positions", "end_positions")):
        logits_BS = jnp.where(seen_BS, logits_BSE[..., number], -1e9)
        losses_B, right_B = cross_entropy(logits_BS, batch[name])
        nll.append(losses_B)
        right.append(right_B)
    loss_sum = jnp.sum((nll[0] + nll[1]) / 2.0 * weights_B)
    return Term(loss_sum, jnp.sum(right[0] * right[1] * weights_B))


# Logits, loss and weights of a kind. Tasks on tokens do not use the pooler: its parameters stay as
# they are. Tags are averaged over words, whose first tokens carry the labels (Devlin et al. 2019,
# section 5.3).
_KINDS = {
    CLASSIFY: (_cls_logits, _sum_labels, "example_weights", ()),
    REGRESS: (_cls_logits, _sum_distances, "example_weights", ()),
    CHOOSE: (_cls_logits, _sum_labels, "example_weights", ()),
    SPAN: (_span_logits, _sum_spans, "example_weights", ("pooler",)),
    TAG: (_token_logits, _sum_labels, "label_weights", ("pooler",)),
}


def make_objective(kind: str, causal_weight: float = 0.0) -> Objective:
    """Build the objective of a kind of task; causal_weight adds a loss of next tokens.

    The added loss is the mean over the tokens of a batch, times causal_weight; 0 leaves it out.

    Source: Radford et al. 2018, section 3.2, equation 5.
    """
    compute_logits, sum_losses, weights, untrained = _KINDS[kind]

    def count(batch: Batch) -> dict[str, jax.Array]:
        counts = {TERM: jnp.sum(batch[weights])}
        if causal_weight:
            counts[CAUSAL] = count_next_tokens(_unfold_choices(batch, None)[0])
        return counts

    def compute(
        bert: Bert, batch: Batch, dropout: Dropout | None
    ) -> tuple[Batch, jax.Array, jax.Array]:
        """Return the batch as rows, their vectors, and the logits of the examples."""
        rows, dropout = _unfold_choices(batch, dropout)
        hidden_RSD = encode_batch(bert, rows, dropout)
        logits = compute_logits(bert, rows, hidden_RSD, dropout)
        if rows is not batch:
            logits = jnp.reshape(logits, batch["input_ids"].shape[:2])
        return rows, hidden_RSD, logits

    def sum_terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        rows, hidden_RSD, logits = compute(bert, batch, dropout)
        terms = {TERM: sum_losses(logits, batch, batch[weights])}
        if causal_weight:
            term = sum_next_tokens(bert, rows, rows["input_ids"], hidden_RSD)
            terms[CAUSAL] = dataclasses.replace(term, scale=causal_weight)
        return terms

    def compute_outputs(bert: Bert, batch: Batch) -> jax.Array:
        return compute(bert, batch, None)[2]

    return Objective(count, sum_terms, untrained, compute_outputs)


OBJECTIVES = {kind: make_objective(kind) for kind in _KINDS}
