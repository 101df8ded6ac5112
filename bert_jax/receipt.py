"""What a run was started with, kept in its workdir; the refusal to go on with something else."""

import dataclasses
import json
import pathlib
from typing import Any

import jax

from bert_jax.config import Config
from data_pipeline.store import Store

FILE = "config.json"

# Settings of which a run that is resumed must not change: another value would be another run, or
# one that no longer sees the examples it has not seen yet. Steps, rates and meshes may change.
_FIXED_DATA = ("random_seed", "masked_lm_prob", "short_seq_prob", "dupe_factor", "exact")
_FIXED_PHASE = ("seq_len", "batch_size", "max_predictions_per_seq")


def _fixed(config: Config, store: Store) -> dict[str, Any]:
    model = {f"model.{k}": v for k, v in dataclasses.asdict(config.model).items()}
    data = {f"data.{name}": getattr(config.data, name) for name in _FIXED_DATA}
    phases = {
        f"phases[{i}].{name}": getattr(phase, name)
        for i, phase in enumerate(config.phases)
        for name in _FIXED_PHASE
    }
    return (
        {"seed": config.seed, "objective": config.objective, "optim.name": config.optim.name}
        | model
        | data
        | phases
        | {"data.store (digest of its contents)": store.digest}
    )


def check(workdir: pathlib.Path, config: Config, store: Store) -> None:
    """Raise if the workdir holds a run that this config cannot go on with.

    Raises:
      ValueError: names the first setting that differs, both values and the ways out.
    """
    path = workdir / FILE
    if not path.exists():
        return
    before = json.loads(path.read_text())["fixed"]
    now = json.loads(json.dumps(_fixed(config, store)))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{workdir} holds a run with config.{name} = {before.get(name)!r}, this config "
                f"says {now.get(name)!r}; give another --workdir, or the setting of that run to "
                "go on with it"
            )


def write(workdir: pathlib.Path, config: Config, store: Store) -> None:
    """Write the resolved config beside what must not change of it."""
    shown = {
        "fixed": _fixed(config, store),
        "config": dataclasses.asdict(config),
        "jax": jax.__version__,
        "devices": [d.device_kind for d in jax.devices()[:1]] * jax.device_count(),
    }
    (workdir / FILE).write_text(json.dumps(shown, indent=2) + "\n")
