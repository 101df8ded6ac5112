"""Say for each kind of row how a run is started, when it is finished and how it is scored.

A kind is a RowKind in KINDS. `pretrain` is a run of bert_jax.train; another one gives the same six
functions, and the runner knows no more of it than they return.
"""

import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import Config, FinetuneConfig, overrides, validate
from bert_jax.config.study import StudyRow, StudyTask
from bert_jax.inference import store_scores
from bert_jax.inference.store_scores import Selection
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.model.flops import count_train_flops
from bert_jax.reporting.console import Screen
from bert_jax.reporting.metrics_writer import SUMMARY
from bert_jax.runtime.cli import find_config
from data_pipeline.io import small_files
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import row_shape
from data_pipeline.store import HELDOUT, open_store

PER_SEED = ("seed", "data.random_seed")  # settings that differ between the runs of a row
MASKED_WORDS = "masked_words_loss"  # nats, on words that are the same for every row
_SCORED_ROWS_PER_STEP, _MOST_SCORED_ROWS = 64, 1 << 20


@dataclasses.dataclass(frozen=True)
class Cost:
    """Hold what a run of a row takes: positions it reads, operations of matrix products."""

    tokens: float
    operations: float


@dataclasses.dataclass(frozen=True)
class RowKind:
    """Train and score the rows of a kind.

    check returns the settings that identify a run, and raises ValueError for a row it refuses.
    cost takes the size of the store's vocabulary. command is the argv that trains a run into a
    folder, and resumes there. is_finished says whether that folder needs no more of it.
    scores are the masked words' loss and others by name; a text in place of a number says why the
    row has none. task_command is the argv that learns a task from a run, into another folder.
    """

    check: Callable[[StudyRow, str], dict[str, Any]]  # row, store
    cost: Callable[[StudyRow, str, int], Cost]  # row, store, size of its vocabulary
    command: Callable[[StudyRow, int, str, pathlib.Path], list[str]]  # row, seed, store, folder
    is_finished: Callable[[pathlib.Path], bool]
    scores: Callable[[pathlib.Path, str, int, Screen], Mapping[str, float | str]]  # store, length
    task_command: Callable[[StudyTask, int, pathlib.Path, pathlib.Path], list[str]]  # seed, run


def flags_of(text: str) -> list[str]:
    """Turn "seed=1 data.dir=DIR" into the flags of a command."""
    return [f"--config.{part}" for part in shlex.split(text)]


def _load(kind: type[config_lib.Kind], file: str, flags: list[str]) -> config_lib.Kind:
    if not file:
        raise ValueError("it names no config file; set its `config`")
    given, rest = overrides.take(flags, kind)
    if rest:
        raise ValueError(f"its flags have {rest[0]}, which is not KEY=VALUE")
    return overrides.load(kind, file, find_config, given)


def _load_row(row: StudyRow, store: str) -> Config:
    config = _load(Config, row.config, flags_of(row.flags))
    if config.data.store not in ("", store):
        raise ValueError(
            f"config.data.store is {config.data.store}, the study's store is {store}; all rows "
            "train on the study's: leave it out"
        )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, store=store))


def _check(row: StudyRow, store: str) -> dict[str, Any]:
    config = _load_row(row, store)
    validate.check(config)
    settings = config_lib.flatten(config_lib.recorded(config))
    return {key: value for key, value in settings.items() if key not in PER_SEED}


def _cost(row: StudyRow, store: str, vocab_size: int) -> Cost:
    config = config_lib.with_vocab_size(_load_row(row, store), vocab_size)
    config = config_lib.resolve_phases(config)
    tokens = operations = 0.0
    for index, phase in enumerate(config.phases):
        options = config_lib.data_in_phase(config, index)
        shape = row_shape(options, phase.seq_len, phase.max_predictions_per_seq)
        rows = phase.steps * phase.batch_size
        model = config_lib.model_in_phase(config, index)
        tokens += rows * shape.seq_len
        operations += rows * count_train_flops(model, shape.seq_len, shape.predictions)
    return Cost(tokens, operations)


def _command(row: StudyRow, seed: int, store: str, folder: pathlib.Path) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax.train", f"--config={row.config}"),
        *(f"--workdir={folder}", *flags_of(row.flags), f"--config.data.store={store}"),
        *(f"--config.seed={seed}", f"--config.data.random_seed={seed}"),
    ]


def _is_finished(folder: pathlib.Path) -> bool:
    return (folder / SUMMARY).is_file()


def _scores(
    folder: pathlib.Path, store: str, seq_len: int, screen: Screen
) -> dict[str, float | str]:
    """Return the loss on masked words, and what the run's summary has of its own objective."""
    summary = small_files.read_object(folder / SUMMARY, folder)
    own: dict[str, float | str] = {
        name: float(summary[name])
        for name in ("heldout_causal_loss", "heldout_nsp_accuracy", "heldout_rtd_auc")
        if name in summary
    }
    return {MASKED_WORDS: score_same_words(folder, store, seq_len, screen), **own}


def score_same_words(folder: pathlib.Path, store: str, seq_len: int, screen: Screen) -> float | str:
    """Return the loss on masked words of full rows, or why a model has none that compares."""
    checkpoint = load.load_masked_lm(str(folder))
    shape = checkpoint.config
    if shape.is_causal:
        return "it reads from the left alone, and fills no mask from both sides"
    if shape.generator is not None:
        return "its encoder finds replaced tokens, and predicts none"
    if shape.position_embedding_type == "relative":
        return "it predicts words in an order, without [MASK]"
    options = PretrainOptions(
        store=store,
        segments="full_sentences",
        short_seq_prob=0.0,
        mask_token_share=1.0,  # a model may have learned to copy what is kept
        random_token_share=0.0,
    )
    selection = Selection(open_store(store), HELDOUT, options, seq_len, _MOST_SCORED_ROWS)
    model = place_masked_lm(checkpoint)
    scores = store_scores.score_store(model, selection, _SCORED_ROWS_PER_STEP, screen)
    return float(scores["mlm_loss"])


def check_task(task: StudyTask) -> None:
    """Raise ValueError for a task without a folder of files."""
    config = _load(FinetuneConfig, task.config, [*flags_of(task.flags), "--config.init=hf:RUN"])
    validate.check_finetune(config)
    folder = config.data.dir
    if config.data.source == "files" and not (folder and pathlib.Path(folder).is_dir()):
        raise ValueError(
            f"config.data.dir is {folder or 'empty'}, which is no folder; give that of the task's "
            "files, as data.dir=DIR in its flags"
        )


def _task_command(task: StudyTask, seed: int, run: pathlib.Path, folder: pathlib.Path) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax.finetune", f"--config={task.config}"),
        *(f"--workdir={folder}", f"--config.init=orbax:{run}", *flags_of(task.flags)),
        *(f"--config.seed={seed}", f"--config.data.order_seed={seed}"),
    ]


KINDS: dict[str, RowKind] = {
    "pretrain": RowKind(_check, _cost, _command, _is_finished, _scores, _task_command),
}
