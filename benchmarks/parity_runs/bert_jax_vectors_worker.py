"""Compute vectors as bert_jax.features does: our side of the vectors of parity.py.

Runs in the project's own environment; started by the driver.
"""

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from benchmarks.step import workers
from bert_jax.inference import hidden_states
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_model
from bert_jax.model.bert import Heads
from data_pipeline.labeled.lines import LineCounts, group_rows, open_lines

_running: dict[str, Any] = {}  # the placed model and the step, compiled as lengths occur
_MAX_GROUP_TOKENS = 1 << 18


def open_encoder(checkpoint: str) -> dict[str, Any]:
    """Read a checkpoint for vectors; its address is one of interop.load."""
    model = place_model(load.load(checkpoint), Heads(mlm=False, nsp=False))
    layers = hidden_states.choose_layers("-1", model.checkpoint.config.num_hidden_layers)
    extraction = hidden_states.Extraction(layers, hidden_states.MEAN, False, 0, 0, batch_size=0)
    step = hidden_states.compile_vectors(model, extraction)
    _running.update(model=model, extraction=extraction, step=step)
    return {"devices": jax.device_count()}


def vectors(
    sentences_file: str, batch_size: int, max_length: int, out_file: str
) -> dict[str, float]:
    """Write float32[N,D], the mean over each line's tokens."""
    model, step = _running["model"], _running["step"]
    extraction = dataclasses.replace(
        _running["extraction"], max_seq_length=max_length, batch_size=batch_size
    )
    start, cpu_start = time.perf_counter(), time.process_time()
    lines = open_lines(sentences_file)
    groups = group_rows(lines, model.vocabulary, max_length, _MAX_GROUP_TOKENS, LineCounts())
    computed = hidden_states.compute_groups(step, model, groups, extraction, lambda done: None)
    parts = [group.vectors for group in computed]
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    np.save(out_file, np.concatenate(parts))
    return {"secs": secs, "cpu_secs": cpu_secs}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (open_encoder, vectors)})
