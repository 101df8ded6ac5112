"""Define a study: rows that are compared over several seeds, and the tasks that all rows learn.

A file of configs/studies/ returns to_config_dict(StudyConfig(...)).
"""

import dataclasses

from data_pipeline.spec.fields import setting


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """A system of the study, trained once for each seed."""

    name: str = setting("", "name of the row; its workdirs are NAME-seedN")
    kind: str = setting("pretrain", "how it is trained: a name in bert_jax/lab/row_kinds/kinds.py")
    config: str = setting("", "config file of its training, as FILE[:NAME=VALUE,...]")
    flags: str = setting(
        "", "settings that differ from the file's, as KEY=VALUE separated by spaces"
    )
    paper: str = setting("", "the paper's figure for this row, shown next to ours")
    reads: str = setting(
        "",
        "earlier rows whose runs it reads, separated by commas; only for kinds that train no run",
    )
    finetune: str = setting(
        "",
        "settings of its fine-tunings that override the task's, as KEY=VALUE separated by spaces",
    )
    tagger: str = setting(
        "",
        "of a row of frozen vectors: units, epochs and learning_rate of the BiLSTM that learns "
        "tags, as KEY=VALUE separated by spaces",
    )


@dataclasses.dataclass(frozen=True)
class StudyTask:
    """A task that every row learns, with the seed of its run."""

    name: str = setting("", "name of the task in the table")
    config: str = setting("", "config file of its fine-tuning, as FILE[:NAME=VALUE,...]")
    flags: str = setting("", "settings that differ from the file's, as data.dir=DIR epochs=2")


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """All settings of a study."""

    PURPOSE = "a study", "python -m bert_jax.study", "configs/studies/quick.py"

    rows: tuple[StudyRow, ...] = ()
    tasks: tuple[StudyTask, ...] = ()
    store: str = setting("", "store that all rows train on, written by data_pipeline.build")
    seeds: int = setting(3, "runs of each row, with the seeds 0, 1, ...", minimum=1)
    equal: str = setting(
        "tokens",
        "what must be equal in all rows that train; nothing in a ladder",
        choices=("tokens", "operations", "nothing"),
    )
    tolerance: float = setting(
        0.01, "largest relative difference in config.equal", minimum=0.0, below=1.0
    )
    seq_len: int = setting(64, "row length at which masked words are scored", minimum=8)
    paper: str = setting("", "source of the rows' `paper` figures, the head of their column")
    compare_with: str = setting(
        "", "row that all others are compared with in study.md; empty for the first"
    )
