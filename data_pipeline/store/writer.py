"""Write the arrays and the manifest of a store in streams, and verify them by their SHA-256."""

import hashlib
import io
import json
import pathlib
from collections.abc import Callable, Container
from typing import Any, BinaryIO

import numpy as np

from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_file
from data_pipeline.io.refused import Refused
from data_pipeline.store import ARRAY_FOLDERS, FORMAT, FORMAT_VERSION, MANIFEST
from data_pipeline.vocab import Vocabulary

_BLOCK_BYTES = 1 << 22


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


def hash_file(path: pathlib.Path) -> str:
    """Compute the SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hash_stream(file)


def hash_stream(file: BinaryIO, advance: Callable[[int], None] = lambda done_bytes: None) -> str:
    """Compute the SHA-256 of the rest of an open file; call `advance` with the bytes read."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
        advance(len(block))
    return digest.hexdigest()


def compute_digest(arrays: dict[str, dict[str, Any]], vocabulary_sha256: str) -> str:
    """Compute the digest of a store from the SHA-256 of its arrays and vocabulary, a line each."""
    lines = [f"{name} {arrays[name]['sha256']}\n" for name in sorted(arrays)]
    text = "".join([*lines, f"vocabulary {vocabulary_sha256}\n"])
    return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(directory: pathlib.Path, manifest: dict[str, Any]) -> None:
    """Write the manifest atomically: a folder has all of it or none."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    write_file(directory / MANIFEST, f"{text}\n".encode())


def list_checksums(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each array and of the vocabulary, by file name in the store."""
    checksums = {name: array["sha256"] for name, array in manifest["arrays"].items()}
    return checksums | {manifest["vocabulary"]["file"]: manifest["vocabulary"]["sha256"]}


def list_verified_files(
    directory: pathlib.Path, manifest: dict[str, Any]
) -> dict[pathlib.Path, str]:
    """Return the files whose SHA-256 is in the manifest: path -> SHA-256."""
    checksums = list_checksums(manifest).items()
    return {small_files.join_inside(directory, name): checksum for name, checksum in checksums}


def count_bytes(files: dict[pathlib.Path, str]) -> int:
    """Count the bytes of files; a missing file counts as 0."""
    return sum(path.stat().st_size for path in files if path.is_file())


def verify(
    directory: pathlib.Path,
    manifest: dict[str, Any],
    advance: Callable[[int], None],
    only: Container[pathlib.Path] | None = None,
) -> None:
    """Check every array and the vocabulary; call `advance` with the bytes that were read.

    With `only`, read only these files; another process reads the others.

    Raises:
      Refused: names the files that are missing or changed.
    """
    wrong = []
    for path, expected in list_verified_files(directory, manifest).items():
        if only is not None and path not in only:
            continue
        if not path.exists():
            wrong.append(f"{path} is missing")
            continue
        if path.suffix == ".npy":
            with small_files.open_regular(path, directory) as file:
                actual = hash_stream(file, advance)
        else:  # the vocabulary, whose size is bounded
            actual = hash_stream(io.BytesIO(small_files.read_bytes(path, directory)), advance)
        if actual != expected:
            wrong.append(
                f"{path} has the SHA-256 {actual[:12]}..., the manifest has {expected[:12]}..."
            )
    if wrong:
        raise Refused(f"{'; '.join(wrong)}: copy the store again, or build it again")
    digest = compute_digest(manifest["arrays"], manifest["vocabulary"]["sha256"])
    if digest != manifest["digest"]:
        raise Refused(
            f"{directory}/{MANIFEST} has a digest that does not belong to its files: it was "
            "edited by hand or is damaged; copy the store again, or build it again"
        )
