"""Find documents that share most of their runs of five words, by MinHash.

A document's signature is SIGNATURE_SIZE minima over the hashes of its runs; two signatures agree in
about the share of runs that their documents have in common. Documents that agree in a whole band of
the signature are compared; pairs that agree in at least the threshold are near duplicates, and a
cluster has all documents that are linked by such pairs.

Source: Broder 1997, "On the resemblance and containment of documents"; datasketch.
"""

import pathlib
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from data_pipeline.corpus.dedup import HashBuckets
from data_pipeline.spec.hashing import hash64

SIGNATURE_SIZE = 128  # an estimate is off by 0.035 at a similarity of 0.8, one standard deviation
_RUN_WORDS = 5
# A text with longer words on average has no spaces, like Chinese; its words are characters.
_LONG_WORDS_CHARS = 15
_RUNS_AT_ONCE = 1 << 14  # each has SIGNATURE_SIZE hashes in memory
_PAIRS_AT_ONCE = 1 << 14
# 19 of 20 near duplicates agree in a band at a threshold of 0.8. Pairs found by bands are
# compared: a false positive only costs time, while a false negative is lost.
_WEIGHTS = (0.05, 0.95)  # costs of a false positive and of a false negative
_MAX_BAND_THRESHOLD = 0.95  # a higher one leaves too few bands; pairs are compared anyway
_MAX_ROUNDS = 100  # bounds the work on documents that agree in one band and little else
_SEED = 1  # datasketch's default
_WORD_STEPS = np.array([0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(_RUN_WORDS)], "u8")


class Signer:
    """Make signatures of documents folded by dedup.fold_text."""

    def __init__(self) -> None:
        # Imported here: it takes half a second, and most builds do not need it.
        import datasketch

        self._empty = datasketch.MinHash(SIGNATURE_SIZE, seed=_SEED, hashfunc=int)

    def sign(self, folded_texts: Sequence[bytes]) -> np.ndarray:
        """Sign documents: uint32[D,SIGNATURE_SIZE]; one shorter than a run is one run."""
        signatures = np.empty((len(folded_texts), SIGNATURE_SIZE), np.uint32)
        for text, signature in zip(folded_texts, signatures, strict=True):
            runs = _hash_runs(text)
            minima = self._empty.copy()
            for start in range(0, len(runs), _RUNS_AT_ONCE):
                minima.update_batch(runs[start : start + _RUNS_AT_ONCE].tolist())
            signature[:] = minima.hashvalues
        return signatures


def _hash_runs(folded_text: bytes) -> np.ndarray:
    """Hash each run of words: uint32[R]."""
    words = folded_text.split(b" ")
    if len(folded_text) > 4 * _LONG_WORDS_CHARS:
        text = folded_text.decode()
        if len(text) > _LONG_WORDS_CHARS * len(words):
            words = [character.encode() for character in text if character != " "]
    word_hashes = np.fromiter(map(zlib.crc32, words), np.uint64)
    if len(word_hashes) < _RUN_WORDS:
        word_hashes = np.pad(word_hashes, (0, _RUN_WORDS - len(word_hashes)))
    runs = np.lib.stride_tricks.sliding_window_view(word_hashes, _RUN_WORDS) @ _WORD_STEPS
    return (runs >> np.uint64(32)).astype(np.uint32)


def find_clusters(
    signatures_DP: np.ndarray,
    keeps_document_D: np.ndarray,
    threshold: float,
    directory: pathlib.Path,
) -> tuple[np.ndarray, int]:
    """Return the first document of each document's cluster, and the number of documents given up.

    A document that is not kept, or has no near duplicate, is its own first. A document is given up
    if it was not compared with every document that shares a band with it. Memory: 28 bytes per
    document at a threshold of 0.8, and a bucket of bands; the signatures may be a memory map.
    Creates `directory` for the bands.

    Shapes: uint32[D,P], bool[D] -> int64[D], and a number.
    """
    import datasketch  # see Signer

    buckets = HashBuckets(directory)
    lsh = datasketch.MinHashLSH(
        min(threshold, _MAX_BAND_THRESHOLD), num_perm=SIGNATURE_SIZE, weights=_WEIGHTS
    )
    for start in range(0, len(signatures_DP), _PAIRS_AT_ONCE):
        documents = start + np.flatnonzero(keeps_document_D[start : start + _PAIRS_AT_ONCE])
        for band, keys in enumerate(_hash_bands(signatures_DP[documents], lsh.b, lsh.r)):
            rows = np.column_stack([keys, np.full(len(keys), band, np.uint64)])
            buckets.append(rows, documents)
    first_D = np.arange(len(signatures_DP))
    is_given_up_D = np.zeros(len(signatures_DP), bool)
    for documents, is_first in buckets.groups():
        for leaders, joined in _find_near_pairs(
            signatures_DP, documents, is_first, threshold, is_given_up_D
        ):
            for leader, document in zip(leaders.tolist(), joined.tolist(), strict=True):
                _join(first_D, leader, document)
    for later in np.flatnonzero(first_D != np.arange(len(first_D))):
        first_D[later] = first_D[first_D[later]]  # earlier documents are done: one step is enough
    return first_D, int(np.count_nonzero(is_given_up_D))


def _hash_bands(signatures_BP: np.ndarray, bands: int, band_size: int) -> Iterator[np.ndarray]:
    """Yield a hash of each band: uint64[B], equal where documents agree in all of it."""
    for band in range(bands):
        keys_B = np.zeros(len(signatures_BP), np.uint64)
        for column in range(band * band_size, (band + 1) * band_size):
            keys_B = hash64(0, keys_B ^ signatures_BP[:, column])
        yield keys_B


def _find_near_pairs(
    signatures_DP: np.ndarray,
    documents: np.ndarray,
    is_first: np.ndarray,
    threshold: float,
    is_given_up_D: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of near duplicates that agree in a band: the earlier documents, the later ones.

    Within a group each document is compared with the first; documents that differ from it are then
    compared among themselves in the same way, up to _MAX_ROUNDS rounds; the rest is given up.
    """
    group = np.cumsum(is_first)
    for _ in range(_MAX_ROUNDS):
        sizes = np.bincount(group)[group]
        documents, group = documents[sizes > 1], group[sizes > 1]
        if not len(documents):
            return
        _, starts, sizes = np.unique(group, return_index=True, return_counts=True)
        leaders = np.repeat(documents[starts], sizes)
        is_near = _compare_signatures(signatures_DP, leaders, documents) >= threshold
        joined = is_near & (leaders != documents)
        yield leaders[joined], documents[joined]
        documents, group = documents[~is_near], group[~is_near]
    is_given_up_D[documents[np.bincount(group)[group] > 1]] = True


def _compare_signatures(
    signatures_DP: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Compute the share of the signature in which two documents agree: float64[N]."""
    shares = np.empty(len(left))
    for start in range(0, len(left), _PAIRS_AT_ONCE):
        pairs = slice(start, start + _PAIRS_AT_ONCE)
        agree_NP = signatures_DP[left[pairs]] == signatures_DP[right[pairs]]
        shares[pairs] = agree_NP.mean(axis=1)
    return shares


def _join(first_D: np.ndarray, document: int, other: int) -> None:
    """Merge two clusters; the earlier of their first documents identifies the result."""
    firsts = _find_first(first_D, document), _find_first(first_D, other)
    first_D[max(firsts)] = min(firsts)


def _find_first(first_D: np.ndarray, document: int) -> int:
    while (earlier := int(first_D[document])) != document:
        first_D[document] = first_D[earlier]  # the next search is shorter
        document = earlier
    return document
