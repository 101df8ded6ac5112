"""Predict each token of an example from the tokens before it.

Dimensions: B rows, S sequence, P slots for masked tokens.
Source: Devlin et al. 2019, section 5.1, "LTR & No NSP"; Radford et al. 2018, equation 1.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.model.attention import hide_later
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import Dropout
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    make_rows,
    restore_ids,
    sum_losses,
)


def _weigh_positions(batch: Batch) -> jax.Array:
    """Return 1 where the next position holds a token of the same example, else 0: float32[B,S]."""
    # Both fields are 0 at padding.
    numbers_BS = batch.get("example_ids", batch["input_mask"])
    next_BS = numbers_BS[:, 1:]
    is_followed_BS = (next_BS == numbers_BS[:, :-1]) & (next_BS != 0)
    return jnp.pad(is_followed_BS.astype(jnp.float32), [(0, 0), (0, 1)])


def count_next_tokens(batch: Batch) -> jax.Array:
    """Count the tokens that follow another token of their example: float32[]."""
    return jnp.sum(_weigh_positions(batch))


def _count(batch: Batch) -> dict[str, jax.Array]:
    return {"causal": count_next_tokens(batch)}


def sum_next_tokens(bert: Bert, batch: Batch, ids_BS: jax.Array, hidden_BSD: jax.Array) -> Term:
    """Sum the losses of tokens, each predicted from the hidden vector of the token before it."""
    labels_BS = jnp.pad(ids_BS[:, 1:], [(0, 0), (0, 1)])
    losses = bert.compute_target_losses(hidden_BSD, labels_BS)
    return sum_losses(losses, _weigh_positions(batch))


def _predict_next_tokens(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    ids_BS = restore_ids(batch)
    rows = make_rows({**batch, "input_ids": ids_BS}, dropout)
    visible = hide_later(rows.visible, ids_BS.shape[1])
    hidden_BSD = bert.encode(dataclasses.replace(rows, visible=visible))
    return {"causal": sum_next_tokens(bert, batch, ids_BS, hidden_BSD)}


# The loss is a mean over all tokens, [SEP] included, except the first of each example.
CAUSAL = Objective(_count, _predict_next_tokens, untrained=("pooler", "nsp"))
