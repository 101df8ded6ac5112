"""Time training with a checkpoint every 100 steps beside training without, in one run.

    python -m benchmarks.checkpoint_cost --store=STORE --json_out=checkpoint_cost.json

The real loop trains configs/tiny.py. Stretches of 100 steps take turns: each second one begins with
a save, whose wait for the devices, copy, and writing beside the steps all fall into it. Other work
on the machine so slows both alike; a round's ratio is the stretch with a save by the one without.
Two ratios: of wall time, and of the processor time of all threads, which other work hardly moves
and which holds also what a save does beside the steps on cores that would else be idle.
"""

import dataclasses
import itertools
import json
import pathlib
import statistics
import tempfile
import time

from absl import app, flags, logging

from bert_jax import config as config_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, Config, EvalConfig
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from configs import tiny
from data_pipeline.spec.options import PretrainOptions

STORE = flags.DEFINE_string("store", None, "folder that data_pipeline.build wrote", required=True)
ROUNDS = flags.DEFINE_integer("rounds", 8, "pairs of stretches", lower_bound=1)
EVERY_STEPS = flags.DEFINE_integer("every_steps", 100, "steps of a stretch", lower_bound=1)
JSON_OUT = flags.DEFINE_string("json_out", "", "file to write the measurement to")


def config_of(steps: int) -> Config:
    """configs/tiny.py with its first phase alone, which is not evaluated before its end."""
    given = config_lib.settings_from(config_lib.Config, tiny.get_config())
    return dataclasses.replace(
        given,
        phases=(dataclasses.replace(given.phases[0], steps=steps),),
        data=PretrainOptions(store=STORE.value),
        eval=EvalConfig(every_steps=steps, examples=64),
        checkpoint=CheckpointConfig(every_steps=EVERY_STEPS.value),
        log_every_steps=EVERY_STEPS.value,
    )


def stretch_secs(steps: int, workdir: pathlib.Path) -> tuple[list[float], list[float]]:
    """Wall and processor seconds of each stretch but the first; every other begins with a save."""
    wall_ends: list[float] = []
    cpu_ends: list[float] = []

    def due(checkpoints: Checkpoints, step: int) -> bool:
        if step % EVERY_STEPS.value:
            return False
        wall_ends.append(time.perf_counter())
        cpu_ends.append(time.process_time())
        return len(wall_ends) % 2 == 1

    Checkpoints.due = due  # type: ignore[method-assign]
    config = config_of(steps)
    loop.train(build_setup(config, workdir))
    return _lengths(wall_ends), _lengths(cpu_ends)


def _lengths(ends: list[float]) -> list[float]:
    return [end - start for start, end in itertools.pairwise(ends)]


def ratios_of(secs: list[float], kind: str) -> list[float]:
    """Print the median ratio of a stretch with a save to the next without, and its quartiles."""
    ratios = [
        with_save / without for with_save, without in zip(secs[0::2], secs[1::2], strict=True)
    ]
    spread = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    median = f"{spread[1]:.4f} ({spread[0]:.4f} - {spread[2]:.4f})"
    whole = sum(secs[0::2]) / sum(secs[1::2])
    print(f"{kind} with / without a save: median {median}, all together {whole:.4f}")
    return ratios


def main(argv: list[str]) -> None:
    """Measure, and print the ratios."""
    logging.set_verbosity(logging.ERROR)  # Orbax tells of every file
    steps = EVERY_STEPS.value * (2 * ROUNDS.value + 1) + 1
    with tempfile.TemporaryDirectory() as folder:
        wall_secs, cpu_secs = stretch_secs(steps, pathlib.Path(folder) / "run")
    results = {
        "wall_secs": wall_secs,
        "cpu_secs": cpu_secs,
        "wall_ratios": ratios_of(wall_secs, "wall time"),
        "cpu_ratios": ratios_of(cpu_secs, "processor time"),
    }
    print(f"steps of {1e3 * statistics.median(wall_secs[1::2]) / EVERY_STEPS.value:.1f} ms")
    if JSON_OUT.value:
        pathlib.Path(JSON_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
