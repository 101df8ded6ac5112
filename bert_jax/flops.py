"""Floating-point operations that training needs: what a utilisation is a share of."""

from bert_jax.config import ModelConfig

FORMULA = (
    "6 x weights of the layers x positions + 12 x layers x width x length^2 (attention) "
    "+ 6 x (width + vocabulary) x width x masked positions (masked LM) "
    "+ 6 x (width + 2) x width (pooler, next sentence)"
)


def train_flops_per_row(model: ModelConfig, seq_len: int, predictions: int) -> float:
    """Operations of matrix products for one row, forward and backward; an addition counts as one.

    A weight costs 2 forward and 4 backward at each position that it sees: layers all seq_len,
    the masked LM head `predictions`, the pooler one. Padding counts as text, since the matrix
    units work on it; what is computed twice to save memory does not count. model.vocab_size is
    the real one, without the rows that pad it.

    Source: Kaplan et al. 2020, section 2.1, table 1; attention over all pairs of positions.
    """
    width = model.hidden_size
    layer_weights = 4 * width**2 + 2 * width * model.intermediate_size
    layers = 6 * model.num_hidden_layers * layer_weights * seq_len
    attention = 12 * model.num_hidden_layers * width * seq_len**2
    masked_lm = 6 * (width + model.vocab_size) * width * predictions
    pooler = 6 * (width + 2) * width
    return float(layers + attention + masked_lm + pooler)
