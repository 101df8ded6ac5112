"""Learn a vector for each token by skip-gram with negative sampling.

A step reads some rows of text. Frequent tokens are subsampled, each remaining token is paired with
the tokens in a window of random width around it, and the pairs are cut into small batches. The
gradients of a batch are summed and applied before the next batch.

Dimensions: P pairs of a batch, N batches of a step, K negatives + 1, D width, V vocabulary, T
tokens.
Source: Mikolov et al. 2013b, equations 3 to 5; word2vec.c for what the paper leaves open.
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.inference import vector_files
from bert_jax.inference.hidden_states import Group, Layers
from bert_jax.lab.baselines import training
from bert_jax.lab.baselines.settings import SKIPGRAM, SkipGram
from bert_jax.lab.baselines.training import cut_documents
from bert_jax.logging.console import Screen
from data_pipeline.io.atomic import new_file
from data_pipeline.labeled.rows import EncodedRows, ExampleStream, make_plain_rows
from data_pipeline.store import Store
from data_pipeline.vocab import Vocabulary

VECTORS = "vectors.npz"
_MAX_ROW = 1000  # tokens; MAX_SENTENCE_LENGTH of word2vec.c
_ROWS = 16  # rows of a step
_PAIRS = 256  # pairs of a batch
_BATCHES = 32  # the batches of a step are padded to a multiple, so that few shapes are compiled
_POWER = 0.75  # negatives are drawn by count ** _POWER
_MIN_RATE = 1e-4  # share of learning_rate at which the decay ends; word2vec.c
_MAX_HELDOUT_TOKENS = 100_000

# float32[V,D] twice: vectors of tokens, and of tokens as contexts
Tables = tuple[jax.Array, jax.Array]
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # make_pairs returns them


def compute_keep_shares(counts_V: np.ndarray, subsample: float) -> np.ndarray:
    """Compute the share of each token's occurrences that subsampling keeps: float64[V].

    Source: word2vec.c; equation 5 of the paper has only the first of the two terms.
    """
    ratio_V = subsample * counts_V.sum() / np.maximum(counts_V, 1)
    return np.minimum(np.sqrt(ratio_V) + ratio_V, 1.0)


def make_pairs(
    rows: EncodedRows, index_B: np.ndarray, window: int, keep_V: np.ndarray, seeds: tuple[int, ...]
) -> Pairs:
    """Pair the kept tokens of some rows with their neighbors, in random order, in batches.

    Shapes: centers int32[N,P], their contexts int32[N,P], weights float32[N,P]: 0 is padding.

    Dropped tokens do not count in the distance, as in word2vec.c.
    """
    rng = np.random.default_rng(seeds)
    parts = [rows.token_ids[slice(*rows.offsets[row : row + 2])] for row in index_B]
    ids_T = np.concatenate(parts)
    row_T = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    is_kept_T = rng.random(len(ids_T)) < keep_V[ids_T]
    ids_T, row_T = ids_T[is_kept_T], row_T[is_kept_T]
    reach_T = rng.integers(1, window + 1, len(ids_T))
    sides = [np.empty((2, 0), np.int32)]
    for distance in range(1, min(window, max(len(ids_T) - 1, 0)) + 1):
        is_one_row = row_T[distance:] == row_T[:-distance]
        for center, context in (
            (slice(distance, None), slice(None, -distance)),
            (slice(None, -distance), slice(distance, None)),
        ):
            is_near = is_one_row & (reach_T[center] >= distance)
            sides.append(np.stack([ids_T[center][is_near], ids_T[context][is_near]]))
    pairs = np.concatenate(sides, axis=1)
    count = pairs.shape[1]
    batches = max(1, -(-count // (_PAIRS * _BATCHES))) * _BATCHES
    places = batches * _PAIRS
    padded = np.pad(pairs[:, rng.permutation(count)], [(0, 0), (0, places - count)])
    weights = (np.arange(places) < count).astype(np.float32)
    centers_NP, contexts_NP = padded.reshape(2, batches, _PAIRS)
    return centers_NP, contexts_NP, weights.reshape(batches, _PAIRS)


def sum_losses(v_PD: jax.Array, u_PKD: jax.Array, weights_PK: jax.Array) -> jax.Array:
    """Sum -log s(u v) over the contexts, at k = 0, and -log s(-u v) over the negatives, at k > 0.

    Source: Mikolov et al. 2013b, equation 4.
    """
    sign_K = jnp.where(jnp.arange(u_PKD.shape[1]) == 0, 1.0, -1.0)
    score_PK = jnp.einsum("pd,pkd->pk", v_PD, u_PKD)
    return -jnp.sum(jax.nn.log_sigmoid(sign_K * score_PK) * weights_PK)


def draw_targets(
    key: jax.Array, cumulative_V: jax.Array, contexts_P: jax.Array, negatives: int
) -> tuple[jax.Array, jax.Array]:
    """Draw negatives for each context: tokens int32[P,K], context first, and weights float32[P,K].

    A negative that equals its context has weight 0, as in word2vec.c.
    """
    draws = jax.random.uniform(key, (len(contexts_P), negatives))
    drawn = jnp.searchsorted(cumulative_V, draws * cumulative_V[-1], side="right")
    drawn = jnp.minimum(drawn, len(cumulative_V) - 1).astype(jnp.int32)
    is_other = (drawn != contexts_P[:, None]).astype(jnp.float32)
    targets_PK = jnp.concatenate([contexts_P[:, None], drawn], axis=1)
    return targets_PK, jnp.pad(is_other, [(0, 0), (1, 0)], constant_values=1.0)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=4)
def update(
    tables: Tables,
    pairs: Pairs,
    cumulative_V: jax.Array,
    key_and_rate: tuple[jax.Array, jax.Array],
    negatives: int,
) -> tuple[Tables, jax.Array]:
    """Take a step of SGD for each batch; return the tables and the mean loss of a pair."""
    (centers_NP, contexts_NP, weights_NP), (key, rate) = pairs, key_and_rate

    def descend(tables: Tables, batch: Any) -> tuple[Tables, jax.Array]:
        centers_P, contexts_P, weights_P, number = batch
        targets_PK, weights_PK = draw_targets(
            jax.random.fold_in(key, number), cumulative_V, contexts_P, negatives
        )
        weights_PK = weights_PK * weights_P[:, None]
        rows = tables[0][centers_P], tables[1][targets_PK]
        loss, (v_PD, u_PKD) = jax.value_and_grad(sum_losses, (0, 1))(*rows, weights_PK)
        vectors = tables[0].at[centers_P].add(-rate * v_PD)
        return (vectors, tables[1].at[targets_PK].add(-rate * u_PKD)), loss

    numbers = jnp.arange(len(centers_NP))
    tables, losses = jax.lax.scan(descend, tables, (centers_NP, contexts_NP, weights_NP, numbers))
    return tables, jnp.sum(losses) / jnp.maximum(jnp.sum(weights_NP), 1.0)


def init_tables(settings: SkipGram, vocab_size: int) -> Tables:
    """Initialize vectors uniformly within 0.5 / D and contexts with 0, as word2vec.c does."""
    dims = (vocab_size, settings.width)
    draws = jax.random.uniform(jax.random.key(settings.seed), dims, minval=-0.5, maxval=0.5)
    return draws / settings.width, jnp.zeros(dims)


def read_table(address: str) -> tuple[np.ndarray, Vocabulary]:
    """Read the vectors of a finished skip-gram, float32[V,D], and their vocabulary.

    Raises:
      Refused: the folder holds something else.
    """
    folder, settings, vocabulary = training.read_baseline(address, SKIPGRAM)
    like = init_tables(settings, vocabulary.size)
    return np.asarray(training.read_state(folder, like)[0]), vocabulary


def build_steps(store: Store, settings: SkipGram) -> training.Steps:
    """Build the training steps on the documents of a store."""
    keep_V = compute_keep_shares(np.asarray(store.train.token_counts), settings.subsample)
    cumulative_V = _accumulate_counts(store)
    rows = cut_documents(store.train, _MAX_ROW)
    stream = ExampleStream(rows, settings.seed, _ROWS, 0)
    steps = max(1, round(settings.epochs * rows.examples / _ROWS))
    # The initial tables use the key of the seed itself.
    key = jax.random.fold_in(jax.random.key(settings.seed), 2)

    def advance(tables: Tables, step: int) -> tuple[Tables, jax.Array]:
        (index_B,) = stream.examples_of_steps(step, step + 1)
        pairs = make_pairs(rows, index_B, settings.window, keep_V, (settings.seed, step))
        rate = settings.learning_rate * max(1 - step / steps, _MIN_RATE)
        key_and_rate = jax.random.fold_in(key, step), jnp.float32(rate)
        return update(tables, pairs, cumulative_V, key_and_rate, settings.negatives)

    return training.Steps(init_tables(settings, store.vocab_size), steps, advance)


def _accumulate_counts(store: Store) -> jax.Array:
    """Return the cumulative shares by which negatives are drawn: float32[V]."""
    powers_V = np.asarray(store.train.token_counts) ** _POWER
    return jnp.asarray(np.cumsum(powers_V) / np.sum(powers_V), jnp.float32)


def train(folder: pathlib.Path, store: Store, settings: SkipGram, screen: Screen) -> None:
    """Train in a claimed folder, and write vectors.npz and summary.json."""
    steps = build_steps(store, settings)
    tables, secs = training.run_steps(folder, steps, screen)
    _write_vectors(folder, store, np.asarray(tables[0]))
    numbers = {
        "tokens": round(settings.epochs * store.train.tokens),
        "heldout_loss": _score_heldout(store, tables, settings),
        "heldout_loss_untrained": float(np.log(2) * (1 + settings.negatives)),
    }
    training.write_summary(folder, SKIPGRAM, settings, steps.count, secs, **numbers)


def _score_heldout(store: Store, tables: Tables, settings: SkipGram) -> float | None:
    """Compute the mean loss of a held-out pair without subsampling; None without held-out text."""
    rows = cut_documents(store.heldout, _MAX_ROW)
    index_B = np.arange(np.searchsorted(rows.offsets[1:], _MAX_HELDOUT_TOKENS, side="right"))
    if not len(index_B):
        return None
    # The pairs and negatives are the same for every seed.
    pairs = make_pairs(rows, index_B, settings.window, np.ones(store.vocab_size), (0, 0, 0))
    key_and_rate = jax.random.key(1), jnp.float32(0.0)
    copies = jax.tree.map(jnp.array, tables)
    shares_V = _accumulate_counts(store)
    _, loss = update(copies, pairs, shares_V, key_and_rate, settings.negatives)
    return float(loss)


def _write_vectors(folder: pathlib.Path, store: Store, vectors_VD: np.ndarray) -> None:
    """Write vectors.npz in the format of `features`: line i is the token of id i."""
    size = len(vectors_VD)
    rows = make_plain_rows(np.arange(size, dtype=np.int32), np.arange(size + 1))
    pieces = store.load_vocabulary().pieces()
    (folder / VECTORS).unlink(missing_ok=True)  # left by a command that was killed after writing it
    with (
        new_file(folder / VECTORS) as path,
        vector_files.open_writer(
            path, vector_files.NPZ, pieces, Layers((0,), is_single=True), is_pooled=False
        ) as write,
    ):
        write(Group(0, rows, vectors_VD))
