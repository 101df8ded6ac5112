"""Record the loss curves of several runs of one config as a band, and read it again.

A band file is JSON: the command that wrote it, the settings, the digest of the store, and the
losses of every run at steps that all of them logged. Those of single runs, not their mean and
deviation, since a forecast needs how a run's early losses go with its last one.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import RunConfig
from bert_jax.diagnosis.comparison import fill_in_defaults
from bert_jax.diagnosis.curves import Key
from bert_jax.diagnosis.run_state import RunState
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile

FORMAT, VERSION = "bert_jax band", 1
FOLDER = pathlib.Path(__file__).parent  # of the bands of the package
SUFFIX = ".band.json"
_SPLITS = ("train", "heldout")
_MOST_BYTES, _MOST_RUNS, _MOST_CURVES, _MOST_POINTS = 8 << 20, 100, 64, 200
# What changes no loss, or only the order of sums: two runs that differ in it belong together.
_NOT_COMPARED = ("seed", "data.random_seed", "data.store", "data.data_cache", "log_every_steps")
_PARTS_NOT_COMPARED = ("checkpoint.", "hosts.", "log.", "mesh.", "eval.every_", "data.prefetch_")


@dataclasses.dataclass(frozen=True)
class BandCurve:
    """Hold a loss of several runs. Shapes: float64[N] rising steps, float64[R,N] losses."""

    steps_N: np.ndarray
    values_RN: np.ndarray


@dataclasses.dataclass(frozen=True)
class Band:
    """Hold the curves of R runs of one config on one store."""

    name: str  # of its file
    command: str  # that wrote the file
    settings: Mapping[str, Any]  # without seeds and places, as in RunState
    store: str  # digest
    steps: int  # of each run
    runs: int
    curves: Mapping[Key, BandCurve]  # by split and measure

    def matches(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run has these settings; one that a record lacks has its default."""
        return bool(settings) and select_settings(self.settings) == select_settings(settings)

    def summarize(self, split: str, measure: str) -> dict[str, np.ndarray]:
        """Return steps, mean, sd, min and max over the runs, float64[N] each; {} without them."""
        curve = self.curves.get((split, measure))
        if curve is None:
            return {}
        values_RN = curve.values_RN
        return {
            "steps": curve.steps_N,
            "mean": values_RN.mean(axis=0),
            "sd": values_RN.std(axis=0, ddof=1),
            "min": values_RN.min(axis=0),
            "max": values_RN.max(axis=0),
        }


def select_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that identify a config: all but seeds, places and what moves no loss."""
    return {
        key: value
        for key, value in fill_in_defaults(config_lib.flatten(settings)).items()
        if key.partition("[")[0] not in _NOT_COMPARED and not key.startswith(_PARTS_NOT_COMPARED)
    }


def flatten_config(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a config by the keys and in the types of RunState.settings."""
    return dict(json.loads(json.dumps(config_lib.flatten(config_lib.recorded(config)))))


def build_band(runs: Sequence[RunState], name: str, command: str) -> Band:
    """Build a band from finished runs of one config on one store.

    Raises:
      Refused: fewer than 2 runs, one that is not finished, has other settings, or repeats a
        seed; or they have no held-out loss at a common step.
    """
    if not 2 <= len(runs) <= _MOST_RUNS:
        raise Refused(
            f"--record was given {len(runs)} runs; a band needs 2 to {_MOST_RUNS}, which differ "
            "in their seeds; name their workdirs"
        )
    first = runs[0]
    seen: dict[tuple[Any, ...], RunState] = {}
    for run in runs:
        if not run.summary or not run.settings or not run.steps or run.curves.last_step < run.steps:
            raise Refused(
                f"{run.folder} is not finished: step {run.curves.last_step:,} of {run.steps:,}; a "
                "band needs runs that reached their last step; let it finish, or leave it out"
            )
        _check_alike(first, run)
        seeds = (run.settings.get("seed"), run.settings.get("data.random_seed"))
        if seeds in seen:
            raise Refused(
                f"{run.folder} has the seeds of {seen[seeds].folder} (seed, data.random_seed: "
                f"{seeds}); a band needs runs of different seeds; leave one out"
            )
        seen[seeds] = run
    curves = {}
    for split in _SPLITS:
        for measure in first.curves.list_measures(split):
            if measure.endswith("_loss") or measure == "loss":
                curve = _align(runs, split, measure)
                if curve is not None:
                    curves[split, measure] = curve
    if not any(split == "heldout" for split, _ in curves) or len(curves) > _MOST_CURVES:
        raise Refused(
            f"{first.folder} and the runs beside it have no held-out loss at a common step; give "
            "runs with one config.eval.every_steps"
        )
    settings = select_settings(first.settings)
    return Band(name, command, settings, first.store, first.steps, len(runs), curves)


def _check_alike(first: RunState, run: RunState) -> None:
    if run.store != first.store:
        raise Refused(
            f"{run.folder} was trained on another store than {first.folder} (digest "
            f"{run.store or 'unknown'}, not {first.store or 'unknown'}); a band is of one store"
        )
    ours, theirs = select_settings(first.settings), select_settings(run.settings)
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            raise Refused(
                f"{run.folder} has {key}={theirs.get(key)!r} and {first.folder} "
                f"{ours.get(key)!r}; the runs of a band may differ in seeds only"
            )


def _align(runs: Sequence[RunState], split: str, measure: str) -> BandCurve | None:
    """Return a curve at steps that all runs logged, at most _MOST_POINTS; None without one."""
    points = [run.curves.select(split, measure) for run in runs]
    steps_N = functools.reduce(np.intersect1d, [steps for steps, _ in points])
    if len(steps_N) > _MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(steps_N) - 1, _MOST_POINTS).round().astype(int))
        steps_N = steps_N[chosen]
    if not len(steps_N):
        return None
    values = [values_N[np.searchsorted(own_N, steps_N)] for own_N, values_N in points]
    return BandCurve(steps_N, np.stack(values))


def serialize_band(band: Band) -> bytes:
    """Return the content of a band's file, one line a curve of a run."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "command": band.command,
        "store": band.store,
        "steps": band.steps,
        "runs": band.runs,
        "settings": dict(band.settings),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    curves = []
    for (split, measure), curve in band.curves.items():
        rows = ",\n   ".join(
            json.dumps([round(x, 5) for x in row.tolist()]) for row in curve.values_RN
        )
        steps = json.dumps([int(step) for step in curve.steps_N])
        name = json.dumps(f"{split}/{measure}")
        curves.append(f'  {name}: {{"steps": {steps},\n  "losses": [\n   {rows}]}}')
    body = ",\n".join(curves)
    return ("{\n" + ",\n".join(lines) + ',\n "curves": {\n' + body + "}\n}\n").encode()


def read_band(path: pathlib.Path) -> Band:
    """Read a band file.

    Raises:
      DamagedFile: it is no band, too large, of another version, or its numbers are damaged.
      OSError: it cannot be read.
    """
    content = small_files.parse_object(small_files.read_bytes(path, None, _MOST_BYTES), path)
    if content.get("format") != FORMAT:
        raise DamagedFile(f"{path} is no band of runs; write one with report --record=FILE")
    version = small_files.field(content, "version", int, path)
    if version != VERSION:
        raise DamagedFile(
            f"{path} is a band of version {version}, and this code reads version {VERSION}; record "
            "it again with report --record=FILE"
        )
    runs = small_files.field(content, "runs", int, path)
    steps = small_files.field(content, "steps", int, path)
    curves = small_files.field(content, "curves", dict, path)
    if not 2 <= runs <= _MOST_RUNS or steps < 1 or len(curves) > _MOST_CURVES:
        raise DamagedFile(
            f"{path} has {runs:,} runs of {steps:,} steps and {len(curves):,} curves; a band has 2 "
            f"to {_MOST_RUNS} runs, a step or more and at most {_MOST_CURVES} curves"
        )
    read = {}
    for name in curves:
        split, _, measure = name.partition("/")
        if split not in _SPLITS or not measure:
            raise DamagedFile(f"{path}: the curve {name!r:.80} is not train/LOSS or heldout/LOSS")
        curve = small_files.field(curves, name, dict, path)
        read[split, measure] = _read_curve(curve, runs, steps, f"{path}, curve {name:.80}")
    return Band(
        path.name,
        small_files.field(content, "command", str, path),
        small_files.field(content, "settings", dict, path),
        small_files.field(content, "store", str, path),
        steps,
        runs,
        read,
    )


def _read_curve(content: Mapping[str, Any], runs: int, last_step: int, name: str) -> BandCurve:
    steps = small_files.field(content, "steps", list, name)
    losses = small_files.field(content, "losses", list, name)
    count = len(steps)
    rows_are_whole = len(losses) == runs and all(
        isinstance(row, list) and len(row) == count for row in losses
    )
    if not 1 <= count <= _MOST_POINTS or not rows_are_whole:
        raise DamagedFile(
            f"{name} does not have {runs} rows of as many losses as steps, 1 to {_MOST_POINTS}"
        )
    if any(type(step) is not int or not 0 <= step <= last_step for step in steps) or any(
        later <= step for step, later in itertools.pairwise(steps)
    ):
        raise DamagedFile(f"{name} has steps that are no rising whole numbers up to {last_step:,}")
    numbers = [number for row in losses for number in row]
    if not all(type(each) in (int, float) and abs(each) <= 1e9 for each in numbers):
        raise DamagedFile(f"{name} has a loss that is no number from -1e9 to 1e9")
    return BandCurve(np.asarray(steps, np.float64), np.asarray(losses, np.float64))


def find_band(settings: Mapping[str, Any], store: str) -> Band | None:
    """Find the package's band of a config; one of the same store before another; else None.

    Raises DamagedFile if a file of the package is damaged.
    """
    bands = (read_band(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}")))
    matching = [band for band in bands if band.matches(settings)]
    return next((band for band in matching if band.store == store), next(iter(matching), None))
