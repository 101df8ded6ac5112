"""Run commands as child processes, several at once, in a folder that records its runs.

A run has a name, a folder, and the runs that it reads; its caller decides what counts as finished.
The record has what the runs depend on; runs that would not compare with them are refused.
"""

import dataclasses
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from bert_jax.config import flatten
from bert_jax.logging.console import Screen, duration
from bert_jax.logging.metrics_writer import METRICS, PREDICTIONS, SUMMARY
from bert_jax.runtime import workdir_lock
from bert_jax.runtime.resume import compare_settings
from bert_jax.runtime.workdir import COMPILED
from data_pipeline.cli import child_process
from data_pipeline.cli.main import DONE
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import check_no_file, write_json

Key = TypeVar("Key")  # identifies a run
_POLL_SECS = 1.0  # pause between checks for a signal, which another thread may receive
_MAX_LOCKED_SECS = 120.0  # time for a killed command's run to save and leave its folder
_END_BYTES = 1 << 16  # lines of a metrics.jsonl have about 1 KB
_STEP_OF_LINE = re.compile(rb'^{"step": (\d{1,18}), "split": "(?!finding")', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Lane:
    """Run commands one at a time, on a device that no other lane uses."""

    screen: Screen
    environment: Mapping[str, str]
    # Once it is set, the command is interrupted.
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def _check(self) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt

    def run(self, label: str, command: Sequence[str], folder: pathlib.Path) -> str:
        """Run a command that works in a folder, with its log next to it; return "" or its error.

        If another process still works there, such as the run of a killed study, wait for it to save
        and end. After that the command starts anyway; its error names the process.
        """
        end = time.monotonic() + _MAX_LOCKED_SECS
        if workdir_lock.is_locked(folder):
            with self.screen.spinning(f"{label}: another process still works in {folder}"):
                while workdir_lock.is_locked(folder) and time.monotonic() < end:
                    self._check()
                    time.sleep(_POLL_SECS)
        log, began = folder.parent / f"{folder.name}.log", time.monotonic()
        old_bytes = log.stat().st_size if log.exists() else 0  # the log of an earlier start
        with self.screen.spinning(label) as show:

            def show_progress() -> None:
                self._check()
                step = _read_last_step(folder)
                progress = f", step {step:,}" if step else ""
                show(f"{label}{progress}, {duration(time.monotonic() - began)}")

            code = child_process.run(
                command,
                log,
                # Runs share most compiled programs: evaluation, and training with other seeds.
                {
                    "JAX_COMPILATION_CACHE_DIR": str((folder.parent / COMPILED).resolve()),
                    **self.environment,
                },
                show_progress,
            )
        error = "" if code == DONE else child_process.last_error(log, old_bytes)
        return error and f"exit code {code}: {error}"


def _read_last_step(workdir: pathlib.Path) -> int:
    """Return the last step that a run has logged, 0 before that or if it cannot be read now."""
    try:
        with small_files.open_regular(workdir / METRICS) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
            steps = _STEP_OF_LINE.findall(file.read())
    except (OSError, ValueError):
        return 0
    return int(steps[-1]) if steps else 0


def _select_device(number: int) -> dict[str, str]:
    """Return the environment of a process that sees a single GPU or TPU chip of this host.

    The device is one of those that this process's environment names, if any. CUDA and libtpu read
    these variables; on CPUs they have no effect.
    """
    environment = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
    for name in ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"):
        visible = os.environ.get(name, str(number)).split(",")
        environment[name] = visible[number % len(visible)]
    return environment


def run_all(
    reads: Mapping[Key, Collection[Key]],
    work: Callable[[Key, Lane], str],
    report: Callable[[Key, str], None],
    lanes: Sequence[Lane],
) -> None:
    """Do the work of runs in the order of `reads`, one at a time in each lane, and report results.

    A run waits for the runs that it reads; meanwhile later runs start. `work` returns "" or an
    error; an unreadable file of a run is an error too. An exception from `report` ends all runs.
    """
    waiting, ended, free = list(reads), set[Key](), list(lanes)
    running: dict[Future[str], tuple[Key, Lane]] = {}
    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            try:
                while waiting or running:
                    ready = [run for run in waiting if ended.issuperset(reads[run])]
                    for run in ready[: len(free)]:
                        waiting.remove(run)
                        lane = free.pop()
                        running[pool.submit(_attempt, work, run, lane)] = run, lane
                    for future in wait(running, _POLL_SECS, FIRST_COMPLETED).done:
                        run, lane = running.pop(future)
                        report(run, future.result())
                        free.append(lane)
                        ended.add(run)
            finally:
                lanes[0].stop.set()
        finally:
            lanes[0].stop.set()  # again: a second signal may have come during the first call


def _attempt(work: Callable[[Key, Lane], str], run: Key, lane: Lane) -> str:
    try:
        return work(run, lane)
    except Refused as refused:
        return str(refused)
    except (OSError, RuntimeError, ValueError) as unreadable:
        return f"{type(unreadable).__name__}: {unreadable}"


def open_lanes(screen: Screen, parallel: int) -> list[Lane]:
    """Open lanes that stop together; if there are several, each has one device and is silent."""
    if parallel == 1:
        return [Lane(screen, {})]
    stop, silent = threading.Event(), Screen(is_writer=False)
    return [Lane(silent, _select_device(number), stop) for number in range(parallel)]


def parse_list(flag: str, text: str, parse: Callable[[str], Any], words: str) -> list[Any]:
    """Parse the comma-separated values of a flag; `words` say in errors what is allowed.

    Raises:
      Refused: `parse` raised ValueError, or a value occurs twice.
    """
    try:
        values = [parse(part) for part in text.split(",")]
    except ValueError as error:
        raise Refused(f"--{flag} is {text!r:.80}; it must be {words}") from error
    if len(set(values)) < len(values):
        raise Refused(f"--{flag} is {text!r:.80}, where a number occurs twice; give each once")
    return values


def refuse_others(holder: str, before: Any, now: Any) -> None:
    """Raise Refused if a folder's record of its runs differs; `holder` opens the sentence.

    Both are trees as JSON has them; every setting that differs is named by its path. A relative and
    an absolute path of one place are equal.
    """
    differing = compare_settings(flatten(before), flatten(now))
    words = [
        f"{key}={was!r:.80}, not {new!r:.80}"
        for key, (was, new) in differing.items()
        if not isinstance(was, str) or not isinstance(new, str) or _locate(was) != _locate(new)
    ]
    if words:
        raise Refused(
            f"{holder} with {'; '.join(words)}: these runs would not compare; restore that "
            "setting, or give another folder"
        )


def _locate(place: str) -> tuple[str, str]:
    """Return the scheme of a place, as orbax, and its absolute path."""
    scheme, _, path = place.rpartition(":")
    return scheme, os.path.realpath(path)


def claim_folder(
    folder: pathlib.Path, file: str, record: Mapping[str, Any], kind: str, flag: str = "--workdir"
) -> None:
    """Lock a folder for runs of a kind and write their record, or check that it has the same.

    Raises:
      Refused: the folder has another record or other files, or another process works there.
    """
    path = folder / file
    check_no_file(folder, flag)
    if path.exists():
        refuse_others(
            f"{flag}={folder} holds a {kind}", small_files.read_object(path, folder), record
        )
    elif folder.exists() and {entry.name for entry in folder.iterdir()} - {workdir_lock.FILE}:
        raise Refused(f"{flag}={folder} is not empty and holds no {kind}; give a new folder")
    workdir_lock.lock_folder(folder)
    if not path.exists():
        write_json(path, dict(record))


def is_finished(workdir: pathlib.Path) -> bool:
    """Return whether a run has ended: its summary is written last."""
    return (workdir / SUMMARY).is_file()


def read_scores(workdir: pathlib.Path) -> tuple[dict[str, float], dict[str, float]] | None:
    """Return scores and baselines of a finished fine-tuning; None of one that is not."""
    path = workdir / SUMMARY
    if not is_finished(workdir) or not (workdir / PREDICTIONS).is_dir():
        return None
    try:
        summary = small_files.read_object(path, workdir.parent)
    except Refused as error:
        raise Refused(
            f"{path} is not the summary of a run ({error}); delete {path.parent} to have it run "
            "again"
        ) from error
    scores = _select_scores(summary, "heldout_")
    if not scores:
        raise Refused(
            f"{path} has no scores of a development set; is {path.parent} another kind of run? "
            "Give another --workdir"
        )
    return scores, _select_scores(summary, "majority_")


def _select_scores(summary: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in summary.items()
        if name.startswith(f"{prefix}dev") and isinstance(value, int | float)
    }


def choose_score(
    scores: Mapping[str, float], baseline: Mapping[str, float], requested: str = ""
) -> str:
    """Name the score that decides: the requested one, or the first that has a baseline.

    A task lists its baseline in the order of its scores, the deciding one first.
    """
    names = [name for name in scores if not name.endswith("_loss")]
    if requested and requested not in names:
        raise Refused(f"--score is {requested!r}; the scores of these runs are {', '.join(names)}")
    return requested or next((name for name in baseline if name in names), names[0])
