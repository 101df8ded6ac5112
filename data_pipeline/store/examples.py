"""Write ready-made examples: a memory-mapped array for each field, and the rows of each split.

    STORE/examples/128/<field>.npy       a feature of the N examples of 128 tokens, in the smallest
                                         dtype that holds its values: uint8, uint16 or uint32
    STORE/examples/128/train_rows.npy    int64, the rows of the training split
    STORE/examples/128/heldout_rows.npy  int64, the held-out rows

The examples keep the order in which they were read. docs/reference/files.md has the keys of the
manifest.
"""

import pathlib
from collections.abc import Mapping

import numpy as np

from data_pipeline.spec.schema import TFRECORD_FIELDS, RowShape
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.store.writer import ArrayFile

SPLIT_ROWS = {TRAIN: "train_rows", HELDOUT: "heldout_rows"}


def describe_fields(
    shape: RowShape, vocab_size: int
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the dimensions of a row and the dtype of each field's array."""
    sizes = {"S": shape.seq_len, "P": shape.predictions}
    largest = dict.fromkeys(TFRECORD_FIELDS, 1) | {
        "input_ids": vocab_size - 1,
        "masked_lm_ids": vocab_size - 1,
        "masked_lm_positions": shape.seq_len - 1,
    }
    return {
        name: (tuple(sizes[dim] for dim in field.dims[1:]), np.min_scalar_type(largest[name]))
        for name, field in TFRECORD_FIELDS.items()
    }


class ExampleWriter:
    """Write the examples of one length: `append` all examples, `close`, read `maps`.

    Each example has a mark (uint64) until its split is decided: then call `forget_marks`.
    """

    def __init__(self, directory: pathlib.Path, shape: RowShape, vocab_size: int) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.shape = shape
        self._arrays = {
            name: ArrayFile(directory / f"{name}.npy", dtype, dims)
            for name, (dims, dtype) in describe_fields(shape, vocab_size).items()
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
