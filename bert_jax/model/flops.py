"""Count the floating-point operations that training needs, for utilization."""

import dataclasses

from bert_jax.config import (
    DISTILLATION,
    RELATION_DISTILLATION,
    DistillConfig,
    ModelConfig,
)

FORMULA = (
    "6 x weights of the layers x positions + 12 x width x pairs of positions (attention) "
    "+ 6 x (width + vocabulary) x embedding width x masked positions (masked LM) "
    "+ 6 x (width + 2) x width (pooler, next sentence); bert_jax/model/flops.py has the terms of "
    "other attention, objectives and teachers"
)


def count_train_flops(model: ModelConfig, seq_len: int, predictions: int) -> float:
    """Count the operations of matrix products for a row, forward and backward; an addition is one.

    A weight costs 2 forward and 4 backward per position: layers run at all seq_len positions, the
    masked LM head at `predictions`, the pooler at one. Attention costs per visible pair of
    positions, so a window or a causal mask saves operations. Padding counts as text; recomputation
    to save memory does not count. model.vocab_size excludes rows that pad it.

    Source: Kaplan et al. 2020, section 2.1, table 1.
    """
    if model.generator is not None:
        width = model.hidden_size
        detection = 6 * (width + 1) * width * seq_len
        generator = _count_encoder(model.generator, seq_len)
        generator += _count_masked_lm(model.generator, predictions)
        if model.enhanced_mask_decoder:
            # The decoder replaces the last layer's queries by the masked positions, twice.
            generator += _count_queries(model.generator, seq_len, 2 * predictions - seq_len)
        return float(_count_encoder(model, seq_len) + detection + generator)
    predictions = seq_len if model.is_causal else predictions
    pooler = 6 * (model.hidden_size + 2) * model.hidden_size
    operations = _count_encoder(model, seq_len) + _count_masked_lm(model, predictions) + pooler
    if model.position_embedding_type == "relative":  # the second stream
        operations += model.num_hidden_layers * _count_queries(model, seq_len, predictions)
    return float(operations)


def count_teacher_flops(
    teacher: ModelConfig, distill: DistillConfig, objective: str, seq_len: int, predictions: int
) -> float:
    """Count the operations of a frozen teacher for a row: its forward pass, a third of training.

    The layer whose relations are read counts in full; the products of relations do not count.
    """
    if objective == RELATION_DISTILLATION:
        layers = distill.teacher_layer or teacher.num_hidden_layers
        teacher = dataclasses.replace(teacher, num_hidden_layers=layers)
        return _count_encoder(teacher, seq_len) / 3
    if objective != DISTILLATION:
        return 0.0
    words = predictions if distill.soft_weight > 0 else 0
    return (_count_encoder(teacher, seq_len) + _count_masked_lm(teacher, words)) / 3


def _count_masked_lm(model: ModelConfig, predictions: int) -> int:
    units = model.vocab_size + model.hidden_size * model.mlm_transform
    return 6 * units * model.embedding_width * predictions


def _count_encoder(model: ModelConfig, seq_len: int) -> int:
    width, layers = model.hidden_size, model.num_hidden_layers
    every = 6 * layers * count_layer_weights(model) * seq_len
    complete_layers = -(-layers // model.global_attn_every_n_layers)
    windowed_layers = layers - complete_layers
    pairs = complete_layers * seq_len**2
    pairs += windowed_layers * count_window_pairs(seq_len, model.local_attention)
    if model.is_causal:
        pairs = (pairs + layers * seq_len) // 2  # a position and itself are one pair
    attention = _count_terms(model) * width * pairs
    mapped = 6 * model.embedding_width * width * seq_len if model.maps_embeddings else 0
    return every + attention + mapped


def count_layer_weights(model: ModelConfig) -> int:
    """Count the weights of a layer's matrices, without biases and norms."""
    mlp_maps = 3 if model.gated_mlp else 2
    return (4 * model.hidden_size + mlp_maps * model.intermediate_size) * model.hidden_size


def _count_terms(model: ModelConfig) -> int:
    """Count the operations of attention per pair of positions and per unit of the width."""
    terms = {"disentangled": len(model.pos_att_type.split("|")), "relative": 1}
    return 12 + 6 * terms.get(model.position_embedding_type, 0)


def _count_queries(model: ModelConfig, seq_len: int, queries: int) -> int:
    """Count the operations of extra queries in a layer whose keys and values exist already."""
    keys = 2 * model.hidden_size**2
    pairs = _count_terms(model) * model.hidden_size * seq_len
    return (6 * (count_layer_weights(model) - keys) + pairs) * queries


def count_window_pairs(seq_len: int, window: int) -> int:
    """Count the pairs of positions at most half a window apart in a row."""
    reach = min(window // 2, seq_len - 1)
    return seq_len * (2 * reach + 1) - reach * (reach + 1)
