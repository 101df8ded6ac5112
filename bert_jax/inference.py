"""Rows of token ids through a model without dropout: batches of about one length, longest first.

The next batch is under way while the one before it is looked at.

Dimensions: N examples, B examples of a batch, S sequence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from bert_jax import data_parallel, mesh
from bert_jax.models.bert import Bert, Model, Params
from bert_jax.screen import Screen
from data_pipeline.finetune import EncodedRows, by_length

Outputs = Mapping[str, Any]  # arrays by name, B first
# What is asked of the model, of a batch with the fields of EncodedRows.batch.
Ask = Callable[[Bert, Mapping[str, jax.Array]], Outputs]
Results = Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]


def step(model: Model, ask: Ask) -> jax.stages.Wrapped:
    """The compiled work on one batch: (params, batch) -> outputs, whole on every device.

    Compiled once for each length; keep it where several calls of each_batch ask the same.
    """

    def run(params: Params, batch: Mapping[str, jax.Array]) -> Outputs:
        specs = data_parallel.specs_of(params)

        def on_a_device(params: Params, batch: Mapping[str, jax.Array]) -> Outputs:
            return ask(model.bind(data_parallel.gathered(params, specs, model.dtype)), batch)

        cut = PartitionSpec(mesh.BATCH_AXES)
        outputs = data_parallel.over_batch(on_a_device, (params, dict(batch)), cut)
        # Each process reads all of them, as it may only where it has all of them.
        return jax.tree.map(lambda array: jax.sharding.reshard(array, PartitionSpec()), outputs)

    return jax.jit(run)


def each_batch(
    step: Callable[[Params, Mapping[str, jax.Array]], Outputs],
    params: Params,
    of: Mesh,
    rows: EncodedRows,
    batch_size: int,
    pad_id: int,
    positions: int,
) -> Results:
    """Yield int64[B] numbers of examples and the outputs of those, every example once.

    batch_size is rounded up to what the mesh divides; what fills up the last batch is left out
    here. S of a batch is what seq_len_for gives for its longest example, at most the model's
    positions, and falls from batch to batch.
    """
    shards = mesh.batch_shards(of)
    waiting = None
    for batch in by_length(rows, -(-batch_size // shards) * shards, pad_id, positions):
        started = batch.index_B, step(params, mesh.place(batch.fields, of))
        if waiting is not None:
            yield _on_the_host(*waiting)
        waiting = started
    if waiting is not None:
        yield _on_the_host(*waiting)


def _on_the_host(index_B: np.ndarray, outputs: Outputs) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    examples = int((index_B >= 0).sum())  # rows that fill up stand behind all others
    return index_B[:examples], {
        name: np.asarray(array)[:examples] for name, array in outputs.items()
    }


def shown(results: Results, examples: int, what: str, screen: Screen) -> Results:
    """The same, with a count of the examples done while they are waited for."""
    done = 0
    with screen.spinning(f"{what}: compiling") as show:
        for index_B, outputs in results:
            yield index_B, outputs
            done += len(index_B)
            show(f"{what}: {done:,} of {examples:,}")


def collected(
    results: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]], examples: int
) -> dict[str, np.ndarray]:
    """The outputs of all examples in their own order, in memory: [N,...] each.

    Shapes are those of the first batch, the longest one: of an output with positions, what a
    shorter batch does not have is zero. Empty where there are no examples.
    """
    gathered: dict[str, np.ndarray] = {}
    for index_B, outputs in results:
        for name, array in outputs.items():
            if name not in gathered:
                gathered[name] = np.zeros((examples, *array.shape[1:]), array.dtype)
            inside: tuple[Any, ...] = (index_B, *map(slice, array.shape[1:]))
            gathered[name][inside] = array
    return gathered
