"""Tag tokens from vectors: a learned mix of layers, two bidirectional LSTM layers, a classifier.

Plain functions over a nested dict of float32 arrays, on a single device without a mesh.

Dimensions: B rows, S sequence, K layers, D width of a vector, U units of a direction, C classes.
"""

import jax
import jax.numpy as jnp

from bert_jax.model import ops

Params = dict[str, dict[str, jax.Array]]
Direction = dict[str, jax.Array]
LAYERS = 2
DIRECTIONS = ("forward", "backward")
_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015, section 2.2


def init_params(key: jax.Array, layers: int, inputs: int, units: int, classes: int) -> Params:
    """Initialize parameters; `layers` is K of the weighted sum, `inputs` is D.

    Kernels are uniform within 1 / sqrt(units), as in torch.nn.LSTM.
    """
    bound = units**-0.5

    def uniform(key: jax.Array, *dims: int) -> jax.Array:
        return jax.random.uniform(key, dims, jnp.float32, -bound, bound)

    params: Params = {"mix": {"weights": jnp.zeros(layers), "scale": jnp.ones(())}}
    for layer in range(LAYERS):
        width = inputs if layer == 0 else 2 * units
        for number, direction in enumerate(DIRECTIONS):
            kernels = jax.random.split(jax.random.fold_in(key, 2 * layer + number))
            params[f"{layer}_{direction}"] = {
                "input": uniform(kernels[0], width, 4 * units),
                "recurrent": uniform(kernels[1], units, 4 * units),
                "bias": init_bias(units),
            }
    last = jax.random.fold_in(key, 2 * LAYERS)
    params["classifier"] = {"kernel": uniform(last, 2 * units, classes), "bias": jnp.zeros(classes)}
    return params


def init_bias(units: int) -> jax.Array:
    """Initialize the biases of the gates i, f, g, o to 0, and of the forget gate f to 1."""
    return jnp.zeros((4, units)).at[1].set(_FORGET_BIAS).ravel()


def compute_logits(params: Params, vectors_BSKD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Compute logits float32[B,S,C]; those past a row's length are undefined.

    The K vectors of a position are summed with softmax weights and scaled (Peters et al. 2018,
    equation 1).
    """
    mix = params["mix"]
    weights_K = jax.nn.softmax(mix["weights"]) * mix["scale"]
    x_BSD = jnp.einsum("bskd,k->bsd", vectors_BSKD, weights_K)
    is_token_BS = jnp.arange(x_BSD.shape[1]) < lengths_B[:, None]
    for layer in range(LAYERS):
        outputs = [
            ops.run_lstm(params[f"{layer}_{direction}"], x_BSD, is_token_BS, is_reversed)
            for direction, is_reversed in zip(DIRECTIONS, (False, True), strict=True)
        ]
        x_BSD = jnp.concatenate(outputs, axis=-1)
    last = params["classifier"]
    return x_BSD @ last["kernel"] + last["bias"]
