"""Fine-tune from the checkpoints of a run while it trains: python -m bert_jax.probe ...

    --workdir=RUN          the run of pre-training; it is only read
    --config=...           a short fine-tuning, such as configs/finetune/glue.py:task=rte
    --config.data.dir=DIR  the files of the task; any field of the config may be set
    --probe_dir=DIR        scores, their picture and the fine-tunings; by default RUN-probe
    --every=2000           leave checkpoints out that are less than so many steps apart
    --platform=cpu         where it computes, as JAX calls it: the run has the accelerator

Every checkpoint is fine-tuned from with the same seed, the newest first. The probe ends when the
run has ended and nothing is left to do; Ctrl-C ends it before, and the same command goes on.
"""

import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from absl import flags, logging
from etils import epath

from bert_jax import (
    checkpoint_folder,
    checkpoint_reading,
    command_line,
    finetune_check,
    probing,
    receipt,
)
from bert_jax import config as config_lib
from bert_jax import workdir as workdir_lib
from bert_jax.exit_codes import Refused
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.log import SUMMARY
from bert_jax.probing import Measured, Shown
from bert_jax.receipt import CHECKPOINTS
from bert_jax.screen import FAINT, Screen, duration
from bert_jax.tasks.opening import open_task
from data_pipeline import small_files
from data_pipeline.files import is_address
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag(FinetuneConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run of pre-training, or gs://...")
_PROBE_DIR = flags.DEFINE_string("probe_dir", None, "folder of the probe; by default RUN-probe")
_EVERY = flags.DEFINE_integer("every", 1, "steps between the checkpoints that are fine-tuned from")
_PLATFORM = flags.DEFINE_string("platform", "cpu", "what JAX computes on: cpu, cuda or tpu")

USAGE = (
    "python -m bert_jax.probe --workdir=RUN --config=configs/finetune/glue.py:task=rte "
    "--config.data.dir=DIR"
)
_LOOK_SECS = 10.0  # between two looks at the run's folder
_NICE = 10  # where both compute on the same cores, the run goes first
_COMPILED = "compiled"  # programs, which all fine-tunings share
_LEFT_OF_A_RUN = (CHECKPOINTS, _COMPILED)  # what nobody needs once it has its score


@dataclasses.dataclass(frozen=True)
class _Probe:
    """What is asked for."""

    run: str  # as it was given
    place: epath.Path
    folder: pathlib.Path
    config_arguments: list[str]  # of the command line, for each fine-tuning
    shown: Shown
    summary_key: str  # under which a fine-tuning has its main score
    every_steps: int
    platform: str

    def saved(self) -> list[int]:
        """Steps of the checkpoints that are there now."""
        return list(checkpoint_reading.folders(self.place / CHECKPOINTS))


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    run = _WORKDIR.value
    if not run:
        raise ValueError(f"--workdir is missing: the folder of a run of pre-training; {USAGE}")
    if _EVERY.value < 1:
        raise ValueError(f"--every is {_EVERY.value}; it must be 1 or more")
    if not _PROBE_DIR.value and is_address(run):
        raise ValueError(
            f"--probe_dir is missing, and {run} is a bucket: give a folder of this host"
        )
    config = command_line.resolved_as(FinetuneConfig, _CONFIG)
    if config.init:
        raise ValueError(
            f"config.init is {config.init}; a probe begins with the checkpoints of --workdir, "
            "leave it out"
        )
    finetune_check.check(dataclasses.replace(config, init=f"orbax:{run}"))
    log.hold()
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as scratch:
        storage = workdir_lib.fetched(run, pathlib.Path(scratch))
        task = open_task(config.data, receipt.read(storage.home).vocabulary)
    folder = pathlib.Path(_PROBE_DIR.value or f"{run.rstrip('/')}-probe")
    probing.claim(folder, {"run": run, "config": config_lib.recorded(config)})
    probe = _Probe(
        run=run,
        place=checkpoint_folder.absolute(epath.Path(run)),
        folder=folder,
        config_arguments=command_line.config_arguments(_CONFIG),
        shown=Shown(task.name, task.main_score, task.baseline[task.main_score]),
        summary_key=f"heldout_{task.main_record}",
        every_steps=_EVERY.value,
        platform=_PLATFORM.value,
    )
    return functools.partial(_watch, probe, probing.read(folder))


def _watch(probe: _Probe, measured: list[Measured]) -> int:
    """Fine-tune from what is there, then look again, until the run has ended."""
    screen = Screen(is_writer=True)
    screen.table(f"probing {probe.run} by {probe.shown.task}", _opening_rows(probe, measured))
    os.nice(_NICE)
    while True:
        is_over = (probe.place / SUMMARY).exists()  # first: the last checkpoint is older
        done = [one.step for one in measured]
        step = probing.next_step(probe.saved(), done, probe.every_steps, is_over)
        if step is not None:
            found = _fine_tuned(probe, step, screen)
            if found is not None:
                probing.add(probe.folder, found)
                measured = probing.read(probe.folder)
                probing.draw(probe.folder, measured, probe.shown)
                screen.say(_line(found, probe.shown))
        elif is_over:
            break
        else:
            since = f" after step {max(done):,}" if done else ""
            with screen.spinning(f"waiting for a checkpoint{since}"):
                time.sleep(_LOOK_SECS)
    screen.table("the run has ended", _closing_rows(probe, measured))
    return 0


def _fine_tuned(probe: _Probe, step: int, screen: Screen) -> Measured | None:
    """The score from one checkpoint; None where the run has deleted it meanwhile.

    Raises:
      Refused: the fine-tuning failed; its last words are in the message.
    """
    workdir, log = probe.folder / f"step-{step}", probe.folder / f"step-{step}.log"
    command = [sys.executable, "-m", "bert_jax.finetune", *probe.config_arguments]
    command += [f"--config.init=orbax:{probe.run}@{step}", f"--workdir={workdir}"]
    command += ["--config.checkpoint.fresh=True"]  # its checkpoints go before its score is kept
    environment = os.environ | {
        "JAX_PLATFORMS": probe.platform,
        "JAX_COMPILATION_CACHE_DIR": str((probe.folder / _COMPILED).resolve()),
    }
    start = time.monotonic()
    what = f"fine-tuning from step {step:,}"
    with screen.spinning(what), log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, env=environment).returncode
    if code != 0:
        if step not in probe.saved():
            screen.say(f"step {step:,} was deleted by the run before it was read", FAINT)
            shutil.rmtree(workdir, ignore_errors=True)
            return None
        words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["none"]
        raise Refused(f"{what} ended with exit code {code}, its last words: {words[-1]}; see {log}")
    summary = small_files.read_object(workdir / SUMMARY, workdir)
    score = small_files.field(summary, probe.summary_key, float, workdir / SUMMARY)
    for name in _LEFT_OF_A_RUN:
        shutil.rmtree(workdir / name, ignore_errors=True)
    return Measured(step, score, time.monotonic() - start)


def _opening_rows(probe: _Probe, measured: list[Measured]) -> list[tuple[str, str]]:
    known = f"{probe.shown.score} {probe.shown.baseline:.3f} without reading the text"
    rows = [("scores in", str(probe.folder)), ("baseline", known)]
    if measured:
        rows.append(("goes on", f"{len(measured)} checkpoints have their score"))
    return rows


def _line(found: Measured, shown: Shown) -> str:
    score = shown.score.replace("_", " ")
    return f"{found.step:>9,}  {score} {found.score:.3f}  in {duration(found.secs)}"


def _closing_rows(probe: _Probe, measured: list[Measured]) -> list[tuple[str, str]]:
    if not measured:
        return [("scores", "none: the run has left no checkpoint")]
    best = max(measured, key=lambda one: one.score)
    return [
        ("last", f"{measured[-1].score:.3f} from step {measured[-1].step:,}"),
        ("highest", f"{best.score:.3f} from step {best.step:,}"),
        ("curve", str(probe.folder / probing.PICTURE)),
    ]


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="the same command goes on")


if __name__ == "__main__":
    main()
