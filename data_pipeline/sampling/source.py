"""Define a stream of rows, each a pure function of its position."""

import abc
from collections.abc import Mapping

import numpy as np

from data_pipeline.io.refused import Refused
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import RowShape


class ExampleSource(abc.ABC):
    """Stream rows endlessly, epoch after epoch.

    A position counts rows from the start of the stream; `locate` turns it into an epoch and an
    index within that epoch.
    """

    shape: RowShape  # sizes of a row, and its fields with dtypes and dimensions
    options: PretrainOptions  # how rows are sampled, made and kept in memory
    special_ids: Mapping[str, int]  # keys: pad, unk, cls, sep, mask

    @property
    @abc.abstractmethod
    def mean_rows_per_epoch(self) -> float:
        """Return the mean number of rows in a pass over the split."""

    @property
    @abc.abstractmethod
    def mean_examples_in_row(self) -> float:
        """Return the mean number of examples in a row; 1 if rows are not packed."""

    @abc.abstractmethod
    def rows_in_epoch(self, epoch: int) -> int:
        """Return the number of rows in an epoch; epochs count from 0."""

    @abc.abstractmethod
    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch of each position and the index within that epoch: int64[B] each."""

    def rows(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows at these positions of the stream, in the order given.

        A row does not depend on the other positions requested, or on the process.

        Shapes: int64[B], 0 or more -> the fields of `shape`.

        Raises:
          Refused: a negative position, or rows that are damaged.
        """
        positions = np.asarray(positions, np.int64)
        if len(positions) and positions.min() < 0:
            raise Refused(f"row position {positions.min()} is negative; the first is 0")
        part_B, index_B = self.find_parts(positions)
        batch = self.shape.zeros(len(positions))
        for part in np.unique(part_B):
            members = np.flatnonzero(part_B == part)
            made = self.make_rows_of_part(int(part), index_B[members])
            if len(members) == len(positions):
                return made
            for name, array in made.items():
                batch[name][members] = array
        return batch

    def find_parts(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's part, its epoch (in a mixture, its store), and its index there.

        Shapes: int64[B] -> int64[B], int64[B].
        """
        return self.locate(positions)

    @abc.abstractmethod
    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        """Make rows by their index in a part (see find_parts): int64[B] -> fields of `shape`."""

    def find_stores(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of each row's store: int64[B]; 0 if there is only one store."""
        return np.zeros(len(positions), np.int64)
