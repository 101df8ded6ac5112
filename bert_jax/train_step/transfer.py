"""Scale initial weights and learning rates so that the best rate is that of another width (muP).

Of the maximal update parametrization only initial weights and rates are scaled, and no multiplier
enters the model: for Adam a multiplier of a parameter is the same as a factor of its initial
weights and of its rate. So the model is the one that Hugging Face's classes compute, and what
training ends with needs no conversion.

With m = width / base width, intermediate width and attention scaled alike:

    parameters                                            initial    rate
    kernels of layers, pooler and the head's transform    m ** -0.5  1 / m
    kernel of next sentences, which ends in 2 logits      1 / m      1 / m
    norm before the word table, as the table's multiplier 1 / m      1 / m
    tables, other norms, biases                           1          1
    query, besides                                        c          c

c = (base head width / head width) ** 0.5 makes the scores of attention q k / K instead of q k /
sqrt(K) where heads are wider than those of the base; it is 1 where there are more heads instead.
The word table is read and predicts: as an input its weights and rate are constant, and so they are
as an output whose logits are divided by m.

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


ScaleOf = Callable[[tuple[Any, ...]], Scale]  # of the path of a parameter


def find_scales(config: RunConfig) -> ScaleOf | None:
    """Return the factors of each parameter by its path; None where nothing is scaled."""
    optim, model = config.optim, config.model
    if optim.transfer != "mup":
        return None
    times = model.hidden_size / optim.transfer_base_width
    head_width = model.hidden_size // model.num_attention_heads
    of_query = ((optim.transfer_base_head_width or head_width) / head_width) ** 0.5
    if times == 1.0 and of_query == 1.0:
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
            scale = Scale(scale.initial * of_query, scale.rate * of_query)
        return scale

    return scale_of


def scale_initial(config: RunConfig, params: Tree) -> Tree:
    """Scale new parameters; they are returned as they are where nothing is scaled."""
    scale_of = find_scales(config)
    if scale_of is None:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * scale_of(path).initial, params
    )


def describe(config: RunConfig) -> str:
    """Say for the screen what is scaled; "" for nothing."""
    if find_scales(config) is None:
        return ""
    times = config.model.hidden_size / config.optim.transfer_base_width
    return (
        f"those of width {config.optim.transfer_base_width}: kernels, which are {times:.3g} times "
        f"as wide, have {1 / times:.3g} of the rate"
    )
