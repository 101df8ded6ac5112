"""Tag tokens from frozen vectors: a learned mix of layers, two bidirectional LSTMs, one linear map.

Plain functions over a nested dict of float32 arrays, on one device without a mesh.

Dimensions: B rows, S sequence, K layers, D width of a vector, U units of a direction, C classes.
"""

import math

import jax
import jax.numpy as jnp

Params = dict[str, dict[str, jax.Array]]
Direction = dict[str, jax.Array]
LAYERS = 2
DIRECTIONS = ("forward", "backward")
_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015, section 2.2


def init_params(key: jax.Array, layers: int, inputs: int, units: int, classes: int) -> Params:
    """Initialize parameters; layers is K of the weighted sum, 1 where there is none.

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
    """Initialize the bias of the gates i, f, g, o: 0, of the forget gate 1."""
    return jnp.zeros((4, units)).at[1].set(_FORGET_BIAS).ravel()


def compute_logits(params: Params, vectors_BSKD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Compute float32[B,S,C] logits; those past a row's length are undefined.

    The K vectors of a position are summed with softmax weights and scaled.

    Source of the sum: Peters et al. 2018, equation 1.
    """
    mix = params["mix"]
    weights_K = jax.nn.softmax(mix["weights"]) * mix["scale"]
    x_BSD = jnp.einsum("bskd,k->bsd", vectors_BSKD, weights_K)
    for layer in range(LAYERS):
        forward = run_lstm(params[f"{layer}_forward"], x_BSD)
        reversed_BSD = reverse_rows(x_BSD, lengths_B)
        backward = reverse_rows(run_lstm(params[f"{layer}_backward"], reversed_BSD), lengths_B)
        x_BSD = jnp.concatenate([forward, backward], axis=-1)
    last = params["classifier"]
    return x_BSD @ last["kernel"] + last["bias"]


def run_lstm(params: Direction, x_BSD: jax.Array, clip: float = math.inf) -> jax.Array:
    """Run an LSTM from the first position on; gates are in the order i, f, g, o.

    Where params have a "projection" float[U,P], outputs are projected by it, those that the next
    position reads too. Cells and projections are clipped to -clip..clip.

    Shapes: float[B,S,D] -> float[B,S,U], or float[B,S,P].
    Source: Gers et al. 2000, without peepholes, as in torch.nn.LSTM; projections: Sak et al. 2014;
    clips: LSTMCell of TensorFlow, which bilm-tf uses.
    """
    width, units = params["recurrent"].shape[0], params["recurrent"].shape[1] // 4
    entering_BSG = x_BSD @ params["input"] + params["bias"]

    def step(
        carry: tuple[jax.Array, jax.Array], entering_BG: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h_BP, c_BU = carry
        i, f, g, o = jnp.split(entering_BG + h_BP @ params["recurrent"], 4, axis=-1)
        c_BU = jax.nn.sigmoid(f) * c_BU + jax.nn.sigmoid(i) * jnp.tanh(g)
        c_BU = _clip(c_BU, clip)
        h_BP = jax.nn.sigmoid(o) * jnp.tanh(c_BU)
        if "projection" in params:
            h_BP = _clip(h_BP @ params["projection"], clip)
        return (h_BP, c_BU), h_BP

    start = tuple(jnp.zeros((x_BSD.shape[0], size), x_BSD.dtype) for size in (width, units))
    _, h_SBP = jax.lax.scan(step, (start[0], start[1]), jnp.swapaxes(entering_BSG, 0, 1))
    return jnp.swapaxes(h_SBP, 0, 1)


def _clip(x: jax.Array, clip: float) -> jax.Array:
    return x if math.isinf(clip) else jnp.clip(x, -clip, clip)


def reverse_rows(x_BSD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Reverse each row within its own length; padding stays in place."""
    position_S = jnp.arange(x_BSD.shape[1])
    source_BS = jnp.where(
        position_S < lengths_B[:, None], lengths_B[:, None] - 1 - position_S, position_S
    )
    return jnp.take_along_axis(x_BSD, source_BS[:, :, None], axis=1)
