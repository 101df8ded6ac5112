"""Define a stream of rows, and make its batches, for training by tf.data and for evaluation."""

import abc
from collections.abc import Generator, Mapping

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import RowShape


class ExampleSource(abc.ABC):
    """Stream rows endlessly, epoch after epoch; each is a pure function of its position.

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
        """Return each row's part, and its index in that part.

        A part is an epoch, or in a mixture a store.
        Shapes: int64[B] -> int64[B], int64[B].
        """
        return self.locate(positions)

    @abc.abstractmethod
    def make_rows_of_part(self, part: int, index_B: np.ndarray) -> dict[str, np.ndarray]:
        """Make rows by their index in a part (see find_parts): int64[B] -> fields of `shape`."""

    def find_stores(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of each row's store: int64[B]; 0 if there is only one store."""
        return np.zeros(len(positions), np.int64)


def compute_positions(
    first_row: int, batch_size: int, steps_T: np.ndarray, rows_B: np.ndarray
) -> np.ndarray:
    """Compute the positions in the stream of rows of several steps' global batches: int64[T,B].

    `first_row` is the position of the phase's step 0; steps count from 0 within the phase, rows
    from 0 within the global batch.
    """
    return first_row + batch_size * np.asarray(steps_T, np.int64)[:, None] + rows_B


def train_batches(
    source: ExampleSource,
    *,
    batch_size: int,
    first_row: int,
    first_step: int,
    last_step: int,
    rows: np.ndarray,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yield one process's rows of each global batch, for steps first_step to last_step - 1.

    `rows`, int[n], are the indices in the global batch of the rows that this process makes.
    first_row and steps are counted as in compute_positions. A step has the same batch whichever
    step the iterator starts at. Closing the iterator ends its threads. A NumPy call makes several
    steps at once; tf.data splits and prefetches them.

    Raises:
      Refused: raised by the iterator if a row cannot be made.
    """
    # Imported here: held-out batches and sources need no TensorFlow.
    import tensorflow as tf

    arrays = source.shape.arrays(len(rows))
    sequences_in_step = len(rows) * source.mean_examples_in_row
    steps_per_call = max(1, int(source.options.group_sequences / sequences_in_step))
    failures: list[Exception] = []

    def make_steps(start: int) -> list[np.ndarray]:
        stop = min(int(start) + steps_per_call, last_step)
        try:
            positions = compute_positions(first_row, batch_size, np.arange(start, stop), rows)
            made = source.rows(positions.ravel())
        except Exception as failure:
            # TensorFlow would wrap the error in a page of text; an empty group ends the dataset.
            failures.append(failure)
            return [np.zeros((0, *dims), dtype) for dims, dtype in arrays.values()]
        return [made[name].reshape(stop - start, *dims) for name, (dims, _) in arrays.items()]

    dtypes = [tf.as_dtype(dtype) for _, dtype in arrays.values()]

    def make_group(start: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = tf.numpy_function(make_steps, [start], dtypes)
        for tensor, (dims, _) in zip(tensors, arrays.values(), strict=True):
            tensor.set_shape((None, *dims))
        return dict(zip(arrays, tensors, strict=True))

    dataset = tf.data.Dataset.range(first_step, last_step, steps_per_call)
    dataset = dataset.map(make_group)
    dataset = dataset.take_while(lambda group: tf.shape(group["input_ids"])[0] > 0)
    dataset = dataset.unbatch().prefetch(source.options.prefetch_batches)
    dataset = dataset.with_options(_limit_threads(tf))
    yield from dataset.as_numpy_iterator()
    if failures:
        raise failures[0]


def _limit_threads(tf):  # type: ignore[no-untyped-def]
    """Return options for two threads, to make and deliver batches; steps need the other cores."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 2
    options.threading.max_intra_op_parallelism = 1
    options.experimental_optimization.apply_default_optimizations = False
    options.deterministic = True
    return options


def make_heldout_batches(
    source: ExampleSource, *, batch_size: int, examples: int
) -> list[dict[str, np.ndarray]]:
    """Make full batches of the first `examples` rows of epoch 0, the same at every call.

    An epoch with fewer rows gives fewer batches. The last batch is padded with rows of weight 0
    whose only visible token is [CLS], so that no mean over a row divides by zero. Pass an unpacked
    source (one example per row), so that scores do not depend on how training packs its rows.
    """
    total = min(examples, source.rows_in_epoch(0))
    batches = []
    for start in range(0, total, batch_size):
        batch = source.shape.zeros(batch_size)
        batch["input_ids"][:] = source.special_ids["pad"]
        batch["input_ids"][:, 0] = source.special_ids["cls"]
        batch["input_mask"][:, 0] = 1
        made = source.rows(np.arange(start, min(start + batch_size, total), dtype=np.int64))
        for name, array in made.items():
            batch[name][: len(array)] = array
        batches.append(batch)
    return batches
