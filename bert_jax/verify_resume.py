"""Prove that kills lose nothing here: python -m bert_jax.verify_resume --config=... --workdir=DIR

    --kills=10        SIGKILLs at random moments, two fifths of them inside a save
    --processes=2     processes that train together, on CPUs of this machine
    --seed=1          other moments

Trains once undisturbed in DIR/whole, and once in DIR/killed, where the same command goes on after
each kill; then compares the last checkpoints bit for bit, and all records but for timings. The
exit code is 0 if they are the same and 1 if not. --config.FIELD=VALUE sets a field, as in training.
"""

import functools
import pathlib
import random
import sys
import time
from collections.abc import Callable

import jax
import rich.box
import rich.table
from absl import flags, logging

from bert_jax import command_line, config_check, exit_codes, killed_run, same_run
from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.killed_run import Ended, KilledRun, Processes
from bert_jax.same_run import Compared
from bert_jax.screen import BAD, FAINT, GOOD, Screen, duration
from data_pipeline import terminal_console
from data_pipeline.files import is_address
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder for both runs; a new or an empty one")
_KILLS = flags.DEFINE_integer("kills", 10, "how often the second run is killed")
_PROCESSES = flags.DEFINE_integer("processes", 1, "processes of each run, on this machine")
_SEED = flags.DEFINE_integer("seed", 0, "of the moments")

USAGE = "python -m bert_jax.verify_resume --config=configs/tiny.py --workdir=DIR --kills=10"
_WHOLE, _KILLED = "whole", "killed"


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = command_line.resolved(_CONFIG)
    config_check.check(config)
    for flag in (_KILLS, _PROCESSES):
        if flag.value < 1:
            raise ValueError(f"--{flag.name} is {flag.value}; it must be 1 or more")
    workdir = _checked_workdir()
    _check_long_enough(config, _KILLS.value)
    log.hold()
    return functools.partial(_verify, config, workdir)


def _checked_workdir() -> pathlib.Path:
    address = _WORKDIR.value
    if not address:
        raise ValueError(f"--workdir is missing: a folder for both runs; {USAGE}")
    if is_address(address):
        raise ValueError(
            f"--workdir is {address}; kills inside a save are timed by what lies in the folder, so "
            "give one on a disk of this machine"
        )
    workdir = pathlib.Path(address)
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"--workdir={workdir} is there and not empty; give a new folder")
    return workdir


def _check_long_enough(config: Config, kills: int) -> None:
    """Raise if the run would be over before so many kills: each has a part of it to itself."""
    steps = config_lib.total_steps(config)
    for key, every in (
        ("checkpoint.every_steps", config.checkpoint.every_steps),
        ("log_every_steps", config.log_every_steps),
    ):
        if every * kills > steps:
            raise ValueError(
                f"config.{key} is {every}: in {steps:,} steps the run would be over before "
                f"{kills} kills; take --config.{key}={max(1, steps // kills)} or less, more steps, "
                "or fewer --kills"
            )


def _verify(config: Config, workdir: pathlib.Path) -> int:
    screen = Screen(is_writer=True)
    workdir.mkdir(parents=True, exist_ok=True)
    given = command_line.config_arguments(_CONFIG)

    def start(name: str) -> Processes:
        command = [sys.executable, "-m", "bert_jax.train", *given, f"--workdir={workdir / name}"]
        return Processes(command, _PROCESSES.value, workdir / f"{name}.log")

    try:
        killed = _both_runs(config, workdir, start, screen)
    except Ended as end:
        screen.say(f"nothing is proved: {end}", BAD)
        return exit_codes.FAILED
    _show(killed)
    jax.config.update("jax_platforms", "cpu")  # what follows only reads files
    with screen.spinning("comparing"):
        found = same_run.compare(workdir / _WHOLE, workdir / _KILLED)
    return _verdict(killed, found, screen)


def _both_runs(
    config: Config,
    workdir: pathlib.Path,
    start: Callable[[str], Processes],
    screen: Screen,
) -> KilledRun:
    """Train undisturbed, and killed; what was killed.

    Raises:
      Ended: one of them failed, or was over too soon.
    """
    steps = config_lib.total_steps(config)
    began = time.monotonic()
    with screen.waiting(f"training {steps:,} steps undisturbed in {workdir / _WHOLE}"):
        _to_the_end(start(_WHOLE))
    took = duration(time.monotonic() - began)
    screen.say(
        f"that took {took}; now the same in {workdir / _KILLED}, killed {_KILLS.value} times"
    )
    pace = killed_run.pace(workdir / _WHOLE, config.log_every_steps)
    rng = random.Random(_SEED.value)
    run = KilledRun(lambda: start(_KILLED), workdir / _KILLED, steps, pace, rng)
    for number in range(_KILLS.value):
        with screen.spinning(f"on the way to kill {number + 1} of {_KILLS.value}"):
            kill = run.kill(number, _KILLS.value)
        screen.say(
            f"kill {number + 1}: {kill.moment}, at step {kill.step:,} or later, after "
            f"{kill.secs:.1f} s",
            FAINT,
        )
    with screen.waiting("going on to the end"):
        _to_the_end(start(_KILLED))
    return run


def _to_the_end(processes: Processes) -> None:
    try:
        processes.finish()
    finally:
        processes.close()


def _show(run: KilledRun) -> None:
    """A line a kill."""
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("kill", "after", "it was", "at step", "went on from", "steps done again"):
        table.add_column(column, justify="left" if column == "it was" else "right")
    for number, (kill, (step, again)) in enumerate(zip(run.kills, run.redone(), strict=True), 1):
        cells = str(number), f"{kill.secs:.1f} s", kill.moment
        table.add_row(*cells, f"{kill.step:,}", f"{step:,}", f"{again:,}")
    terminal_console.console().print(table)


def _verdict(run: KilledRun, found: Compared, screen: Screen) -> int:
    """Say whether both are the same; the exit code."""
    for difference in found.differences:
        screen.say(difference, BAD)
    if found.differences:
        screen.say(f"not the same: {len(found.differences)} differences", BAD)
        return exit_codes.FAILED
    in_saves = sum(kill.moment == "in a save" for kill in run.kills)
    again = sum(steps for _, steps in run.redone())
    screen.say(
        f"the same bit for bit after {len(run.kills)} kills, {in_saves} of them inside a save: "
        f"{found.arrays} arrays of {found.numbers:,} numbers at step {found.step:,}, "
        f"{found.lines} lines of metrics; {again:,} steps were done again",
        GOOD,
    )
    return exit_codes.DONE


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, "give another --workdir to begin again")


if __name__ == "__main__":
    main()
