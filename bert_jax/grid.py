"""The paper's grid: python -m bert_jax.grid --config=configs/finetune/glue.py:task=rte ...

    --config.init=CHECKPOINT --config.data.dir=DIR   and all else that bert_jax.finetune takes
    --workdir=DIR                    a folder for each run, the table as grid.json, and grid.png
    --learning_rates=5e-5,4e-5,3e-5,2e-5
    --epochs=2,3,4
    --seeds=0,1,2                    of the task's layer, of dropout and of the order of examples
    --score=dev_accuracy             what decides; the task's own unless given

Fine-tunes once for each combination, one after another, and shows which setting is the best on the
development set: mean and standard deviation over the seeds. What is finished is not run again, so
the same command goes on where it was stopped, and more values may be added to it. A run that fails
is said, and the others go on; then the exit code is 1.
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from absl import flags, logging

from bert_jax import command_line, finetune_check, grid_loop, grid_runs
from bert_jax import config as config_lib
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.grid_loop import Grid
from bert_jax.grid_runs import Run
from data_pipeline.files import is_address
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag(FinetuneConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the grid, which holds those of its runs")
_RATES = flags.DEFINE_list("learning_rates", ["5e-5", "4e-5", "3e-5", "2e-5"], "to try")
_EPOCHS = flags.DEFINE_list("epochs", ["2", "3", "4"], "passes over the training split, to try")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "restarts of each setting")
_SCORE = flags.DEFINE_string("score", "", "what decides, as in summary.json: dev_accuracy")

USAGE = (
    "python -m bert_jax.grid --config=configs/finetune/glue.py:task=rte --config.init=CHECKPOINT "
    "--config.data.dir=DIR --workdir=DIR --seeds=0,1,2"
)
_SET_BY = {
    "optim.learning_rate": _RATES,
    "epochs": _EPOCHS,
    "seed": _SEEDS,
    "data.order_seed": _SEEDS,
}


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = command_line.resolved_as(FinetuneConfig, _CONFIG)
    given = command_line.config_arguments(_CONFIG)
    for key, flag in _SET_BY.items():
        if any(argument.lstrip("-").partition("=")[0] == f"config.{key}" for argument in given):
            raise ValueError(f"--config.{key} is what the grid goes through; give --{flag.name}")
    runs = grid_runs.all_runs(
        _numbers(_RATES, float), _numbers(_EPOCHS, float), _numbers(_SEEDS, int)
    )
    for run in runs:
        finetune_check.check(_of_run(config, run))
    if not _WORKDIR.value or is_address(_WORKDIR.value):
        raise ValueError(
            f"--workdir is {_WORKDIR.value or 'missing'}; give a folder on this machine for the "
            f"runs of the grid; {USAGE}"
        )
    folder = pathlib.Path(_WORKDIR.value)
    command = [sys.executable, "-m", "bert_jax.finetune", *given]
    grid = Grid(folder, runs, command, config.data.task, _fixed(config), _SCORE.value)
    grid.check()
    log.hold()
    return functools.partial(grid_loop.go_through, grid)


def _numbers(flag: flags.FlagHolder, kind: Callable[[str], Any]) -> list[Any]:
    """The values of a list flag, each once."""
    try:
        values = [kind(text) for text in flag.value]
    except ValueError as error:
        raise ValueError(
            f"--{flag.name} is {','.join(flag.value)}; it must be numbers with commas between "
            f"them, as in --{flag.name}={','.join(flag.default)}"
        ) from error
    if not values or len(set(values)) < len(values):
        raise ValueError(f"--{flag.name} is {','.join(flag.value)}; give one or more, each once")
    return values


def _of_run(config: FinetuneConfig, run: Run) -> FinetuneConfig:
    return dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, learning_rate=run.learning_rate),
        epochs=run.epochs,
        seed=run.seed,
        data=dataclasses.replace(config.data, order_seed=run.seed),
    )


def _fixed(config: FinetuneConfig) -> dict[str, Any]:
    """The settings that all runs share, by their keys."""
    found = dict[str, Any]()

    def add(values: dict[str, Any], path: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                add(value, f"{path}{name}.")
            elif f"{path}{name}" not in _SET_BY:
                found[f"{path}{name}"] = value

    add(json.loads(json.dumps(config_lib.recorded(config))), "")
    return found


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, "the same command goes on where it was")


if __name__ == "__main__":
    main()
