"""Run one process of pre-training or fine-tuning from startup to its exit code."""

import contextlib
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax.config import HostsConfig
from bert_jax.logging import metrics_writer as log_lib
from bert_jax.parallel import processes
from bert_jax.runtime import goodput, preemption, startup
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.cli import ProcessFlags, RunFlags
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.runtime.workdir import Workdir
from bert_jax.train_step.schedule import sample_rates
from bert_jax.trainer import compile, loop
from bert_jax.trainer.setup import Setup
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import BY_SIGNAL, DONE, FAILED, find_python
from data_pipeline.cli.stderr_log import FILE as LIBRARY_LOG
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.errors import get_first_line


@contextlib.contextmanager
def prepare_process(
    flags: RunFlags, hosts: HostsConfig, log: LibraryLog
) -> Iterator[tuple[Workdir, Watchdog]]:
    """Join the other processes and open the workdir; build the run inside this context.

    On a normal exit from the context, logs, stacks of a hung process and compiled programs are
    redirected to the workdir. Pass the watchdog to train_to_exit_code, which closes it. The first
    check that fails raises Refused or OSError.
    """
    log.hold()
    if flags.process.multihost:
        join_processes(flags.process, hosts, log)
    watchdog = Watchdog()
    watchdog.begin(log.screen, log.say)
    with watchdog.doing("preparing the run", hosts.stuck_secs):
        number = processes.number()
        # The others fetch the files of a bucket once no other run can write there.
        workdir = processes.run_first(
            "whether the workdir is free",
            lambda: workdir_lib.open_workdir(flags.workdir, flags.scratch, number),
            hosts.stuck_secs,
        )
        if workdir.bucket is None:  # a bucket is always shared
            workdir_lib.check_all_see(workdir.home, hosts.start_secs)
        with LINE.doing("starting the devices"):
            jax.devices()
        yield workdir, watchdog
        workdir.home.mkdir(parents=True, exist_ok=True)  # process 0 may not have made it yet
        log.keep(workdir.home / (f"libraries-{number}.log" if number else LIBRARY_LOG))
        watchdog.keep_stacks_in(workdir.home)
        compile.keep_in(workdir.home, is_writer=number == 0)


def join_processes(flags: ProcessFlags, hosts: HostsConfig, log: LibraryLog) -> None:
    """Join the other processes of a run, and set the heading of this process's log lines."""
    # jax installs its own SIGTERM handler, which must not be replaced: see preemption.Stop.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = startup.find_rank(
        flags.coordinator_address, flags.num_processes, flags.process_id, hosts.start_secs
    )
    if rank is not None and rank.number > 0:
        log.heading = f"process {rank.number}: "
    startup.join(rank, hosts, sys.argv[1:], log.say)
    if processes.number() > 0:
        log.heading = f"process {processes.number()}: "


def leave(code: int, message: str) -> None:
    """End the process at once after an error.

    A normal exit would wait for the other processes, or up to five minutes for Orbax. Returns
    without ending the process if `message` is empty, or if the run has a single process and `code`
    is not FAILED.
    """
    if not message or (processes.count() == 1 and code != FAILED):
        processes.say_goodbye()
        return
    if sys.exception() is not None:
        with contextlib.suppress(OSError):  # stderr may go to a full disk, too
            traceback.print_exc()
    processes.leave(code, message)


Finish = Callable[[Setup, dict[str, Any]], None]


def train_to_exit_code(setup: Setup, watchdog: Watchdog, entry: str, finish: Finish) -> int:
    """Train until the end or a stop signal; return the exit code of the process.

    `entry` is the module that resumes the run with `python -m`. `finish` receives the summary of a
    finished run and prints how to use the result.
    """
    try:
        setup.storage.publish()
        code = _train(setup, watchdog, entry, finish)
        setup.storage.publish()
        # Wait until every process has published, so that one that fails can still tell the others.
        processes.agree("that the run is complete", "", setup.config.hosts.stuck_secs)
        return code
    except BaseException as error:
        with contextlib.suppress(OSError):  # the error that ended the run is the one to report
            setup.storage.publish(patience_secs=0)
        if isinstance(error, FloatingPointError):  # all wait until process 0 has plotted
            with contextlib.suppress(OSError):
                processes.agree("that the records are complete", "", setup.config.hosts.stuck_secs)
        if isinstance(error, jax.errors.JaxRuntimeError) and processes.is_loss_of_another(error):
            dead, reason = processes.find_dead(), get_first_line(error)
            raise ConnectionError(
                f"another process of this run has ended; its own output says why ({reason})"
                if dead is None
                else f"{processes.name_process(dead)} {processes.DIED} ({reason})"
            ) from error
        raise
    finally:
        setup.storage.close()
        watchdog.close()


def _train(setup: Setup, watchdog: Watchdog, entry: str, finish: Finish) -> int:
    try:
        summary = loop.train(setup, watchdog)
    except preemption.Interrupted as stop:
        _plot_curves(setup)
        setup.screen.print(f"stopped and saved at step {stop.step:,}; to resume:")
        setup.screen.command(f"{find_python()} -m {entry} {shlex.join(sys.argv[1:])}")
        return BY_SIGNAL + stop.signal_number
    except FloatingPointError:
        setup.screen.print(f"curves up to here: {_plot_curves(setup)}")
        raise
    count = summary["attempts"]
    over = f" over {count} attempts and the stops between them" * (count > 1)
    setup.screen.table(f"wall time{over}", goodput.list_closing_rows(summary))
    finish(setup, summary)
    return DONE


def _plot_curves(setup: Setup) -> str:
    """Plot the curves; return the path or the error, as a failed plot must not fail the run."""
    if jax.process_index() > 0:
        return ""
    # Imported here: matplotlib takes a sixth of the time to start.
    from bert_jax.logging import plots

    try:
        with setup.screen.spinning("drawing the curves"):
            steps_N, rates_N = sample_rates(setup.config)
            picture = plots.draw_curves(setup.workdir, setup.config.phases, (steps_N + 1, rates_N))
            return str(picture or "nothing to draw yet")
    except (OSError, ValueError) as error:
        return f"not drawn: {error}"


def describe_result(setup: Setup, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """List speed, records and checkpoint of a finished run, for the last block on the screen."""
    place, speed = setup.storage.address, f"{summary['sequences_per_sec']:,.0f} sequences/s"
    return [
        ("speed", f"{speed} in training, goodput {summary['goodput']:.1%}"),
        ("curves", _plot_curves(setup)),
        ("numbers", f"{place}/{log_lib.SUMMARY}, {log_lib.METRICS}, {log_lib.EVENTS}/"),
        ("checkpoint", str(setup.storage.checkpoints / str(summary["steps"]))),
    ]
