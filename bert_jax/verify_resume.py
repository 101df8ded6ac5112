"""Prove that kills lose nothing: python -m bert_jax.verify_resume --config=... --workdir=DIR

    --kills=10        SIGKILLs at random moments, two fifths of them inside a save
    --processes=2     processes that train together, on CPUs of this machine
    --seed=1          other moments

Trains once undisturbed in DIR/whole, and once in DIR/killed, where the same command resumes after
each kill; then compares the last checkpoints bit for bit, and all records but for timings. The
exit code is 0 if they are the same and 1 if not. --config.FIELD=VALUE sets a field, as in training.
"""

import pathlib
import random
import sys
import time
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CONFIG = cli.config_flag()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder for both runs; a new or an empty one")
_KILLS = flags.DEFINE_integer("kills", 10, "how often the second run is killed")
_PROCESSES = flags.DEFINE_integer("processes", 1, "processes of each run, on this machine")
_SEED = flags.DEFINE_integer("seed", 0, "of the moments")

USAGE = "python -m bert_jax.verify_resume --config=configs/tiny.py --workdir=DIR --kills=10"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

import jax
import rich.box
import rich.table

from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.logging.console import BAD, FAINT, GOOD, Screen, duration
from bert_jax.runtime import exit_codes
from bert_jax.trainer import resume_check
from bert_jax.trainer.resume_check import Attempt, KilledRun, RunComparison, RunEnded
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_no_file

_WHOLE, _KILLED = "whole", "killed"


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = config_lib.resolve(cli.load_config(Config, _CONFIG))
        for flag in (_KILLS, _PROCESSES):
            if flag.value < 1:
                raise Refused(f"--{flag.name} is {flag.value}; it must be 1 or more")
        workdir = _checked_workdir()
        _check_long_enough(config, _KILLS.value)
        log.hold()
    return _verify(config, workdir)


def _checked_workdir() -> pathlib.Path:
    address = _WORKDIR.value
    if not address:
        raise Refused(f"--workdir is missing: a folder for both runs; {USAGE}")
    if is_address(address):
        raise Refused(
            f"--workdir is {address}; kills inside a save are timed by the files in the folder, so "
            "give one on a disk of this machine"
        )
    workdir = pathlib.Path(address)
    check_no_file(workdir, "--workdir")
    if workdir.exists() and any(workdir.iterdir()):
        raise Refused(f"--workdir={workdir} is not empty; give a new folder")
    return workdir


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


def _verify(config: Config, workdir: pathlib.Path) -> int:
    screen = Screen(is_writer=True)
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        killed = _train_both(config, workdir, screen)
    except RunEnded as end:
        screen.print(f"nothing is proved: {end}", BAD)
        return exit_codes.FAILED
    _show(killed)
    jax.config.update("jax_platforms", "cpu")  # what follows only reads files
    with screen.spinning("comparing"):
        comparison = resume_check.compare_runs(workdir / _WHOLE, workdir / _KILLED)
    return _verdict(killed, comparison, screen)


def _train_both(config: Config, workdir: pathlib.Path, screen: Screen) -> KilledRun:
    """Train undisturbed, then killed and resumed; return the killed run."""
    given, whole, killed = cli.config_arguments(_CONFIG), workdir / _WHOLE, workdir / _KILLED

    def start(folder: pathlib.Path) -> Attempt:
        command = [sys.executable, "-m", "bert_jax.train", *given, f"--workdir={folder}"]
        return Attempt(command, _PROCESSES.value, folder.with_name(f"{folder.name}.log"))

    steps, began = config_lib.total_steps(config), time.monotonic()
    with screen.waiting(f"training {steps:,} steps undisturbed in {whole}"):
        start(whole).finish()
    took = duration(time.monotonic() - began)
    screen.print(f"that took {took}; now the same in {killed}, killed {_KILLS.value} times")
    run = KilledRun(lambda: start(killed), killed, whole, config, random.Random(_SEED.value))
    for number in range(_KILLS.value):
        with screen.spinning(f"on the way to kill {number + 1} of {_KILLS.value}"):
            kill = run.kill(number, _KILLS.value)
        screen.print(
            f"kill {number + 1}: {kill.moment}, at step {kill.step:,} or later, after "
            f"{kill.secs:.1f} s",
            FAINT,
        )
    with screen.waiting("resuming to the end"):
        start(killed).finish()
    return run


def _show(run: KilledRun) -> None:
    """Show a line for each kill."""
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("kill", "after", "it was", "at step", "resumed from", "steps repeated"):
        table.add_column(column, justify="left" if column == "it was" else "right")
    for number, (kill, (step, again)) in enumerate(
        zip(run.kills, run.list_resumes(), strict=True), 1
    ):
        cells = str(number), f"{kill.secs:.1f} s", kill.moment
        table.add_row(*cells, f"{kill.step:,}", f"{step:,}", f"{again:,}")
    make_console().print(table)


def _verdict(run: KilledRun, comparison: RunComparison, screen: Screen) -> int:
    """Report whether both are the same; returns the exit code."""
    for difference in comparison.differences:
        screen.print(difference, BAD)
    if comparison.differences:
        screen.print(f"not the same: {len(comparison.differences)} differences", BAD)
        return exit_codes.FAILED
    in_saves = sum(kill.moment == "in a save" for kill in run.kills)
    again = sum(steps for _, steps in run.list_resumes())
    screen.print(
        f"the same bit for bit after {len(run.kills)} kills, {in_saves} of them inside a save: "
        f"{comparison.arrays} arrays of {comparison.numbers:,} numbers at step "
        f"{comparison.step:,}, {comparison.lines} lines of metrics; {again:,} steps were repeated",
        GOOD,
    )
    return exit_codes.DONE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "give another --workdir to start again", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
