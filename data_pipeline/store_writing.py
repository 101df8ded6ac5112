"""Writes the arrays and the manifest of a store in streams: memory does not grow with it."""

import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np

from data_pipeline.store import ARRAYS, HELDOUT, MANIFEST, TRAIN


class ArrayFile:
    """A .npy file that grows along its first axis; its length is written when it is closed.

    Shapes: [N] values, or [N, *row_dims] of rows.
    """

    def __init__(self, path: pathlib.Path, dtype: np.dtype, row_dims: tuple[int, ...] = ()) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - stays open until close()
        self._dtype = np.dtype(dtype)
        self.row_dims = row_dims
        self.size = 0
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.size += len(values)

    def close(self) -> None:
        """End the file; a second call does nothing."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        # NumPy pads the header so that the first axis can grow without moving the data.
        np.lib.format.write_array_header_1_0(
            self._file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self.size, *self.row_dims),
            },
        )


class SplitWriter:
    """Writes one split: `append` documents, then `close` for what the manifest says of it."""

    def __init__(
        self, directory: pathlib.Path, token_dtype: np.dtype, vocab_size: int, unknown_id: int
    ) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._unknown_id = unknown_id
        self._token_ids = ArrayFile(directory / "token_ids.npy", token_dtype)
        self._sentence_offsets = ArrayFile(directory / "sentence_offsets.npy", np.dtype(np.int64))
        self._document_offsets = ArrayFile(directory / "document_offsets.npy", np.dtype(np.int64))
        self._sentence_offsets.append(np.zeros(1, np.int64))
        self._document_offsets.append(np.zeros(1, np.int64))
        self._token_counts = np.zeros(vocab_size, np.int64)
        self._one_sentence_documents = 0
        self._longest_sentence_tokens = 0

    def append(
        self, token_ids: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Add documents: int[T] ids, int64[S] tokens a sentence, int64[D] sentences a document.

        Raises:
          ValueError: an id beyond the vocabulary.
        """
        if not len(document_lengths):
            return
        counts = np.bincount(token_ids, minlength=len(self._token_counts))
        if len(counts) > len(self._token_counts):
            raise ValueError(
                f"the tokeniser made the id {len(counts) - 1}, beyond the vocabulary's "
                f"{len(self._token_counts)} pieces; this is a fault of the vocabulary file"
            )
        self._token_counts += counts
        tokens, sentences = self._token_ids.size, self._sentence_offsets.size - 1
        self._token_ids.append(token_ids)
        self._sentence_offsets.append(tokens + np.cumsum(sentence_lengths))
        self._document_offsets.append(sentences + np.cumsum(document_lengths))
        self._one_sentence_documents += int(np.count_nonzero(document_lengths == 1))
        self._longest_sentence_tokens = max(
            self._longest_sentence_tokens, int(sentence_lengths.max())
        )

    def close(self) -> dict[str, int]:
        for array in (self._token_ids, self._sentence_offsets, self._document_offsets):
            array.close()
        counts = ArrayFile(self._directory / "token_counts.npy", np.dtype(np.int64))
        counts.append(self._token_counts)
        counts.close()
        return {
            "documents": self._document_offsets.size - 1,
            "sentences": self._sentence_offsets.size - 1,
            "tokens": self._token_ids.size,
            "unknown_tokens": int(self._token_counts[self._unknown_id]),
            "one_sentence_documents": self._one_sentence_documents,
            "longest_sentence_tokens": self._longest_sentence_tokens,
        }


def describe_arrays(directory: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Dtype, size and SHA-256 of each array file of a store, by its path within the store."""
    described = {}
    for split in (TRAIN, HELDOUT):
        for name in ARRAYS:
            path = directory / split / f"{name}.npy"
            array = np.load(path, mmap_mode="r")
            described[f"{split}/{name}.npy"] = {
                "dtype": str(array.dtype),
                "size": len(array),
                "sha256": sha256(path),
            }
    return described


def sha256(path: pathlib.Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def store_digest(arrays: dict[str, dict[str, Any]], vocabulary_sha256: str) -> str:
    """SHA-256 of the arrays' and the vocabulary's SHA-256, a line each."""
    lines = [f"{name} {arrays[name]['sha256']}\n" for name in sorted(arrays)]
    return hashlib.sha256(
        "".join([*lines, f"vocabulary {vocabulary_sha256}\n"]).encode()
    ).hexdigest()


def write_manifest(directory: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Write the manifest in one move: a folder has all of it or none."""
    path = directory / MANIFEST
    unfinished = path.with_suffix(".json.tmp")
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
