"""Compare systems on your own text: python -m bert_jax.study --config=configs/studies/quick.py ...

    --config.store=STORE    the store that all rows train on
    --workdir=DIR           a folder for each run; study.md, study.json, study.png
    --task="NAME FILE KEY=VALUE ..."  a task that all rows learn: its fine-tuning's config and flags
    --share=DIR             another study, whose finished runs are used where they are equal
    --plan                  print tokens, operations and least time of each row, and run nothing

Trains each row of the study once a seed, on as many tokens or with as many operations, scores all
alike and prints mean and standard deviation, with the differences that are larger than chance. What
is finished is not run again, so the same command resumes, and rows and seeds may be added. If a run
fails, the others still run, and the exit code is 1.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

import jax
import rich.box
import rich.table
from absl import flags, logging

from bert_jax.config.study import StudyConfig, StudyTask
from bert_jax.reporting.console import Screen, duration
from bert_jax.runtime import cli
from bert_jax.runtime.exit_codes import DONE, FAILED
from bert_jax.studies.runner import Study
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.address import is_address

_CONFIG = cli.config_flag(StudyConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the study and of its runs")
_TASKS = flags.DEFINE_multi_string(
    "task", [], 'a task beside those of the config: "NAME FILE KEY=VALUE ..."; may be repeated'
)
_SHARE = flags.DEFINE_multi_string(
    "share", [], "workdir of another study, whose finished runs are used if equal; may be repeated"
)
_PLAN = flags.DEFINE_bool("plan", False, "print what the study takes, and run nothing")

USAGE = (
    "python -m bert_jax.study --config=configs/studies/quick.py --config.store=STORE --workdir=DIR"
)
_PRODUCT_WIDTH, _PRODUCTS = 512, 40  # of the matrix product whose speed prices the operations


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = cli.resolve_config(StudyConfig, _CONFIG)
        tasks = (*config.tasks, *map(_read_task, _TASKS.value))
        config = dataclasses.replace(config, tasks=tasks)
        if not _WORKDIR.value or is_address(_WORKDIR.value):
            raise ValueError(
                f"--workdir is {_WORKDIR.value or 'missing'}; give a folder on this machine for "
                f"the runs of the study; {USAGE}"
            )
        shared = [pathlib.Path(folder) for folder in _SHARE.value]
        study = Study(config, pathlib.Path(_WORKDIR.value), shared)
        log.hold()
    screen = Screen(is_writer=True)
    _show_plan(study, screen)
    if _PLAN.value:
        return DONE
    results = study.run(screen)
    # Here, so that a refusal or --help does not wait for matplotlib.
    from bert_jax.studies import report

    summary = report.Report(results, config.paper)
    report.write(study.folder, summary)
    make_console(highlight=False).print(summary.table())
    for note in summary.notes():
        screen.print(note)
    screen.print(f"{study.folder / report.PAGE}, {report.NUMBERS}, {report.PICTURE}")
    return FAILED if any(result.errors for result in results) else DONE


def _read_task(text: str) -> StudyTask:
    name, _, rest = text.strip().partition(" ")
    file, _, task_flags = rest.strip().partition(" ")
    if not file:
        raise ValueError(
            f"--task is {text!r}; it must be a name, a config file and its flags: "
            '"rte configs/finetune/glue.py:task=rte data.dir=DIR"'
        )
    return StudyTask(name, file, task_flags)


def _show_plan(study: Study, screen: Screen) -> None:
    """Print tokens, operations and the least time of each row, over all its seeds."""
    seeds, rate = study.config.seeds, _operations_per_sec()
    table = rich.table.Table("row", "tokens", "operations", "at least", box=rich.box.SIMPLE)
    for row, cost in zip(study.config.rows, study.costs, strict=True):
        operations = cost.operations * seeds
        cells = f"{cost.tokens * seeds:,.0f}", f"{operations:.3g}", duration(operations / rate)
        table.add_row(f"{row.name} x {seeds}", *cells)
    make_console(highlight=False).print(table)
    total = sum(cost.operations for cost in study.costs) * seeds
    screen.print(
        f"training takes at least {duration(total / rate)} here, at {rate:.2g} operations a "
        f"second of matrix products {_PRODUCT_WIDTH} wide; tasks and evaluations are not counted"
    )


def _operations_per_sec() -> float:
    """Time matrix products on one of this machine's devices."""
    square = jax.numpy.ones((_PRODUCT_WIDTH, _PRODUCT_WIDTH))

    @jax.jit
    def multiply(left: jax.Array) -> jax.Array:
        for _ in range(_PRODUCTS):
            left = left @ square / _PRODUCT_WIDTH
        return left

    jax.block_until_ready(multiply(square))
    began = time.perf_counter()
    jax.block_until_ready(multiply(square))
    return 2.0 * _PRODUCTS * _PRODUCT_WIDTH**3 / (time.perf_counter() - began)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
