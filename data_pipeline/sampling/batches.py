"""Make batches of rows: a tf.data pipeline to train on, a fixed list to evaluate on."""

from collections.abc import Generator

import numpy as np

from data_pipeline.sampling.source import ExampleSource


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
