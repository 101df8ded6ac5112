"""Predict tokens from two neighbors by n-gram counts: a reference for the loss of an encoder.

With neighbors a and b of a token t, the model is a mixture (Jelinek and Mercer 1980) of four
estimates of p(t): given a and b, given a, given b, and the unigram frequency. The weights of the
mixture depend on how often (a, b), a and b occur (Bahl, Jelinek and Mercer 1983). They are fitted
by expectation maximization (Chen and Goodman 1998, section 2.3) on documents of the training split
that are left out of the counts.

One pass over the text counts only the n-grams that the predictions need, so memory grows with the
number of predictions, and by 24 bytes for each document.

Dimensions: N predictions, U distinct keys, C cells (buckets of counts) with weights of their own,
K = 4 estimates, T tokens of a block, D units (documents or parts of documents), V vocabulary.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np

from data_pipeline.io.atomic import keep_json
from data_pipeline.io.small_files import Count, read_record
from data_pipeline.store.reader import Split

BOTH_SIDES, LEFT_SIDE = (-1, 1), (-2, -1)  # positions of a and b relative to t

_VERSION = 1  # raise it when the same store and predictions give another loss
_MAX_TOKENS = 1 << 28  # a larger split is counted in a sample of blocks spread over it
_BLOCK_TOKENS = 1 << 22
# Documents that the weights are fitted on: every 20th, up to about 131,072 tokens in all, and at
# least 16; if there are too few, documents are cut into parts.
_FITTED_SHARE, _FITTED_TOKENS, _FITTED_DOCUMENTS = 20, 1 << 17, 16
_ROUNDS = 20  # rounds of expectation maximization
_PAIR_BUCKETS = 6  # counts of (a, b): 0, 1, 2 to 3, 4 to 7, 8 to 15, more
_SINGLE_BUCKETS = 5  # counts of a or b: 0, 1 to 15, 16 to 255, 256 to 4095, more


class Predictions(NamedTuple):
    """Hold tokens to predict and their two neighbors; a hidden neighbor is the vocabulary size."""

    tokens_N: np.ndarray  # t
    first_N: np.ndarray  # a
    second_N: np.ndarray  # b


@dataclasses.dataclass(frozen=True)
class _KeptLoss:
    """Declare the keys of a sidecar file."""

    loss: Annotated[float, 0.0, 1e9]  # mean, in nats
    predictions: Count


def compute_loss(
    split: Split,
    digest: str,
    predictions: Predictions,
    places: tuple[int, int],
    unigram_V: np.ndarray,
    folder: pathlib.Path,
    advance: Callable[[float], None] = lambda share: None,
) -> float:
    """Compute the mean loss of predictions in nats, or read it from `folder` if stored there.

    digest      of the store
    places      positions of the two neighbors: BOTH_SIDES or LEFT_SIDE
    unigram_V   frequency of each token, float64[V], above 0 for tokens that are predicted
    advance     receives the share of the text counted so far

    The file is named by a digest of all inputs. If it cannot be written, nothing is kept.
    """
    path = folder / f"{_digest_inputs(split, digest, predictions, places)}.json"
    is_inside = not folder.is_symlink()  # a link may point outside the store
    with contextlib.suppress(OSError, ValueError):  # it is missing or damaged
        if is_inside:
            return read_record(path, _KeptLoss, folder).loss
    probs_N = estimate_probs(split, predictions, places, unigram_V, advance)
    loss = -float(np.log(probs_N).mean())
    if is_inside:
        keep_json(path, dataclasses.asdict(_KeptLoss(loss, len(probs_N))))
    return loss


def _digest_inputs(
    split: Split, digest: str, predictions: Predictions, places: tuple[int, int]
) -> str:
    depends_on = [_VERSION, digest, split.name, split.tokens, places]
    hashed = hashlib.sha256(json.dumps(depends_on).encode())
    for tokens_N in predictions:
        hashed.update(np.ascontiguousarray(tokens_N, "<i8").tobytes())
    return hashed.hexdigest()


def estimate_probs(
    split: Split,
    predictions: Predictions,
    places: tuple[int, int],
    unigram_V: np.ndarray,
    advance: Callable[[float], None] = lambda share: None,
) -> np.ndarray:
    """Estimate the probability of each token given its neighbors: float64[N]."""
    text = _cut_units(split, places, unigram_V)
    fitted = _select_fitted(text)
    count = len(predictions.tokens_N)
    # The weights are fitted with both neighbors visible and with either hidden, as in masked rows.
    hidden_N = np.full(len(fitted.tokens_N), text.hidden)
    parts = [
        predictions,
        fitted,
        fitted._replace(first_N=hidden_N),
        fitted._replace(second_N=hidden_N),
    ]
    columns = zip(*parts, strict=True)
    every = Predictions(*(np.concatenate(column).astype(np.int64) for column in columns))
    probs_NK, cell_N = _estimate_each(text, every, advance)
    weights_CK = _fit_weights(probs_NK[count:], cell_N[count:])
    return np.einsum("nk,nk->n", weights_CK[cell_N[:count]], probs_NK[:count])


@dataclasses.dataclass(frozen=True)
class _CountedText:
    """Hold a split cut into units (documents or parts), and the places of two neighbors.

    Every `distance`-th unit is left out of the counts; the weights are fitted on these units.
    """

    split: Split
    places: tuple[int, int]
    unigram_V: np.ndarray  # float64
    starts_D: np.ndarray  # int64, first token of each unit
    distance: int

    @property
    def hidden(self) -> int:
        """Return the id that stands for a hidden neighbor: the vocabulary size."""
        return len(self.unigram_V)

    def number_tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the number of each token's unit in a range: int64[stop - start]."""
        first, last = np.searchsorted(self.starts_D, [start, stop - 1], side="right") - 1
        bounds_D = np.append(self.starts_D[first + 1 : last + 1], stop)
        return np.repeat(np.arange(first, last + 1), np.diff(bounds_D, prepend=start))


def _cut_units(split: Split, places: tuple[int, int], unigram_V: np.ndarray) -> _CountedText:
    starts_D = np.unique(split.sentence_offsets[split.document_offsets[:-1]])
    starts_D = starts_D[starts_D < split.tokens].astype(np.int64)
    distance = max(_FITTED_SHARE, -(-split.tokens // _FITTED_TOKENS))
    least = distance * _FITTED_DOCUMENTS
    if len(starts_D) < least:
        cuts = np.linspace(0, split.tokens, least, endpoint=False).astype(np.int64)
        starts_D = np.union1d(starts_D, cuts)
    return _CountedText(split, places, unigram_V, starts_D, distance)


def _select_fitted(text: _CountedText) -> Predictions:
    """Select the tokens of the units for fitting the weights, with their neighbors."""
    first = text.distance // 2
    starts = text.starts_D[first :: text.distance]
    stops = np.append(text.starts_D[first + 1 :: text.distance], text.split.tokens)
    parts = [
        _find_neighbors(text, text.split.token_ids[start:stop], np.zeros(stop - start))
        for start, stop in zip(starts, stops, strict=False)  # one stop too many at most
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not parts:
        columns = [np.zeros(0, np.int64)] * 3
    is_used_N = text.unigram_V[columns[0]] > 0
    step = -(-np.count_nonzero(is_used_N) // (2 * _FITTED_TOKENS)) or 1
    return Predictions(*(column[is_used_N][::step] for column in columns))


def _find_neighbors(text: _CountedText, ids_T: np.ndarray, units_T: np.ndarray) -> Predictions:
    """Return tokens and their two neighbors; a neighbor in another unit gets the id `hidden`."""
    ids_T = ids_T.astype(np.int64)
    columns = [ids_T]
    for place in text.places:
        other_T = np.full(len(ids_T), text.hidden, np.int64)
        near = slice(max(0, -place), len(ids_T) - max(0, place))
        far = slice(max(0, place), len(ids_T) + min(0, place))
        is_same_T = units_T[near] == units_T[far]
        other_T[near] = np.where(is_same_T, ids_T[far], text.hidden)
        columns.append(other_T)
    return Predictions(*columns)


def _estimate_each(
    text: _CountedText, every: Predictions, advance: Callable[[float], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the four estimates of each prediction, float64[N,K], and its cell, int64[N].

    The module's docstring lists the estimates in their order.
    """
    vocab_size = text.hidden
    keyed = [np.unique(keys_N, return_inverse=True) for keys_N in _make_keys(every, vocab_size)]
    counts = [np.zeros(len(keys_U), np.int64) for keys_U, _ in keyed]
    first_V, second_V = (np.zeros(vocab_size + 1, np.int64) for _ in text.places)
    for share, block in _read_blocks(text):
        first_V += np.bincount(block.first_N, minlength=vocab_size + 1)
        second_V += np.bincount(block.second_N, minlength=vocab_size + 1)
        block_keys = _make_keys(block, vocab_size)
        for counts_U, (keys_U, _), keys_T in zip(counts, keyed, block_keys, strict=True):
            keys_T.sort()
            counts_U += np.searchsorted(keys_T, keys_U, side="right")
            counts_U -= np.searchsorted(keys_T, keys_U, side="left")
        advance(share)
    pair_N, *with_token = (
        counts_U[inverse_N] for counts_U, (_, inverse_N) in zip(counts, keyed, strict=True)
    )
    is_pair_N = (every.first_N < vocab_size) & (every.second_N < vocab_size)
    first_V[vocab_size] = second_V[vocab_size] = 0  # hidden neighbors are not counted
    contexts = [np.where(is_pair_N, pair_N, 0), first_V[every.first_N], second_V[every.second_N]]
    probs = [
        np.where(context_N > 0, token_N / np.maximum(context_N, 1), 0.0)
        for context_N, token_N in zip(contexts, with_token, strict=True)
    ]
    probs_NK = np.stack([*probs, text.unigram_V[every.tokens_N]], axis=1)
    cell_N = np.minimum(_count_bits(contexts[0]), _PAIR_BUCKETS - 1)
    for context_N in contexts[1:]:
        bucket_N = np.minimum((_count_bits(context_N) + 3) // 4, _SINGLE_BUCKETS - 1)
        cell_N = cell_N * _SINGLE_BUCKETS + bucket_N
    return probs_NK, cell_N


def _make_keys(predictions: Predictions, vocab_size: int) -> list[np.ndarray]:
    """Make a key for (a, b), for (a, b, t), for (a, t) and for (b, t): uint64[N] each.

    With more than 2.6 million tokens in the vocabulary the numbers wrap around; collisions are then
    as unlikely as for a hash.
    """
    size = np.uint64(vocab_size + 1)
    tokens_N, first_N, second_N = (values_N.astype(np.uint64) for values_N in predictions)
    pair_N = first_N * size + second_N
    with_second_N = second_N * size + tokens_N
    return [pair_N, pair_N * size + tokens_N, first_N * size + tokens_N, with_second_N]


def _read_blocks(text: _CountedText) -> Iterator[tuple[float, Predictions]]:
    """Yield the share of the text read so far, and the tokens of a block to count."""
    split, margin = text.split, max(map(abs, text.places))
    starts = range(0, split.tokens, _BLOCK_TOKENS)
    starts = starts[:: -(-split.tokens // _MAX_TOKENS) or 1]
    for number, start in enumerate(starts):
        stop = min(start + _BLOCK_TOKENS, split.tokens)
        low, high = max(0, start - margin), min(stop + margin, split.tokens)
        units_T = text.number_tokens(low, high)
        columns = _find_neighbors(text, split.token_ids[low:high], units_T)
        is_counted_T = units_T % text.distance != text.distance // 2
        is_counted_T[: start - low] = False
        is_counted_T[stop - low :] = False
        yield (number + 1) / len(starts), Predictions(*(each[is_counted_T] for each in columns))


def _count_bits(counts_N: np.ndarray) -> np.ndarray:
    """Return 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7: int64[N] -> int64[N]."""
    return np.frexp(counts_N.astype(np.float64))[1].astype(np.int64)


def _fit_weights(probs_NK: np.ndarray, cell_N: np.ndarray) -> np.ndarray:
    """Fit the weights of the estimates in each cell, which add up to 1: float64[C,K].

    An estimate whose neighbors were never counted has weight 0. The prior counts as one prediction
    for each other estimate, so a cell without predictions has equal weights.

    Source: Chen and Goodman 1998, section 2.3.
    """
    cells_C = np.arange(_PAIR_BUCKETS * _SINGLE_BUCKETS**2)
    bucket_C = cells_C // _SINGLE_BUCKETS**2, cells_C // _SINGLE_BUCKETS % _SINGLE_BUCKETS
    counted = [bucket_C[0] > 0, bucket_C[1] > 0, cells_C % _SINGLE_BUCKETS > 0, cells_C >= 0]
    prior_CK = np.stack(counted, axis=1).astype(np.float64)
    weights_CK = prior_CK / prior_CK.sum(axis=1, keepdims=True)
    for _ in range(_ROUNDS):
        parts_NK = weights_CK[cell_N] * probs_NK
        parts_NK /= parts_NK.sum(axis=1, keepdims=True)
        sums = [np.bincount(cell_N, part_N, minlength=len(cells_C)) for part_N in parts_NK.T]
        weights_CK = prior_CK + np.stack(sums, axis=1)
        weights_CK /= weights_CK.sum(axis=1, keepdims=True)
    return weights_CK
