"""What the loop asks of a feed, wherever its batches come from: a store, or a task's examples."""

import pathlib
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.run_config import RunConfig
from bert_jax.screen import Screen

# Of a batch, by field: dimensions of the whole batch, and dtype.
BatchShape = dict[str, tuple[tuple[int, ...], type[np.generic]]]
HostBatch = dict[str, np.ndarray]


class RunFeed(Protocol):
    """Batches of a run, as pure functions of phase and step."""

    @property
    def config(self) -> RunConfig:
        """The run's."""

    @property
    def learns(self) -> str:
        """What the run does, as the first line on the screen begins: "pre-training"."""

    @property
    def origin(self) -> pathlib.Path:
        """The folder that batches are made from; no run is to write there."""

    @property
    def vocab_path(self) -> pathlib.Path:
        """The file of the vocabulary, which the workdir gets a copy of."""

    def vocabulary_record(self) -> dict[str, Any]:
        """Name, size, case and SHA-256 of that vocabulary, for run records and checkpoints."""

    def fixed(self) -> dict[str, Any]:
        """What a run that goes on must keep of its data, by the names that a config has."""

    def fixed_by_default(self) -> dict[str, Any]:
        """Of these the defaults: what a run did that is older than a setting."""

    def in_a_receipt(self) -> dict[str, Any]:
        """What tells these data from others, by SHA-256, and what whoever reads the run needs."""

    def advice(self) -> str:
        """What to do where batches come too late."""

    def batch_shapes(self, index: int, first_step: int) -> Sequence[BatchShape]:
        """The shapes that batches of a phase have from a step of it on, each once."""

    def train_batches(
        self, index: int, first_step: int, rows: np.ndarray
    ) -> Generator[HostBatch, None, None]:
        """Rows of the batches of a phase from a step, counted within the phase, to its last."""

    def positions(self, step: int) -> np.ndarray:
        """int64[B]: the stream's positions in the batch of a step, from 1 over all phases."""

    def located(self, index: int, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch of each position of a phase's stream, and the row's or example's number in it."""


class RunPhase(Protocol):
    """What is known of a phase before its first step, its evaluation included."""

    @property
    def examples_per_row(self) -> float:
        """Mean examples in a row of a batch."""

    @property
    def of_a_step(self) -> dict[str, float]:
        """What a step sees, named as in the summary."""

    @property
    def baseline(self) -> dict[str, float]:
        """What a model without context scores, named as in the records."""

    @property
    def heldout_examples(self) -> int:
        """Examples that are evaluated."""

    @property
    def heldout_batches(self) -> Sequence[HostBatch]:
        """The whole batches that an evaluation goes through, as fixed as the run."""

    def heldout_scores(self, results: Sequence[Any]) -> dict[str, float]:
        """Numbers for the records from what the evaluation step returned of each batch."""

    def show(self, screen: Screen, step: int, scores: dict[str, float]) -> None:
        """Print such numbers beside the baselines."""
