"""Run our side of step_vs_hf_*.py: the training step that bert_jax.trainer.loop runs.

Runs in the project's own environment; started by the driver.
"""

import math
import time
from typing import Any

import flax
import jax
import numpy as np
import optax

from benchmarks.step import cases, workers
from bert_jax.benchmarking import measure
from bert_jax.config import ComputeConfig, Config, ModelConfig, OptimConfig, Phase
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.model.layers import Declared
from bert_jax.parallel import mesh
from bert_jax.train_step import objectives, step

_running: dict[str, Any] = {}  # model, state, step, batch of the last `build`


def build(
    size: dict[str, Any], dropout_rate: float, batch_file: str, learning_rate: float, dtype: str
) -> dict[str, Any]:
    """Make model, state and batch, compile the step and take it once."""
    batch = dict(np.load(batch_file))
    batch_size, seq_len = batch["input_ids"].shape
    shape = dict(size)
    shape |= cases.FAMILIES[shape.pop("family")]
    name = shape.pop("objective")
    shape["max_position_embeddings"] = max(seq_len, shape.get("max_position_embeddings", 512))
    config = Config(
        model=ModelConfig(
            **shape, hidden_dropout_prob=dropout_rate, attention_probs_dropout_prob=dropout_rate
        ),
        objective=name,
        compute=ComputeConfig(compute_dtype=dtype),
        phases=(
            Phase(
                seq_len=seq_len,
                steps=1_000_000,
                batch_size=batch_size,
                max_predictions_per_seq=batch["masked_lm_ids"].shape[1],
            ),
        ),
        optim=OptimConfig(learning_rate=learning_rate, warmup_steps=0),
    )
    (objective,) = objectives.find_each(config)
    program = measure.compile_step(config, jax.devices()[:1])
    _running.update(
        model=program.model,
        objective=objective,
        step=program.take,
        state=program.first_state(),
        batch=mesh.place_batch(batch, program.mesh),
    )
    start = time.perf_counter()
    run(1)
    return {
        "parameters": sum(
            math.prod(leaf.logical_dims)
            for part, tree in program.model.declared.items()
            if part not in objective.untrained
            for leaf in jax.tree.leaves(tree)
        ),
        "first_step_secs": program.compile_secs + time.perf_counter() - start,
        "device": jax.devices()[0].device_kind,
        "versions": {module.__name__: module.__version__ for module in (jax, flax, optax)},
    }


def run(steps: int) -> dict[str, float]:
    """Take steps; return wall and processor time (all threads) until the last state is ready."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(steps):
        _running["state"], sums = _running["step"](_running["state"], _running["batch"])
    jax.block_until_ready((_running["state"], sums))
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    return {"secs": secs, "cpu_secs": cpu_secs} | {
        name: float(term.loss_sum / sums["weights"][name]) for name, term in sums["terms"].items()
    }


def gradients(params_file: str, out_file: str) -> dict[str, float]:
    """Write gradients at these parameters without dropout; return the losses.

    Files hold an array per parameter, named by its path, without rows that pad the vocabulary.
    """
    model, given = _running["model"], np.load(params_file)

    def place(path: Any, declared: Declared, like: jax.Array) -> jax.Array:
        leaf = given[jax.tree_util.keystr(path, simple=True, separator="/")]
        if leaf.shape != declared.logical_dims:
            raise ValueError(
                f"{path} is {leaf.shape} in {params_file}, not {declared.logical_dims}"
            )
        padding = [
            (0, rows - real)
            for rows, real in zip(declared.dims, declared.logical_dims, strict=True)
        ]
        return jax.device_put(np.pad(leaf, padding), like.sharding)

    params = jax.tree_util.tree_map_with_path(place, model.declared, _running["state"].params)
    grads, terms, weights = jax.jit(
        lambda params, batch: step.compute_gradients(
            step.StepLoss(model, _running["objective"]), params, batch
        )
    )(params, _running["batch"])
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(jax.device_get(grads)),
        jax.tree.leaves(model.declared),
        strict=True,
    )
    named = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf[
            tuple(slice(0, real) for real in declared.logical_dims)
        ]
        for (path, leaf), declared in leaves
    }
    np.savez(out_file, **named)
    return {name: float(term.loss_sum / weights[name]) for name, term in terms.items()}


def losses_of(folder: str) -> dict[str, float]:
    """Return the losses, on the batch, of the model in a folder of Hugging Face's files."""
    placed = place_masked_lm(load.load_masked_lm(f"hf:{folder}"))
    evaluate = step.make_eval_step(placed.model, _running["objective"])
    with jax.set_mesh(placed.mesh):
        sums = evaluate(placed.params, _running["batch"])
    return {
        name: float(term.loss_sum / sums["weights"][name]) for name, term in sums["terms"].items()
    }


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (build, run, losses_of, gradients)})
