"""Training curves of the choices that round: python -m benchmarks.numerics_curves --store=STORE.

Trains the model of configs/tiny.py on the same batches in float32 from two seeds, in bfloat16 with
exact formulas, with each choice of config.compute that rounds more, with gradients added up over
devices in bfloat16, and with all of that. Prints how far each curve lies from the float32 one,
beside how far the other seed does. On a CPU the sums are over eight devices made of it.
"""

import argparse
import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.benchmarking import measure
from bert_jax.config import ComputeConfig, Config, Phase
from bert_jax.logging.plots import Figure
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step.objectives import MLM_NSP
from configs import tiny
from data_pipeline.sampling.stream import open_examples
from data_pipeline.store import open_store

SEQ_LEN, PREDICTIONS = 64, 10
SMOOTHED = 25  # steps whose mean is compared: a single batch is noise
REFERENCE, OTHER_SEED = "float32", "float32, another seed"
EXACT = ComputeConfig(
    attention="plain",
    layer_norm_variance="two_pass",
    mlm_logits_dtype="float32",
    gelu_backward="recomputed",
)
CHOICES = {
    "variance in a single pass": {"layer_norm_variance": "single_pass"},
    "MLM logits kept in bfloat16": {"mlm_logits_dtype": "bfloat16"},
    "gelu's derivative kept in bfloat16": {"gelu_backward": "saved"},
}


def variants(base: Config) -> dict[str, Config]:
    """Name -> config, the reference first."""

    def of(dtype: str, seed: int = 0, sums: str = "float32", **compute: str) -> Config:
        choices = dataclasses.replace(EXACT, compute_dtype=dtype, **compute)
        mesh = dataclasses.replace(base.mesh, gradient_dtype=sums)
        return dataclasses.replace(base, seed=seed, compute=choices, mesh=mesh)

    every = {name: value for choice in CHOICES.values() for name, value in choice.items()}
    return {
        REFERENCE: of("float32"),
        OTHER_SEED: of("float32", seed=1),
        "bfloat16, exact formulas": of("bfloat16"),
        **{f"bfloat16, {name}": of("bfloat16", **choice) for name, choice in CHOICES.items()},
        "bfloat16, gradients added up in bfloat16": of("bfloat16", sums="bfloat16"),
        "bfloat16, all of these": of("bfloat16", sums="bfloat16", **every),
    }


def base_config(store: str, steps: int, batch_size: int) -> Config:
    """Tiny with one phase, its schedule over these steps."""
    config = config_lib.settings_from(config_lib.Config, tiny.get_config())
    phase = Phase(SEQ_LEN, steps, batch_size, PREDICTIONS)
    optim = dataclasses.replace(config.optim, warmup_steps=steps // 10)
    data = dataclasses.replace(config.data, store=store)
    return dataclasses.replace(config, phases=(phase,), optim=optim, data=data)


def losses(config: Config, batches: list[dict[str, np.ndarray]]) -> np.ndarray:
    """float64[steps]: the MLM loss of each step, in nats."""
    program = measure.compile_step(config, MLM_NSP, jax.devices())
    state, values = program.first_state(), []
    for batch in batches:
        state, sums = program.take(state, mesh_lib.place_batch(batch, program.mesh))
        # Read at once: the threads that CPU devices meet in run out where many steps are under way.
        values.append(float(sums["terms"]["mlm"].loss_sum / sums["weights"]["mlm"]))
    return np.array(values)


def smoothed(curve: np.ndarray) -> np.ndarray:
    """Means of so many steps each."""
    whole = len(curve) // SMOOTHED * SMOOTHED
    return curve[:whole].reshape(-1, SMOOTHED).mean(axis=1)


def apart(curves: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Of each curve: where it ends, and its mean and largest distance from the reference."""
    reference = smoothed(curves[REFERENCE])
    rows = {}
    for name, curve in curves.items():
        distance = smoothed(curve) - reference
        rows[name] = {
            "last_loss": float(smoothed(curve)[-1]),
            "last_difference": float(distance[-1]),
            "mean_distance": float(np.abs(distance).mean()),
            "largest_distance": float(np.abs(distance).max()),
        }
    return rows


def draw(curves: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draw the curves, and below them their distance from the reference."""
    figure = Figure(figsize=(8.0, 7.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    reference = smoothed(curves[REFERENCE])
    steps = (np.arange(len(reference)) + 1) * SMOOTHED
    for name, curve in curves.items():
        style = "--" if name == OTHER_SEED else "-"
        above.plot(steps, smoothed(curve), style, label=name)
        below.plot(steps, smoothed(curve) - reference, style)
    above.set_ylabel(f"MLM loss, nats, mean of {SMOOTHED} steps")
    below.set_ylabel("less that in float32")
    below.set_xlabel("step")
    above.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numerics_curves")
    parser.add_argument("--store", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=48)
    parser.add_argument("--png_out", type=pathlib.Path)
    parser.add_argument("--json_out", type=pathlib.Path)
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    store = open_store(given.store)
    base = base_config(given.store, given.steps, given.batch_size)
    base = config_lib.resolve(base, store=config_lib.StoreFacts(store.vocab_size))
    source: Any = open_examples(store, store.train, base.data, SEQ_LEN, PREDICTIONS)
    rows_B = np.arange(given.batch_size)
    batches = [source.rows(step * given.batch_size + rows_B) for step in range(given.steps)]
    curves = {}
    for name, config in variants(base).items():
        curves[name] = losses(config, batches)
        row = apart({REFERENCE: curves[REFERENCE], name: curves[name]})[name]
        mean, most = row["mean_distance"], row["largest_distance"]
        print(
            f"{name:46s} ends at {row['last_loss']:.4f} ({row['last_difference']:+.4f}), "
            f"{mean:.4f} from float32 in the mean, {most:.4f} at most",
            flush=True,
        )
    if given.png_out:
        draw(curves, given.png_out)
    if given.json_out:
        results = {"apart": apart(curves), "losses": {k: v.tolist() for k, v in curves.items()}}
        given.json_out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
