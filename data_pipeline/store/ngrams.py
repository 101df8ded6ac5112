"""Compute how well the two tokens beside a token predict it, by counts in a split of a store.

The loss of this model is a reference for that of an encoder, which sees the tokens beside it too.
With a and b the tokens at two places beside a token t, the model is a mixture (Jelinek and Mercer
1980) of four estimates: counts of t between a and b, beside a, beside b, and how often t occurs.
The weights depend on how often a and b, a, and b were counted (Bahl, Jelinek and Mercer 1983). They
are fitted by expectation maximization (Chen and Goodman 1998, section 2.3) on documents of the
training split that are left out of the counts.

Only the tokens and neighbors of the predictions are counted, in one pass, so that memory is bounded
by their number and not by that of the text, and the counts are exact.

Dimensions: N predictions, U distinct keys, C cells of the weights, K = 4 estimates.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from data_pipeline.io import small_files
from data_pipeline.io.atomic import keep_json
from data_pipeline.store.reader import Split

SIDECAR_FOLDER = "references"
BOTH_SIDES, LEFT_SIDE = (-1, 1), (-2, -1)  # the places of a and b, from that of t

_VERSION = 1  # of the results; raise it when the same store and predictions give another loss
_MOST_TOKENS = 1 << 28  # of a larger split, blocks from start to end are counted
_BLOCK_TOKENS = 1 << 22
# Documents that the weights are fitted on: one of 20, up to about so many tokens, and at least 16,
# for which longer ones are cut.
_FITTED_SHARE, _FITTED_TOKENS, _FITTED_DOCUMENTS = 20, 1 << 17, 16
_ROUNDS = 20  # of expectation maximization
_PAIR_BUCKETS, _SINGLE_BUCKETS = (
    6,
    5,
)  # of counts: 0, 1, 2 and 3, 4 to 7 ..; 0, 1 to 15, 16 to 255 ..


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Hold tokens to predict and the tokens beside them; the size of the vocabulary if hidden."""

    tokens_N: np.ndarray
    first_N: np.ndarray
    second_N: np.ndarray


def compute_loss(
    split: Split,
    digest: str,
    predictions: Predictions,
    places: tuple[int, int],
    unigram_V: np.ndarray,
    folder: pathlib.Path,
    advance: Callable[[float], None] = lambda share: None,
) -> float:
    """Compute the mean nats of predictions, or read them from the folder where they are kept.

    `digest` is of the store, unigram_V the frequency of each token, float64[V], of which those that
    are predicted are above 0. `advance` receives the share of the text counted so far. The file is
    named by a digest of all that the loss depends on; where it cannot be written, the loss is
    computed at each start.
    """
    path = folder / f"{_digest_inputs(split, digest, predictions, places)}.json"
    is_inside = not folder.is_symlink()  # a link may lead out of the store
    loss = _read_loss(path) if is_inside else None
    if loss is None:
        chances_N = estimate_chances(split, predictions, places, unigram_V, advance)
        loss = -float(np.log(chances_N).mean())
        if is_inside:
            keep_json(path, {"loss": loss, "predictions": len(chances_N)})
    return loss


def _digest_inputs(
    split: Split, digest: str, predictions: Predictions, places: tuple[int, int]
) -> str:
    depends_on = [_VERSION, digest, split.name, split.tokens, places]
    hashed = hashlib.sha256(json.dumps(depends_on).encode())
    for tokens_N in (predictions.tokens_N, predictions.first_N, predictions.second_N):
        hashed.update(np.ascontiguousarray(tokens_N, "<i8").tobytes())
    return hashed.hexdigest()


def _read_loss(path: pathlib.Path) -> float | None:
    """Read a loss that was kept; None if it is missing or damaged."""
    try:
        loss = small_files.read_object(path, path.parent).get("loss")
    except (OSError, ValueError):
        return None
    return loss if type(loss) is float and math.isfinite(loss) and loss >= 0 else None


def estimate_chances(
    split: Split,
    predictions: Predictions,
    places: tuple[int, int],
    unigram_V: np.ndarray,
    advance: Callable[[float], None] = lambda share: None,
) -> np.ndarray:
    """Estimate the chance of each token given those beside it: float64[N]; of all V they are 1."""
    vocab_size = len(unigram_V)
    units = _cut_units(split)
    fitted = _select_fitted(split, units, places, unigram_V)
    count = len(predictions.tokens_N)
    # The mixture is fitted with both neighbors, with either alone, and so on all kinds of rows.
    hidden_N = np.full(len(fitted.tokens_N), vocab_size)
    parts = [
        predictions,
        fitted,
        dataclasses.replace(fitted, first_N=hidden_N),
        dataclasses.replace(fitted, second_N=hidden_N),
    ]
    every = Predictions(
        *(
            np.concatenate([getattr(part, field.name) for part in parts]).astype(np.int64)
            for field in dataclasses.fields(Predictions)
        )
    )
    chances_NK, cell_N = _estimate_each(split, units, every, places, unigram_V, advance)
    weights_CK = _fit_weights(chances_NK[count:], cell_N[count:])
    return np.einsum("nk,nk->n", weights_CK[cell_N[:count]], chances_NK[:count])


@dataclasses.dataclass(frozen=True)
class _Units:
    """Documents, or parts of them where they are few; one of every `distance` is left out."""

    starts_D: np.ndarray  # int64, of each, in tokens
    distance: int

    def number_tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the unit of each token in a range: int64[stop - start]."""
        first, last = np.searchsorted(self.starts_D, [start, stop - 1], side="right") - 1
        bounds_D = np.append(self.starts_D[first + 1 : last + 1], stop)
        return np.repeat(np.arange(first, last + 1), np.diff(bounds_D, prepend=start))

    def is_fitted(self, number: np.ndarray) -> np.ndarray:
        """Return whether the weights are fitted on a unit, so that it is not counted."""
        return np.asarray(number % self.distance == self.distance // 2)


def _cut_units(split: Split) -> _Units:
    starts_D = np.unique(split.sentence_offsets[split.document_offsets[:-1]])
    starts_D = starts_D[starts_D < split.tokens].astype(np.int64)
    distance = max(_FITTED_SHARE, -(-split.tokens // _FITTED_TOKENS))
    least = distance * _FITTED_DOCUMENTS
    if len(starts_D) < least:
        cuts = np.linspace(0, split.tokens, least, endpoint=False).astype(np.int64)
        starts_D = np.union1d(starts_D, cuts)
    return _Units(starts_D, distance)


def _select_fitted(
    split: Split, units: _Units, places: tuple[int, int], unigram_V: np.ndarray
) -> Predictions:
    """Take the tokens of the units that are left out, with the tokens beside them."""
    stops_D = np.append(units.starts_D[1:], split.tokens)
    chosen_D = units.is_fitted(np.arange(len(stops_D)))
    parts = [
        _find_neighbors(split.token_ids[start:stop], np.zeros(stop - start), places, len(unigram_V))
        for start, stop in zip(units.starts_D[chosen_D], stops_D[chosen_D], strict=True)
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not parts:
        columns = [np.zeros(0, np.int64)] * 3
    is_used_N = unigram_V[columns[0]] > 0
    step = -(-np.count_nonzero(is_used_N) // (2 * _FITTED_TOKENS)) or 1
    return Predictions(*(column[is_used_N][::step] for column in columns))


def _find_neighbors(
    ids_T: np.ndarray, units_T: np.ndarray, places: tuple[int, int], hidden: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens and the tokens at two places beside each, `hidden` in another unit."""
    ids_T = ids_T.astype(np.int64)
    columns = [ids_T]
    for place in places:
        other_T = np.full(len(ids_T), hidden, np.int64)
        near, far = slice(max(0, -place), len(ids_T) - max(0, place)), slice(max(0, place), None)
        far = slice(far.start, len(ids_T) + min(0, place))
        is_same_T = units_T[near] == units_T[far]
        other_T[near] = np.where(is_same_T, ids_T[far], hidden)
        columns.append(other_T)
    return columns[0], columns[1], columns[2]


def _estimate_each(
    split: Split,
    units: _Units,
    every: Predictions,
    places: tuple[int, int],
    unigram_V: np.ndarray,
    advance: Callable[[float], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the four estimates of each prediction, and the cell of its weights.

    Shapes: float64[N,K] in the order of the module's docstring, int64[N].
    """
    vocab_size = len(unigram_V)
    sought = [np.unique(keys_N, return_inverse=True) for keys_N in _make_keys(every, vocab_size)]
    counts = [np.zeros(len(keys_U), np.int64) for keys_U, _ in sought]
    beside = [np.zeros(vocab_size + 1, np.int64) for _ in places]
    for share, block in _read_blocks(split, units, places, vocab_size):
        for counted_V, tokens_T in zip(beside, (block.first_N, block.second_N), strict=True):
            counted_V += np.bincount(tokens_T, minlength=vocab_size + 1)
        for counts_U, (keys_U, _), keys_T in zip(
            counts, sought, _make_keys(block, vocab_size), strict=True
        ):
            keys_T.sort()
            counts_U += np.searchsorted(keys_T, keys_U, side="right")
            counts_U -= np.searchsorted(keys_T, keys_U, side="left")
        advance(share)
    pair_N, with_pair_N, with_first_N, with_second_N = (
        counts_U[inverse_N] for counts_U, (_, inverse_N) in zip(counts, sought, strict=True)
    )
    is_pair_N = (every.first_N < vocab_size) & (every.second_N < vocab_size)
    contexts = [np.where(is_pair_N, pair_N, 0)]
    for counted_V, tokens_N in zip(beside, (every.first_N, every.second_N), strict=True):
        counted_V[vocab_size] = 0  # of hidden tokens nothing is known
        contexts.append(counted_V[tokens_N])
    chances_NK = np.stack(
        [
            np.where(context_N > 0, token_N / np.maximum(context_N, 1), 0.0)
            for context_N, token_N in zip(
                contexts, (with_pair_N, with_first_N, with_second_N), strict=True
            )
        ]
        + [unigram_V[every.tokens_N]],
        axis=1,
    )
    cell_N = np.minimum(_count_bits(contexts[0]), _PAIR_BUCKETS - 1)
    for context_N in contexts[1:]:
        bucket_N = np.minimum((_count_bits(context_N) + 3) // 4, _SINGLE_BUCKETS - 1)
        cell_N = cell_N * _SINGLE_BUCKETS + bucket_N
    return chances_NK, cell_N


def _make_keys(predictions: Predictions, vocab_size: int) -> list[np.ndarray]:
    """Return a number for a and b, for these with t, for a with t, and for b with t: uint64[N].

    Numbers wrap around where the vocabulary has more than 2.6 million tokens; that two that are
    counted coincide is then as unlikely as for a hash.
    """
    size = np.uint64(vocab_size + 1)
    tokens_N, first_N, second_N = (
        values_N.astype(np.uint64)
        for values_N in (predictions.tokens_N, predictions.first_N, predictions.second_N)
    )
    pair_N = first_N * size + second_N
    with_second_N = second_N * size + tokens_N
    return [pair_N, pair_N * size + tokens_N, first_N * size + tokens_N, with_second_N]


def _read_blocks(
    split: Split, units: _Units, places: tuple[int, int], vocab_size: int
) -> Iterator[tuple[float, Predictions]]:
    """Yield the share that is done with a block, and the tokens in it that are counted."""
    margin = max(map(abs, places))
    starts = range(0, split.tokens, _BLOCK_TOKENS)
    starts = starts[:: -(-split.tokens // _MOST_TOKENS) or 1]
    for number, start in enumerate(starts):
        stop = min(start + _BLOCK_TOKENS, split.tokens)
        low, high = max(0, start - margin), min(stop + margin, split.tokens)
        units_T = units.number_tokens(low, high)
        columns = _find_neighbors(split.token_ids[low:high], units_T, places, vocab_size)
        is_counted_T = ~units.is_fitted(units_T)
        is_counted_T[: start - low] = False
        is_counted_T[stop - low :] = False
        yield (number + 1) / len(starts), Predictions(*(each[is_counted_T] for each in columns))


def _count_bits(counts_N: np.ndarray) -> np.ndarray:
    """Return 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7: int64[N] -> int64[N]."""
    return np.frexp(counts_N.astype(np.float64))[1].astype(np.int64)


def _fit_weights(chances_NK: np.ndarray, cell_N: np.ndarray) -> np.ndarray:
    """Fit the weights of the estimates in each cell, which add up to 1: float64[C,K].

    An estimate whose neighbors were never counted has none. The prior is one prediction for each
    estimate, so that a cell without any has equal weights.

    Source: Chen and Goodman 1998, section 2.3.
    """
    cells_C = np.arange(_PAIR_BUCKETS * _SINGLE_BUCKETS**2)
    bucket_C = cells_C // _SINGLE_BUCKETS**2, cells_C // _SINGLE_BUCKETS % _SINGLE_BUCKETS
    counted = [bucket_C[0] > 0, bucket_C[1] > 0, cells_C % _SINGLE_BUCKETS > 0, cells_C >= 0]
    prior_CK = np.stack(counted, axis=1).astype(np.float64)
    weights_CK = prior_CK / prior_CK.sum(axis=1, keepdims=True)
    for _ in range(_ROUNDS):
        parts_NK = weights_CK[cell_N] * chances_NK
        parts_NK /= parts_NK.sum(axis=1, keepdims=True)
        sums = [np.bincount(cell_N, part_N, minlength=len(cells_C)) for part_N in parts_NK.T]
        weights_CK = prior_CK + np.stack(sums, axis=1)
        weights_CK /= weights_CK.sum(axis=1, keepdims=True)
    return weights_CK
