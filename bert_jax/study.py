"""Compare systems on your own text: python -m bert_jax.study --config=configs/studies/quick.py ...

    --config.store=STORE    the store that all rows train on
    --workdir=DIR           a folder for each run; study.md, study.json, study.png
    --task="NAME FILE KEY=VALUE ..."  a task that all rows learn: a config of finetune and its flags
    --share=DIR             another study, whose finished runs are used if they are equal
    --parallel=1            runs at once, each on a GPU or TPU chip of its own
    --plan                  print tokens, operations and time of each row, and run nothing
    --topology=v5e:4x4      with --plan: price a slice of TPU chips too

Trains each row of the study once per seed, all with equal tokens or operations, and scores them
alike. Prints means, standard deviations, and the differences that are larger than chance. The same
command resumes: finished runs are not repeated, and rows and seeds may be added. If a run fails,
the others still run, and the exit code is 1.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.lab.study_config import StudyConfig
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CONFIG = cli.config_flag(StudyConfig)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the study and of its runs")
_TASKS = flags.DEFINE_multi_string(
    "task", [], 'a task, in addition to the config: "NAME FILE KEY=VALUE ..."; may be repeated'
)
_SHARE = flags.DEFINE_multi_string(
    "share", [], "workdir of another study, whose finished runs are used if equal; may be repeated"
)
_SCORE = flags.DEFINE_string(
    "score", "", "score this finished run, such as BERT-seed0, and stop; used by the study itself"
)
_PARALLEL = flags.DEFINE_integer(
    "parallel",
    1,
    "runs at once, on a GPU or TPU chip each; on CPUs they share the cores",
    lower_bound=1,
)
_PLAN = flags.DEFINE_bool("plan", False, "print the cost of the study, and run nothing")
_MEASURE = flags.DEFINE_bool(
    "measure", True, "with --plan: time short steps, which takes seconds for each row"
)
_TOPOLOGY = flags.DEFINE_string(
    "topology", None, "with --plan: a slice to price by operations, such as v5e:4x4"
)

USAGE = (
    "python -m bert_jax.study --config=configs/studies/quick.py --config.store=STORE --workdir=DIR"
)

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.lab import plan
from bert_jax.lab.runner import Study
from bert_jax.lab.study_config import StudyTask
from bert_jax.logging.console import Screen
from bert_jax.planning.chip_prices import read_prices
from bert_jax.planning.slices import Slice, find_slice
from bert_jax.runtime.exit_codes import DONE, FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.address import is_address


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = cli.load_config(StudyConfig, _CONFIG)
        tasks = () if _SCORE.value else (*config.tasks, *map(_read_task, _TASKS.value))
        config = dataclasses.replace(config, tasks=tasks)
        if not _WORKDIR.value or is_address(_WORKDIR.value):
            raise Refused(
                f"--workdir is {_WORKDIR.value or 'missing'}; give a folder on this machine for "
                f"the runs of the study; {USAGE}"
            )
        if _TOPOLOGY.value and not _PLAN.value:
            raise Refused(f"--topology={_TOPOLOGY.value} is for --plan; add it, or leave it out")
        tpu_slice = find_slice(_TOPOLOGY.value) if _TOPOLOGY.value else None
        shared = [pathlib.Path(folder) for folder in _SHARE.value]
        own_command = [sys.executable, "-m", "bert_jax.study", *sys.argv[1:]]
        study = Study(config, pathlib.Path(_WORKDIR.value), shared, own_command)
        scored = study.find_run(_SCORE.value) if _SCORE.value else None
        if scored is None and not _PLAN.value:
            study.claim()
        log.hold()
    screen = Screen(is_writer=True)
    if scored is not None:
        study.score(scored, screen)
        return DONE
    _show_plan(study, tpu_slice, screen)
    if _PLAN.value:
        return DONE
    results = study.run(screen, _PARALLEL.value)
    # Imported here, so that refusals do not wait for matplotlib.
    from bert_jax.lab import report

    summary = report.Report(results, config.paper, config.compare_with)
    report.write(study.folder, summary)
    for table in summary.tables():
        make_console(highlight=False).print(table)
    for note in summary.notes():
        screen.print(note)
    screen.print(f"{study.folder / report.PAGE}, {report.NUMBERS}, {report.PICTURE}")
    return FAILED if any(result.errors for result in results) else DONE


def _read_task(text: str) -> StudyTask:
    name, _, rest = text.strip().partition(" ")
    file, _, task_flags = rest.strip().partition(" ")
    if not file:
        raise Refused(
            f"--task is {text!r}; give a name, a config file and its flags: "
            '"rte configs/finetune/glue.py:task=rte data.dir=DIR"'
        )
    return StudyTask(name, file, task_flags)


def _show_plan(study: Study, tpu_slice: Slice | None, screen: Screen) -> None:
    """Print the cost of each row over its seeds; with --plan also its time.

    Without --plan no step is timed, since the runs of the study need the accelerator.
    """
    config = study.config
    plans = plan.plan_rows(config.rows, study.costs, config.seeds)
    if _PLAN.value:
        measuring = screen if _MEASURE.value else None
        plans = plan.time_rows(plans, config.rows, config.seeds, config.store, measuring)
    prices = read_prices() if tpu_slice else None
    make_console(highlight=False).print(plan.make_table(plans, tpu_slice, prices))
    if _PLAN.value:
        for line in plan.describe_total(plans, tpu_slice, prices):
            screen.print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
