"""Find duplicates by hashes on disk, in 64 buckets that are sorted in memory one at a time."""

import hashlib
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# A bucket is sorted in memory at about 60 bytes per hash: 100 million lines take 100 MB.
_BUCKET_BITS = 6
_ROWS_IN_MEMORY = 1 << 18  # rows buffered before a write


def hash_texts(texts: Sequence[Iterable[str]], wanted: bool = True) -> np.ndarray:
    """Hash each text, a list of lines in their order, to 128 bits.

    Shapes: N texts -> uint64[N,2]; [N,0] if not wanted.
    """
    if not wanted:
        return np.zeros((len(texts), 0), np.uint64)
    digests = [hashlib.blake2b("\n".join(text).encode(), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


class HashBuckets:
    """Store positions with their 128-bit hashes, in files by the first bits of the hash."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir()
        self._paths = [directory / f"{number:02d}" for number in range(1 << _BUCKET_BITS)]
        self._waiting: list[np.ndarray] = []
        self._waiting_rows = 0

    def append(self, hashes: np.ndarray, positions: np.ndarray) -> None:
        """Add hashes in the order of their positions: uint64[N,2], int64[N]."""
        self._waiting.append(np.column_stack([hashes, positions.astype(np.uint64)]))
        self._waiting_rows += len(positions)
        if self._waiting_rows >= _ROWS_IN_MEMORY:
            self._write()

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each bucket as positions int64[N] and is_first bool[N], grouped by equal hashes.

        The lowest position of a group comes first, where is_first is True.
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


_DIGIT = re.compile(r"\d")

_ASCII = bytes(range(128))
_ASCII_SPACE = bytes(code for code in _ASCII if chr(code).isspace())
_FOLD = bytes.maketrans(b"0123456789" + _ASCII_SPACE, b"0" * 10 + b" " * len(_ASCII_SPACE))


def fold_text(paragraphs: Iterable[str]) -> bytes:
    """Fold a document to UTF-8: words in lower case, digits as 0, single spaces between words.

    The result equals str.casefold, str.split and a regular expression for digits, in a third
    of the time, as only the few characters beyond ASCII are examined one by one.
    """
    text = " ".join(paragraphs)
    data = (text if text.isascii() else text.casefold()).encode()
    beyond_ascii = data.translate(None, _ASCII).decode()
    if any(character.isspace() or character.isdecimal() for character in set(beyond_ascii)):
        return _DIGIT.sub("0", " ".join(data.decode().split())).encode()
    data = data.lower().translate(_FOLD).strip()
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    return data


def hash_document(folded_text: bytes) -> int:
    """Hash a folded document to 64 bits, which decide whether the document is held out.

    Copies of a page that differ in a date, a counter or the line breaks have the same hash, and so
    the same split. The hash does not depend on the vocabulary or the sentences.
    """
    return int.from_bytes(hashlib.blake2b(folded_text, digest_size=8).digest(), "big")
