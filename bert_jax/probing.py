"""A probe of a run: which checkpoint is fine-tuned from next, the scores so far, their picture.

PROBE_DIR/probe.json     what is probed and how: the run, the config of the fine-tuning
         /probe.jsonl    a line a checkpoint: its step, the task's main score, the seconds
         /probe.png      the score over the steps
         /step-400/      the fine-tuning from step 400, without its checkpoints
         /step-400.log   what it printed
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bert_jax import curves
from bert_jax.record_files import add_line, read_lines, write_whole
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

PROBE, LINES, PICTURE = "probe.json", "probe.jsonl", "probe.png"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The score that fine-tuning from a checkpoint came to."""

    step: int  # of the run that is probed
    score: float
    secs: float  # of the fine-tuning, its start included


@dataclasses.dataclass(frozen=True)
class Shown:
    """What the picture says of the scores."""

    task: str
    score: str  # which one it is, as the task calls it
    baseline: float  # what knowing nothing of the text scores


def next_step(
    saved: Collection[int], done: Collection[int], every_steps: int, is_over: bool
) -> int | None:
    """The step of the checkpoint to fine-tune from next; None: there is nothing to do now.

    The newest comes first, which keeps the curve beside the training; older ones are filled in
    while there is nothing newer. A step less than every_steps from a measured one is left out, but
    for the last of a run that is over.
    """
    last = max(saved, default=None)
    for step in sorted(set(saved) - set(done), reverse=True):
        is_apart = all(abs(step - other) >= every_steps for other in done)
        if is_apart or (is_over and step == last):
            return step
    return None


def claim(folder: pathlib.Path, probed: Mapping[str, Any]) -> None:
    """Write what is probed into the folder, or go on with the same.

    Raises:
      ValueError: it holds a probe of something else, or other files.
    """
    path = folder / PROBE
    if path.exists():
        try:
            before = small_files.read_object(path, folder)
        except DamagedFile as error:
            raise DamagedFile(f"{error}; put a copy of it back, or give a new folder") from None
        now = json.loads(json.dumps(probed))
        differing = [
            f"{name} = {before.get(name)!r}, now {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        if differing:
            raise ValueError(
                f"{folder} holds a probe with {'; '.join(differing)}: scores would not compare; "
                "give another --probe_dir, or the settings of that probe to go on with it"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--probe_dir={folder} is not empty and holds no probe; give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{json.dumps(probed, indent=2)}\n".encode())


def read(folder: pathlib.Path) -> list[Measured]:
    """The scores so far, by step.

    Raises:
      ValueError: a line is not one of a probe.
    """
    path = folder / LINES
    found = [small_files.build(Measured, line, path) for line in read_lines(path)]
    for line in found:
        for name in ("score", "secs"):
            small_files.field(dataclasses.asdict(line), name, float, path)
    return sorted(found, key=lambda measured: measured.step)


def add(folder: pathlib.Path, measured: Measured) -> None:
    """Add a line to the record."""
    add_line(folder / LINES, dataclasses.asdict(measured))


def draw(folder: pathlib.Path, measured: Sequence[Measured], shown: Shown) -> pathlib.Path:
    """Write the picture of one score or more; its path."""
    picture = io.BytesIO()
    with style.context(["default", curves.LOOK]):
        figure(measured, shown).savefig(picture, format="png")
    write_whole(folder / PICTURE, picture.getvalue())
    return folder / PICTURE


def figure(measured: Sequence[Measured], shown: Shown) -> Figure:
    """The score over the steps of pre-training, the last one written where the curve ends."""
    steps_N = np.array([one.step for one in measured])
    scores_N = np.array([one.score for one in measured])
    spaced = ConstrainedLayoutEngine(wspace=0.05, hspace=0.05)
    picture = Figure(figsize=(6.0, 3.4), layout=spaced)
    ax = picture.add_subplot(label=shown.score)
    last_step = int(steps_N.max())
    ax.plot(steps_N, scores_N, color=curves.HELDOUT, linewidth=1.8, marker="o", markersize=3.5)
    ax.axhline(shown.baseline, color=curves.GREY, linewidth=1.1, linestyle=(0, (5, 3)))
    ax.margins(y=0.15)  # the words at the end stand clear of the axis
    curves.set_axes(ax, shown.score, last_step, is_lowest=True)
    ax.set_title(f"{shown.task}: {shown.score.replace('_', ' ')} after fine-tuning", loc="left")
    ax.set_xlabel("step of pre-training", color=curves.GREY)
    curves.write_ends(
        ax,
        [
            curves.End(float(scores_N[-1]), f"{scores_N[-1]:.3f}", curves.HELDOUT),
            curves.End(shown.baseline, f"baseline\n{shown.baseline:.3f}", curves.GREY),
        ],
    )
    return picture
