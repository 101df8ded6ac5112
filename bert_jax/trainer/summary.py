"""Describe a run before its first step, as the first block on the screen."""

import dataclasses
from typing import Any, cast

import jax

from bert_jax import config as config_lib
from bert_jax.config import RunConfig
from bert_jax.model.bert import Model
from bert_jax.parallel.mesh import describe_axes
from bert_jax.train_step import mup, schedule
from bert_jax.trainer.compile import choose_attention, compiles_ahead
from bert_jax.trainer.prefetch import BATCHES_AHEAD
from bert_jax.trainer.setup import Setup


def list_opening_rows(setup: Setup, done: int | None) -> list[tuple[str, str]]:
    """Describe devices, model, data, host work and the first step, as (label, text) rows.

    `done` is the step of the newest checkpoint, None for a new run.
    """
    config, mesh, model = setup.config, setup.parts.mesh, setup.parts.models[0]
    total = config_lib.total_steps(config)
    start = "from the first" if done is None else f"resuming at step {done:,} of {total:,}"
    if done is None and setup.trunk is not None:
        start = f"from step {setup.trunk.step:,} of {setup.trunk.run}"
    if done == total:
        start = f"finished before, at step {total:,}: evaluating once more"
    chosen = config
    if setup.parts.attention:
        compute = dataclasses.replace(config.compute, attention=setup.parts.attention)
        chosen = dataclasses.replace(config, compute=compute)
    rows = [*list_model_rows(chosen, mesh, model), *setup.data_rows]
    if rates := schedule.describe_rates(config.optim, len(model.declared["layers"]), total):
        rows.append(("rates", rates))
    if scaled := mup.describe(config):
        rows.append(("transfer", scaled))
    folder = cast(Any, jax.config).jax_compilation_cache_dir
    kept = f"compiled programs are kept in {folder}" if folder else "no compiled program is kept"
    is_ahead = len(config.phases) > 1 and compiles_ahead(mesh)
    ahead = ", each phase is compiled before the previous one ends" if is_ahead else ""
    rows.append(("host", f"{BATCHES_AHEAD} batches are prefetched{ahead}; {kept}"))
    if (profiled := setup.profiled) is not None:
        begun = done or (setup.trunk.step if setup.trunk else 0)
        label, words = "profile", "will be traced"
        if profiled.first <= begun:
            label, words = "! profile", f"are not traced: this start begins after step {begun:,}"
        rows.append((label, f"steps {profiled.first:,} to {profiled.last:,} {words}"))
    for number, change in enumerate(setup.changes):
        rows.append(("" if number else "changed", change.in_words()))
    return [*rows, ("steps", f"{total:,}, {start}")]


def list_model_rows(
    config: RunConfig, mesh: jax.sharding.Mesh, model: Model
) -> list[tuple[str, str]]:
    """Describe the devices, the model and its attention.

    Raises:
      Refused: config.compute.attention requires the kernel and it does not support a phase.
    """
    shape = config.model
    axes = describe_axes(mesh.shape)
    sizes = f"{shape.num_hidden_layers} layers of {shape.hidden_size}, {shape.vocab_size:,} pieces"
    if shape.generator is not None:
        small = shape.generator
        sizes += f"; a generator of {small.num_hidden_layers} layers of {small.hidden_size}"
    words = f"{model.parameter_count:,} parameters: {sizes}; matmuls in {model.dtype}"
    return [
        ("devices", f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}"),
        ("model", words),
        ("attention", describe_attention(config, mesh, model)),
    ]


def describe_attention(config: RunConfig, mesh: jax.sharding.Mesh, model: Model) -> str:
    """Name the attention implementation of each phase, with the reason if it is not the kernel.

    Raises Refused if config.compute.attention requires the kernel and it does not fit a phase.
    """
    words = {
        phase.seq_len: choose_attention(
            config.compute.attention,
            mesh,
            phase.seq_len,
            config_lib.model_in_phase(config, index),
            model.dtype,
        ).words
        for index, phase in enumerate(config.phases)
    }
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"at {seq_len} {words}" for seq_len, words in words.items())
