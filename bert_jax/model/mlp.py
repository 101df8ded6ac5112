"""Compute the feed-forward part of a layer: plain, or gated (GeGLU, SwiGLU).

Dimensions: B batch, S sequence, D width, F feed-forward units.
Source: modeling.py@eedf5716ce transformer_model; Shazeer 2020 (GLU variants), section 2.
"""

import jax

from bert_jax.config import ModelConfig
from bert_jax.model import ops
from bert_jax.model.dropout import MLP_OUTPUT
from bert_jax.model.layers import Choices, Linear, Residual, residual_stddev


class FeedForward(Residual):
    """Map to the units, apply the activation (times the gated input), map back."""

    def __init__(self, config: ModelConfig, choices: Choices) -> None:
        super().__init__(config, choices, "mlp", MLP_OUTPUT)
        width, units = (config.hidden_size, "embed"), (config.intermediate_size, "mlp")
        stddev, has_bias = config.initializer_range, config.linear_bias
        self.intermediate = Linear(width, units, stddev, has_bias)
        self.gated = Linear(width, units, stddev, has_bias) if config.gated_mlp else None
        self.output = Linear(units, width, residual_stddev(config), has_bias)
        self.hidden_act = config.hidden_act
        self.saves_derivative = choices.gelu_saves_derivative

    def compute(self, x_BSD: jax.Array) -> jax.Array:
        """Compute the part without residual, norm and dropout: float[B,S,D]."""
        units_BSF = ops.activate(self.intermediate(x_BSD), self.hidden_act, self.saves_derivative)
        if self.gated is not None:
            units_BSF = units_BSF * self.gated(x_BSD)
        return self.output(units_BSF)
