"""Prove that a killed run loses nothing.

Trains once undisturbed in DIR/whole, and once in DIR/killed, where the same command resumes after
each kill; then compares the last checkpoints bit for bit, and all records except timings. The
exit code is 0 if they are the same and 1 if not.
"""

import contextlib
import dataclasses
import math
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from bert_jax.config import Config
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_no_file


@dataclasses.dataclass(frozen=True)
class VerifyResumeFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag()
    workdir: str = flag(
        "", "folder for both runs; a new or an empty one", metavar="DIR", is_required=True
    )
    kills: int = flag(10, "SIGKILLs at random moments, two fifths of them inside a save", minimum=1)
    processes: int = flag(1, "processes that train together, on CPUs of this machine", minimum=1)
    seed: int = flag(0, "seed of the kill times")

    def __post_init__(self) -> None:
        if is_address(self.workdir):
            raise Refused(
                f"--workdir is {self.workdir}; kills inside a save are timed by the files in the "
                "folder, so give one on a disk of this machine"
            )
        workdir = pathlib.Path(self.workdir)
        check_no_file(workdir, "--workdir")
        if workdir.exists() and any(workdir.iterdir()):
            raise Refused(f"--workdir={workdir} is not empty; give a new folder")


COMMAND = Command(
    "bert_jax.verify_resume",
    __doc__,
    VerifyResumeFlags,
    "python -m bert_jax.verify_resume --config=configs/tiny.py --workdir=DIR --kills=10",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.checkpoint import reader
from bert_jax.checkpoint.directory import UNCOMMITTED
from bert_jax.logging import metrics_writer
from bert_jax.logging.console import BAD, FAINT, GOOD, Screen, duration
from bert_jax.monitoring.rules import TIMED_RULES
from bert_jax.runtime import goodput
from bert_jax.runtime.run_record import CHECKPOINTS
from bert_jax.train_step.metrics import TIMINGS
from bert_jax.trainer import bad_steps, setup
from data_pipeline.cli import child_process
from data_pipeline.cli.main import DONE, FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console, make_table
from data_pipeline.io import small_files
from data_pipeline.io.jsonl import read_metrics, read_records

_WHOLE, _KILLED = "whole", "killed"
SHARE_IN_SAVES = 0.4  # share of kills during a save, rounded up
SHARE_STARTING = 0.1  # share of the other kills that come before an attempt's first step
MAX_GAP_SECS = 0.3  # maximum delay between killing two processes of a run
_POLL_SECS = 0.002


class RunEnded(Exception):
    """Signal in one sentence that a run failed, or ended before all kills."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """Record when the processes of an attempt were killed."""

    moment: str  # what the run was doing
    secs: float  # time since the attempt started
    step: int  # the last step that the attempt recorded, or resumed from
    attempts: int  # number of attempts that had started training by then


class Attempt:
    """Run the processes of one attempt, on this machine."""

    def __init__(self, command: Sequence[str], count: int, output: pathlib.Path) -> None:
        """Start the processes, appending their output to a file."""
        self.began = time.time()
        self._output = output
        self.processes: list[subprocess.Popen[bytes]] = []
        joined, environment = list[str](), dict[str, str]()
        if count > 1:
            environment = {"JAX_PLATFORMS": "cpu"}
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"--coordinator_address=127.0.0.1:{free.getsockname()[1]}"
            joined = ["--multihost", address, f"--num_processes={count}"]
        for number in range(count):
            own = [*joined, f"--process_id={number}"] if joined else []
            self.processes.append(child_process.start([*command, *own], output, environment))

    def kill(self, rng: random.Random) -> None:
        """Kill the processes one by one, in random order."""
        for process in rng.sample(self.processes, len(self.processes)):
            process.kill()
            if len(self.processes) > 1:
                time.sleep(rng.uniform(0.0, MAX_GAP_SECS))
        for process in self.processes:
            process.wait()

    def finish(self) -> None:
        """Wait until the run ends, leaving no process; raise RunEnded if one failed."""
        try:
            codes = [process.wait() for process in self.processes]
        finally:
            self.close()
        if set(codes) != {DONE}:
            error = child_process.last_error(self._output)
            raise RunEnded(f"the run ended with exit code {max(codes, key=abs)}: {error}")

    def close(self) -> None:
        """Kill every process that is still running."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


class KilledRun:
    """Start a run repeatedly and kill each attempt."""

    def __init__(
        self,
        start: Callable[[], Attempt],
        workdir: pathlib.Path,
        whole: pathlib.Path,
        config: Config,
        rng: random.Random,
    ) -> None:
        """Read the timing of the finished run in `whole`; `start` starts an attempt."""
        self.kills: list[Kill] = []
        self._start, self._workdir, self._rng = start, workdir, rng
        self._steps = config_lib.total_steps(config)
        attempts = goodput.read_attempts(whole / goodput.FILE)  # more than one after a roll-back
        last = attempts[-1][-1]
        secs = last.secs
        self._starting_secs = secs.get(goodput.STARTING, 0.0) + secs.get(goodput.COMPILING, 0.0)
        self._interval_secs = config.log_every_steps * secs[goodput.TRAINING] / last.step

    def kill(self, number: int, total: int) -> Kill:
        """Start an attempt; kill it at a random moment in part `number`, from 0, of `total` parts.

        Raises RunEnded if the run ends before that.
        """
        so_far = sum(kill.moment == "in a save" for kill in self.kills)
        left = math.ceil(total * SHARE_IN_SAVES) - so_far
        in_save = self._rng.random() < left / (total - number)
        until_step = int(self._steps * (number + self._rng.random()) / total)
        with contextlib.closing(self._start()) as attempt:
            moment = self._wait(attempt, until_step, in_save)
            secs = time.time() - attempt.began
            attempt.kill(self._rng)
        attempts = self._read_attempts()
        step = attempts[-1][-1].step if attempts else 0
        self.kills.append(Kill(moment, secs, step, len(attempts)))
        return self.kills[-1]

    def _wait(self, attempt: Attempt, until_step: int, in_save: bool) -> str:
        """Wait for the moment to kill; return what the run is doing then."""
        if not in_save and self._rng.random() < SHARE_STARTING:
            time.sleep(self._rng.uniform(0.0, self._starting_secs))
            return "before its first step"

        def has_reached(step: int) -> bool:
            attempts = self._read_attempts()
            last = attempts[-1][-1] if attempts else None
            return last is not None and last.began >= attempt.began and last.step >= step

        self._until(attempt, lambda: has_reached(0))
        before = _list_half_saved(self._workdir)
        self._until(attempt, lambda: has_reached(until_step))
        if not in_save:
            time.sleep(self._rng.uniform(0.0, self._interval_secs))
            return "in training"
        while True:
            self._until(attempt, lambda: bool(_list_half_saved(self._workdir) - before))
            for process in attempt.processes:
                process.send_signal(signal.SIGSTOP)  # else the save could finish before the kill
            if _list_half_saved(self._workdir) - before:
                return "in a save"
            for process in attempt.processes:
                process.send_signal(signal.SIGCONT)

    def _until(self, attempt: Attempt, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if any(process.poll() is not None for process in attempt.processes):
                attempt.finish()
                raise RunEnded(
                    f"the run finished after {len(self.kills)} kills: give it more steps "
                    "(--config.phases[0].steps), or fewer --kills"
                )
            time.sleep(_POLL_SECS)

    def list_resumes(self) -> list[tuple[int, int]]:
        """Return, for each kill, the step that the run resumed from and the steps it repeated."""
        attempts, resumes = self._read_attempts(), []
        for kill in self.kills:
            step = kill.step  # an attempt that finds the run finished leaves no line
            if kill.attempts < len(attempts):
                step = attempts[kill.attempts][0].step
            resumes.append((step, max(0, kill.step - step)))
        return resumes

    def _read_attempts(self) -> list[goodput.Attempt]:
        return goodput.read_attempts(self._workdir / goodput.FILE)


def _list_half_saved(workdir: pathlib.Path) -> set[tuple[str, int]]:
    """List uncommitted checkpoints, including the checkpoints of killed processes."""
    unfinished = set()
    for path in (workdir / CHECKPOINTS).glob(f"*{UNCOMMITTED}*"):
        try:
            unfinished.add((path.name, path.stat().st_ino))
        except FileNotFoundError:  # committed meanwhile
            continue
    return unfinished


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Hold the amount compared, and the differences, one sentence each."""

    arrays: int
    numbers: int  # total elements of these arrays
    lines: int
    step: int | None
    differences: tuple[str, ...]


def compare_runs(first: pathlib.Path, second: pathlib.Path) -> RunComparison:
    """Compare two finished runs of the same command, ignoring timings."""
    folders = first, second
    lines = [read_metrics(folder / metrics_writer.METRICS) for folder in folders]
    bad_lines = [read_records(folder / bad_steps.BAD_STEPS) for folder in folders]
    differences = _compare_lines("metrics", *lines)
    differences += _compare_lines("bad steps", *bad_lines)
    summaries = [[_read_summary(folder / metrics_writer.SUMMARY)] for folder in folders]
    differences += _compare_lines("the summary", *summaries)
    step, other_step = [reader.find_newest_step(folder / CHECKPOINTS) for folder in folders]
    if step is None or step != other_step:
        differences.append(f"the newest checkpoints are of steps {step} and {other_step}")
        return RunComparison(0, 0, len(lines[0]), step, tuple(differences))
    arrays = [reader.read_arrays(folder / CHECKPOINTS, step) for folder in folders]
    differences += _compare_arrays(*arrays)
    numbers = sum(array.size for array in arrays[0].values())
    return RunComparison(len(arrays[0]), numbers, len(lines[0]), step, tuple(differences))


def _read_summary(path: pathlib.Path) -> dict[str, Any]:
    """Read a summary without the findings that follow from timings; {} without the file."""
    summary = small_files.read_object(path, path.parent) if path.exists() else {}
    findings = summary.get("findings", [])
    return summary | {"findings": [each for each in findings if each["rule"] not in TIMED_RULES]}


def _compare_lines(
    name: str, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Describe the first difference between two JSON-lines files; [] if there is none."""
    if len(first) != len(second):
        return [f"{name}: {len(first)} lines and {len(second)}"]
    for number, (a, b) in enumerate(zip(first, second, strict=True), 1):
        for key in sorted((a.keys() | b.keys()) - set(TIMINGS)):
            if repr(a.get(key)) != repr(b.get(key)):  # texts, so that nan equals nan
                step = f", step {a['step']}" if "step" in a else ""
                return [f"{name}, line {number}{step}: {key} is {a.get(key)} and {b.get(key)}"]
    return []


def _compare_arrays(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> list[str]:
    names = sorted(first.keys() ^ second.keys())
    differences = [f"{name} is in one checkpoint only" for name in names]
    for name in sorted(first.keys() & second.keys()):
        a, b = first[name], second[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            differences.append(f"{name} is {a.dtype}{a.shape} and {b.dtype}{b.shape}")
        elif a.tobytes() != b.tobytes():
            bits = [np.frombuffer(x.tobytes(), np.uint8).reshape(x.size, -1) for x in (a, b)]
            differing = int(np.any(bits[0] != bits[1], axis=1).sum())
            differences.append(f"{name}: {differing:,} of {a.size:,} numbers differ")
    return differences


def _main(log: LibraryLog, flags: VerifyResumeFlags) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        config = setup.resolve_alone(flags.config.load())
        _check_long_enough(config, flags.kills)
        log.hold()
    return _verify(flags, config)


def _check_long_enough(config: Config, kills: int) -> None:
    """Refuse a run that would end before so many kills: each has a part of the run to itself."""
    steps = config_lib.total_steps(config)
    for key, every in (
        ("checkpoint.every_steps", config.checkpoint.every_steps),
        ("log_every_steps", config.log_every_steps),
    ):
        if every * kills > steps:
            raise Refused(
                f"config.{key} is {every}: in {steps:,} steps the run would be over before "
                f"{kills} kills; take --config.{key}={max(1, steps // kills)} or less, more steps, "
                "or fewer --kills"
            )


def _verify(flags: VerifyResumeFlags, config: Config) -> int:
    screen, workdir = Screen(is_writer=True), pathlib.Path(flags.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        killed = _train_both(flags, config, screen)
    except RunEnded as end:
        screen.print(f"nothing is proved: {end}", BAD)
        return FAILED
    _show(killed)
    jax.config.update("jax_platforms", "cpu")  # what follows only reads files
    with screen.spinning("comparing"):
        comparison = compare_runs(workdir / _WHOLE, workdir / _KILLED)
    return _verdict(killed, comparison, screen)


def _train_both(flags: VerifyResumeFlags, config: Config, screen: Screen) -> KilledRun:
    workdir = pathlib.Path(flags.workdir)
    whole, killed = workdir / _WHOLE, workdir / _KILLED

    def start(folder: pathlib.Path) -> Attempt:
        command = [
            sys.executable,
            "-m",
            "bert_jax.train",
            *flags.config.list_arguments(),
            f"--workdir={folder}",
        ]
        return Attempt(command, flags.processes, folder.with_name(f"{folder.name}.log"))

    steps, began = config_lib.total_steps(config), time.monotonic()
    with screen.waiting(f"training {steps:,} steps undisturbed in {whole}"):
        start(whole).finish()
    took = duration(time.monotonic() - began)
    screen.print(f"that took {took}; now the same in {killed}, killed {flags.kills} times")
    run = KilledRun(lambda: start(killed), killed, whole, config, random.Random(flags.seed))
    for number in range(flags.kills):
        with screen.spinning(f"on the way to kill {number + 1} of {flags.kills}"):
            kill = run.kill(number, flags.kills)
        screen.print(
            f"kill {number + 1}: {kill.moment}, at step {kill.step:,} or later, after "
            f"{kill.secs:.1f} s",
            FAINT,
        )
    with screen.waiting("resuming to the end"):
        start(killed).finish()
    return run


def _show(run: KilledRun) -> None:
    heads = ("kill", "after", "it was", "at step", "resumed from", "steps repeated")
    pairs = zip(run.kills, run.list_resumes(), strict=True)
    rows = [
        [
            *(f"{number}", f"{kill.secs:.1f} s", kill.moment),
            *(f"{kill.step:,}", f"{step:,}", f"{again:,}"),
        ]
        for number, (kill, (step, again)) in enumerate(pairs, 1)
    ]
    make_console().print(make_table(heads, rows, left=(2,)))


def _verdict(run: KilledRun, comparison: RunComparison, screen: Screen) -> int:
    for difference in comparison.differences:
        screen.print(difference, BAD)
    if comparison.differences:
        screen.print(f"not the same: {len(comparison.differences)} differences", BAD)
        return FAILED
    in_saves = sum(kill.moment == "in a save" for kill in run.kills)
    again = sum(steps for _, steps in run.list_resumes())
    screen.print(
        f"the same bit for bit after {len(run.kills)} kills, {in_saves} of them inside a save: "
        f"{comparison.arrays} arrays of {comparison.numbers:,} numbers at step "
        f"{comparison.step:,}, {comparison.lines} lines of metrics; {again:,} steps were repeated",
        GOOD,
    )
    return DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "give another --workdir to start again", argv)


if __name__ == "__main__":
    sys.exit(main())
