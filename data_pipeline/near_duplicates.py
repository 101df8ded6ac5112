"""Near duplicates: documents that share most of their runs of five words, found by MinHash.

A document's signature is SIGNATURE_SIZE minima over the hashes of its runs; two signatures agree in
about the share of runs that their documents have in common. Documents that agree in a whole band of
the signature are compared, and those that agree in at least the threshold are one cluster, as are
those that a chain of such pairs joins.

Source: Broder 1997, "On the resemblance and containment of documents"; datasketch.
"""

import dataclasses
import pathlib
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from data_pipeline.duplicates import HashBuckets
from data_pipeline.hashing import hash64

SIGNATURE_SIZE = 128  # an estimate is off by 0.035 at a similarity of 0.8, one standard deviation
_RUN_WORDS = 5
# A text whose words are longer on average has no spaces, as Chinese; there a word is a character.
_LONG_WORDS_CHARS = 15
_RUNS_AT_ONCE = 1 << 14  # times SIGNATURE_SIZE are in memory
_PAIRS_AT_ONCE = 1 << 14
# A band agrees for 19 of 20 pairs that are as alike as a threshold of 0.8. What bands find is
# compared, so a pair too many only costs time, but one that they miss is lost.
_WEIGHTS = (0.05, 0.95)  # of a pair too many, of one that is missed
_HIGHEST_BANDED = 0.95  # bands for more would be too few; what they find is still compared
_MOST_ROUNDS = 100  # bounds the work on documents that agree in a band and in little else
_SEED = 1  # datasketch's default
_WORD_STEPS = np.array([0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(_RUN_WORDS)], "u8")


def no_signatures(documents: int) -> np.ndarray:
    """What a Signer would give if it were asked for nothing: uint32[D,0]."""
    return np.zeros((documents, 0), np.uint32)


class Signer:
    """Makes signatures of documents, folded as in data_pipeline.folding."""

    def __init__(self) -> None:
        import datasketch  # here, for it takes half a second that most builds need not wait

        self._empty = datasketch.MinHash(SIGNATURE_SIZE, seed=_SEED, hashfunc=int)

    def sign(self, folded_texts: Sequence[bytes]) -> np.ndarray:
        """uint32[D,SIGNATURE_SIZE]; a document shorter than a run is one run."""
        signatures = np.empty((len(folded_texts), SIGNATURE_SIZE), np.uint32)
        for text, signature in zip(folded_texts, signatures, strict=True):
            runs = _run_hashes(text)
            minima = self._empty.copy()
            for start in range(0, len(runs), _RUNS_AT_ONCE):
                minima.update_batch(runs[start : start + _RUNS_AT_ONCE].tolist())
            signature[:] = minima.hashvalues
        return signatures


def _run_hashes(folded_text: bytes) -> np.ndarray:
    """uint32[R], a hash of each run of words."""
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


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Near duplicates among D documents."""

    first_D: np.ndarray  # int64, the first document of each one's cluster, which may be itself
    documents_given_up: int  # not compared with some that agree with them in a band


def find_clusters(
    signatures_DP: np.ndarray,
    keeps_document_D: np.ndarray,
    threshold: float,
    directory: pathlib.Path,
) -> Clusters:
    """Find the clusters, each of the documents that a chain of pairs joins.

    A document that is not kept is in no cluster. Memory is 28 bytes a document at a threshold of
    0.8, with one bucket of bands; the signatures may be a memory map, and `directory` is made for
    the bands.

    Shapes: uint32[D,P], bool[D].
    """
    import datasketch  # see Signer

    buckets = HashBuckets(directory)
    lsh = datasketch.MinHashLSH(
        min(threshold, _HIGHEST_BANDED), num_perm=SIGNATURE_SIZE, weights=_WEIGHTS
    )
    for start in range(0, len(signatures_DP), _PAIRS_AT_ONCE):
        documents = start + np.flatnonzero(keeps_document_D[start : start + _PAIRS_AT_ONCE])
        for band, keys in enumerate(_band_keys(signatures_DP[documents], lsh.b, lsh.r)):
            rows = np.column_stack([keys, np.full(len(keys), band, np.uint64)])
            buckets.append(rows, documents)
    first_D = np.arange(len(signatures_DP))
    is_given_up_D = np.zeros(len(signatures_DP), bool)
    for documents, is_first in buckets.groups():
        for leaders, joined in _near_pairs(
            signatures_DP, documents, is_first, threshold, is_given_up_D
        ):
            for leader, document in zip(leaders.tolist(), joined.tolist(), strict=True):
                _join(first_D, leader, document)
    for later in np.flatnonzero(first_D != np.arange(len(first_D))):
        first_D[later] = first_D[first_D[later]]  # earlier ones are done: one step is enough
    return Clusters(first_D, int(np.count_nonzero(is_given_up_D)))


def _band_keys(signatures_BP: np.ndarray, bands: int, band_size: int) -> Iterator[np.ndarray]:
    """Yield uint64[B] of each band: equal where the documents agree in all of it."""
    for band in range(bands):
        keys_B = np.zeros(len(signatures_BP), np.uint64)
        for column in range(band * band_size, (band + 1) * band_size):
            keys_B = hash64(0, keys_B ^ signatures_BP[:, column])
        yield keys_B


def _near_pairs(
    signatures_DP: np.ndarray,
    documents: np.ndarray,
    is_first: np.ndarray,
    threshold: float,
    is_given_up_D: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of near duplicates that agree in a band: the earlier documents, the later ones.

    Within a group each document is compared with the first; those that are not near to it are
    compared among themselves in the same way, _MOST_ROUNDS times; the rest is marked as given up.
    """
    group = np.cumsum(is_first)
    for _ in range(_MOST_ROUNDS):
        sizes = np.bincount(group)[group]
        documents, group = documents[sizes > 1], group[sizes > 1]
        if not len(documents):
            return
        _, starts, sizes = np.unique(group, return_index=True, return_counts=True)
        leaders = np.repeat(documents[starts], sizes)
        is_near = _agreement(signatures_DP, leaders, documents) >= threshold
        joined = is_near & (leaders != documents)
        yield leaders[joined], documents[joined]
        documents, group = documents[~is_near], group[~is_near]
    is_given_up_D[documents[np.bincount(group)[group] > 1]] = True


def _agreement(signatures_DP: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """float64[N]: the share of the signature in which two documents agree."""
    shares = np.empty(len(left))
    for start in range(0, len(left), _PAIRS_AT_ONCE):
        pairs = slice(start, start + _PAIRS_AT_ONCE)
        agree_NP = signatures_DP[left[pairs]] == signatures_DP[right[pairs]]
        shares[pairs] = agree_NP.mean(axis=1)
    return shares


def _join(first_D: np.ndarray, one: int, other: int) -> None:
    """Make two clusters one, which the earlier of their first documents names."""
    firsts = _first_of(first_D, one), _first_of(first_D, other)
    first_D[max(firsts)] = min(firsts)


def _first_of(first_D: np.ndarray, document: int) -> int:
    while (earlier := int(first_D[document])) != document:
        first_D[document] = first_D[earlier]  # the next search is shorter
        document = earlier
    return document
