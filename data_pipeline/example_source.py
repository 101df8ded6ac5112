"""What training and evaluation ask of a source of examples, wherever its rows come from."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from data_pipeline.options import PretrainOptions
from data_pipeline.schema import RowShape


class ExampleSource(Protocol):
    """An endless stream of rows, each a pure function of its position: epoch after epoch."""

    @property
    def shape(self) -> RowShape:
        """How much one row holds; its fields, their dtypes and dimensions."""

    @property
    def options(self) -> PretrainOptions:
        """How the rows are drawn, and how many are made and kept at a time."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Ids of the pieces pad, unk, cls, sep and mask."""

    @property
    def mean_rows_per_epoch(self) -> float:
        """Rows in a pass over the split, a mean where passes differ."""

    @property
    def mean_examples_in_row(self) -> float:
        """Examples in a row, a mean; 1 where rows are not packed."""

    def rows_in_epoch(self, epoch: int) -> int:
        """Rows that epoch number `epoch`, 0 or more, has."""

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position of the stream, and index within that epoch: int64[B] each."""

    def rows(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these positions of the stream, in the order given.

        The same alone, among any others, and in any process.

        Shapes: int64[B], 0 or more -> the fields of `shape`.

        Raises:
          ValueError: a negative position, or rows that are damaged.
        """
