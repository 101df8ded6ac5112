"""Compare systems or settings over several seeds, each run in a process and a folder of its own.

Without a kind: systems on one store, with equal tokens or operations and the same scoring. Prints
means, standard deviations, and the differences that are larger than chance. The kind grid compares
learning rates and epochs of fine-tuning; probe compares the checkpoints of a pre-training run.

The same command resumes: finished runs are not repeated, and rows, seeds and values may be added.
If a run fails, the others still run, and the exit code is 1.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from absl import logging

from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.lab.study_config import ManyRunsFlags, PlannedRunsFlags, StudyConfig, StudyTask
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, Kinds, flag
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyFlags(PlannedRunsFlags):
    """Declare the flags of a comparison of systems."""

    config: GivenConfig[StudyConfig] = cli.config_flag(StudyConfig)
    task: tuple[str, ...] = flag(
        (),
        "task that all rows learn, in addition to the config's: a fine-tuning config and its "
        "settings; may be repeated",
        metavar='"NAME FILE KEY=VALUE ..."',
    )
    score: str = flag(
        "",
        "score this finished run, such as BERT-seed0, and stop; used by the study itself",
        metavar="RUN",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridFlags(ManyRunsFlags):
    """Declare the flags of grid."""

    config: GivenConfig[FinetuneConfig] = cli.config_flag(FinetuneConfig)
    learning_rates: str = flag("5e-5,4e-5,3e-5,2e-5", "learning rates to try", metavar="X,...")
    epochs: str = flag("2,3,4", "numbers of epochs to try", metavar="X,...")
    seeds: str = flag(
        "0", "seeds of the task's layer, of dropout and of the order of examples", metavar="N,..."
    )
    score: str = flag(
        "", "deciding score, as in metrics.jsonl: dev_accuracy; empty: the task's own"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeFlags:
    """Declare the flags of probe."""

    workdir: str = flag(
        "", "pre-training run, or gs://...; it is only read", metavar="RUN", is_required=True
    )
    config: GivenConfig[FinetuneConfig] = cli.config_flag(FinetuneConfig)
    probe_dir: str = flag(
        "",
        "folder of the scores, their picture and the fine-tunings; by default RUN-probe",
        metavar="DIR",
    )
    every: int = flag(1, "least interval between fine-tuned checkpoints", minimum=1, unit="steps")
    platform: str = flag(
        "cpu", "JAX's platform for fine-tuning: cpu, cuda or tpu; the run uses the accelerator"
    )

    def __post_init__(self) -> None:
        if not self.probe_dir and is_address(self.workdir):
            raise Refused(
                f"--probe_dir is missing, and {self.workdir} is a bucket: give a folder of this "
                "host"
            )


_RUN, _RTE = "python -m bert_jax.study", "--config=configs/finetune/glue.py:task=rte"
COMMAND = Kinds(
    __doc__,
    {
        "": Command(
            "bert_jax.study",
            "Compare systems on one store, over several seeds.",
            StudyFlags,
            f"{_RUN} --config=configs/studies/quick.py --config.store=stores/mine "
            "--workdir=runs/study",
        ),
        "grid": Command(
            "bert_jax.study grid",
            "Fine-tune with each combination of rates, epochs and seeds.\n\n"
            "Reports which setting is best on the development set: mean and standard deviation "
            "over the seeds.",
            GridFlags,
            f"{_RUN} grid {_RTE} --config.init=CHECKPOINT --config.data.dir=DIR "
            "--workdir=runs/grid --seeds=0,1,2",
        ),
        "probe": Command(
            "bert_jax.study probe",
            "Fine-tune from the checkpoints of a run while it pre-trains.\n\n"
            "Every checkpoint is fine-tuned with the same seed, the newest first. The probe ends "
            "once the run has ended and all checkpoints are scored.",
            ProbeFlags,
            f"{_RUN} probe --workdir=runs/base {_RTE} --config.data.dir=DIR",
        ),
    },
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.lab import grid, plan, probe, report
from bert_jax.lab.study import Study
from bert_jax.logging.console import Screen
from bert_jax.runtime import workdir_lock
from data_pipeline.cli.main import DONE, FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console

_FINETUNE = (sys.executable, "-m", "bert_jax.finetune")


def _compare(log: LibraryLog, flags: StudyFlags) -> int:
    with cli.preparing():
        config = flags.config.load()
        tasks = () if flags.score else (*config.tasks, *map(_read_task, flags.task))
        config = dataclasses.replace(config, tasks=tasks)
        log.hold()
        own_command = [sys.executable, "-m", "bert_jax.study", *sys.argv[1:]]
        study = Study(config, pathlib.Path(flags.workdir), own_command)
        scored = study.find_run(flags.score) if flags.score else None
        if scored is None and not flags.plan:
            workdir_lock.lock_folder(study.folder)
    screen = Screen(is_writer=True)
    if scored is not None:
        study.score(scored, screen)
        return DONE
    plan.show(study, flags, screen)
    if flags.plan:
        return DONE
    results = study.run(screen, flags.parallel)
    summary = report.Report(results, config.paper, config.compare_with)
    page, *others = report.write(study.folder, summary)
    for table in summary.tables():
        make_console(highlight=False).print(table)
    for note in summary.notes():
        screen.print(note)
    screen.print(", ".join([str(study.folder / page), *others]))
    return FAILED if any(result.errors for result in results) else DONE


def _read_task(text: str) -> StudyTask:
    name, _, rest = text.strip().partition(" ")
    file, _, settings = rest.strip().partition(" ")
    if not file:
        raise Refused(
            f"--task is {text!r}; give a name, a config file and its settings: "
            '"rte configs/finetune/glue.py:task=rte data.dir=DIR"'
        )
    return StudyTask(name, file, settings)


def _try_settings(log: LibraryLog, flags: GridFlags) -> int:
    with cli.preparing():
        runs = grid.list_runs(flags.learning_rates, flags.epochs, flags.seeds)
        settings = grid.fix_settings(flags.config, runs)
        given = grid.Grid(
            pathlib.Path(flags.workdir),
            runs,
            [*_FINETUNE, *flags.config.list_arguments()],
            settings,
            flags.score,
        )
        given.claim()
        log.hold()
    return given.run(Screen(is_writer=True), flags.parallel)


def _follow(log: LibraryLog, flags: ProbeFlags) -> int:
    with cli.preparing():
        config = flags.config.load()
        if config.init:
            raise Refused(
                f"config.init is {config.init}; a probe starts from the checkpoints of --workdir: "
                "remove it"
            )
        log.hold()
        run = flags.workdir  # one name for one run, also in another current folder
        run = run.rstrip("/") if is_address(run) else os.path.abspath(run)
        folder = pathlib.Path(flags.probe_dir or f"{run}-probe")
        task = probe.claim_probe(run, folder, config)
    command = [*_FINETUNE, *flags.config.list_arguments()]
    given = probe.Probe(run, folder, command, flags.every, flags.platform, task)
    return probe.run_probe(given)


def _main(log: LibraryLog, flags: StudyFlags | GridFlags | ProbeFlags) -> int:
    logging.set_verbosity(logging.ERROR)
    match flags:
        case GridFlags():
            return _try_settings(log, flags)
        case ProbeFlags():
            return _follow(log, flags)
    return _compare(log, flags)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
