"""Run two bidirectional LSTM layers, and tag tokens by them from a learned mix of vectors.

Plain functions over a nested dict of float32 arrays, on a single device without a mesh.

Dimensions: B rows, S sequence, K layers, D width of a vector, U units of a direction, C classes,
V vocabulary.
"""

import jax
import jax.numpy as jnp
import optax

from bert_jax.model import ops

Params = dict[str, dict[str, jax.Array]]
Direction = dict[str, jax.Array]
LAYERS = 2
DIRECTIONS = ("forward", "backward")
_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015, section 2.2


def init_params(key: jax.Array, layers: int, inputs: int, units: int, classes: int) -> Params:
    """Initialize parameters; `layers` is K of the weighted sum, `inputs` is D."""
    last = jax.random.fold_in(key, 2 * LAYERS)
    return {
        "mix": {"weights": jnp.zeros(layers), "scale": jnp.ones(())},
        **init_encoder(key, inputs, units),
        "classifier": {
            "kernel": draw_uniform(last, units, 2 * units, classes),
            "bias": jnp.zeros(classes),
        },
    }


def init_encoder(key: jax.Array, inputs: int, units: int) -> Params:
    """Initialize the directions of both layers."""
    return {
        f"{layer}_{direction}": init_lstm(
            jax.random.fold_in(key, 2 * layer + number), 2 * units if layer else inputs, units
        )
        for layer in range(LAYERS)
        for number, direction in enumerate(DIRECTIONS)
    }


def init_lstm(key: jax.Array, inputs: int, units: int) -> Direction:
    """Initialize an LSTM; kernels are uniform within 1 / sqrt(units), as in torch.nn.LSTM."""
    keys = jax.random.split(key)
    return {
        "input": draw_uniform(keys[0], units, inputs, 4 * units),
        "recurrent": draw_uniform(keys[1], units, units, 4 * units),
        "bias": init_bias(units),
    }


def draw_uniform(key: jax.Array, inputs: int, *dims: int) -> jax.Array:
    """Draw an array uniformly within 1 / sqrt(inputs)."""
    bound = inputs**-0.5
    return jax.random.uniform(key, dims, jnp.float32, -bound, bound)


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
    x_BSD = run_encoder(params, x_BSD, lengths_B)
    last = params["classifier"]
    return x_BSD @ last["kernel"] + last["bias"]


def run_encoder(
    params: Params,
    x_BSD: jax.Array,
    lengths_B: jax.Array,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Compute the last layer's outputs float32[B,S,2U]; those past a row's length are undefined.

    With a key, dropout is applied to the inputs and the outputs of each layer.
    """
    is_token_BS = jnp.arange(x_BSD.shape[1]) < lengths_B[:, None]
    x_BSD = drop_out(x_BSD, dropout, key, 0)
    for layer in range(LAYERS):
        outputs = [
            ops.run_lstm(params[f"{layer}_{direction}"], x_BSD, is_token_BS, is_reversed)
            for direction, is_reversed in zip(DIRECTIONS, (False, True), strict=True)
        ]
        x_BSD = drop_out(jnp.concatenate(outputs, axis=-1), dropout, key, layer + 1)
    return x_BSD


def drop_out(x: jax.Array, rate: float, key: jax.Array | None, number: int) -> jax.Array:
    """Set a share of x to 0 and scale the rest; the key and the number decide which."""
    if key is None or not rate:
        return x
    keeps = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, x.shape)
    return jnp.where(keeps, x / (1 - rate), 0.0)


def sum_token_losses(
    output: dict[str, jax.Array], hidden_BSD: jax.Array, labels_BS: jax.Array, weights_BS: jax.Array
) -> jax.Array:
    """Sum the weighted cross-entropies of tokens that hidden vectors predict.

    `output` has a kernel float32[D,V] and a bias float32[V].
    """

    @jax.checkpoint
    def add_row(sums: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        """Add the losses of a row; the logits of all rows at once would take gigabytes."""
        hidden_SD, labels_S, weights_S = row
        logits_SV = hidden_SD @ output["kernel"] + output["bias"]
        losses_S = optax.softmax_cross_entropy_with_integer_labels(logits_SV, labels_S)
        return sums + jnp.sum(losses_S * weights_S), None

    rows = hidden_BSD, labels_BS, weights_BS
    total, _ = jax.lax.scan(add_row, jnp.zeros(()), rows)
    return total
