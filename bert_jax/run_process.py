"""A process of a run from its start to its exit code: what training and fine-tuning share."""

import contextlib
import dataclasses
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax

from bert_jax import (
    compile_cache,
    exit_codes,
    joining,
    loop,
    processes,
    shared_folder,
    stopping,
    wall_time,
)
from bert_jax import log as log_lib
from bert_jax import workdir as workdir_lib
from bert_jax.config import HostsConfig
from bert_jax.preparation import Setup
from bert_jax.watchdog import Watchdog
from bert_jax.workdir import Workdir
from data_pipeline.interpreter import python
from data_pipeline.library_log import FILE as LIBRARY_LOG
from data_pipeline.library_log import LibraryLog
from data_pipeline.live_line import LINE


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process runs: its workdir, and which of how many it is."""

    address: str  # of the workdir
    scratch: str
    is_one_of_several: bool
    coordinator: str | None
    processes: int | None
    number: int | None

    def check(self, usage: str) -> None:
        """Raise if flags are missing or contradict each other.

        Raises:
          ValueError: names the flag.
        """
        for name, value in (
            ("coordinator_address", self.coordinator),
            ("num_processes", self.processes),
            ("process_id", self.number),
        ):
            if value is not None and not self.is_one_of_several:
                raise ValueError(f"--{name} is for a run of several processes; add --multihost")
        if not self.address:
            raise ValueError(f"--workdir is missing: a folder for checkpoints and metrics; {usage}")
        workdir_lib.check_address(self.address)


def prepared(
    place: Place, hosts: HostsConfig, log: LibraryLog, prepare: Callable[[Workdir], Setup]
) -> tuple[Setup, Watchdog]:
    """Join the other processes, open the workdir, and have the run prepared in it.

    Raises:
      ValueError, OSError: one sentence about the first thing that does not fit.
    """
    log.hold()
    if place.is_one_of_several:
        _join(place, hosts, log)
    watchdog = Watchdog()
    watchdog.begin(log.screen, log.say)
    with watchdog.doing("preparing the run", hosts.stuck_secs):
        workdir = workdir_lib.opened(place.address, place.scratch, processes.number())
        if workdir.bucket is None:  # a bucket is the same for all
            shared_folder.check(workdir.home, hosts.start_secs)
        with LINE.doing("starting the devices"):
            jax.devices()
        setup = prepare(workdir)
        number = processes.number()
        setup.workdir.mkdir(parents=True, exist_ok=True)  # process 0 may not have come so far
        log.keep(setup.workdir / (f"libraries-{number}.log" if number else LIBRARY_LOG))
        watchdog.keep_stacks_in(setup.workdir)
        compile_cache.keep_in(setup.workdir, is_writer=number == 0)
    return setup, watchdog


def _join(place: Place, hosts: HostsConfig, log: LibraryLog) -> None:
    at = joining.place(place.coordinator, place.processes, place.number, hosts.start_secs)
    if at is not None and at.number > 0:
        log.heading = f"process {at.number}: "
    joining.join(at, hosts, sys.argv[1:], log.say)
    if processes.number() > 0:
        log.heading = f"process {processes.number()}: "


def leave(code: int, message: str) -> None:
    """End without waiting for what would wait as well, as long as it likes.

    Of several processes that is the others; of one alone the threads of a save that has failed,
    which Orbax leaves waiting for five minutes.
    """
    is_orderly = not message and code in (exit_codes.DONE, *stopping.EXIT_CODES)
    if is_orderly or (processes.count() == 1 and code != exit_codes.FAILED):
        return
    if sys.exception() is not None:
        with contextlib.suppress(OSError):  # the disk of the screen may be full as well
            traceback.print_exc()
    processes.leave(code, message)


def to_exit_code(
    setup: Setup, watchdog: Watchdog, entry: str, finish: Callable[[Setup, dict[str, Any]], None]
) -> int:
    """Train to the end, or until told to stop; the exit code of the process.

    `entry` is the module to start again; `finish` is called with the summary of a run that came to
    its end, and shows what is to be done with it.
    """
    try:
        return _published(setup, watchdog, entry, finish)
    except jax.errors.JaxRuntimeError as error:
        if not processes.is_loss_of_another(error):
            raise
        raise ConnectionError(
            f"another process of this run has gone, its own output says why "
            f"({str(error).splitlines()[0]})"
        ) from error
    finally:
        watchdog.close()


def _published(
    setup: Setup, watchdog: Watchdog, entry: str, finish: Callable[[Setup, dict[str, Any]], None]
) -> int:
    try:
        setup.storage.publish()
        code = _to_the_end(setup, watchdog, entry, finish)
        setup.storage.publish()
        return code
    except BaseException:
        with contextlib.suppress(OSError):  # what ended the run is what has to be said
            setup.storage.publish(patience_secs=0)
        raise
    finally:
        setup.storage.close()


def _to_the_end(
    setup: Setup, watchdog: Watchdog, entry: str, finish: Callable[[Setup, dict[str, Any]], None]
) -> int:
    try:
        summary = loop.train(setup, watchdog)
    except stopping.Interrupted as stop:
        _curves(setup)
        setup.screen.say(f"stopped and saved at step {stop.step:,}; to go on from there:")
        setup.screen.command(shlex.join([python(), "-m", entry, *sys.argv[1:]]))
        return exit_codes.BY_SIGNAL + stop.signal_number
    except FloatingPointError:
        setup.screen.say(f"curves up to here: {_curves(setup)}")
        raise
    title = f"wall time since the first of {summary['attempts']} attempts"
    setup.screen.table(title, wall_time.closing_rows(summary))
    finish(setup, summary)
    return exit_codes.DONE


def _curves(setup: Setup) -> str:
    """Draw the curves; where they are, or why they are not: a picture is no reason to fail."""
    if jax.process_index() > 0:
        return ""
    from bert_jax import curves, rate_plot  # here: matplotlib takes a sixth of the time to start

    try:
        with setup.screen.spinning("drawing the curves"):
            steps_N, rates_N = rate_plot.rates(setup.config)
            picture = curves.draw(setup.workdir, setup.config.phases, (steps_N + 1, rates_N))
            return str(picture or "nothing to draw yet")
    except (OSError, ValueError) as error:
        return f"not drawn: {error}"


def closing_rows(setup: Setup, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Where everything is that a run leaves, as the last lines of its closing block."""
    place = setup.storage.address
    return [
        (
            "speed",
            f"{summary['sequences_per_sec']:,.0f} sequences/s in training, goodput "
            f"{summary['goodput']:.1%}",
        ),
        ("curves", _curves(setup)),
        ("numbers", f"{place}/{log_lib.SUMMARY}, {log_lib.METRICS}, {log_lib.EVENTS}/"),
        ("checkpoint", str(setup.storage.checkpoints / str(summary["steps"]))),
    ]
