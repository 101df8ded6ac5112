"""Define the kinds of rows that came before BERT: trained by bert_jax.baseline, frozen for tasks.

`skipgram` and `bilm` train a run, `counts` trains nothing, `taglm` reads a run of each.
"""

import dataclasses
import sys
from typing import Any

from bert_jax.lab.baselines import bilm, skipgram, training
from bert_jax.lab.baselines.settings import (
    BASELINES,
    BILM,
    COUNTS,
    ELMO,
    SKIPGRAM,
    TAGLM,
    BiLM,
    SkipGram,
)
from bert_jax.lab.row_kinds.row_kind import (
    RowCost,
    RowKind,
    Run,
    Scores,
    explain_missing,
    load_tagger,
    parse_numbers,
    parse_settings,
)
from bert_jax.lab.study_config import StudyRow
from bert_jax.logging.console import Screen
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import open_store

# A measure in a baseline's summary -> the task that rows with the measure learn, in words.
OWN_MEASURES = {
    "heldout_skipgram_loss": "tell a neighbor from negatives",
    "heldout_bilm_loss": "predict the next token in both directions",
}
_TOKENS = "tokens"  # a flag of a row: positions to read, instead of steps or epochs
_HAS_NO_MASKS = {
    COUNTS: "counts predict no words",
    SKIPGRAM: "its vectors do not depend on context",
    BILM: "it reads from one side at a time",
    TAGLM: "it only combines the runs of other rows",
}


def load_settings(row: StudyRow, store: str) -> Any:
    """Read the settings of a baseline from a row's flags.

    Raises:
      Refused: there is no such setting, or its value is not allowed.
    """
    texts = parse_settings(row.flags)
    if _TOKENS in texts and (others := texts.keys() & {"steps", "epochs"}):
        raise Refused(
            f"its flags have {_TOKENS}={texts[_TOKENS]} and {others.pop()}, which both set its "
            "length; leave one of them out"
        )
    values = parse_numbers(BASELINES[row.kind], texts, "flags", tokens=float)
    count = values.pop(_TOKENS, None)
    settings = BASELINES[row.kind](**values)
    if count is not None:
        if isinstance(settings, BiLM):
            steps = round(count / (settings.batch_size * settings.seq_len))
            settings = dataclasses.replace(settings, steps=steps)
        else:
            epochs = count / open_store(store).train.tokens
            settings = dataclasses.replace(settings, epochs=epochs)
    check_fields(settings, "flags")
    return settings


def _check(row: StudyRow, store: str) -> dict[str, Any]:
    training.open_text(store)
    settings = dataclasses.asdict(load_settings(row, store))
    return {"kind": row.kind, **settings, **_identify_tagger(row)}


def _identify_tagger(row: StudyRow) -> dict[str, dict[str, float]]:
    settings = load_tagger(row)
    return {"tagger": settings} if settings else {}


def _count_cost(row: StudyRow, store: str, vocab_size: int) -> RowCost:
    """Count operations as count_train_flops does: 2 forward and 4 backward for each product.

    A skip-gram counts window + 1 pairs a token, the mean over random windows, as if no token were
    dropped.
    """
    settings = load_settings(row, store)
    if isinstance(settings, SkipGram):
        tokens = settings.epochs * open_store(store).train.tokens
        pairs = settings.window + 1
        return RowCost(tokens, 6.0 * tokens * pairs * (1 + settings.negatives) * settings.width)
    tokens = settings.steps * settings.batch_size * settings.seq_len
    layer = settings.width * 8 * settings.units + settings.units * settings.width
    direction = settings.layers * layer + settings.width * vocab_size
    return RowCost(float(tokens), 6.0 * tokens * 2 * direction)


def build_steps(row: StudyRow, store: str) -> training.Steps:
    """Build the training steps of a baseline's row."""
    settings = load_settings(row, store)
    module = skipgram if isinstance(settings, SkipGram) else bilm
    return module.build_steps(training.open_text(store), settings)


def _build_command(run: Run) -> list[str]:
    settings = dataclasses.asdict(load_settings(run.row, run.store)) | {"seed": run.seed}
    return [
        *(sys.executable, "-m", "bert_jax.baseline", run.row.kind),
        *(f"--store={run.store}", f"--workdir={run.folder}"),
        *(f"--{name}={value}" for name, value in settings.items()),
    ]


def _read_scores(run: Run, seq_len: int, screen: Screen) -> Scores:
    summary = small_files.read_object(run.folder / training.SUMMARY, run.folder)
    loss = summary["heldout_loss"]
    value = "the store has no held-out text" if loss is None else float(loss)
    return {**explain_missing(_HAS_NO_MASKS[run.row.kind]), f"heldout_{run.row.kind}_loss": value}


def check_without_run(row: StudyRow, store: str) -> dict[str, Any]:
    """Identify a row of frozen vectors that trains no run."""
    return {"kind": row.kind, "reads": row.reads, **_identify_tagger(row)}


SKIPGRAM_ROW = RowKind(
    check=_check,
    cost=_count_cost,
    command=_build_command,
    scores=_read_scores,
    address=lambda run: str(run.folder),
    fields=("flags", "tagger"),
    vectors=SKIPGRAM,
)
BILM_ROW = dataclasses.replace(SKIPGRAM_ROW, vectors=ELMO)
COUNTS_ROW = RowKind(
    check=check_without_run,
    scores=lambda run, *_: explain_missing(_HAS_NO_MASKS[run.row.kind]),
    address=lambda run: run.store,
    fields=("tagger",),
    vectors=COUNTS,
)
TAGLM_ROW = dataclasses.replace(
    COUNTS_ROW,
    address=lambda run: ",".join(map(str, run.sources)),
    reads=(SKIPGRAM, BILM),
    vectors=TAGLM,
)
