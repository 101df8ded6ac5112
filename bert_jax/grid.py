"""The paper's grid: python -m bert_jax.grid --config=configs/finetune/glue.py:task=rte ...

    --config.init=CHECKPOINT --config.data.dir=DIR   and all else that bert_jax.finetune takes
    --workdir=DIR                    a folder for each run, the table as grid.json, and grid.png
    --learning_rates=5e-5,4e-5,3e-5,2e-5
    --epochs=2,3,4
    --seeds=0,1,2                    of the task's layer, of dropout and of the order of examples
    --score=dev_accuracy             the deciding score; by default the task's own

Fine-tunes once for each combination, one after another, and reports which setting is best on the
development set: mean and standard deviation over the seeds. Finished runs are not repeated, so the
same command resumes a stopped grid, and values may be added. If a run fails, it is reported, the
others still run, and the exit code is 1.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags, logging

from bert_jax.config.schema import FinetuneConfig
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CONFIG = cli.config_flag(FinetuneConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the grid and of its runs")
_RATES = flags.DEFINE_list(
    "learning_rates", ["5e-5", "4e-5", "3e-5", "2e-5"], "learning rates to try"
)
_EPOCHS = flags.DEFINE_list("epochs", ["2", "3", "4"], "passes over the training split, to try")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "restarts of each setting")
_SCORE = flags.DEFINE_string("score", "", "the deciding score, as in summary.json: dev_accuracy")

USAGE = (
    "python -m bert_jax.grid --config=configs/finetune/glue.py:task=rte --config.init=CHECKPOINT "
    "--config.data.dir=DIR --workdir=DIR --seeds=0,1,2"
)

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax import config as config_lib
from bert_jax.config import validate
from bert_jax.lab import grid_runs
from bert_jax.lab.grid import Grid, run_grid
from bert_jax.lab.grid_runs import GridRun
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address

_SET_BY = {
    "optim.learning_rate": _RATES,
    "epochs": _EPOCHS,
    "seed": _SEEDS,
    "data.order_seed": _SEEDS,
}


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = cli.load_config(FinetuneConfig, _CONFIG)
        given = cli.config_arguments(_CONFIG)
        for key, flag in _SET_BY.items():
            if any(argument.lstrip("-").partition("=")[0] == f"config.{key}" for argument in given):
                raise Refused(f"--config.{key} is varied by the grid; give --{flag.name}")
        runs = grid_runs.all_runs(
            _numbers(_RATES, float), _numbers(_EPOCHS, float), _numbers(_SEEDS, int)
        )
        for run in runs:
            validate.check_finetune(_of_run(config, run))
        if not _WORKDIR.value or is_address(_WORKDIR.value):
            raise Refused(
                f"--workdir is {_WORKDIR.value or 'missing'}; give a folder on this machine for "
                f"the runs of the grid; {USAGE}"
            )
        settings = config_lib.flatten(config_lib.recorded(config))
        grid = Grid(
            pathlib.Path(_WORKDIR.value),
            runs,
            [sys.executable, "-m", "bert_jax.finetune", *given],
            config.data.task,
            {key: value for key, value in settings.items() if key not in _SET_BY},
            _SCORE.value,
        )
        grid.check()
        log.hold()
    return run_grid(grid)


def _numbers(flag: flags.FlagHolder, kind: Callable[[str], Any]) -> list[Any]:
    """Parse the values of a list flag; each must occur once."""
    try:
        values = [kind(text) for text in flag.value]
    except ValueError as error:
        raise Refused(
            f"--{flag.name} is {','.join(flag.value)}; it must be numbers separated by "
            f"commas, as in --{flag.name}={','.join(flag.default)}"
        ) from error
    if not values or len(set(values)) < len(values):
        raise Refused(f"--{flag.name} is {','.join(flag.value)}; give one or more, each once")
    return values


def _of_run(config: FinetuneConfig, run: GridRun) -> FinetuneConfig:
    return dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, learning_rate=run.learning_rate),
        epochs=run.epochs,
        seed=run.seed,
        data=dataclasses.replace(config.data, order_seed=run.seed),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
