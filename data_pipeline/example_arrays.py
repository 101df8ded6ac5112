"""Ready-made examples on disk: one memory-mapped array a field, and which rows a split has.

    STORE/examples/128/input_ids.npy     uint16 or uint32 [N,S], of the examples of 128 tokens
    STORE/examples/128/<field>.npy       every other feature, in the smallest dtype that holds it
    STORE/examples/128/train_rows.npy    int64, the rows of the training split
    STORE/examples/128/heldout_rows.npy  int64, those held out

The examples keep the order in which they were read. Keys of the manifest, public, where they are
not those of a store of text:
    kind       "examples"
    examples   length in tokens -> {max_predictions_per_seq, train, heldout: how many examples,
               random_next: how many of both have the next-sentence label 1}
    splits     {train, heldout} -> {examples, tokens, unknown_tokens}, special pieces not counted
    holdout    the share that --holdout asked for; 0: the files of --heldout_input
    sources    [{path, bytes, examples, split}]
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_pipeline.schema import RowShape
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.store_writing import ArrayFile, sha256
from data_pipeline.tfrecord import FEATURES

FOLDER = "examples"
SPLIT_ROWS = {TRAIN: "train_rows", HELDOUT: "heldout_rows"}


def field_arrays(shape: RowShape, vocab_size: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Dimensions of a row and dtype of each field's array."""
    sizes = {"S": shape.seq_len, "P": shape.predictions}
    largest = dict.fromkeys(FEATURES, 1) | {
        "input_ids": vocab_size - 1,
        "masked_lm_ids": vocab_size - 1,
        "masked_lm_positions": shape.seq_len - 1,
    }
    return {
        name: (tuple(sizes[dim] for dim in field.dims[1:]), np.min_scalar_type(largest[name]))
        for name, field in FEATURES.items()
    }


class ExampleWriter:
    """Writes the examples of one length: `append` them all, `close`, read `maps`.

    A mark goes with each example until its split is decided: `forget_marks` then.
    """

    def __init__(self, directory: pathlib.Path, shape: RowShape, vocab_size: int) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.shape = shape
        self._arrays = {
            name: ArrayFile(directory / f"{name}.npy", dtype, dims)
            for name, (dims, dtype) in field_arrays(shape, vocab_size).items()
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
        """The arrays and the marks as memory maps, once they are closed."""
        arrays = {
            name: np.load(self.directory / f"{name}.npy", mmap_mode="r") for name in self._arrays
        }
        return arrays, np.load(self.directory / "marks.npy", mmap_mode="r")

    def forget_marks(self) -> None:
        (self.directory / "marks.npy").unlink()


def describe_examples(store: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Dtype, rows and SHA-256 of each array below STORE/examples, by its path in the store."""
    described = {}
    for path in sorted((store / FOLDER).rglob("*.npy")):
        array = np.load(path, mmap_mode="r")
        described[path.relative_to(store).as_posix()] = {
            "dtype": str(array.dtype),
            "size": len(array),
            "sha256": sha256(path),
        }
    return described
