"""Detect replaced tokens: a generator fills in masked tokens, the encoder finds the wrong ones.

Dimensions: B rows, S sequence, P slots for masked tokens, V vocabulary (padded), N bins.
Source: Clark et al. 2020 (ELECTRA), section 2; google-research/electra run_pretraining.py.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.bert import Bert, Heads
from bert_jax.model.dropout import SAMPLED_TOKENS, Dropout, Words, hash_places
from bert_jax.train_step.objectives.objective import (
    Ahead,
    Batch,
    Objective,
    Term,
    encode_batch,
    encode_masked_slots,
    fill_masked,
    restore_ids,
    sum_losses,
    weigh_tokens,
)

GENERATOR_SCOPE = "of_the_generator"  # names its operations, for planning/chip_prices.py
WEIGHT = 50.0  # default of config.rtd_weight
BINS, BIN_WIDTH = 128, 0.125  # the histogram of logits, -8 to 8
_EVALUATION_SEED = 2020
_SEEN = "seen_ids"  # batch field: the tokens, with samples in place of masked tokens


def _count(batch: Batch) -> dict[str, jax.Array]:
    return {"mlm": jnp.sum(batch["masked_lm_weights"]), "rtd": jnp.sum(weigh_tokens(batch))}


def make_noise_words(bert: Bert, batch: Batch, dropout: Dropout | None) -> Words:
    """Make the two 32-bit words from which the sampling noise of each row is hashed.

    In training the words depend on seed, step and row, as for dropout; in an evaluation on a fixed
    seed and the row's tokens, so that the batch size does not change the samples of a row.
    """
    if dropout is None:
        ids_BS = batch["input_ids"].astype(jnp.uint32)
        zeros_B1 = jnp.zeros_like(ids_BS[:, :1])
        places_BS = jax.lax.broadcasted_iota(jnp.uint32, ids_BS.shape, 1)
        hashed_BS = hash_places(ids_BS, places_BS * jnp.uint32(0x9E3779B9), zeros_B1)
        row_B = jnp.sum(jnp.where(batch["input_mask"] > 0, hashed_BS, 0), axis=1, dtype=jnp.uint32)
        dropout = Dropout(jnp.uint32(_EVALUATION_SEED), jnp.uint32(0), row_B)
    return dropout.words(bert.config.num_hidden_layers, SAMPLED_TOKENS)


def sample_tokens(
    logits_BPV: jax.Array, positions_BP: jax.Array, words: Words, vocab_size: int
) -> jax.Array:
    """Sample a token at each position from the softmax of its logits: int32[B,P].

    The sample is the argmax of logits plus Gumbel noise. The noise is hashed from the row's words,
    the position and the token: it is the same on every mesh and for any number of micro-batches.
    """
    spec = jax.typeof(logits_BPV).sharding.spec
    ids_BPV = jax.lax.broadcasted_iota(jnp.int32, logits_BPV.shape, 2, out_sharding=spec)
    start_BP = positions_BP.astype(jnp.uint32) * jnp.uint32(vocab_size)
    place_BPV = start_BP[:, :, None] + ids_BPV.astype(jnp.uint32)
    low_B11, high_B11 = (word[:, None, None] for word in words)
    hash_BPV = hash_places(place_BPV, low_B11, high_B11)
    # The share is 1 - uniform: float32 resolves small shares finely, which give the largest noise.
    share_BPV = (hash_BPV.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    share_BPV = jnp.minimum(share_BPV, jnp.float32(1.0 - 2.0**-24))
    noisy_BPV = logits_BPV - jnp.log(-jnp.log1p(-share_BPV))
    is_best_BPV = noisy_BPV >= jnp.max(noisy_BPV, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_best_BPV, ids_BPV, jnp.iinfo(jnp.int32).max), axis=-1)


def sum_detections(
    logits_BS: jax.Array, is_replaced_BS: jax.Array, weights_BS: jax.Array, scale: float
) -> Term:
    """Sum binary cross entropy and correct predictions, and count the logits by class and bin.

    Shapes: float32[B,S], bool[B,S], float32[B,S].
    """
    labels_BS = is_replaced_BS.astype(jnp.float32)
    nll_BS = jax.nn.softplus(logits_BS) - labels_BS * logits_BS
    right_BS = ((logits_BS > 0.0) == is_replaced_BS).astype(jnp.float32)
    # Bin N/2 begins right above 0: from there on a token is predicted as replaced.
    bin_BS = jnp.ceil(jax.lax.stop_gradient(logits_BS) / BIN_WIDTH) + (BINS // 2 - 1)
    bin_BS = jnp.clip(bin_BS, 0, BINS - 1).astype(jnp.int32)
    is_in_BSN = bin_BS[:, :, None] == jnp.arange(BINS, dtype=jnp.int32)
    histogram_KN = jnp.stack(
        [
            jnp.sum(jnp.where(is_in_BSN, class_weights_BS[:, :, None], 0.0), axis=(0, 1))
            for class_weights_BS in (weights_BS * (1.0 - labels_BS), weights_BS * labels_BS)
        ]
    )
    return Term(jnp.sum(nll_BS * weights_BS), jnp.sum(right_BS * weights_BS), histogram_KN, scale)


def _generate(
    bert: Bert, batch: Batch, dropout: Dropout | None
) -> tuple[dict[str, Term], dict[str, jax.Array]]:
    """Return the generator's term, and the rows that the encoder sees, int32[B,S]."""
    generator, positions_BP = bert.generator, batch["masked_lm_positions"]
    if generator is None:
        raise TypeError("this model was built without the generator that rtd trains")
    generator_dropout = None if dropout is None else dropout.for_generator()
    with jax.named_scope(GENERATOR_SCOPE):
        vectors_BPG = encode_masked_slots(generator, batch, generator_dropout)
    # XLA merges the two products with the word embeddings: the losses store logits in
    # config.compute.mlm_logits_dtype, sampling reads them in float32.
    losses = generator.compute_target_losses(vectors_BPG, batch["masked_lm_ids"])
    logits_BPV = generator.compute_target_logits(vectors_BPG)
    sampled_BP = sample_tokens(
        jax.lax.stop_gradient(logits_BPV),
        positions_BP,
        make_noise_words(bert, batch, dropout),
        bert.config.vocab_size,
    )
    term = sum_losses(losses, batch["masked_lm_weights"])
    return {"mlm": term}, {_SEEN: fill_masked(batch, sampled_BP)}


def make_rtd(weight: float, generator_first: bool = False) -> Objective:
    """Make the objective: the generator's masked language model + weight * detection.

    Detection is a mean over all tokens but padding. A sampled token that equals the original counts
    as original. No gradient flows through sampling. With generator_first a step updates the
    generator before the encoder reads its tables; tokens are sampled before the update.

    Source of the order: microsoft/DeBERTa@4d7fe0b rtd_task.py get_decoupled_loss_fn.
    """

    def detect(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        seen_BS = batch[_SEEN]
        is_replaced_BS = seen_BS != restore_ids(batch)
        hidden_BSD = encode_batch(bert, {**batch, "input_ids": seen_BS}, dropout)
        logits_BS = bert.rtd(hidden_BSD, batch.get("cls_positions"), batch.get("example_ids"))
        detections = sum_detections(logits_BS, is_replaced_BS, weigh_tokens(batch), weight)
        return {"rtd": detections}

    def terms(bert: Bert, batch: Batch, dropout: Dropout | None) -> dict[str, Term]:
        words, rows = _generate(bert, batch, dropout)
        return words | detect(bert, {**batch, **rows}, dropout)

    return Objective(
        _count,
        terms,
        heads=Heads(mlm=False, nsp=False, pooler=False, rtd=True, generator=True),
        configure=lambda config: make_rtd(config.rtd_weight, config.rtd_generator_first),
        ahead=Ahead("generator", _generate, detect) if generator_first else None,
    )


RTD = make_rtd(WEIGHT)
