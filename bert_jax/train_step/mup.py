"""Scale initial weights and learning rates so that the best learning rate carries over (muP).

A rate tuned at the base width is then about the best at another width. Maximal update
parametrization also has multipliers in the forward pass. With Adam, such a multiplier has the same
effect as a factor on a parameter's initial weights and learning rate, so only these are scaled
here: Hugging Face's classes still compute the same model, and exports need no conversion.

With m = width / base width, and intermediate width and attention scaled alike:

    parameters                                            initial    rate
    kernels of layers, pooler and the head's transform    m ** -0.5  1 / m
    kernel of next sentences (2 logits)                   1 / m      1 / m
    norm before the output layer                          1 / m      1 / m
    embedding tables, other norms, biases                 1          1
    query kernel and bias, in addition                    c          c

c = (base head width / head width) ** 0.5. It turns the attention scores q k / sqrt(K) into q k / K
if heads are wider than in the base; it is 1 if there are more heads instead. The word embeddings
are also the output layer. Their weights and rate are unscaled in both roles, since the norm before
the output layer divides the logits by m.

Source: Yang et al. 2022 (Tensor Programs V), table 8, definition 4.1 and appendix B.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from bert_jax.config import RunConfig

Tree = Any


@dataclasses.dataclass(frozen=True)
class Scale:
    """Hold the factors of a parameter's initial weights and of its learning rate."""

    initial: float
    rate: float


ScaleOf = Callable[[tuple[Any, ...]], Scale]  # path of a parameter -> its factors


def find_scales(config: RunConfig) -> ScaleOf | None:
    """Return the function from a parameter's path to its factors; None if nothing is scaled."""
    optim, model = config.optim, config.model
    if optim.transfer != "mup":
        return None
    times = model.hidden_size / optim.transfer_base_width
    head_width = model.hidden_size // model.num_attention_heads
    query_factor = ((optim.transfer_base_head_width or head_width) / head_width) ** 0.5
    if times == 1.0 and query_factor == 1.0:
        return None

    def scale_of(path: tuple[Any, ...]) -> Scale:
        names = [entry.key for entry in path]
        part, last = names[0], names[-1]
        scale = Scale(1.0, 1.0)
        if part == "nsp" and last == "kernel":
            scale = Scale(1.0 / times, 1.0 / times)
        elif last == "kernel":
            scale = Scale(times**-0.5, 1.0 / times)
        elif part == "mlm" and "layer_norm" in names:
            scale = Scale(1.0 / times, 1.0 / times)
        if "query" in names:
            scale = Scale(scale.initial * query_factor, scale.rate * query_factor)
        return scale

    return scale_of


def scale_initial(config: RunConfig, params: Tree) -> Tree:
    """Scale newly initialized parameters; return them unchanged if nothing is scaled."""
    scale_of = find_scales(config)
    if scale_of is None:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * scale_of(path).initial, params
    )


def describe(config: RunConfig) -> str:
    """Describe the scaling for the screen; "" if nothing is scaled."""
    if find_scales(config) is None:
        return ""
    times = config.model.hidden_size / config.optim.transfer_base_width
    return (
        f"tuned at width {config.optim.transfer_base_width}; kernels are {times:.3g} times as wide "
        f"here and have {1 / times:.3g} of the learning rate"
    )
