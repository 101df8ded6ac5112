"""Which share of the learning rate a layer has at a step: less further down, none while frozen.

The groups of ULMFiT, counted from the top: 0 the heads, the pooler and a task's layer; 1 the last
layer of the encoder; L the first; L + 1 the embeddings, whose word table the masked language
model's logits use as well.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import OptimConfig

Tree = Any


def rates(config: OptimConfig, params: Tree, rate: jax.Array, step: jax.Array) -> Tree:
    """A rate (float32 []) for each parameter, as a tree shaped as they are.

    Group g has rate * layer_rate_decay ** g, and 0 before step g * unfreeze_every_steps: a
    parameter that is multiplied by it does not move, weight decay included. With the defaults
    every leaf is `rate` itself, and nothing is computed.

    Source: Howard and Ruder 2018 (ULMFiT), sections 3.2 (discriminative fine-tuning, decay
    1 / 2.6) and 3.3 (gradual unfreezing).
    """
    layers = len(params["layers"])

    def rate_of(path: tuple[Any, ...], _: Any) -> jax.Array:
        group = group_of([entry.key for entry in path], layers)
        of_group = rate
        if config.layer_rate_decay != 1.0 and group > 0:
            of_group = of_group * jnp.float32(config.layer_rate_decay**group)
        if config.unfreeze_every_steps > 0 and group > 0:
            is_trained = step >= group * config.unfreeze_every_steps
            of_group = jnp.where(is_trained, of_group, jnp.zeros((), jnp.float32))
        return of_group

    return jax.tree_util.tree_map_with_path(rate_of, params)


def group_of(names: list[str], layers: int) -> int:
    """The group, counted from the top, of the parameter with these names on its path."""
    if names[0] == "embeddings":
        return layers + 1
    return layers - int(names[1]) if names[0] == "layers" else 0


def in_words(config: OptimConfig, layers: int, total_steps: int) -> str:
    """What of this is set, for the screen; empty where it is nothing."""
    said = []
    if config.layer_rate_decay != 1.0:
        lowest = config.layer_rate_decay ** (layers + 1)
        said.append(
            f"each layer has {config.layer_rate_decay:.3g} of the rate of the one above, the "
            f"embeddings {lowest:.2g} of the heads'"
        )
    every = config.unfreeze_every_steps
    if every > 0:
        frozen = sum(group * every >= total_steps for group in range(1, layers + 2))
        end = f"all are trained from step {(layers + 1) * every + 1:,} on"
        if frozen:
            end = f"{frozen} of {layers + 2} parts stay frozen to the end"
        said.append(f"first the heads alone, then one part more every {every:,} steps; {end}")
    return "; ".join(said)
