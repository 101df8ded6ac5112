"""Train ELMo over tokens: projected LSTMs that read a row left to right and right to left.

Each direction predicts its next token. Both share the embeddings, which are tied to the output
layer. For a task, the vectors of a token are its embedding and the output of each layer.

Dimensions: B rows, S sequence, D width of a projection, U cells of a layer, K layers + 1, V
vocabulary.
Source: Peters et al. 2018, sections 3.1 and 3.2; bilm/training.py of allenai/bilm-tf, which
computes embeddings from characters and samples the softmax.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.lab.baselines import bilstm, training
from bert_jax.lab.baselines.bilstm import DIRECTIONS
from bert_jax.lab.baselines.settings import BILM, BiLM
from bert_jax.lab.baselines.training import cut_documents, frame_rows
from bert_jax.logging.console import Screen
from bert_jax.model import ops
from data_pipeline.labeled.rows import EncodedRows, ExampleStream
from data_pipeline.store import Split, Store

_MAX_HELDOUT_ROWS = 1024

Params = dict[str, Any]  # embeddings float32[V,D], bias float32[V], and a Direction by its name
Batch = Mapping[str, np.ndarray | jax.Array]


def init_params(settings: BiLM, vocab_size: int) -> Params:
    """Initialize parameters so that gate inputs and logits have a variance of about 1.

    Source: Vaswani et al. 2017, section 3.4: tied embeddings are multiplied by sqrt(D) as inputs.
    """
    width, units = settings.width, settings.units
    keys = iter(jax.random.split(jax.random.key(settings.seed), 1 + 6 * settings.layers))
    embeddings = jax.random.normal(next(keys), (vocab_size, width)) * width**-0.5
    params: Params = {"embeddings": embeddings, "bias": jnp.zeros(vocab_size)}
    for direction in DIRECTIONS:
        for layer in range(settings.layers):
            dims = {"input": (width, 4 * units), "recurrent": (width, 4 * units)}
            dims["projection"] = (units, width)
            kernels = {
                name: jax.random.uniform(next(keys), size, minval=-1.0, maxval=1.0)
                * (3 / size[0]) ** 0.5
                for name, size in dims.items()
            }
            params[f"{layer}_{direction}"] = {**kernels, "bias": bilstm.init_bias(units)}
    return params


def run_layers(
    params: Params,
    ids_BS: jax.Array,
    lengths_B: jax.Array,
    settings: BiLM,
    key: jax.Array | None = None,
) -> dict[str, list[jax.Array]]:
    """Compute the embeddings and layer outputs of each direction: K arrays float32[B,S,D].

    Every layer but the first has a residual connection. Outputs past a row's length are undefined.
    With a key, dropout is applied to embeddings and outputs.
    """
    embedded = params["embeddings"][ids_BS] * settings.width**0.5
    embedded = bilstm.drop_out(embedded, settings.dropout, key, 0)
    is_token_BS = jnp.arange(ids_BS.shape[1]) < lengths_B[:, None]
    outputs = {}
    for number, direction in enumerate(DIRECTIONS):
        x_BSD = embedded
        vectors = [x_BSD]
        for layer in range(settings.layers):
            lstm = params[f"{layer}_{direction}"]
            out = ops.run_lstm(lstm, x_BSD, is_token_BS, number == 1, settings.clip)
            out = bilstm.drop_out(out, settings.dropout, key, 1 + number + 2 * layer)
            x_BSD = out + x_BSD if layer else out
            vectors.append(x_BSD)
        outputs[direction] = vectors
    return outputs


def compute_vectors(
    params: Params, ids_BS: jax.Array, lengths_B: jax.Array, settings: BiLM
) -> jax.Array:
    """Concatenate the vectors of both directions: float32[B,S,K,2D]; the embeddings come twice."""
    outputs = run_layers(params, ids_BS, lengths_B, settings)
    pairs = zip(*outputs.values(), strict=True)
    return jnp.stack([jnp.concatenate(pair, axis=-1) for pair in pairs], axis=2)


def sum_losses(
    params: Params, batch: Batch, settings: BiLM, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sum the next-token losses of each direction, float32[2], and count the tokens of either.

    Source: Peters et al. 2018, section 3.1.
    """
    ids_BS, mask_BS = jnp.asarray(batch["input_ids"]), jnp.asarray(batch["input_mask"])
    lengths_B = jnp.sum(mask_BS, axis=1)
    outputs = run_layers(params, ids_BS, lengths_B, settings, key)
    forward, backward = (outputs[direction][-1] for direction in DIRECTIONS)
    # Position t predicts t + 1 from the left; t + 1 predicts t from the right.
    pairs = (forward[:, :-1], ids_BS[:, 1:]), (backward[:, 1:], ids_BS[:, :-1])
    weights_BS = mask_BS[:, 1:].astype(jnp.float32)

    output = {"kernel": params["embeddings"].T, "bias": params["bias"]}
    sums = [bilstm.sum_token_losses(output, x, ids, weights_BS) for x, ids in pairs]
    return jnp.stack(sums), jnp.sum(weights_BS)


def make_rows(store: Store, split: Split, seq_len: int) -> EncodedRows:
    """Cut the documents of a split into rows [CLS] ... [SEP] of at most seq_len tokens."""
    ids = store.special_ids
    return frame_rows(cut_documents(split, seq_len - 2), ids["cls"], ids["sep"])


def build_steps(store: Store, settings: BiLM) -> training.Steps:
    """Build the training steps on the documents of a store."""
    rows, pad_id = make_rows(store, store.train, settings.seq_len), store.special_ids["pad"]
    stream = ExampleStream(rows, settings.seed, settings.batch_size, pad_id)

    def mean_loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        """Compute the mean token loss of both directions."""
        sums, count = sum_losses(params, batch, settings, key)
        return jnp.sum(sums) / (2 * count)

    def make_batch(step: int) -> Batch:
        (index_B,) = stream.examples_of_steps(step, step + 1)
        return rows.batch(index_B, settings.seq_len, pad_id)

    params = init_params(settings, store.vocab_size)
    return training.build_steps(params, mean_loss, make_batch, settings)


def train(folder: pathlib.Path, store: Store, settings: BiLM, screen: Screen) -> None:
    """Train on the documents of a store in a claimed folder, and write summary.json."""
    (params, _), secs = training.run_steps(folder, build_steps(store, settings), screen)
    with screen.spinning("held-out text"):
        losses = _score_heldout(store, params, settings)
    tokens = settings.steps * settings.batch_size * settings.seq_len
    training.write_summary(folder, BILM, settings, settings.steps, secs, tokens=tokens, **losses)


_score_batch = jax.jit(sum_losses, static_argnums=2)


def _score_heldout(store: Store, params: Params, settings: BiLM) -> dict[str, float | None]:
    """Compute the mean held-out loss per token, and per direction; None without text."""
    rows = make_rows(store, store.heldout, settings.seq_len).first(_MAX_HELDOUT_ROWS)

    def sum_rows(index_B: np.ndarray) -> tuple[jax.Array, jax.Array]:
        fields = rows.batch(index_B, settings.seq_len, store.special_ids["pad"])
        return _score_batch(params, fields, settings)

    names = ("heldout_loss", *(f"heldout_{direction}_loss" for direction in DIRECTIONS))
    pair = training.average_losses(sum_rows, np.arange(rows.examples), settings.batch_size)
    values = [None] * 3 if pair is None else [float(pair.mean()), *pair.tolist()]
    return dict(zip(names, values, strict=True))
