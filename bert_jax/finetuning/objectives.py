"""Define the loss of each kind of task as an objective of the trainer's step, and its logits.

Dimensions: B examples, S sequence, C classes or choices, D width. Examples of weight 0 fill up a
batch. Where rows hold up to N packed examples (data_pipeline/labelled/packing.py), B counts rows
and a quantity per example has the shape [B,N] instead of [B].
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.model.losses import cross_entropy
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.train_step.objectives import (
    Batch,
    Objective,
    Term,
    encode_batch,
    find_pooled,
    sum_term,
)

TERM = "task"  # name of the loss in the metrics
PACKED = (CLASSIFY, REGRESS, TAG)  # kinds that are trained on rows of several examples


def _cls_logits(bert: Bert, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
    """Compute float32[B,C] through the pooler.

    It reads [CLS], in a causal model the last token, or the mean of all tokens; with LSTMs on the
    encoder their last outputs.
    """
    hidden_BSD = encode_batch(bert, batch, dropout)
    pooled = bert.pool(hidden_BSD, find_pooled(bert, batch), _example_ids(batch))
    return bert.compute_class_logits(pooled, dropout)


def _example_ids(batch: Batch) -> jax.Array:
    """Return the number of each token's example in its row, from 1; padding is 0: int32[B,S]."""
    return batch.get("example_ids", batch["input_mask"])


def _token_logits(bert: Bert, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
    """Compute float32[B,S,C] from every token."""
    hidden_BSD = encode_batch(bert, batch, dropout)
    tokens_BSD = bert.transform_tokens(hidden_BSD, _example_ids(batch))
    return bert.compute_class_logits(tokens_BSD, dropout)


def _span_logits(bert: Bert, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
    """Compute float32[B,S,2] from every token, without dropout before the layer.

    Source: run_squad.py@eedf5716ce create_model.
    """
    hidden_BSD = encode_batch(bert, batch, dropout)
    return bert.compute_class_logits(bert.transform_tokens(hidden_BSD, _example_ids(batch)))


def _choice_logits(bert: Bert, batch: Batch, dropout: Dropout | None = None) -> jax.Array:
    """Compute float32[B,C], one logit for each of an example's rows [B,C,S].

    Source: Devlin et al. 2019, section 4.4.
    """
    examples, choices, _ = batch["input_ids"].shape
    of_rows = ("input_ids", "input_mask", "segment_ids", "cls_positions")
    rows = {
        name: jnp.reshape(batch[name], (examples * choices, *batch[name].shape[2:]))
        for name in of_rows
        if name in batch
    }
    if dropout is not None:
        rows_BC = dropout.rows_B[:, None] * jnp.uint32(choices)
        rows_BC = rows_BC + jnp.arange(choices, dtype=jnp.uint32)
        rows_R = jnp.reshape(rows_BC, (examples * choices,))
        dropout = dataclasses.replace(dropout, rows_B=rows_R)
    return jnp.reshape(_cls_logits(bert, rows, dropout), (examples, choices))


def _example_weights(batch: Batch) -> dict[str, jax.Array]:
    return {TERM: jnp.sum(batch["example_weights"])}


def _label_loss(logits_BC: jax.Array, batch: Batch) -> dict[str, Term]:
    return {TERM: sum_term(logits_BC, batch["label_ids"], batch["example_weights"])}


def _classify(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return _label_loss(_cls_logits(bert, batch, dropout), batch)


def _choose(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return _label_loss(_choice_logits(bert, batch, dropout), batch)


def _regress(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    """Compute the squared distance to the label.

    Source: run_classifier.py of huggingface/pytorch-pretrained-BERT, STS-B.
    """
    missed_B = _cls_logits(bert, batch, dropout)[..., 0] - batch["label_values"]
    return {TERM: Term(jnp.sum(missed_B * missed_B * batch["example_weights"]), None)}


def _span(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    """Average the cross entropies of start and end over all positions of the row.

    A row counts as correct if its start and its end are both the most likely ones.

    Source: run_squad.py@eedf5716ce model_fn_builder compute_loss. Unlike there, padding is masked
    out of the softmax, so that the length of a batch does not change the loss.
    """
    logits_BSE = _span_logits(bert, batch, dropout)
    seen_BS = batch["input_mask"] > 0
    nll, right = [], []
    for number, name in enumerate(("start_positions", "end_positions")):
        logits_BS = jnp.where(seen_BS, logits_BSE[..., number], -1e9)
        losses_B, right_B = cross_entropy(logits_BS, batch[name])
        nll.append(losses_B)
        right.append(right_B)
    weights_B = batch["example_weights"]
    loss_sum = jnp.sum((nll[0] + nll[1]) / 2.0 * weights_B)
    return {TERM: Term(loss_sum, jnp.sum(right[0] * right[1] * weights_B))}


def _tag_weights(batch: Batch) -> dict[str, jax.Array]:
    return {TERM: jnp.sum(batch["label_weights"])}


def _tag(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    """Average over words, whose first tokens carry the labels.

    Source: Devlin et al. 2019, section 5.3.
    """
    logits_BSC = _token_logits(bert, batch, dropout)
    return {TERM: sum_term(logits_BSC, batch["label_ids"], batch["label_weights"])}


# Tasks on tokens do not use the pooler: its parameters stay as they are.
OBJECTIVES: dict[str, Objective] = {
    CLASSIFY: Objective(_example_weights, _classify, outputs=_cls_logits),
    REGRESS: Objective(_example_weights, _regress, outputs=_cls_logits),
    CHOOSE: Objective(_example_weights, _choose, outputs=_choice_logits),
    SPAN: Objective(_example_weights, _span, ("pooler",), _span_logits),
    TAG: Objective(_tag_weights, _tag, ("pooler",), _token_logits),
}
