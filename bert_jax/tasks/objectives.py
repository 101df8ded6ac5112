"""The loss of each kind of task, as objectives for the trainer's step, and the logits to score.

Dimensions: B examples, S sequence, C classes or choices, D width. An example without weight fills
up a batch and counts for nothing. Where rows hold up to N examples each (data_pipeline/
step_packing.py) B are the rows, and what is of an example is [B,N] where it says [B].
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.cross_entropy import cross_entropy
from bert_jax.dropout import Dropout
from bert_jax.models.bert import Bert
from bert_jax.objectives import Batch, Objective, Term, hidden, weighted_term
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG

Outputs = Callable[[Bert, Batch], jax.Array]
TERM = "task"  # the name of its loss in the records
PACKED = (CLASSIFY, REGRESS, TAG)  # kinds whose loss reads rows that hold several examples


def _of_cls(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """float32[B,C]: from [CLS] through the pooler."""
    pooled = bert.pooled(hidden(bert, batch, dropout), batch.get("cls_positions"))
    return bert.class_logits(pooled, dropout)


def _of_tokens(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """float32[B,S,C]: from every token."""
    return bert.class_logits(hidden(bert, batch, dropout), dropout)


def _of_spans(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """float32[B,S,2]: from every token, without dropout before the layer.

    Source: run_squad.py@eedf5716ce create_model.
    """
    return bert.class_logits(hidden(bert, batch, dropout))


def _of_choices(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """float32[B,C]: one logit for each of an example's rows [B,C,S].

    Source: Devlin et al. 2019, section 4.4.
    """
    examples, choices, seq_len = batch["input_ids"].shape

    def one_below_the_other(name: str) -> jax.Array:
        return jnp.reshape(batch[name], (examples * choices, seq_len))

    fields = ("input_ids", "input_mask", "segment_ids")
    rows = {name: one_below_the_other(name) for name in fields}
    if dropout is not None:
        rows_BC = dropout.rows_B[:, None] * jnp.uint32(choices)
        rows_BC = rows_BC + jnp.arange(choices, dtype=jnp.uint32)
        rows_R = jnp.reshape(rows_BC, (examples * choices,))
        dropout = dataclasses.replace(dropout, rows_B=rows_R)
    return jnp.reshape(_of_cls(bert, rows, dropout), (examples, choices))


def _example_weights(batch: Batch) -> dict[str, jax.Array]:
    return {TERM: jnp.sum(batch["example_weights"])}


def _of_labels(logits_BC: jax.Array, batch: Batch) -> dict[str, Term]:
    return {TERM: weighted_term(logits_BC, batch["label_ids"], batch["example_weights"])}


def _classify(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return _of_labels(_of_cls(bert, batch, dropout), batch)


def _choose(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    return _of_labels(_of_choices(bert, batch, dropout), batch)


def _regress(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    """Squared distance to the label.

    Source: run_classifier.py of huggingface/pytorch-pretrained-BERT, STS-B.
    """
    missed_B = _of_cls(bert, batch, dropout)[..., 0] - batch["label_values"]
    return {TERM: Term(jnp.sum(missed_B * missed_B * batch["example_weights"]), None)}


def _span(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    """Mean of the cross entropies of the start and of the end, over all positions of the row.

    Right is a row whose start and end are both the likeliest.

    Source: run_squad.py@eedf5716ce model_fn_builder compute_loss. There padding takes part in the
    normalisation; here it has no weight, so that the length a batch is cut to changes nothing.
    """
    logits_BSE = _of_spans(bert, batch, dropout)
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
    """Mean over words: their first pieces carry the labels.

    Source: Devlin et al. 2019, section 5.3.
    """
    logits_BSC = _of_tokens(bert, batch, dropout)
    return {TERM: weighted_term(logits_BSC, batch["label_ids"], batch["label_weights"])}


def _evaluated(logits_of: Callable[[Bert, Batch, Dropout | None], jax.Array]) -> Outputs:
    return lambda bert, batch: logits_of(bert, batch, None)


# A task of tokens reads no pooler: it stays as it was.
OBJECTIVES: dict[str, Objective] = {
    CLASSIFY: Objective(_example_weights, _classify, outputs=_evaluated(_of_cls)),
    REGRESS: Objective(_example_weights, _regress, outputs=_evaluated(_of_cls)),
    CHOOSE: Objective(_example_weights, _choose, outputs=_evaluated(_of_choices)),
    SPAN: Objective(_example_weights, _span, ("pooler",), _evaluated(_of_spans)),
    TAG: Objective(_tag_weights, _tag, ("pooler",), _evaluated(_of_tokens)),
}
