"""Find exact copies among sentences and documents by hashes of their token ids.

Memory is bounded: of more than `most` hashes, only hashes that end in enough zero bits are kept, so
all copies of a text are kept or none. Shares then refer to this sample, while the count of a kept
text is exact.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from data_pipeline.spec import hashing
from data_pipeline.store import Split

MAX_SENTENCES, MAX_DOCUMENTS = 1 << 27, 1 << 25  # 1 GiB and 256 MiB of hashes
_CHUNK_TOKENS = 1 << 17  # a chunk's arrays fit a core's cache
_SENTENCE_KEY = hashing.derive_key(0, hashing.Purpose.SENTENCE_FINGERPRINT)
_DOCUMENT_KEY = hashing.derive_key(0, hashing.Purpose.DOCUMENT_FINGERPRINT)
_PLACE_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Count the copies within a split, or the texts of one split that another has too."""

    looked_at: int  # texts compared; all of them unless the store is very large
    total: int
    copies: int  # compared texts with an equal one before them, or in the other split

    @property
    def share(self) -> float:
        return self.copies / max(1, self.looked_at)


class HashSample:
    """Keep at most `most` 64-bit hashes; if there are more, only hashes that end in zero bits."""

    def __init__(self, total: int, most: int) -> None:
        self.total = total
        self._buffer = np.empty(min(total, most), np.uint64)
        self._filled = 0
        self._zero_bits = 0
        self._is_sorted = False

    def add(self, hashes_N: np.ndarray) -> None:
        kept = self._kept(hashes_N)
        while self._filled + len(kept) > len(self._buffer):
            self._zero_bits += 1
            still = self._kept(self._buffer[: self._filled])
            self._buffer[: len(still)] = still
            self._filled = len(still)
            kept = self._kept(kept)
        self._buffer[self._filled : self._filled + len(kept)] = kept
        self._filled += len(kept)
        self._is_sorted = False

    def repeats(self) -> Repeats:
        """Count the hashes with an equal one before them."""
        hashes = self._sorted()
        copies = int(np.count_nonzero(hashes[1:] == hashes[:-1]))
        return Repeats(looked_at=len(hashes), total=self.total, copies=copies)

    def count_repeats_in(self, other: "HashSample") -> Repeats:
        """Count the hashes with an equal one in the other sample."""
        ours, theirs = self._sorted(), other._sorted()
        mask = np.uint64((1 << max(self._zero_bits, other._zero_bits)) - 1)
        ours = ours[(ours & mask) == 0]
        place = np.minimum(np.searchsorted(theirs, ours), len(theirs) - 1)
        copies = int(np.count_nonzero(theirs[place] == ours)) if len(theirs) else 0
        return Repeats(looked_at=len(ours), total=self.total, copies=copies)

    def find_most_repeated(self, most: int) -> list[tuple[int, int]]:
        """Return the hashes that occur most often, twice or more, and their counts."""
        hashes = self._sorted()
        times = 2 * len(hashes)
        heavy = hashes[:0]
        # In sorted order, the last of n equal values is n - 1 places after the first.
        while times > 2 and len(heavy) < most:
            times = max(2, times // 4)
            heavy = np.unique(hashes[times - 1 :][hashes[times - 1 :] == hashes[: 1 - times]])
        counts = np.searchsorted(hashes, heavy, "right") - np.searchsorted(hashes, heavy)
        order = np.argsort(-counts, kind="stable")[:most]
        return [(int(heavy[i]), int(counts[i])) for i in order]

    def _kept(self, hashes_N: np.ndarray) -> np.ndarray:
        mask = np.uint64((1 << self._zero_bits) - 1)
        return hashes_N[(hashes_N & mask) == 0] if self._zero_bits else hashes_N

    def _sorted(self) -> np.ndarray:
        filled = self._buffer[: self._filled]
        if not self._is_sorted:
            filled.sort()
            self._is_sorted = True
        return filled


def hash_split(
    split: Split, advance: Callable[[int], None], chunk_tokens: int = _CHUNK_TOKENS
) -> tuple[HashSample, HashSample]:
    """Hash all sentences and documents of a split; call `advance` with the tokens of each chunk.

    Texts with equal ids have equal hashes; two different texts do with probability 2**-64.
    """
    sentences = HashSample(split.sentences, MAX_SENTENCES)
    documents = HashSample(split.documents, MAX_DOCUMENTS)
    open_sum = np.zeros(1, np.uint64)  # running sum of the document cut by the last chunk
    for start, hashes_N in hash_sentences(split, chunk_tokens):
        stop = start + len(hashes_N)
        sentences.add(hashes_N)
        first = int(np.searchsorted(split.document_offsets, start, "right")) - 1
        last = int(np.searchsorted(split.document_offsets, stop - 1, "right"))
        bounds = np.asarray(split.document_offsets[first : last + 1])
        starts = np.maximum(bounds[:-1], start)
        places = np.arange(start, stop) - np.repeat(bounds[:-1], np.diff([*starts, stop]))
        placed = hashing.hash64(_DOCUMENT_KEY, hashes_N + places.astype(np.uint64) * _PLACE_STEP)
        sums = np.add.reduceat(placed, starts - start)
        sums[:1] += open_sum
        is_broken_off = bounds[-1] > stop
        open_sum = sums[-1:] if is_broken_off else np.zeros(1, np.uint64)
        documents.add(sums[:-1] if is_broken_off else sums)
        advance(int(split.sentence_offsets[stop] - split.sentence_offsets[start]))
    return sentences, documents


def find_sentences(split: Split, wanted: set[int]) -> dict[int, int]:
    """Return the number of the first sentence with each wanted hash; read until all are found."""
    numbers: dict[int, int] = {}
    for start, hashes_N in hash_sentences(split, _CHUNK_TOKENS):
        left = np.array(sorted(wanted - numbers.keys()), np.uint64)
        for place in np.flatnonzero(np.isin(hashes_N, left)):
            numbers.setdefault(int(hashes_N[place]), start + int(place))
        if len(numbers) == len(wanted):
            break
    return numbers


def hash_sentences(split: Split, chunk_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each chunk the number of its first sentence and the hashes of all: uint64[N]."""
    start = 0
    while start < split.sentences:
        limit = split.sentence_offsets[start] + chunk_tokens
        stop = int(np.searchsorted(split.sentence_offsets, limit, "right")) - 1
        stop = min(max(stop, start + 1), split.sentences)
        offsets = np.asarray(split.sentence_offsets[start : stop + 1])
        # The position within the sentence is hashed, too: another order is another sentence.
        counters = np.arange(offsets[-1] - offsets[0], dtype=np.uint64)
        counters -= np.repeat((offsets[:-1] - offsets[0]).astype(np.uint64), np.diff(offsets))
        counters <<= np.uint64(32)
        counters |= split.token_ids[offsets[0] : offsets[-1]].astype(np.uint64)
        bits = hashing.hash64(_SENTENCE_KEY, counters)
        yield start, np.add.reduceat(bits, offsets[:-1] - offsets[0])
        start = stop
