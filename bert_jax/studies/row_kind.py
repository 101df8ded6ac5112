"""Define how a kind of row is trained and scored; the runner knows no more of it.

A run is a row with a seed. Kinds that train nothing read the runs of earlier rows instead.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import FinetuneConfig, overrides, validate
from bert_jax.config.study import StudyRow, StudyTask
from bert_jax.reporting.console import Screen
from bert_jax.runtime.cli import find_config

MASKED_WORDS = "masked_words_loss"  # nats, on words that are the same for every row
PSEUDO_PERPLEXITY = "pseudo_perplexity"  # of sentences that are the same for every row
COMMON = (MASKED_WORDS, PSEUDO_PERPLEXITY)  # what every kind scores, or says why it does not

Scores = Mapping[str, float | str]  # a text in place of a number says why there is none


@dataclasses.dataclass(frozen=True)
class Cost:
    """Hold what a run of a row takes: positions it reads, operations of matrix products."""

    tokens: float
    operations: float


@dataclasses.dataclass(frozen=True)
class Run:
    """A row with a seed, and where it is kept."""

    row: StudyRow
    seed: int
    store: str
    folder: pathlib.Path
    sources: tuple[pathlib.Path, ...] = ()  # folders of the runs it reads, of the same seed


@dataclasses.dataclass(frozen=True)
class RowKind:
    """Train and score the rows of a kind.

    check returns the settings that identify a run, and raises ValueError for a row it refuses.
    cost takes the size of the store's vocabulary. command is the argv that trains a run into its
    folder, and resumes there; None of a kind that trains nothing, of whose runs is_finished is not
    asked. scores are those of COMMON and others by name; scores_on_device says that they are
    computed in a process of its own. task_command is the argv that learns a task from a run, into
    another folder, or why the kind cannot.
    """

    check: Callable[[StudyRow, str], dict[str, Any]]  # row, store
    cost: Callable[[StudyRow, str, int], Cost]  # row, store, size of its vocabulary
    command: Callable[[Run], list[str]] | None
    is_finished: Callable[[pathlib.Path], bool]
    scores: Callable[[Run, int, Screen], Scores]  # row length of masked words
    task_command: Callable[[Run, StudyTask, pathlib.Path], list[str] | str]
    reads: tuple[str, ...] = ()  # the kind of each row whose runs it reads, in order
    scores_on_device: bool = False


def lack_both(reason: str) -> dict[str, str]:
    """Return scores of a row that fills no masks."""
    return dict.fromkeys(COMMON, reason)


def flags_of(text: str) -> list[str]:
    """Turn "seed=1 data.dir=DIR" into the flags of a command."""
    return [f"--config.{part}" for part in shlex.split(text)]


def settings_of(text: str) -> dict[str, str]:
    """Split "steps=100 width=64" into names and values.

    Raises:
      ValueError: a part of it is not KEY=VALUE.
    """
    settings = {}
    for part in shlex.split(text):
        name, mark, value = part.partition("=")
        if not mark:
            raise ValueError(f"its flags have {part}, which is not KEY=VALUE")
        settings[name] = value
    return settings


def load_config(kind: type[config_lib.Kind], file: str, flags: list[str]) -> config_lib.Kind:
    """Load a config file with the flags of a row or of a task.

    Raises:
      ValueError: there is no file; a flag is not KEY=VALUE, or no setting.
    """
    if not file:
        raise ValueError("it names no config file; set its `config`")
    given, rest = overrides.take(flags, kind)
    if rest:
        raise ValueError(f"its flags have {rest[0]}, which is not KEY=VALUE")
    return overrides.load(kind, file, find_config, given)


def load_task(task: StudyTask, flags: str = "") -> FinetuneConfig:
    """Load the config of a task with more flags, checked but for its checkpoint."""
    given = [*flags_of(task.flags), *flags_of(flags), "--config.init=hf:RUN"]
    config = load_config(FinetuneConfig, task.config, given)
    validate.check_finetune(config)
    return config


def split_names(reads: str) -> list[str]:
    """Return the names of rows in StudyRow.reads."""
    return [name.strip() for name in reads.split(",") if name.strip()]


def refuse_settings(row: StudyRow, *names: str) -> None:
    """Raise ValueError if a row sets one of these, which its kind does not read."""
    for name in names:
        if getattr(row, name):
            raise ValueError(
                f"its {name} is {getattr(row, name)!r}, which a row of kind {row.kind} does not "
                "read; leave it out"
            )
