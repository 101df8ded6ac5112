"""bert_jax as one side of the vectors of parity.py: what bert_jax.features computes of each line.

Runs in the project's own environment; started by the driver.
"""

import functools
import time
from typing import Any

import jax
import numpy as np

from benchmarks import turns
from bert_jax import inference, pretrained
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig
from bert_jax.feature_vectors import MEAN, asked, chosen_layers, in_order
from bert_jax.models import bert
from bert_jax.models.bert import Heads
from data_pipeline.sentence_lines import LineCounts, lines_of, row_groups

_running: dict[str, Any] = {}  # vocabulary, params, mesh, and the step, compiled as lengths occur
_MOST_GROUP_TOKENS = 1 << 18


def open_encoder(checkpoint: str) -> dict[str, Any]:
    """Read a checkpoint for vectors; its address is one of pretrained.load."""
    of = mesh_lib.make(MeshConfig(preset="dp"))
    jax.set_mesh(of)
    loaded = pretrained.load(checkpoint)
    model = bert.build(loaded.config, "cpu", heads=Heads(mlm=False, nsp=False))
    params, _ = pretrained.placed(loaded, model, of, seed=0)
    layers = chosen_layers("-1", loaded.config.num_hidden_layers)
    ask = functools.partial(asked, layers=layers, pool=MEAN, normalize=False)
    _running.update(
        vocabulary=loaded.vocabulary,
        params=params,
        mesh=of,
        step=inference.step(model, ask),
        positions=loaded.config.max_position_embeddings,
    )
    return {"devices": jax.device_count()}


def vectors(
    sentences_file: str, batch_size: int, max_length: int, out_file: str
) -> dict[str, float]:
    """Write float32[N,D], the mean over each line's tokens."""
    vocabulary, params, of = (_running[name] for name in ("vocabulary", "params", "mesh"))
    pad_id, positions = vocabulary.special_ids["pad"], _running["positions"]
    start, cpu_start = time.perf_counter(), time.process_time()
    lines = lines_of(sentences_file)
    found = []
    for rows in row_groups(lines, vocabulary, max_length, _MOST_GROUP_TOKENS, LineCounts()):
        results = inference.each_batch(
            _running["step"], params, of, rows, batch_size, pad_id, positions
        )
        found.append(in_order(results, rows, is_pooled=True))
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    np.save(out_file, np.concatenate(found))
    return {"secs": secs, "cpu_secs": cpu_secs}


if __name__ == "__main__":
    turns.serve({f.__name__: f for f in (open_encoder, vectors)})
