"""Define a study: rows that are compared over several seeds, and the tasks that all of them learn.

A file of configs/studies/ returns to_config_dict(StudyConfig(...)).
"""

import dataclasses

from data_pipeline.spec.fields import setting


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """A system of the study, trained once for each seed."""

    name: str = setting("", "name of the row; its folders are called NAME-seedN")
    kind: str = setting("pretrain", "how it is trained, a kind of bert_jax/studies/kinds.py")
    config: str = setting("", "config file of its training, as FILE[:NAME=VALUE,...]")
    flags: str = setting("", "settings that differ, as KEY=VALUE with spaces between them")
    paper: str = setting("", "the paper's figure for this row, written beside ours")
    reads: str = setting(
        "",
        "earlier rows whose runs it reads, with commas between; a kind that trains none has them",
    )
    finetune: str = setting("", "settings of its fine-tunings beside the task's, as KEY=VALUE")


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A task that every row is fine-tuned on, with the seed of its run."""

    name: str = setting("", "name of the task in the table")
    config: str = setting("", "config file of its fine-tuning, as FILE[:NAME=VALUE,...]")
    flags: str = setting("", "settings that differ, as data.dir=DIR epochs=2")


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """All settings of a study."""

    rows: tuple[StudyRow, ...] = ()
    tasks: tuple[StudyTask, ...] = ()
    store: str = setting("", "store that all rows train on, written by data_pipeline.build")
    seeds: int = setting(3, "runs of each row, with the seeds from 0 on", minimum=1)
    equal: str = setting(
        "tokens", "what the rows must have in common", choices=("tokens", "operations")
    )
    tolerance: float = setting(
        0.01, "largest relative difference in what must be equal", minimum=0.0, below=1.0
    )
    seq_len: int = setting(64, "row length at which masked words are scored", minimum=8)
    paper: str = setting("", "which figure of which paper the rows have in `paper`")
    compare_with: str = setting(
        "", "row that all others are compared with in study.md; empty takes the first"
    )
