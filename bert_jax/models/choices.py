"""What the settings of config.compute come to where matmuls are in a given dtype."""

import dataclasses

import jax.numpy as jnp

from bert_jax.config import ComputeConfig


@dataclasses.dataclass(frozen=True)
class Choices:
    """How the modules compute; nothing of it changes their parameters."""

    single_pass_variance: bool
    mlm_logits_dtype: jnp.dtype
    gelu_saves_derivative: bool
    attention: str  # the setting itself: what comes of it depends on mesh and lengths
    remat_layers: bool
    rolled_layers: bool


def choices(config: ComputeConfig, dtype: jnp.dtype) -> Choices:
    """The settings with "auto" filled in: exact in float32, cheap where matmuls round anyway."""
    rounds = dtype != jnp.float32
    logits = config.mlm_logits_dtype
    return Choices(
        single_pass_variance=_is(config.layer_norm_variance, "single_pass", rounds),
        mlm_logits_dtype=jnp.dtype(dtype if logits == "auto" else logits),
        gelu_saves_derivative=_is(config.gelu_backward, "saved", rounds),
        attention=config.attention,
        remat_layers=config.remat == "layer",
        rolled_layers=config.rolled_layers,
    )


def _is(setting: str, cheap: str, rounds: bool) -> bool:
    return rounds if setting == "auto" else setting == cheap
