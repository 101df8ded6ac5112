"""Predict the targets of a row one after the other, in a random order (XLNet).

Targets are the positions that the pipeline masks; their tokens are restored. A target is predicted
from all tokens that are not targets and from the targets before it in the order. Unlike XLNet's
code, every token sees [CLS] and [SEP], there is no memory of earlier text, and no row is reversed.

Dimensions: B rows, S sequence, P targets.
Source: Yang et al. 2019 (XLNet), sections 2.2, 2.3 and 2.6; data_utils.py@zihangdai/xlnet bbaa3a6.
"""

import jax
import jax.numpy as jnp

from bert_jax.model import ops
from bert_jax.model.attention import Visible
from bert_jax.model.bert import Bert, EncoderRows
from bert_jax.model.dropout import Dropout, hash_places
from bert_jax.train_step.objectives.objective import (
    Batch,
    Objective,
    Term,
    find_visible,
    restore_ids,
    sum_losses,
)

_FIXED_WORD = 0x5EED  # replaces the row's hash words in an evaluation, which has no step


def draw_order(bert: Bert, batch: Batch, ids_BS: jax.Array, dropout: Dropout | None) -> jax.Array:
    """Draw a number for each token, by which targets are ordered: uint32[B,S].

    The number is a hash of the token, its neighbors and its position; in training, of the step too.
    """
    places_S = jnp.arange(ids_BS.shape[1], dtype=jnp.uint32)
    positions_BS = batch.get("position_ids", jnp.broadcast_to(places_S, ids_BS.shape))
    hashed_BS = positions_BS.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    for multiplier, shift in ((0x85EBCA6B, -1), (0xC2B2AE35, 0), (0x27D4EB2F, 1)):
        neighbors_BS = jnp.roll(ids_BS, shift, axis=1).astype(jnp.uint32)
        hashed_BS = hashed_BS ^ neighbors_BS * jnp.uint32(multiplier)
    if dropout is None:
        low = high = jnp.uint32(_FIXED_WORD)
    else:
        words = dropout.words(bert.config.num_hidden_layers + 1, 0)
        low, high = (word_B[:, None] for word_B in words)
    return hash_places(hashed_BS, low, high)


def _count(batch: Batch) -> dict[str, jax.Array]:
    return {"permutation": jnp.sum(batch["masked_lm_weights"])}


def _predict_in_order(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
    ids_BS, positions_BP = restore_ids(batch), batch["masked_lm_positions"]
    is_used_BP = batch["masked_lm_weights"] > 0
    is_at_BPS = positions_BP[:, :, None] == jnp.arange(ids_BS.shape[1])
    is_target_BS = jnp.any(is_at_BPS & is_used_BP[:, :, None], axis=1)
    order_BS = draw_order(bert, batch, ids_BS, dropout)
    order_BP = ops.gather_positions(order_BS, positions_BP)
    token_mask = target_mask = find_visible(batch).mask
    if token_mask.shape[2] > 1:  # packed rows
        target_mask = ops.gather_positions(token_mask[:, 0], positions_BP)[:, None]
    is_context, order = ~is_target_BS[:, None, None, :], order_BS[:, None, None, :]
    is_before = is_target_BS[:, None, :, None] & (order <= order_BS[:, None, :, None])
    seen_by_tokens = Visible(token_mask & (is_context | is_before))
    seen_by_targets = target_mask & (is_context | (order < order_BP[:, None, :, None]))
    rows = EncoderRows(ids_BS, batch["segment_ids"], seen_by_tokens, dropout)
    vectors_BPD = bert.encode_targets(rows, positions_BP, seen_by_targets)
    losses = bert.compute_target_losses(vectors_BPD, batch["masked_lm_ids"])
    return {"permutation": sum_losses(losses, batch["masked_lm_weights"])}


PERMUTATION = Objective(_count, _predict_in_order, untrained=("pooler", "nsp"))
