"""Run rows of token ids through a model without dropout, in batches of about one length.

The longest rows come first. The next batch is computed while the caller handles the one before it.

Dimensions: N examples, B examples of a batch, S sequence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax.interop.pretrained import PlacedModel
from bert_jax.logging.console import Screen
from bert_jax.model.bert import Bert, Model, Params
from bert_jax.parallel import collectives
from bert_jax.parallel import mesh as mesh_lib
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import EncodedRows, batch_by_length

Outputs = Mapping[str, Any]  # arrays by name, B first
# Computes outputs from a batch with the fields of EncodedRows.batch.
Compute = Callable[[Bert, Mapping[str, jax.Array]], Outputs]
Step = Callable[[Params, Mapping[str, jax.Array]], Outputs]
Results = Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]


def choose_length(given: int, positions: int, trained: int = 0) -> int:
    """Return the longest row in tokens: --max_seq_length, or if 0 all positions of the model.

    For a fine-tuned model, 0 takes the length of the rows that it was trained on.

    Raises:
      Refused: the model has fewer positions, or no token fits between the special ones.
    """
    most = given or min(trained or positions, positions)
    if not 3 <= most <= positions:
        usual = "the length of its training" if trained else "all of them"
        raise Refused(
            f"--max_seq_length is {most}; it must be from 3 to {positions}, the positions that "
            f"the checkpoint has, or 0 for {usual}"
        )
    return most


def compile_step(model: Model, compute: Compute) -> jax.stages.Wrapped:
    """Return the jitted function (params, batch) -> outputs, complete on every device.

    It compiles once for each length of rows; keep it for later calls that compute the same.
    """

    def run(params: Params, batch: Mapping[str, jax.Array]) -> Outputs:
        specs = collectives.specs(params)

        def run_shard(params: Params, batch: Mapping[str, jax.Array]) -> Outputs:
            return compute(model.bind(collectives.gather_params(params, specs, model.dtype)), batch)

        sharded = PartitionSpec(mesh_lib.BATCH_AXES)
        outputs = collectives.map_over_batch(run_shard, (params, dict(batch)), sharded)
        # A process can read only arrays that are complete on its devices.
        return jax.tree.map(lambda array: jax.sharding.reshard(array, PartitionSpec()), outputs)

    return jax.jit(run)


def run_rows(step: Step, model: PlacedModel, rows: EncodedRows, batch_size: int) -> Results:
    """Yield the outputs of rows through a placed model, as run_batches does.

    Raises:
      Refused: a row is longer than the model's positions; an output is not finite; batch_size is
        below 1.
    """
    if batch_size < 1:
        raise Refused(f"batch_size is {batch_size}; it must be 1 or more")
    pad_id = model.vocabulary.special_ids["pad"]
    positions = model.checkpoint.config.max_position_embeddings
    longest = int(rows.lengths_N.max(initial=0))
    if longest > positions:
        raise Refused(
            f"a row has {longest} tokens, and the checkpoint {model.checkpoint.address} reads "
            f"{positions}; make rows of {positions} or fewer (max_seq_length)"
        )
    results = run_batches(step, model.params, model.mesh, rows, batch_size, pad_id, positions)
    for index_B, outputs in results:
        check_finite(outputs, model)
        yield index_B, outputs


def check_finite(outputs: Outputs, model: PlacedModel) -> None:
    """Raise Refused if an output of a model is not finite."""
    if not all(np.isfinite(array).all() for array in outputs.values()):
        raise Refused(
            f"the checkpoint {model.checkpoint.address} computes infinities or NaN; give an "
            "earlier one, or one whose weights are finite"
        )


def run_batches(
    step: Step,
    params: Params,
    mesh: Mesh,
    rows: EncodedRows,
    batch_size: int,
    pad_id: int,
    positions: int,
) -> Results:
    """Yield int64[B], the numbers of some examples, and their outputs; every example once.

    batch_size is rounded up to a multiple of the mesh's batch shards; the rows that fill up the
    last batch are dropped. S of a batch is what choose_seq_len gives for the longest example, at
    most the model's positions, and decreases from batch to batch. The step runs with this mesh
    current: in JAX the current mesh belongs to a thread, and may be the caller's own.
    """
    shards = mesh_lib.batch_shards(mesh)
    waiting = None
    for batch in batch_by_length(rows, -(-batch_size // shards) * shards, pad_id, positions):
        with jax.set_mesh(mesh):
            started = batch.index_B, step(params, mesh_lib.place_batch(batch.fields, mesh))
        if waiting is not None:
            yield copy_to_host(*waiting)
        waiting = started
    if waiting is not None:
        yield copy_to_host(*waiting)


def copy_to_host(index_B: np.ndarray, outputs: Outputs) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the numbers and outputs of a batch without the rows that fill it up."""
    examples = int((index_B >= 0).sum())  # they come last
    return index_B[:examples], {
        name: np.asarray(array)[:examples] for name, array in outputs.items()
    }


def report_progress(results: Results, examples: int, label: str, screen: Screen) -> Results:
    """Yield the results unchanged while the screen counts the finished examples."""
    done = 0
    with screen.spinning(f"{label}: compiling") as show:
        for index_B, outputs in results:
            yield index_B, outputs
            done += len(index_B)
            show(f"{label}: {done:,} of {examples:,}")


def collect(
    results: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], examples: int
) -> dict[str, np.ndarray]:
    """Return the outputs of all examples in their own order, in memory: [N,...] each.

    Each output has the shape of the first batch, whose rows are the longest; positions that later
    batches lack are zero. Empty if there are no examples.
    """
    arrays: dict[str, np.ndarray] = {}
    for index_B, outputs in results:
        for name, array in outputs.items():
            if name not in arrays:
                arrays[name] = np.zeros((examples, *array.shape[1:]), array.dtype)
            inside: tuple[Any, ...] = (index_B, *map(slice, array.shape[1:]))
            arrays[name][inside] = array
    return arrays
