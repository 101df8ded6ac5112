"""What a run is made of, as the first block on the screen."""

from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import attention, layer_rates
from bert_jax import config as config_lib
from bert_jax.changes import Change
from bert_jax.models.bert import Model
from bert_jax.placed_batches import BATCHES_AHEAD
from bert_jax.profiling import Window
from bert_jax.programs import compiles_ahead
from bert_jax.run_config import RunConfig


def opening_rows(
    config: RunConfig,
    mesh: jax.sharding.Mesh,
    model: Model,
    data_rows: Sequence[tuple[str, str]],
    done: int | None,
    profiled: Window | None,
    changes: Sequence[Change] = (),
) -> list[tuple[str, str]]:
    """Labels and texts: devices, model, data, what the host does, where the run begins.

    data_rows say what the batches are. done is the step of the newest checkpoint, None for a run
    that has none yet.
    """
    axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    shape = config.model
    total = config_lib.total_steps(config)
    start = "from the first" if done is None else f"resuming at step {done:,} of {total:,}"
    if done == total:
        start = f"finished before, at step {total:,}: evaluating once more"
    rows = [
        ("devices", f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}"),
        (
            "model",
            f"{model.parameter_count:,} parameters: {shape.num_hidden_layers} layers of "
            f"{shape.hidden_size}, {shape.vocab_size:,} pieces; matmuls in {model.dtype}",
        ),
        ("attention", attention_in_words(config, mesh, model)),
        *data_rows,
    ]
    if rates := layer_rates.in_words(config.optim, shape.num_hidden_layers, total):
        rows.append(("rates", rates))
    rows.append(("host", _host(len(config.phases) > 1 and compiles_ahead(mesh))))
    if profiled is not None:
        rows.append(("profile", f"steps {profiled.first:,} to {profiled.last:,} will be traced"))
    for number, change in enumerate(changes):
        rows.append(("" if number else "changed", change.in_words()))
    return [*rows, ("steps", f"{total:,}, {start}")]


def _host(compiles_next_phase: bool) -> str:
    """What works beside the steps."""
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    kept = f"compiled programs are kept in {folder}" if folder else "no compiled program is kept"
    ahead = ", the next phase is compiled before one ends" if compiles_next_phase else ""
    return f"{BATCHES_AHEAD} batches lie ready on the devices{ahead}; {kept}"


def attention_in_words(config: RunConfig, mesh: jax.sharding.Mesh, model: Model) -> str:
    """Which implementation the phases take, and why it is the plain one.

    Raises:
      ValueError: the kernel is demanded and does not take a phase.
    """
    shape = config.model
    words_at = {
        phase.seq_len: attention.choose(
            config.compute.attention,
            mesh.devices.flat[0].device_kind,
            phase.seq_len,
            shape.num_attention_heads,
            shape.hidden_size // shape.num_attention_heads,
            model.dtype,
            mesh.shape["model"],
        ).words
        for phase in config.phases
    }
    if len(set(words_at.values())) == 1:
        return next(iter(words_at.values()))
    return "; ".join(f"at {seq_len} {words}" for seq_len, words in words_at.items())
