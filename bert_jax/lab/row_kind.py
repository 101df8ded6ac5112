"""Define the interface of a kind of row: how its runs are trained, scored and given a task.

A run is a row with a seed. Kinds that train nothing read the runs of earlier rows instead.
"""

import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import FinetuneConfig, overrides, validate
from bert_jax.lab.baselines.settings import COUNTS, Tagger
from bert_jax.lab.study_config import StudyRow, StudyTask
from bert_jax.logging.console import Screen
from bert_jax.runtime.cli import find_config
from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields, parse_text

MASKED_WORDS = "masked_words_loss"  # nats, on the same words for every row
PSEUDO_PERPLEXITY = "pseudo_perplexity"  # every row scores the same sentences
COMMON = (MASKED_WORDS, PSEUDO_PERPLEXITY)  # measures of every kind, or why it has none
_OWN_FIELDS = ("config", "flags", "finetune", "tagger")  # fields of a row that some kinds read

Scores = Mapping[str, float | str]  # a number, or the reason why there is none


@dataclasses.dataclass(frozen=True)
class RowCost:
    """Hold the cost of a run: tokens it reads, with padding, and operations of matrix products."""

    tokens: float
    operations: float


@dataclasses.dataclass(frozen=True)
class Run:
    """Hold a row, its seed and its folder."""

    row: StudyRow
    seed: int
    store: str
    folder: pathlib.Path
    sources: tuple[pathlib.Path, ...] = ()  # folders of the runs it reads, with the same seed

    @property
    def label(self) -> str:
        return f"{self.row.name}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class RowKind:
    """Hold the functions that check, train and score the rows of a kind.

    check         return the settings that identify a run, without seeds and paths; raise Refused
                  if the row is wrong
    scores        return the measures in COMMON and the kind's own measures, by name
    address       return where a task finds the weights or the vectors of a run
    cost          return the cost of a run
    command       return the argv that trains a run in its folder, or resumes it; None for a kind
                  that trains nothing
    """

    check: Callable[[StudyRow, str], dict[str, Any]]  # row, store
    scores: Callable[[Run, int, Screen], Scores]  # run, row length of masked words
    address: Callable[[Run], str]
    fields: tuple[str, ...]  # the _OWN_FIELDS that the kind reads
    # row, store, vocabulary size; 0 for a row that trains nothing
    cost: Callable[[StudyRow, str, int], RowCost] = lambda *_: RowCost(0.0, 0.0)
    command: Callable[[Run], list[str]] | None = None
    reads: tuple[str, ...] = ()  # kinds of the rows whose runs the kind reads, in order
    scores_on_device: bool = False  # if so, a process of its own computes the scores
    vectors: str = ""  # kind of frozen vectors that tasks read; "": tasks fine-tune
    finetune_flags: tuple[str, ...] = ()  # more flags of each fine-tuning

    def identify(self, row: StudyRow, store: str) -> dict[str, Any]:
        """Check a row as `check` does, and refuse fields that the kind does not read."""
        for name in _OWN_FIELDS:
            if getattr(row, name) and name not in self.fields:
                raise Refused(
                    f"its {name} is {getattr(row, name)!r}, which a row of kind {row.kind} does "
                    "not read; leave it out"
                )
        return self.check(row, store)

    def task_command(self, run: Run, task: StudyTask, folder: pathlib.Path) -> list[str] | str:
        """Return the argv that learns a task from a run, in `folder`; or why the kind cannot."""
        words = [f"--config={task.config}", f"--workdir={folder}"]
        words += [*build_flags(task.flags), *build_flags(run.row.finetune)]
        words += [f"--config.seed={run.seed}", f"--config.data.order_seed={run.seed}"]
        if not self.vectors:
            words += [f"--config.init={self.address(run)}", *self.finetune_flags]
            return [sys.executable, "-m", "bert_jax.finetune", *words]
        name = load_task(task).data.task
        if name in ("squad", "swag", "codah"):
            return "linear models on frozen vectors learn no spans and no multiple choice"
        if name == "ner" and self.vectors == COUNTS:
            return "counts have no vector for each word, so they learn no tags"
        words += [f"--{setting}={value}" for setting, value in load_tagger(run.row).items()]
        command = [sys.executable, "-m", "bert_jax.baseline", "task", self.vectors]
        return [*command, f"--from={self.address(run)}", *words]


def explain_missing(reason: str) -> dict[str, str]:
    """Return the reason why a row has none of the common measures, for each of them."""
    return dict.fromkeys(COMMON, reason)


def build_flags(text: str) -> list[str]:
    """Turn "seed=1 data.dir=DIR" into the flags of a command."""
    return [f"--config.{part}" for part in _split(text)]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused(f"a shell cannot read {text!r} ({error}); close the quotation") from error


def parse_settings(text: str, field: str = "flags") -> dict[str, str]:
    """Split "steps=100 width=64" into names and values; `field` of the row names it in errors.

    Raises:
      Refused: a part is not KEY=VALUE, or sets a key again.
    """
    settings: dict[str, str] = {}
    for part in _split(text):
        name, mark, value = part.partition("=")
        if not mark or name in settings:
            raise Refused(f"its {field} has {part}; give each setting once, as KEY=VALUE")
        settings[name] = value
    return settings


def parse_numbers(kind: type[Any], text: str, part: str, **more: type[Any]) -> dict[str, Any]:
    """Parse text as settings of a dataclass, except its seed.

    `more` has further settings and their types; `part` names the text in errors.

    Raises:
      Refused: there is no such setting, or its value is of another type.
    """
    texts = parse_settings(text, part)
    types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(kind)} | more
    types.pop("seed", None)
    for name in texts.keys() - types.keys():
        raise Refused(
            f"its {part} has {name}, which is not a setting here; choose from {', '.join(types)}"
        )
    values = {}
    for name, text in texts.items():
        try:
            values[name] = parse_text(types[name], text)
        except Refused as error:
            raise Refused(f"its {part} has {name}={text}; {error}") from None
    return values


def load_tagger(row: StudyRow) -> dict[str, float]:
    """Read a row's tagger: settings by name, which are flags of `baseline task`.

    Raises:
      Refused: there is no such setting, or its value is not allowed.
    """
    values = parse_numbers(Tagger, row.tagger, "tagger")
    check_fields(Tagger(**values), "its tagger")
    return values


def load_config(
    kind: type[config_lib.Kind], file: str, flags: list[str], per_run: Collection[str]
) -> config_lib.Kind:
    """Load a config file with the flags of a row or of a task.

    `per_run` names the settings that differ between runs, which the study decides.

    Raises:
      Refused: no file is named, there is no such setting, or a flag sets one of per_run.
    """
    if not file:
        raise Refused("its config is empty; give it a config file, such as configs/quickstart.py")
    given, _ = overrides.take(flags, kind)
    for override in given:
        if override.path in per_run:
            raise Refused(f"{override}: the study decides it for each run; leave it out")
    place, settings = overrides.move_arguments(kind, file, find_config, given)
    return overrides.load(kind, place, find_config, settings)


def load_task(task: StudyTask, flags: str = "") -> FinetuneConfig:
    """Load the config of a task with more flags, and check all of it but its checkpoint."""
    given = [*build_flags(task.flags), *build_flags(flags)]
    per_run = ("init", "seed", "data.order_seed")
    config = load_config(FinetuneConfig, task.config, given, per_run)
    config = dataclasses.replace(config, init="hf:RUN")
    validate.check_finetune(config)
    return config


def split_names(reads: str) -> list[str]:
    """Split the names of rows in StudyRow.reads."""
    return [name.strip() for name in reads.split(",") if name.strip()]
