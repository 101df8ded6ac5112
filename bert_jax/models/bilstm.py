"""A tagger on frozen vectors: layers mixed by learned weights, two bidirectional LSTMs, one map.

Plain functions over a nested dict of float32 arrays; on one device, without a mesh.

Dimensions: B rows, S sequence, K layers, D width of a vector, U units of a direction, C classes.
"""

import jax
import jax.numpy as jnp

Params = dict[str, dict[str, jax.Array]]
Direction = dict[str, jax.Array]
LAYERS = 2
DIRECTIONS = ("forward", "backward")
_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015, section 2.2


def init(key: jax.Array, layers: int, inputs: int, units: int, classes: int) -> Params:
    """Fresh parameters; layers is K of a weighted sum, and 1 where there is none.

    Kernels are uniform within 1 / sqrt(units), as torch.nn.LSTM draws them.
    """
    bound = units**-0.5

    def drawn(key: jax.Array, *dims: int) -> jax.Array:
        return jax.random.uniform(key, dims, jnp.float32, -bound, bound)

    params: Params = {"mix": {"weights": jnp.zeros(layers), "scale": jnp.ones(())}}
    for layer in range(LAYERS):
        width = inputs if layer == 0 else 2 * units
        for number, direction in enumerate(DIRECTIONS):
            kernels = jax.random.split(jax.random.fold_in(key, 2 * layer + number))
            bias = jnp.zeros((4, units)).at[1].set(_FORGET_BIAS).ravel()
            params[f"{layer}_{direction}"] = {
                "input": drawn(kernels[0], width, 4 * units),
                "recurrent": drawn(kernels[1], units, 4 * units),
                "bias": bias,
            }
    last = jax.random.fold_in(key, 2 * LAYERS)
    params["classifier"] = {"kernel": drawn(last, 2 * units, classes), "bias": jnp.zeros(classes)}
    return params


def logits(params: Params, vectors_BSKD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """float32[B,S,C]: of each position; what stands past a row's length means nothing.

    K vectors of a position become their sum by softmax weights, times a scale.

    Source of the sum: Peters et al. 2018, equation 1.
    """
    mix = params["mix"]
    weights_K = jax.nn.softmax(mix["weights"]) * mix["scale"]
    x_BSD = jnp.einsum("bskd,k->bsd", vectors_BSKD, weights_K)
    for layer in range(LAYERS):
        forward = lstm(params[f"{layer}_forward"], x_BSD)
        turned = reversed_rows(x_BSD, lengths_B)
        backward = reversed_rows(lstm(params[f"{layer}_backward"], turned), lengths_B)
        x_BSD = jnp.concatenate([forward, backward], axis=-1)
    last = params["classifier"]
    return x_BSD @ last["kernel"] + last["bias"]


def lstm(params: Direction, x_BSD: jax.Array) -> jax.Array:
    """float[B,S,D] -> float[B,S,U], from the first position on; gates lie as i, f, g, o.

    Source: Gers et al. 2000, without peepholes, as in torch.nn.LSTM.
    """
    units = params["recurrent"].shape[0]
    entering_BSG = x_BSD @ params["input"] + params["bias"]

    def step(
        held: tuple[jax.Array, jax.Array], entering_BG: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h_BU, c_BU = held
        i, f, g, o = jnp.split(entering_BG + h_BU @ params["recurrent"], 4, axis=-1)
        c_BU = jax.nn.sigmoid(f) * c_BU + jax.nn.sigmoid(i) * jnp.tanh(g)
        h_BU = jax.nn.sigmoid(o) * jnp.tanh(c_BU)
        return (h_BU, c_BU), h_BU

    start_BU = jnp.zeros((x_BSD.shape[0], units), x_BSD.dtype)
    _, h_SBU = jax.lax.scan(step, (start_BU, start_BU), jnp.swapaxes(entering_BSG, 0, 1))
    return jnp.swapaxes(h_SBU, 0, 1)


def reversed_rows(x_BSD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Each row turned round within its own length; what stands behind it stays where it is."""
    at_S = jnp.arange(x_BSD.shape[1])
    turned_BS = jnp.where(at_S < lengths_B[:, None], lengths_B[:, None] - 1 - at_S, at_S)
    return jnp.take_along_axis(x_BSD, turned_BS[:, :, None], axis=1)
