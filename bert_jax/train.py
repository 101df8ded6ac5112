"""Pre-train a BERT: python -m bert_jax.train --config=configs/base.py --workdir=DIR

    --config.data.store=STORE    the corpus, from python -m data_pipeline.build
    --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000    override single fields
    --print_config               resolve, check and print the config, and stop

A run stopped by Ctrl-C, SIGTERM or a crash goes on when the same command is given again.
"""

import dataclasses
import pathlib

import yaml
from absl import flags, logging

from bert_jax import command_line, objectives
from bert_jax import config as config_lib

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


def _print(config: config_lib.Config) -> int:
    from bert_jax import mesh
    from bert_jax.feed import open_store

    config_lib.check(config)
    mesh.presets(config.mesh)
    objectives.find(config.objective)
    if config.data.store:
        config = config_lib.with_vocab_size(config, open_store(config).vocab_size)
    shown = dataclasses.asdict(config)
    shown["phases"] = list(shown["phases"])
    print(yaml.safe_dump(shown, sort_keys=False), end="")
    return 0


def _main() -> int:
    logging.set_verbosity(logging.ERROR)
    config = command_line.resolved(_CONFIG)
    if _PRINT_CONFIG.value:
        return _print(config)
    config_lib.check(config)
    if _WORKDIR.value is None:
        raise ValueError(f"--workdir is missing: a folder for checkpoints and metrics; {USAGE}")
    import jax

    if _MULTIHOST.value:
        jax.distributed.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
    from bert_jax import loop, stopping

    workdir = pathlib.Path(_WORKDIR.value)
    try:
        loop.train(config, objectives.find(config.objective), workdir)
    except stopping.Interrupted as stop:
        print(f"stopped and saved at step {stop.step:,}; the same command goes on from there")
        return SIGNAL_EXIT + stop.signal_number
    print(f"done: {workdir / 'summary.json'}")
    return 0


def main() -> None:
    """Entry point."""
    command_line.run(_main, USAGE)


if __name__ == "__main__":
    main()
