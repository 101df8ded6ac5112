"""Train what came before BERT with bert_jax.baseline, and learn tasks on its frozen vectors.

`skipgram` and `bilm` train a run, `counts` nothing; `taglm` reads runs of both.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from bert_jax.baselines import bilm, skipgram, training, vectors
from bert_jax.baselines.bilm import BiLM
from bert_jax.baselines.skipgram import SkipGram
from bert_jax.config.study import StudyRow, StudyTask
from bert_jax.reporting.console import Screen
from bert_jax.studies.row_kind import (
    Cost,
    RowKind,
    Run,
    Scores,
    flags_of,
    lack_both,
    load_task,
    refuse_settings,
    settings_of,
)
from data_pipeline.io import small_files
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import open_store

# Of a baseline's summary, and of which rows.
OWN_MEASURES = {
    "heldout_skipgram_loss": "tell a neighbour from negatives",
    "heldout_bilm_loss": "predict the next token in both directions",
}
_OPTIONS: dict[str, type[Any]] = {skipgram.KIND: SkipGram, bilm.KIND: BiLM}
_TOKENS = "tokens"  # in the flags of a row: positions that it reads, in place of steps or epochs
_HAS_NO_MASKS = {
    vectors.COUNTS: "counts predict no words",
    skipgram.KIND: "its vectors do not depend on the words around",
    bilm.KIND: "it reads from one side at a time",
    vectors.TAGLM: "it is a way to use the runs of other rows",
}


def load_settings(row: StudyRow, store: str) -> Any:
    """Read the settings of a baseline from a row's flags.

    Raises:
      ValueError: names the setting that does not exist, or whose value is not allowed.
    """
    refuse_settings(row, "config", "finetune")
    options = _OPTIONS[row.kind]
    kinds: dict[str, Any] = {
        field.name: type(field.default) for field in dataclasses.fields(options)
    }
    values: dict[str, Any] = {}
    given = settings_of(row.flags)
    tokens = given.pop(_TOKENS, None)
    for name, text in given.items():
        if name not in kinds or name == "seed":
            allowed = ", ".join(name for name in [*kinds, _TOKENS] if name != "seed")
            raise ValueError(f"its flags have {name}, which is no setting of it: {allowed}")
        values[name] = _number(kinds[name], name, text)
    settings = options(**values)
    if tokens is not None:
        count = _number(float, _TOKENS, tokens)
        if isinstance(settings, BiLM):
            length: dict[str, float] = {
                "steps": round(count / (settings.batch_size * settings.seq_len))
            }
        else:
            length = {"epochs": count / open_store(store).train.tokens}
        settings = dataclasses.replace(settings, **length)
    check_fields(settings, "flags")
    return settings


def _number(kind: type[int] | type[float], name: str, text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"its flags have {name}={text}; it must be a number") from None


def _check(row: StudyRow, store: str) -> dict[str, Any]:
    training.open_text(store)
    settings = dataclasses.asdict(load_settings(row, store))
    del settings["seed"]
    return {"kind": row.kind, **settings}


def _cost(row: StudyRow, store: str, vocab_size: int) -> Cost:
    """Count products of a weight as count_train_flops does: 2 forward, 4 backward.

    Of a skip-gram, all tokens are taken to have their pairs: width + 1 on average.
    """
    settings = load_settings(row, store)
    if isinstance(settings, SkipGram):
        tokens = settings.epochs * open_store(store).train.tokens
        pairs = settings.window + 1
        return Cost(tokens, 6.0 * tokens * pairs * (1 + settings.negatives) * settings.width)
    tokens = settings.steps * settings.batch_size * settings.seq_len
    layer = settings.width * 8 * settings.units + settings.units * settings.width
    direction = settings.layers * layer + settings.width * vocab_size
    return Cost(float(tokens), 6.0 * tokens * 2 * direction)


def build_steps(row: StudyRow, store: str) -> training.Steps:
    """Build the steps of a row's training."""
    settings = load_settings(row, store)
    module = skipgram if isinstance(settings, SkipGram) else bilm
    return module.build_steps(training.open_text(store), settings)


def _command(run: Run) -> list[str]:
    settings = dataclasses.asdict(load_settings(run.row, run.store)) | {"seed": run.seed}
    return [
        *(sys.executable, "-m", "bert_jax.baseline", run.row.kind),
        *(f"--store={run.store}", f"--workdir={run.folder}"),
        *(f"--{name}={value}" for name, value in settings.items()),
    ]


def _is_finished(folder: pathlib.Path) -> bool:
    return (folder / training.SUMMARY).is_file()


def _scores(run: Run, seq_len: int, screen: Screen) -> Scores:
    summary = small_files.read_object(run.folder / training.SUMMARY, run.folder)
    loss = summary["heldout_loss"]
    value = "the store has no held-out text" if loss is None else float(loss)
    return {**lack_both(_HAS_NO_MASKS[run.row.kind]), f"heldout_{run.row.kind}_loss": value}


def _check_nothing_trained(row: StudyRow, store: str) -> dict[str, Any]:
    refuse_settings(row, "config", "flags", "finetune")
    return {"kind": row.kind, "reads": row.reads}


def costs_nothing(row: StudyRow, store: str, vocab_size: int) -> Cost:
    """Return the cost of a row that trains no run."""
    return Cost(0.0, 0.0)


def _has_no_loss(run: Run, seq_len: int, screen: Screen) -> Scores:
    return lack_both(_HAS_NO_MASKS[run.row.kind])


def learn_frozen(
    kind: str, addresses: str, run: Run, task: StudyTask, folder: pathlib.Path
) -> list[str] | str:
    """Return the command that learns a task on frozen vectors, or why they cannot."""
    name = load_task(task).data.task
    if name in ("squad", "swag", "codah"):
        return "a linear model of frozen vectors marks no span and chooses among no texts"
    if name == "ner" and kind == vectors.COUNTS:
        return "counts have no vector of a word to tag"
    return [
        *(sys.executable, "-m", "bert_jax.frozen_task", kind, f"--from={addresses}"),
        *(f"--config={task.config}", f"--workdir={folder}", *flags_of(task.flags)),
        *(f"--config.seed={run.seed}", f"--config.data.order_seed={run.seed}"),
    ]


def _learn(
    kind: str, find: Callable[[Run], str]
) -> Callable[[Run, StudyTask, pathlib.Path], list[str] | str]:
    def learn(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str] | str:
        return learn_frozen(kind, find(run), run, task, folder)

    return learn


_TRAINED = (_check, _cost, _command, _is_finished, _scores)
_NOT_TRAINED = (_check_nothing_trained, costs_nothing, None, _is_finished, _has_no_loss)
SKIPGRAM_ROW = RowKind(*_TRAINED, _learn(vectors.SKIPGRAM, lambda run: str(run.folder)))
BILM_ROW = RowKind(*_TRAINED, _learn(vectors.ELMO, lambda run: str(run.folder)))
COUNTS_ROW = RowKind(*_NOT_TRAINED, _learn(vectors.COUNTS, lambda run: run.store))
TAGLM_ROW = RowKind(
    *_NOT_TRAINED,
    _learn(vectors.TAGLM, lambda run: ",".join(map(str, run.sources))),
    (skipgram.KIND, bilm.KIND),
)
