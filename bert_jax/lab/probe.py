"""Probe a pre-training run: fine-tune from its checkpoints, record the scores, draw their curve.

PROBE_DIR/probe.json     the run that is probed, and the config of the fine-tuning
         /probe.jsonl    a line for each checkpoint: its step, the task's main score, the seconds
         /probe.png      the score over the steps
         /step-400/      the fine-tuning from step 400, without its checkpoints
         /step-400.log   its output
"""

import dataclasses
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from functools import partial

from etils import epath
from matplotlib.figure import Figure

from bert_jax.checkpoint import directory
from bert_jax.config import FinetuneConfig, recorded, validate
from bert_jax.config.finetune_schema import with_length
from bert_jax.lab import runs
from bert_jax.lab.runs import Lane
from bert_jax.logging import plots
from bert_jax.logging.console import FAINT, Screen, duration
from bert_jax.logging.metrics_writer import PROBE_SCORES, SUMMARY
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.run_record import CHECKPOINTS
from bert_jax.runtime.workdir import COMPILED
from bert_jax.tasks.registry import open_task
from bert_jax.tasks.task import Task
from data_pipeline.cli.main import DONE
from data_pipeline.io import Refused, small_files
from data_pipeline.io.jsonl import append_record, read_records
from data_pipeline.io.small_files import parse_record

PROBE, PICTURE = "probe.json", "probe.png"
_LOOK_SECS = 10.0  # pause between two looks at the run's folder
_NICE = 10  # the pre-training run has priority on shared cores
_DELETED_AFTER_SCORING = (CHECKPOINTS, COMPILED)  # parts of a fine-tuning's folder


@dataclasses.dataclass(frozen=True)
class Probe:
    """Describe which run is probed, by which fine-tuning, and where the scores are kept."""

    run: str  # the address, absolute
    folder: pathlib.Path
    command: Sequence[str]  # fine-tunes; checkpoint and workdir are added
    every_steps: int
    platform: str
    task: Task  # its rows and texts are left out

    @property
    def run_folder(self) -> epath.Path:
        return directory.make_absolute(epath.Path(self.run))

    @property
    def baseline(self) -> float:
        """Return the task's main score without reading the text."""
        return self.task.baseline[self.task.main_score]

    def saved_steps(self) -> Collection[int]:
        """List the steps of the checkpoints that exist now."""
        return directory.find_steps(self.run_folder / CHECKPOINTS).keys()


@dataclasses.dataclass(frozen=True)
class ProbeScore:
    """Hold the score of a fine-tuning from a checkpoint."""

    step: int  # the probed run's
    score: float
    secs: float  # time of the fine-tuning, including its start


def choose_step(
    saved: Collection[int], done: Collection[int], every_steps: int, has_ended: bool
) -> int | None:
    """Choose the checkpoint to fine-tune from next; None if there is nothing to do now.

    The newest comes first, so that the curve keeps up with the run; older ones follow while there
    is nothing newer. Steps less than every_steps from a scored one are skipped, except the last
    step of a run that has ended.
    """
    last = max(saved, default=None)
    for step in sorted(set(saved) - set(done), reverse=True):
        is_apart = all(abs(step - other) >= every_steps for other in done)
        if is_apart or (has_ended and step == last):
            return step
    return None


def claim_probe(run: str, folder: pathlib.Path, config: FinetuneConfig) -> Task:
    """Read the record of a run and the files of the task, and claim the folder of the probe.

    Raises:
      Refused: there is no such run, the task cannot be read, or the folder holds something else.
    """
    validate.check_finetune(dataclasses.replace(config, init=f"orbax:{run}"))
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as scratch:
        storage = workdir_lib.fetch_workdir(run, pathlib.Path(scratch))
        record = run_record.read(storage.home)
        positions = record.config.model.max_position_embeddings
        task = open_task(with_length(config.data, positions), record.vocabulary)
    probed = {"run": run, "config": recorded(config)}
    runs.claim_folder(folder, PROBE, probed, "probe", "--probe_dir")
    # The replaced functions keep the texts of the task in memory, and a probe runs for days.
    return dataclasses.replace(
        task, splits={}, score=lambda *_: {}, format_predictions=lambda *_: {}
    )


def read_scores(folder: pathlib.Path) -> list[ProbeScore]:
    """Read the scores so far, ordered by step; refuse a line that is not a probe's."""
    path = folder / PROBE_SCORES
    scores = [parse_record(line, ProbeScore, path) for line in read_records(path)]
    return sorted(scores, key=lambda score: score.step)


def run_probe(probe: Probe) -> int:
    """Fine-tune from each checkpoint, waiting for new ones until the run has ended."""
    screen = Screen(is_writer=True)
    scores, name = read_scores(probe.folder), probe.task.main_score
    baseline = f"{name} {probe.baseline:.3f} without reading the text"
    rows = [("scores in", str(probe.folder)), ("baseline", baseline)]
    if scores:
        rows.append(("resumes", f"{len(scores)} checkpoints have their score"))
    screen.table(f"probing {probe.run} by {probe.task.name}", rows)
    os.nice(_NICE)
    while True:
        has_ended = (probe.run_folder / SUMMARY).exists()  # first: the last save precedes it
        done = [score.step for score in scores]
        step = choose_step(probe.saved_steps(), done, probe.every_steps, has_ended)
        if step is not None:
            score = _fine_tune(probe, step, screen)
            if score is not None:
                append_record(probe.folder / PROBE_SCORES, dataclasses.asdict(score))
                scores = read_scores(probe.folder)
                plots.save(probe.folder / PICTURE, partial(draw_figure, probe, scores))
                words = f"{name.replace('_', ' ')} {score.score:.3f}  in {duration(score.secs)}"
                screen.print(f"{score.step:>9,}  {words}")
        elif has_ended:
            break
        else:
            since = f" after step {max(done):,}" if done else ""
            with screen.spinning(f"waiting for a checkpoint{since}"):
                time.sleep(_LOOK_SECS)
    screen.table("the run has ended", _closing_rows(probe, scores))
    return DONE


def _fine_tune(probe: Probe, step: int, screen: Screen) -> ProbeScore | None:
    """Return the score from a checkpoint; None if the run has deleted it meanwhile."""
    workdir, log = probe.folder / f"step-{step}", probe.folder / f"step-{step}.log"
    # Its checkpoints are deleted before its score is written: it cannot resume.
    own = ("--config.checkpoint.fresh=True", f"--config.init=orbax:{probe.run}@{step}")
    command = [*probe.command, *own, f"--workdir={workdir}"]
    start = time.monotonic()
    label = f"fine-tuning from step {step:,}"
    log.unlink(missing_ok=True)
    if error := Lane(screen, {"JAX_PLATFORMS": probe.platform}).run(label, command, workdir):
        if step not in probe.saved_steps():
            screen.print(f"step {step:,} was deleted by the run before it was read", FAINT)
            shutil.rmtree(workdir, ignore_errors=True)
            return None
        raise Refused(f"{label} ended with {error}; see {log}")
    path, key = workdir / SUMMARY, f"heldout_{probe.task.main_record}"
    score = small_files.field(small_files.read_object(path, workdir), key, float, path)
    for name in _DELETED_AFTER_SCORING:
        shutil.rmtree(workdir / name, ignore_errors=True)
    return ProbeScore(step, score, time.monotonic() - start)


def _closing_rows(probe: Probe, scores: Sequence[ProbeScore]) -> list[tuple[str, str]]:
    if not scores:
        return [("scores", "none: the run has left no checkpoint")]
    best = max(scores, key=lambda score: score.score)
    return [
        ("last", f"{scores[-1].score:.3f} from step {scores[-1].step:,}"),
        ("highest", f"{best.score:.3f} from step {best.step:,}"),
        ("curve", str(probe.folder / PICTURE)),
    ]


def draw_figure(probe: Probe, scores: Sequence[ProbeScore]) -> Figure:
    """Draw the score over the steps of pre-training, with its last value and the baseline."""
    steps, values = ([getattr(each, name) for each in scores] for name in ("step", "score"))
    picture, name = Figure(figsize=(6.0, 3.4), layout="constrained"), probe.task.main_score
    ax = picture.add_subplot(label=name)
    ax.plot(steps, values, color=plots.HELDOUT, linewidth=1.8, marker="o", markersize=3.5)
    ax.axhline(probe.baseline, color=plots.GRAY, linewidth=1.1, linestyle=(0, (5, 3)))
    ax.margins(y=0.15)  # keeps the labels at the end clear of the axis
    plots.set_axes(ax, name, steps[-1], is_lowest=True)
    ax.set_title(f"{probe.task.name}: {name.replace('_', ' ')} after fine-tuning", loc="left")
    ax.set_xlabel("step of pre-training", color=plots.GRAY)
    plots.write_ends(
        ax,
        [
            plots.End(values[-1], f"{values[-1]:.3f}", plots.HELDOUT),
            plots.End(probe.baseline, f"baseline\n{probe.baseline:.3f}", plots.GRAY),
        ],
    )
    return picture
