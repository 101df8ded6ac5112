"""Write the arrays and the manifest of a store in streams: documents, or ready-made examples."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_file
from data_pipeline.spec.schema import RowShape, describe_stored_fields
from data_pipeline.store import ARRAY_FOLDERS, FORMAT, FORMAT_VERSION, MANIFEST
from data_pipeline.store.reader import compute_digest, hash_file
from data_pipeline.vocab import Vocabulary


class ArrayFile:
    """Write a .npy file that grows along its first axis; `close` writes its length.

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
    """Write one split: `append` documents, then `close` to get its entry in the manifest."""

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
        """Add documents: int[T] ids, int64[S] tokens per sentence, int64[D] sentences per document.

        Raises:
          Refused: an id beyond the vocabulary.
        """
        if not len(document_lengths):
            return
        counts = np.bincount(token_ids, minlength=len(self._token_counts))
        if len(counts) > len(self._token_counts):
            raise Refused(
                f"the tokenizer made the id {len(counts) - 1}, beyond the vocabulary's "
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
        # np.save reports a full disk without its error number.
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
    """Describe each array file of a store: path -> its dtype, size and SHA-256."""
    described = {}
    for folder in ARRAY_FOLDERS:
        for path in sorted((directory / folder).rglob("*.npy")):
            array = np.load(path, mmap_mode="r")
            described[path.relative_to(directory).as_posix()] = {
                "dtype": str(array.dtype),
                "size": len(array),
                "sha256": hash_file(path),
            }
    return described


def make_manifest(
    directory: pathlib.Path, vocabulary: Vocabulary, content: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest of a store: its content, its vocabulary and the arrays in its folders."""
    arrays = describe_arrays(directory)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "digest": compute_digest(arrays, vocabulary.digest),
        "vocabulary": {
            "kind": vocabulary.kind,
            "file": vocabulary.file_name,
            "size": vocabulary.size,
            **vocabulary.recorded_rules,
            "sha256": vocabulary.digest,
            "special_ids": vocabulary.special_ids,
        },
        **content,
        "arrays": arrays,
    }


def write_manifest(directory: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Write the manifest atomically: a folder has all of it or none."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    write_file(directory / MANIFEST, f"{text}\n".encode())


class ExampleWriter:
    """Write the examples of one length: `append` all examples, `close`, read `maps`.

    STORE/examples/128/<field>.npy has a feature of the N examples of 128 tokens, in the order in
    which they were read; train_rows.npy and heldout_rows.npy, int64, number the rows of each split.
    Each example has a mark (uint64) until its split is decided: then call `forget_marks`.
    """

    def __init__(self, directory: pathlib.Path, shape: RowShape, vocab_size: int) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.shape = shape
        self._arrays = {
            name: ArrayFile(directory / f"{name}.npy", dtype, dims)
            for name, (dims, dtype) in describe_stored_fields(shape, vocab_size).items()
        }
        self._marks = ArrayFile(directory / "marks.npy", np.dtype(np.uint64))

    def append(self, batch: Mapping[str, np.ndarray], marks_B: np.ndarray) -> None:
        """Add examples whose values are within the bounds of their fields.

        Shapes: the features with B rows; uint64[B].
        """
        for name, array in self._arrays.items():
            array.append(batch[name].reshape(-1, *array.row_dims))
        self._marks.append(marks_B)

    def close(self) -> None:
        for array in (*self._arrays.values(), self._marks):
            array.close()

    def maps(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the arrays and the marks as memory maps, after close."""
        arrays = {
            name: np.load(self.directory / f"{name}.npy", mmap_mode="r") for name in self._arrays
        }
        return arrays, np.load(self.directory / "marks.npy", mmap_mode="r")

    def forget_marks(self) -> None:
        (self.directory / "marks.npy").unlink()
