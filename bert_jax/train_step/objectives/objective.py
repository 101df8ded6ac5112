"""Define the interface of an objective, and the functions that several objectives share."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from bert_jax.config import Config
from bert_jax.model.attention import Visible, hide_other_examples, hide_padding
from bert_jax.model.bert import PRETRAINING, Bert, EncoderRows, Heads
from bert_jax.model.dropout import Dropout
from bert_jax.model.heads import Losses, cross_entropy

Batch = Mapping[str, jax.Array]
MIN_WEIGHT = 1e-5  # divisor for a batch without predictions, whose loss is then 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """Hold sums over a batch's predictions of one kind, each prediction times its weight."""

    loss_sum: jax.Array  # float32[], nats
    # float32[], correct predictions; None if the term predicts no classes.
    correct_sum: jax.Array | None
    # float32[2,N], for two classes: counts of their logits in ascending bins around 0.
    logits_histogram: jax.Array | None = None
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})  # factor in the loss


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Describe the terms of a model part that a step updates before the other parts.

    The other terms are computed with the part's new weights, from the batch and the rows that
    `terms` adds to it. Gradients of the part and of the others are clipped separately.
    """

    part: str  # top-level name in the parameters
    terms: Callable[[Bert, Batch, Dropout | None], tuple[dict[str, Term], Batch]]
    other_terms: Callable[[Bert, Batch, Dropout | None], dict[str, Term]]


@dataclasses.dataclass(frozen=True)
class Objective:
    """Describe a loss by sums; the dicts of `weights` and `terms` have the same keys."""

    weights: Callable[[Batch], dict[str, jax.Array]]  # float32[] each, from the batch alone
    terms: Callable[[Bert, Batch, Dropout | None], dict[str, Term]]
    untrained: tuple[str, ...] = ()  # parts of the model without a gradient, kept as initialized
    # Per-row outputs that an evaluation returns in addition to the sums: float32[B,...].
    outputs: Callable[[Bert, Batch], jax.Array] | None = None
    heads: Heads = PRETRAINING  # heads that the model needs
    # Makes the objective from its settings in a config; None if it has no settings.
    configure: "Callable[[Config], Objective] | None" = None
    # Computes a frozen teacher's outputs, which `terms` reads in the batch; None without a teacher.
    teach: Callable[[Bert, Batch], dict[str, jax.Array]] | None = None
    ahead: Ahead | None = None  # set if a step updates one part of the model before the others
    reads_teacher_mlm: bool = False  # whether teach reads the teacher's masked-word head


def sum_term(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Term:
    """Sum the cross entropy of float32[...,C] against int32[...], weighted by float32[...]."""
    return sum_losses(cross_entropy(logits, labels), weights)


def sum_losses(losses: Losses, weights: jax.Array) -> Term:
    """Sum losses and correct predictions, float32[...] each, weighted by float32[...]."""
    nll, right = losses
    return Term(loss_sum=jnp.sum(nll * weights), correct_sum=jnp.sum(right * weights))


def weigh_tokens(batch: Batch) -> jax.Array:
    """Return 1 for tokens, 0 for padding and rows that fill up a batch: float32[B,S].

    The only token of such a row is [CLS] (data_pipeline/sampling/batches.py).
    """
    is_token_BS = batch["input_mask"].astype(jnp.float32)
    return is_token_BS * is_token_BS[:, 1:2]


def fill_masked(batch: Batch, ids_BP: jax.Array) -> jax.Array:
    """Return input_ids with these tokens at the masked positions: int32[B,P] -> int32[B,S]."""
    input_ids_BS = batch["input_ids"]
    places_S = jnp.arange(input_ids_BS.shape[1], dtype=jnp.int32)
    is_masked_BPS = batch["masked_lm_positions"][:, :, None] == places_S
    is_masked_BPS &= batch["masked_lm_weights"][:, :, None] > 0
    filled_BS = jnp.sum(jnp.where(is_masked_BPS, ids_BP[:, :, None], 0), axis=1)
    return jnp.where(jnp.any(is_masked_BPS, axis=1), filled_BS, input_ids_BS)


def find_visible(batch: Batch) -> Visible:
    """Find the keys that each query may attend to, in packed or plain rows."""
    if "example_ids" in batch:
        return hide_other_examples(batch["example_ids"])
    return hide_padding(batch["input_mask"])


def find_pooled(bert: Bert, batch: Batch) -> jax.Array | None:
    """Find the positions that a classifier reads: int32[B], or [B,N] if packed; None if all are 0.

    They hold [CLS], or in a causal model the last token of each example.
    """
    if not bert.config.is_causal:
        return batch.get("cls_positions")
    if "example_ids" not in batch:
        return jnp.sum(batch["input_mask"], axis=1) - 1
    numbers_N = 1 + jnp.arange(batch["cls_positions"].shape[1], dtype=jnp.int32)
    is_own_BNS = batch["example_ids"][:, None, :] == numbers_N[None, :, None]
    places_S = jnp.arange(is_own_BNS.shape[2], dtype=jnp.int32)
    return jnp.max(jnp.where(is_own_BNS, places_S, 0), axis=2)


def make_rows(batch: Batch, dropout: Dropout | None) -> EncoderRows:
    """Make the encoder's input from the packed or plain rows of a batch."""
    inputs = batch["input_ids"], batch["segment_ids"], find_visible(batch)
    return EncoderRows(*inputs, dropout, batch.get("position_ids"))


def encode_batch(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """Compute the last layer's hidden vectors for packed or plain rows: float[B,S,D]."""
    return bert.encode(make_rows(batch, dropout))


def encode_masked_slots(bert: Bert, batch: Batch, dropout: Dropout | None) -> jax.Array:
    """Compute the vectors that predict the masked tokens of packed or plain rows: float[B,P,D]."""
    return bert.encode_slots(make_rows(batch, dropout), batch["masked_lm_positions"])


def restore_ids(batch: Batch) -> jax.Array:
    """Return the tokens as they were before masking: int32[B,S]."""
    return fill_masked(batch, batch["masked_lm_ids"])
