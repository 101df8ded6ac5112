"""Pre-train a BERT: python -m bert_jax.train --config=configs/base.py --workdir=DIR

    --config.data.store=STORE    the corpus, from python -m data_pipeline.build
    --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000    override single fields
    --print_config               resolve, check and print the config, and stop

A run stopped by Ctrl-C, SIGTERM or a crash goes on when the same command is given again.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import jax
import yaml
from absl import flags, logging

from bert_jax import command_line, feed, loop, mesh, objectives, stopping
from bert_jax import config as config_lib
from data_pipeline.store import check_is_local

_CONFIG = command_line.config_flag()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run: checkpoints, metrics, summary")
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the resolved config and stop")
_MULTIHOST = flags.DEFINE_bool("multihost", False, "one of several processes, as on a TPU pod")
_COORDINATOR = flags.DEFINE_string(
    "coordinator_address", None, "host:port of process 0, where the platform does not tell"
)
_PROCESSES = flags.DEFINE_integer("num_processes", None, "processes of the run, likewise")
_PROCESS = flags.DEFINE_integer("process_id", None, "number of this process from 0, likewise")

USAGE = "python -m bert_jax.train --config=configs/base.py --workdir=DIR"
SIGNAL_EXIT = 128  # plus the signal's number: the run was stopped, is saved, and can go on


def _show(config: config_lib.Config) -> int:
    shown = dataclasses.asdict(config)
    shown["phases"] = list(shown["phases"])
    print(yaml.safe_dump(shown, sort_keys=False), end="")
    return 0


def _checked_workdir() -> pathlib.Path:
    for name in ("coordinator_address", "num_processes", "process_id"):
        if flags.FLAGS[name].value is not None and not _MULTIHOST.value:
            raise ValueError(f"--{name} is for a run of several processes; add --multihost")
    if _WORKDIR.value is None:
        raise ValueError(f"--workdir is missing: a folder for checkpoints and metrics; {USAGE}")
    check_is_local("--workdir", _WORKDIR.value)
    workdir = pathlib.Path(_WORKDIR.value)
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is a file; give a new or an empty folder")
    return workdir


def _prepare() -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    config = command_line.resolved(_CONFIG)
    config_lib.check(config)
    objective = objectives.find(config.objective)
    mesh.presets(config.mesh)
    if _PRINT_CONFIG.value:
        if config.data.store:
            vocab_size = feed.open_store(config).vocab_size
            config = config_lib.with_vocab_size(config, vocab_size)
        return functools.partial(_show, config)
    workdir = _checked_workdir()
    if _MULTIHOST.value:
        jax.distributed.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
    return functools.partial(_train, loop.prepare(config, objective, workdir))


def _train(setup: loop.Setup) -> int:
    try:
        loop.train(setup)
    except stopping.Interrupted as stop:
        print(f"stopped and saved at step {stop.step:,}; the same command goes on from there")
        return SIGNAL_EXIT + stop.signal_number
    print(f"done: {setup.workdir / 'summary.json'}")
    return 0


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE)


if __name__ == "__main__":
    main()
