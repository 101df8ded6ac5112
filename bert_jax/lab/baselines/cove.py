"""Train CoVe: a BiLSTM that encodes texts so that an attentional LSTM can translate them.

The encoder reads static vectors, which stay as they are. For a task, the vectors of a token are its
static vector and the output of the encoder's last layer.

Dimensions: B pairs, S tokens of the source, T of the target, W pieces of the source's vocabulary,
V of the target's, D width of a static vector, U cells, E = 2U width of the encoder's output.
Source: McCann et al. 2017, sections 3 and 4.
"""

import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.lab.baselines import bilstm, skipgram, training
from bert_jax.lab.baselines.settings import COVE, CoVe
from bert_jax.logging.console import Screen
from bert_jax.model import ops
from bert_jax.tasks.files import split_rows
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import (
    EncodedRows,
    ExampleStream,
    choose_seq_len,
    make_plain_rows,
)
from data_pipeline.store import Store

_HELDOUT_EVERY = 20  # one in this many pairs is held out, by a hash of its source
_SHOWN_CHARACTERS = 60
_HOW_A_ROW_IS = "a row is a text, one tab and its translation"
_DECODER_LAYERS = 2
_POOLED_STEPS = 16  # steps whose pairs are sorted by length together, to save padding

Params = dict[str, Any]
Batch = Mapping[str, np.ndarray | jax.Array]


@dataclasses.dataclass(frozen=True)
class AlignedTexts:
    """Hold aligned texts as rows [CLS] ... [SEP]: row i of the target translates the source's."""

    sides: tuple[EncodedRows, EncodedRows]  # source and target, every pair of the file
    pad_ids: tuple[int, int]
    trained_N: np.ndarray  # int64: numbers of the pairs to train on
    heldout_N: np.ndarray  # int64
    static_WD: np.ndarray  # float32
    vocab_size: int  # V

    @functools.cached_property
    def lengths_N(self) -> np.ndarray:
        """Return the tokens of the longer side of each pair: int64[N]."""
        return np.maximum(*(rows.lengths_N for rows in self.sides))

    def describe(self) -> dict[str, Any]:
        """Describe what a training reads, for its record."""
        return {
            "pairs": training.digest_arrays(
                [(rows.token_ids, rows.offsets) for rows in self.sides]
            ),
            "static": training.digest_arrays(self.static_WD),
            "static_width": self.static_WD.shape[1],
            "target_pieces": self.vocab_size,
        }

    def batch(self, index_B: np.ndarray) -> Batch:
        """Make a batch of pairs, padded; -1 is a pair without weight."""
        fields: dict[str, np.ndarray] = {}
        # One length for both sides, as every combination of two is compiled.
        seq_len = choose_seq_len(int(self.lengths_N[index_B[index_B >= 0]].max()))
        for name, rows, pad_id in zip(("source", "target"), self.sides, self.pad_ids, strict=True):
            made = rows.batch(index_B, seq_len, pad_id)
            fields |= {f"{name}_ids": made["input_ids"], f"{name}_mask": made["input_mask"]}
        return fields


def read_pairs(path: pathlib.Path) -> list[tuple[str, str]]:
    """Read the lines SOURCE<tab>TARGET of a file; blank ones are skipped.

    Raises:
      Refused: a line is not UTF-8, has no tab or several, or nothing on a side; there is no line.
    """
    pairs = []
    for number, fields in split_rows(path):
        texts = [field.strip() for field in fields]
        if len(texts) != 2 or not all(texts):
            start = "\t".join(fields)[:_SHOWN_CHARACTERS]
            raise Refused(f"{path} row {number} begins {start!r}; {_HOW_A_ROW_IS}")
        pairs.append((texts[0], texts[1]))
    if not pairs:
        raise Refused(f"{path} holds no text; {_HOW_A_ROW_IS}")
    return pairs


def open_texts(
    path: pathlib.Path, stores: tuple[Store, Store], skipgram_folder: str, seq_len: int
) -> AlignedTexts:
    """Read aligned texts and the source's static vectors, encode the texts, and hold out some.

    Raises:
      Refused: read_pairs refuses the file, no pair is left to train on, or the skip-gram has
        another vocabulary than the source's store.
    """
    static_WD, vocabulary = skipgram.read_table(skipgram_folder)
    vocabularies = [store.load_vocabulary() for store in stores]
    if vocabulary.digest != vocabularies[0].digest:
        raise Refused(
            f"--from is {skipgram_folder}, whose vocabulary differs from the one of --store, "
            f"{stores[0].directory}; train the skip-gram on this store"
        )
    pairs, sides = read_pairs(path), []
    for side, vocabulary in enumerate(vocabularies):
        ids, lengths_N = vocabulary.encode([pair[side] for pair in pairs])
        rows = make_plain_rows(ids.astype(np.int32), np.append(0, lengths_N.cumsum()))
        special_ids = vocabulary.special_ids
        sides.append(training.frame_rows(rows, special_ids["cls"], special_ids["sep"]))
    lengths = np.array([rows.lengths_N for rows in sides])
    is_kept_N = (lengths.min(axis=0) > 2) & (lengths.max(axis=0) <= seq_len)
    hashes_N = np.array([zlib.crc32(source.encode()) for source, _ in pairs])
    is_heldout_N = hashes_N % _HELDOUT_EVERY == 0
    trained_N = np.flatnonzero(is_kept_N & ~is_heldout_N)
    if not len(trained_N):
        raise Refused(
            f"{path} has {len(pairs):,} pairs, and none of at most {seq_len} tokens to train on; "
            "give more pairs, or a larger --seq_len"
        )
    return AlignedTexts(
        (sides[0], sides[1]),
        (vocabularies[0].special_ids["pad"], vocabularies[1].special_ids["pad"]),
        trained_N,
        np.flatnonzero(is_kept_N & is_heldout_N),
        static_WD,
        vocabularies[1].size,
    )


def init_params(settings: CoVe, static_WD: np.ndarray, vocab_size: int) -> Params:
    """Initialize parameters: kernels uniformly within 1 / sqrt(U), embeddings from a normal."""
    units = settings.units
    keys = jax.random.split(jax.random.key(settings.seed), 5 + _DECODER_LAYERS)

    def init_layer(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
        kernel = bilstm.draw_uniform(key, units, inputs, outputs)
        return {"kernel": kernel, "bias": jnp.zeros(outputs)}

    return {
        "static": jnp.array(static_WD),
        "encoder": bilstm.init_encoder(keys[0], static_WD.shape[1], units),
        "embeddings": jax.random.normal(keys[1], (vocab_size, units)),
        "query": init_layer(keys[2], units, 2 * units),  # W_1 and b_1
        "context": init_layer(keys[3], 3 * units, units),  # W_2 and b_2
        "output": init_layer(keys[4], units, vocab_size),
        "decoder": [
            bilstm.init_lstm(key, units if number else 2 * units, units)
            for number, key in enumerate(keys[5:])
        ],
    }


def encode(
    params: Params,
    ids_BS: jax.Array,
    lengths_B: jax.Array,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Compute the encoder's last layer, float32[B,S,E]; undefined past a row's length.

    The static vectors have no gradient. They are divided by the root mean square of their table:
    skip-gram vectors of little text are small, and learn nothing at the same learning rate.
    """
    static_WD = jax.lax.stop_gradient(params["static"])
    x_BSD = static_WD[ids_BS] / jnp.sqrt(jnp.mean(jnp.square(static_WD)))
    return bilstm.run_encoder(params["encoder"], x_BSD, lengths_B, dropout, key)


def compute_vectors(params: Params, ids_BS: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """Concatenate the static vector of each token and its context vector: float32[B,S,1,D+E].

    Source: McCann et al. 2017, section 4.
    """
    vectors = params["static"][ids_BS], encode(params, ids_BS, lengths_B)
    return jnp.concatenate(vectors, axis=-1)[:, :, None]


def decode(
    params: Params,
    states_BSE: jax.Array,
    is_token_BS: jax.Array,
    ids_BT: jax.Array,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Compute the context-adjusted state after each token of the target: float32[B,T,U].

    The first state of the LSTMs and of the input feeding is 0; the paper gives none.

    Source: McCann et al. 2017, section 3; Luong et al. 2015, sections 3.1 and 3.3.
    """
    embedded_BTU = params["embeddings"][ids_BT]
    zeros_BU = jnp.zeros_like(embedded_BTU[:, 0])

    def read_token(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        lstm_states, adjusted_BU = carry
        z_BU, number = inputs
        step_key = None if key is None else jax.random.fold_in(key, number)
        x = bilstm.drop_out(jnp.concatenate([z_BU, adjusted_BU], axis=-1), dropout, step_key, 0)
        new_states = []
        for layer, (lstm, (h_BU, c_BU)) in enumerate(
            zip(params["decoder"], lstm_states, strict=True), 1
        ):
            gates_BG = x @ lstm["input"] + h_BU @ lstm["recurrent"] + lstm["bias"]
            new_states.append(ops.update_cell(gates_BG, c_BU))
            x = bilstm.drop_out(new_states[-1][0], dropout, step_key, layer)
        query_BE = x @ params["query"]["kernel"] + params["query"]["bias"]
        scores_BS = jnp.einsum("bse,be->bs", states_BSE, query_BE)
        shares_BS = jax.nn.softmax(jnp.where(is_token_BS, scores_BS, -jnp.inf))
        context_BE = jnp.einsum("bs,bse->be", shares_BS, states_BSE)
        joined = jnp.concatenate([context_BE, x], axis=-1)
        adjusted_BU = jnp.tanh(joined @ params["context"]["kernel"] + params["context"]["bias"])
        return (new_states, adjusted_BU), adjusted_BU

    start = [(zeros_BU, zeros_BU) for _ in params["decoder"]], zeros_BU
    z_TBU = jnp.swapaxes(embedded_BTU, 0, 1)
    _, adjusted_TBU = jax.lax.scan(read_token, start, (z_TBU, jnp.arange(len(z_TBU))))
    return jnp.swapaxes(adjusted_TBU, 0, 1)


def sum_losses(
    params: Params, settings: CoVe, batch: Batch, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sum the losses of the targets' tokens, each given those before it, and count the tokens."""
    arrays = {name: jnp.asarray(array) for name, array in batch.items()}
    mask_BS, ids_BT = arrays["source_mask"], arrays["target_ids"]
    keys = (None, None) if key is None else jax.random.split(key)
    lengths_B, rate = jnp.sum(mask_BS, axis=1), settings.dropout
    states_BSE = encode(params, arrays["source_ids"], lengths_B, rate, keys[0])
    adjusted_BTU = decode(params, states_BSE, mask_BS > 0, ids_BT[:, :-1], rate, keys[1])
    weights_BT = arrays["target_mask"][:, 1:].astype(jnp.float32)
    total = bilstm.sum_token_losses(params["output"], adjusted_BTU, ids_BT[:, 1:], weights_BT)
    return total, jnp.sum(weights_BT)


_score_batch = jax.jit(sum_losses, static_argnums=1)


def build_steps(texts: AlignedTexts, settings: CoVe) -> training.Steps:
    """Build the training steps on aligned texts."""
    # The stream only counts its rows.
    count = len(texts.trained_N)
    stream = ExampleStream(texts.sides[0].first(count), settings.seed, settings.batch_size, 0)

    def mean_loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        total, tokens = sum_losses(params, settings, batch, key)
        return total / tokens

    def make_batch(step: int) -> Batch:
        first = step - step % _POOLED_STEPS
        places = stream.examples_of_steps(first, first + _POOLED_STEPS)
        pool = texts.trained_N[places.ravel()]
        pool = pool[np.argsort(texts.lengths_N[pool], kind="stable")].reshape(_POOLED_STEPS, -1)
        order = np.random.default_rng((settings.seed, first)).permutation(_POOLED_STEPS)
        return texts.batch(pool[order[step - first]])

    params = init_params(settings, texts.static_WD, texts.vocab_size)
    return training.build_steps(params, mean_loss, make_batch, settings)


def train(folder: pathlib.Path, texts: AlignedTexts, settings: CoVe, screen: Screen) -> None:
    """Train on aligned texts in a claimed folder, and write summary.json."""
    (params, _), secs = training.run_steps(folder, build_steps(texts, settings), screen)
    with screen.spinning("held-out pairs"):
        loss = score_heldout(texts, params, settings)
    trained, heldout = len(texts.trained_N), len(texts.heldout_N)
    numbers = {"pairs": trained, "heldout_pairs": heldout, "heldout_loss": loss}
    numbers["left_out_pairs"] = len(texts.lengths_N) - trained - heldout
    training.write_summary(folder, COVE, settings, settings.steps, secs, **numbers)


def score_heldout(texts: AlignedTexts, params: Params, settings: CoVe) -> float | None:
    """Compute the mean loss of a token of the held-out pairs' targets; None without any."""
    loss = training.average_losses(
        lambda index_B: _score_batch(params, settings, texts.batch(index_B)),
        texts.heldout_N,
        settings.batch_size,
    )
    return None if loss is None else float(loss)
