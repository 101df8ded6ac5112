"""Pre-training batches: a tf.data pipeline for training, a fixed list for held-out evaluation."""

from collections.abc import Generator

import numpy as np

from data_pipeline.example_source import ExampleSource


def train_batches(
    source: ExampleSource,
    *,
    batch_size: int,
    first_row: int,
    first_step: int,
    last_step: int,
    process_index: int = 0,
    process_count: int = 1,
    rows: np.ndarray | None = None,
) -> Generator[dict[str, np.ndarray], None, None]:
    """This process's rows of the global batch of each step from first_step to last_step - 1.

    Step t, counted within its phase, covers positions first_row + t * batch_size onwards of
    the source's stream; process p of n gets the p-th of n equal parts. Any step can be made again
    by starting there. Closing the iterator ends its threads.

    Args:
      batch_size: rows in the global batch.
      first_row: the stream's position of the phase's step 0.
      rows: int[n] from 0 to batch_size - 1, instead of the p-th part: a mesh may deal the rows of
        a batch out to processes in another order, or one row to several.

    Raises:
      ValueError: at once for a batch size that process_count does not divide or a bad range; from
        the iterator whatever making a row raises, as itself.
    """
    if rows is None:
        part = _rows_per_process(batch_size, process_index, process_count)
        rows = process_index * part + np.arange(part)
    if first_row < 0 or first_step < 0 or last_step < first_step:
        raise ValueError(
            f"steps {first_step} to {last_step} from row {first_row} are no range; all "
            "must be 0 or more and the last step not before the first"
        )
    return _run_dataset(source, batch_size, rows, first_row, first_step, last_step)


def _run_dataset(
    source: ExampleSource,
    batch_size: int,
    rows: np.ndarray,
    first_row: int,
    first_step: int,
    last_step: int,
) -> Generator[dict[str, np.ndarray], None, None]:
    """range of steps -> one call into NumPy for several steps -> single steps -> prefetch."""
    # Imported here: held-out batches and the source are of use without tensorflow.
    import tensorflow as tf

    arrays = source.shape.arrays(len(rows))
    sequences_in_step = len(rows) * source.mean_examples_in_row
    steps_per_call = max(1, int(source.options.group_sequences / sequences_in_step))
    failures: list[Exception] = []

    def make_steps(start: int) -> list[np.ndarray]:
        stop = min(int(start) + steps_per_call, last_step)
        step_offsets = first_row + batch_size * np.arange(start, stop, dtype=np.int64)
        try:
            made = source.rows((step_offsets[:, None] + rows).ravel())
        except Exception as failure:
            # TensorFlow would wrap it in a page of its own; an empty group ends the dataset.
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
    dataset = dataset.with_options(_one_worker(tf))
    yield from dataset.as_numpy_iterator()
    if failures:
        raise failures[0]


def _one_worker(tf):  # type: ignore[no-untyped-def]
    """One thread makes batches and another hands them out: the step needs the other cores."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 2
    options.threading.max_intra_op_parallelism = 1
    options.experimental_optimization.apply_default_optimizations = False
    options.deterministic = True
    return options


def heldout_batches(
    source: ExampleSource,
    *,
    batch_size: int,
    examples: int,
) -> list[dict[str, np.ndarray]]:
    """The first `examples` rows of epoch 0 in whole batches: the same at every call.

    Give a source whose rows hold one example each: figures then compare, whatever training packs.
    Fewer where the epoch has fewer. The last batch is filled up with rows whose weights are zero
    and whose only visible token is [CLS], so that no mean over a row divides by zero.

    Raises:
      ValueError: examples is below 1.
    """
    if examples < 1:
        raise ValueError(f"examples to evaluate is {examples}; it must be 1 or more")
    total = min(examples, source.rows_in_epoch(0))
    batches = []
    for start in range(0, total, batch_size):
        made = source.rows(np.arange(start, min(start + batch_size, total), dtype=np.int64))
        batches.append(_filled_up(source, made, batch_size))
    return batches


def _filled_up(
    source: ExampleSource, made: dict[str, np.ndarray], rows: int
) -> dict[str, np.ndarray]:
    """A batch of `rows` rows, those after the given ones of one token and zero weight."""
    batch = source.shape.zeros(rows)
    batch["input_ids"][:] = source.special_ids["pad"]
    batch["input_ids"][:, 0] = source.special_ids["cls"]
    batch["input_mask"][:, 0] = 1
    for name, array in made.items():
        batch[name][: len(array)] = array
    return batch


def _rows_per_process(batch_size: int, process_index: int, process_count: int) -> int:
    if process_count < 1 or not 0 <= process_index < process_count:
        raise ValueError(
            f"process {process_index} of {process_count} does not exist; processes count from 0 "
            "to process_count - 1"
        )
    if batch_size < 1 or batch_size % process_count:
        raise ValueError(
            f"batch_size is {batch_size}; it must be a multiple of the {process_count} processes, "
            f"e.g. {max(1, round(batch_size / process_count)) * process_count}"
        )
    return batch_size // process_count
