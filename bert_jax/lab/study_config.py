"""Define a study: rows that are compared over several seeds, and the tasks that all rows learn.

A file of configs/studies/ returns to_config_dict(StudyConfig(...)). The flags that study, grid and
ladder share are here too.
"""

import dataclasses

from bert_jax.runtime import cli
from data_pipeline.cli.flags import flag
from data_pipeline.spec.fields import setting


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """Describe a system of the study, trained once for each seed."""

    name: str = setting("", "name of the row; its workdirs are NAME-seedN")
    kind: str = setting("pretrain", "kind of training: a name in bert_jax/lab/kinds.py")
    config: str = setting("", "config file of its training, as FILE[:NAME=VALUE,...]")
    flags: str = setting("", "settings that override the file's, as KEY=VALUE separated by spaces")
    paper: str = setting("", "the paper's figure for this row, shown next to ours")
    reads: str = setting(
        "",
        "earlier rows whose runs this row reads, separated by commas; only for kinds that train "
        "no run",
    )
    finetune: str = setting(
        "",
        "settings that override the task's in its fine-tunings, as KEY=VALUE separated by spaces",
    )
    tagger: str = setting(
        "",
        "rows of frozen vectors only: units, epochs and learning_rate of the BiLSTM tagger, as "
        "KEY=VALUE separated by spaces",
    )


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """Describe a task that every row learns, with the seed of its run."""

    name: str = setting("", "name of the task in the table")
    config: str = setting("", "config file of its fine-tuning, as FILE[:NAME=VALUE,...]")
    flags: str = setting("", "settings that override the file's, as data.dir=DIR epochs=2")


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """Hold all settings of a study."""

    PURPOSE = "a study", "python -m bert_jax.study", "configs/studies/quick.py"

    rows: tuple[StudyRow, ...] = ()
    tasks: tuple[StudyTask, ...] = ()
    store: str = setting("", "store that all rows train on, written by data_pipeline.build")
    seeds: int = setting(3, "runs of each row, with the seeds 0, 1, ...", minimum=1)
    equal: str = setting(
        "tokens",
        "quantity that must be equal in all trained rows; nothing for a ladder",
        choices=("tokens", "operations", "nothing"),
    )
    tolerance: float = setting(
        0.01, "largest relative difference in config.equal", minimum=0.0, below=1.0
    )
    seq_len: int = setting(64, "row length at which masked words are scored", minimum=8)
    paper: str = setting("", "source of the rows' `paper` figures, used as the column's heading")
    compare_with: str = setting(
        "", "row to compare all others with in study.md; empty for the first"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManyRunsFlags:
    """Declare the flags of a command that starts several runs in a folder."""

    workdir: str = flag(
        "", "folder of the runs, their numbers and picture", metavar="DIR", is_required=True
    )
    parallel: int = flag(
        1, "runs at once, on a GPU or TPU chip each; on CPUs they share the cores", minimum=1
    )

    def __post_init__(self) -> None:
        cli.check_folder(self.workdir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRunsFlags(ManyRunsFlags):
    """Declare the flags of a command that can also plan its runs."""

    plan: bool = flag(False, "print the cost of all runs, and run nothing", "plan")
    measure: bool = flag(True, "time short steps, which takes seconds for each row", "plan")
