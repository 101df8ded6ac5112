"""Finds what occurs more than once by its hashes, on disk: one 64th of them is in memory."""

import hashlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# A bucket is sorted in memory, about 60 bytes a hash: 100 million lines take 100 MB.
_BUCKET_BITS = 6
_ROWS_IN_MEMORY = 1 << 18  # that wait to be written together


def hashes128(texts: Sequence[Iterable[str]], wanted: bool = True) -> np.ndarray:
    """A 128-bit hash of each text, which is the same lines in the same order.

    Shapes: N texts -> uint64[N,2]; [N,0] where it is not wanted.
    """
    if not wanted:
        return np.zeros((len(texts), 0), np.uint64)
    digests = [hashlib.blake2b("\n".join(text).encode(), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


class HashBuckets:
    """Positions by their 128-bit hashes, parted into files by the first bits of the hash."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir()
        self._paths = [directory / f"{number:02d}" for number in range(1 << _BUCKET_BITS)]
        self._waiting: list[np.ndarray] = []
        self._waiting_rows = 0

    def append(self, hashes: np.ndarray, positions: np.ndarray) -> None:
        """Add things in the order of their positions. Shapes: uint64[N,2], int64[N]."""
        self._waiting.append(np.column_stack([hashes, positions.astype(np.uint64)]))
        self._waiting_rows += len(positions)
        if self._waiting_rows >= _ROWS_IN_MEMORY:
            self._write()

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each bucket as positions int64[N], equal hashes together, and is_first bool[N].

        Of equal hashes the lowest position comes first.
        """
        self._write()
        for path in self._paths:
            if path.exists():
                rows = np.fromfile(path, np.uint64).reshape(-1, 3)
                path.unlink()
                rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]  # stable: positions stay in order
                is_first = np.ones(len(rows), bool)
                is_first[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
                yield rows[:, 2].astype(np.int64), is_first

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        bucket = rows[:, 0] >> np.uint64(64 - _BUCKET_BITS)
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(len(self._paths) + 1))
        rows = rows[order]
        for path, start, end in zip(self._paths, ends[:-1], ends[1:], strict=True):
            if start < end:
                with open(path, "ab") as file:
                    file.write(rows[start:end].data)
        self._waiting, self._waiting_rows = [], 0
