"""Pre-train a BERT: python -m bert_jax.train --config=configs/base.py --workdir=DIR

    --config.data.store=STORE    the corpus, from python -m data_pipeline.build
    --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000    override single fields
    --print_config               resolve, check and print the config, and stop

A run stopped by Ctrl-C, SIGTERM or a crash goes on when the same command is given again.
"""

import contextlib
import dataclasses
import functools
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import yaml
from absl import flags, logging

from bert_jax import (
    command_line,
    compile_cache,
    config_check,
    curves,
    exit_codes,
    feed,
    joining,
    loop,
    mesh,
    objectives,
    preparation,
    processes,
    profiling,
    shared_folder,
    stopping,
    wall_time,
)
from bert_jax import config as config_lib
from bert_jax import log as log_lib
from bert_jax import workdir as workdir_lib
from bert_jax.watchdog import Watchdog
from data_pipeline.files import is_address
from data_pipeline.interpreter import python
from data_pipeline.library_log import FILE as LIBRARY_LOG
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag()
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "folder of the run, or gs://BUCKET/PATH: checkpoints, metrics, summary"
)
_SCRATCH = flags.DEFINE_string(
    "scratch", workdir_lib.SCRATCH, "folder of this host for small files of runs on gs://"
)
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the resolved config and stop")
_PROFILE_STEPS = flags.DEFINE_string(
    "profile_steps", None, "FIRST:LAST, numbers of steps to trace into the workdir, as 100:105"
)
_MULTIHOST = flags.DEFINE_bool("multihost", False, "one of several processes, as on a TPU pod")
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "host:port of process 0, where the platform does not tell"
)
_PROCESSES = flags.DEFINE_integer("num_processes", None, "processes of the run, likewise")
_PROCESS = flags.DEFINE_integer("process_id", None, "number of this process from 0, likewise")

USAGE = "python -m bert_jax.train --config=configs/base.py --workdir=DIR"


def _show(config: config_lib.Config) -> int:
    shown = dataclasses.asdict(config)
    shown["phases"] = list(shown["phases"])
    print(yaml.safe_dump(shown, sort_keys=False), end="")
    return 0


def _checked_workdir() -> str:
    for name in ("coordinator_address", "num_processes", "process_id"):
        if flags.FLAGS[name].value is not None and not _MULTIHOST.value:
            raise ValueError(f"--{name} is for a run of several processes; add --multihost")
    if not _WORKDIR.value:
        raise ValueError(f"--workdir is missing: a folder for checkpoints and metrics; {USAGE}")
    workdir_lib.check_address(_WORKDIR.value)
    return str(_WORKDIR.value)


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    began = time.time()
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = command_line.resolved(_CONFIG)
    config_check.check(config)
    objective = objectives.find(config.objective)
    mesh.presets(config.mesh)
    if _PRINT_CONFIG.value:
        if config.data.store and not is_address(config.data.store):
            vocab_size = feed.open_store(config.data).vocab_size
            config = config_lib.with_vocab_size(config, vocab_size)
        return functools.partial(_show, config)
    profiled = None
    if _PROFILE_STEPS.value is not None:
        profiled = profiling.read_window(_PROFILE_STEPS.value)
    address = _checked_workdir()
    log.hold()
    if _MULTIHOST.value:
        _join(config, log)
    watchdog = Watchdog()
    watchdog.begin(log.screen, log.say)
    with watchdog.doing("preparing the run", config.hosts.stuck_secs):
        workdir = workdir_lib.opened(address, _SCRATCH.value, processes.number())
        if workdir.bucket is None:  # a bucket is the same for all
            shared_folder.check(workdir.home, config.hosts.start_secs)
        setup = preparation.prepare(config, objective, workdir, profiled=profiled, began=began)
        number = processes.number()
        setup.workdir.mkdir(parents=True, exist_ok=True)  # process 0 may not have come so far
        log.keep(setup.workdir / (f"libraries-{number}.log" if number else LIBRARY_LOG))
        watchdog.keep_stacks_in(setup.workdir)
        compile_cache.keep_in(setup.workdir, is_writer=number == 0)
    return functools.partial(_watched, setup, watchdog)


def _join(config: config_lib.Config, log: LibraryLog) -> None:
    at = joining.place(
        _COORDINATOR.value, _PROCESSES.value, _PROCESS.value, config.hosts.start_secs
    )
    if at is not None and at.number > 0:
        log.heading = f"process {at.number}: "
    joining.join(at, config.hosts, sys.argv[1:], log.say)
    if processes.number() > 0:
        log.heading = f"process {processes.number()}: "


def _leave(code: int, message: str) -> None:
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


def _watched(setup: preparation.Setup, watchdog: Watchdog) -> int:
    try:
        return _train(setup, watchdog)
    except jax.errors.JaxRuntimeError as error:
        if not processes.is_loss_of_another(error):
            raise
        raise ConnectionError(
            f"another process of this run has gone, its own output says why "
            f"({str(error).splitlines()[0]})"
        ) from error
    finally:
        watchdog.close()


def _train(setup: preparation.Setup, watchdog: Watchdog) -> int:
    try:
        setup.storage.publish()
        code = _to_the_end(setup, watchdog)
        setup.storage.publish()
        return code
    except BaseException:
        with contextlib.suppress(OSError):  # what ended the run is what has to be said
            setup.storage.publish(patience_secs=0)
        raise
    finally:
        setup.storage.close()


def _to_the_end(setup: preparation.Setup, watchdog: Watchdog) -> int:
    try:
        summary = loop.train(setup, watchdog)
    except stopping.Interrupted as stop:
        _curves(setup)
        setup.screen.say(f"stopped and saved at step {stop.step:,}; to go on from there:")
        setup.screen.say(shlex.join([python(), "-m", "bert_jax.train", *sys.argv[1:]]))
        return exit_codes.BY_SIGNAL + stop.signal_number
    except FloatingPointError:
        setup.screen.say(f"curves up to here: {_curves(setup)}")
        raise
    title = f"wall time since the first of {summary['attempts']} attempts"
    setup.screen.table(title, wall_time.closing_rows(summary))
    setup.screen.table("done", _closing_rows(setup, summary))
    setup.screen.say(
        f"try it: {python()} -m bert_jax.fill_mask --workdir={shlex.quote(setup.storage.address)} "
        "'A sentence with one [MASK] in it.'"
    )
    return 0


def _curves(setup: preparation.Setup) -> str:
    """Draw the curves; where they are, or why they are not: a picture is no reason to fail."""
    if jax.process_index() > 0:
        return ""
    try:
        with setup.screen.spinning("drawing the curves"):
            return str(curves.draw(setup.workdir, setup.config.phases) or "nothing to draw yet")
    except (OSError, ValueError) as error:
        return f"not drawn: {error}"


def _closing_rows(setup: preparation.Setup, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What was reached, and where everything is."""
    rows = []
    if "heldout_mlm_loss" in summary:
        loss, unigram = summary["heldout_mlm_loss"], summary["unigram_mlm_loss"]
        side = "under" if loss < unigram else "over"
        verdict = f"{abs(unigram - loss):.2f} {side} the {unigram:.2f} of a model without context"
        rows.append(("held out", f"MLM loss {loss:.2f}, {verdict}"))
    place = setup.storage.address
    return [
        *rows,
        (
            "speed",
            f"{summary['sequences_per_sec']:,.0f} sequences/s in training, goodput "
            f"{summary['goodput']:.1%}",
        ),
        ("curves", _curves(setup)),
        ("numbers", f"{place}/{log_lib.SUMMARY}, {log_lib.METRICS}, {log_lib.EVENTS}/"),
        ("checkpoint", str(setup.storage.checkpoints / str(summary["steps"]))),
    ]


def main() -> None:
    """Entry point."""
    way_on = "the same command goes on from the last save, if there was one"
    command_line.run(_prepare, USAGE, way_on, _leave)


if __name__ == "__main__":
    main()
