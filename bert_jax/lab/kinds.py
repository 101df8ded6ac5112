"""Define how the rows of each kind are checked, trained and scored; KINDS lists the kinds by name.

Encoders: `pretrain` trains a run; `rung` does too, and its score is the run's own held-out loss.
Three kinds read the run of another row: `checkpoint` fine-tunes it with its own settings or from
another step, `untrained` fine-tunes new weights of the same sizes, `frozen` learns tasks on its
last four layers. `given` fine-tunes a checkpoint from elsewhere.

What came before BERT: `skipgram` and `bilm` train a run by bert_jax.baseline, `counts` trains
nothing, `taglm` reads a run of each; tasks are learned on their frozen vectors.
"""

import dataclasses
import sys
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.inference import pseudo_likelihood, store_scores
from bert_jax.inference.store_scores import ScoredRows
from bert_jax.interop import load
from bert_jax.interop.pretrained import hash_weights, place_masked_lm
from bert_jax.lab.baselines import bilm, skipgram, training
from bert_jax.lab.baselines.settings import (
    BASELINES,
    BERT,
    BILM,
    COUNTS,
    ELMO,
    SKIPGRAM,
    TAGLM,
    BiLM,
    SkipGram,
)
from bert_jax.lab.row_kind import (
    MASKED_WORDS,
    PSEUDO_PERPLEXITY,
    RowCost,
    RowKind,
    Run,
    Scores,
    build_flags,
    explain_missing,
    load_config,
    load_tagger,
    parse_numbers,
    parse_settings,
)
from bert_jax.lab.study_config import StudyRow
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import METRICS, SUMMARY
from bert_jax.planning.estimate import count_step_flops
from data_pipeline.io import Refused, small_files
from data_pipeline.io.jsonl import read_metrics
from data_pipeline.spec.fields import check_fields
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import HELDOUT, Split, open_store

# A measure in the summary of a run, which one objective alone has -> what that objective learns.
OWN_MEASURES = {
    "heldout_causal_loss": "predict the next token",
    "heldout_nsp_accuracy": "predict whether a sentence is the next",
    "heldout_rtd_auc": "detect replaced tokens",
    "heldout_skipgram_loss": "tell a neighbor from negatives",
    "heldout_bilm_loss": "predict the next token in both directions",
}
HELDOUT_LOSS = "heldout_mlm_loss"  # a summary's key, and the score of a rung
_SCORED_ROWS_PER_STEP, _MAX_SCORED_ROWS = 64, 1 << 20
_SENTENCES = 256  # scored for the pseudo-perplexity
_STEP = "step"  # a flag of a `checkpoint` row
_ADDRESS = "checkpoint"  # a flag of a `given` row
_HAS_NO_MASKS = {
    COUNTS: "counts predict no words",
    SKIPGRAM: "its vectors do not depend on context",
    BILM: "it reads from one side at a time",
    TAGLM: "it only combines the runs of other rows",
}


def load_row(row: StudyRow, store: str) -> Config:
    """Load the config of a row that pre-trains, on the study's store.

    Raises:
      Refused: a setting is wrong or one of a run, or the config names another store.
    """
    per_run = ("seed", "data.random_seed")
    config = load_config(Config, row.config, build_flags(row.flags), per_run)
    if config.data.store not in ("", store):
        raise Refused(
            f"config.data.store is {config.data.store}, and the study's store is {store}; all rows "
            "train on the study's store: leave config.data.store out"
        )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, store=store))


def _check(row: StudyRow, store: str) -> dict[str, Any]:
    config = load_row(row, store)
    config_lib.resolve(config)
    own = {"finetune": row.finetune} if row.finetune else {}
    if config.init:  # identified by weights, so that copies are equal
        own["init's weights"] = hash_weights(load.load(config.init))
    return config_lib.flatten(config_lib.recorded(config)) | own


def _count_cost(row: StudyRow, store: str, vocab_size: int) -> RowCost:
    facts = config_lib.StoreFacts(vocab_size)
    config = config_lib.resolve(load_row(row, store), store=facts)
    tokens = operations = 0.0
    for index, phase in enumerate(config.phases):
        tokens += phase.steps * phase.batch_size * phase.seq_len
        operations += phase.steps * count_step_flops(config, index)
    return RowCost(tokens, operations)


def _build_command(run: Run) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax.train", f"--config={run.row.config}"),
        *(f"--workdir={run.folder}", *build_flags(run.row.flags)),
        f"--config.data.store={run.store}",
        *(f"--config.seed={run.seed}", f"--config.data.random_seed={run.seed}"),
    ]


def _score_run(run: Run, seq_len: int, screen: Screen) -> Scores:
    """Score masked words, and read the measures of the run's own objective from its summary."""
    summary = small_files.read_object(run.folder / SUMMARY, run.folder)
    own = {name: float(summary[name]) for name in OWN_MEASURES if name in summary}
    return {**score_masked_words(str(run.folder), run.store, seq_len, screen), **own}


def _score_rung(run: Run, seq_len: int, screen: Screen) -> Scores:
    """Return the held-out loss of the run's own last evaluation alone."""
    summary = small_files.read_object(run.folder / SUMMARY, run.folder)
    loss = small_files.field(summary, HELDOUT_LOSS, float, run.folder)
    return {**explain_missing("a rung of a ladder has its own held-out loss"), HELDOUT_LOSS: loss}


def score_masked_words(address: str, store: str, seq_len: int, screen: Screen) -> Scores:
    """Compute the loss on masked words of full rows and the pseudo-perplexity of sentences.

    Both are of the same held-out text for every model. A model that fills no masks gets the reason.
    """
    checkpoint = load.load(address)
    shape = checkpoint.config
    if shape.is_causal:
        return explain_missing("it reads left to right, so it fills no masks")
    if checkpoint.heads.rtd:
        return explain_missing("its encoder detects replaced tokens and predicts none")
    if shape.position_embedding_type == "relative":
        return explain_missing("it predicts tokens in a random order, without [MASK]")
    if not checkpoint.heads.mlm:
        return explain_missing("its checkpoint has no masked-word head")
    if shape.has_position_table and shape.max_position_embeddings < seq_len:
        positions = shape.max_position_embeddings
        return explain_missing(f"it has {positions} positions, fewer than config.seq_len={seq_len}")
    opened = open_store(store)
    if checkpoint.vocabulary.pieces() != opened.load_vocabulary().pieces():
        return explain_missing("its vocabulary is not the store's")
    options = PretrainOptions(
        store=store,
        segments="full_sentences",
        short_seq_prob=0.0,
        mask_token_share=1.0,  # a model may have learned to copy words that are kept
        random_token_share=0.0,
    )
    selection = ScoredRows(opened, HELDOUT, options, seq_len, _MAX_SCORED_ROWS)
    model = place_masked_lm(checkpoint)
    loss = store_scores.score_store(model, selection, _SCORED_ROWS_PER_STEP, screen)["mlm_loss"]
    sentences = choose_sentences(opened.heldout, seq_len - 2)
    if not sentences:
        reason = f"every held-out sentence is longer than {seq_len - 2} tokens"
        return {MASKED_WORDS: float(loss), PSEUDO_PERPLEXITY: reason}
    scores = pseudo_likelihood.score_sentences(model, sentences, _SCORED_ROWS_PER_STEP, screen)
    perplexity = pseudo_likelihood.add_scores(scores).perplexity
    return {MASKED_WORDS: float(loss), PSEUDO_PERPLEXITY: perplexity}


def choose_sentences(split: Split, longest: int) -> list[np.ndarray]:
    """Choose up to 256 sentences of at most `longest` tokens, evenly spread over a split."""
    offsets = np.asarray(split.sentence_offsets)
    fitting = np.flatnonzero(np.diff(offsets) <= longest)
    count = min(len(fitting), _SENTENCES)
    chosen = fitting[np.linspace(0, len(fitting) - 1, count).astype(int)] if count else fitting
    ids = split.token_ids
    return [np.asarray(ids[offsets[i] : offsets[i + 1]], np.int32) for i in chosen]


def _check_checkpoint(row: StudyRow, store: str) -> dict[str, Any]:
    settings = parse_settings(row.flags)
    for name, value in settings.items():
        if name != _STEP or not value.isdecimal():
            raise Refused(
                f"its flags have {name}={value}; a checkpoint row takes step=N only; "
                "settings of its fine-tunings belong in `finetune`"
            )
    return {"kind": row.kind, "reads": row.reads, "finetune": row.finetune, **settings}


def _locate_checkpoint(run: Run) -> str:
    """Return the address of the run that is read, at the step if the row names one."""
    step = parse_settings(run.row.flags).get(_STEP, "")
    return f"orbax:{run.sources[0]}@{step}" if step else f"orbax:{run.sources[0]}"


def _score_checkpoint(run: Run, seq_len: int, screen: Screen) -> Scores:
    """Score masked words, and read the run's own held-out measures at the step."""
    scores = score_masked_words(_locate_checkpoint(run), run.store, seq_len, screen)
    step = parse_settings(run.row.flags).get(_STEP)
    own: dict[str, float] = {}
    for line in read_metrics(run.sources[0] / METRICS):
        if line["split"] == HELDOUT and (not step or line["step"] == int(step)):
            own = {f"{HELDOUT}_{name}": value for name, value in line.items()}
    return {**scores, **{name: own[name] for name in OWN_MEASURES if name in own}}


def _parse_address(row: StudyRow) -> str:
    """Return the address in the flags of a `given` row; refuse all other flags."""
    settings = parse_settings(row.flags)
    address = settings.pop(_ADDRESS, "")
    if settings or not address:
        raise Refused(
            f"its flags are {row.flags!r}; a given row takes {_ADDRESS}=ADDRESS only: hf:DIR, "
            "google:PREFIX or the workdir of a run"
        )
    return address


def _check_given(row: StudyRow, store: str) -> dict[str, Any]:
    """Identify a checkpoint by its weights, so that copies of it are equal."""
    weights = hash_weights(load.load(_parse_address(row)))
    return {"kind": row.kind, "weights": weights, "finetune": row.finetune}


def load_settings(row: StudyRow, store: str) -> Any:
    """Read the settings of a baseline from a row's flags.

    `tokens` are the positions to read, instead of steps or epochs.

    Raises:
      Refused: there is no such setting, or its value is not allowed.
    """
    values = parse_numbers(BASELINES[row.kind], row.flags, "flags", tokens=float)
    count, lengths = values.pop("tokens", None), values.keys() & {"steps", "epochs"}
    settings = BASELINES[row.kind](**values)
    if count is not None and lengths:
        raise Refused(
            f"its flags have tokens={count:.0f} and {lengths.pop()}, which both set its length; "
            "leave one of them out"
        )
    if count is not None and isinstance(settings, BiLM):
        steps = round(count / (settings.batch_size * settings.seq_len))
        settings = dataclasses.replace(settings, steps=steps)
    elif count is not None:
        epochs = count / open_store(store).train.tokens
        settings = dataclasses.replace(settings, epochs=epochs)
    check_fields(settings, "flags")
    return settings


def _check_baseline(row: StudyRow, store: str) -> dict[str, Any]:
    training.open_text(store)
    settings = dataclasses.asdict(load_settings(row, store))
    return {"kind": row.kind, **settings, **_identify_tagger(row)}


def _identify_tagger(row: StudyRow) -> dict[str, dict[str, float]]:
    settings = load_tagger(row)
    return {"tagger": settings} if settings else {}


def _count_baseline_cost(row: StudyRow, store: str, vocab_size: int) -> RowCost:
    """Count operations as count_train_flops does: 2 forward and 4 backward for each product.

    A skip-gram counts window + 1 pairs per token, the mean over random windows; the tokens that
    subsampling drops are counted too.
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


def _build_baseline_command(run: Run) -> list[str]:
    settings = dataclasses.asdict(load_settings(run.row, run.store)) | {"seed": run.seed}
    return [
        *(sys.executable, "-m", "bert_jax.baseline", run.row.kind),
        *(f"--store={run.store}", f"--workdir={run.folder}"),
        *(f"--{name}={value}" for name, value in settings.items()),
    ]


def _score_baseline(run: Run, seq_len: int, screen: Screen) -> Scores:
    summary = small_files.read_object(run.folder / training.SUMMARY, run.folder)
    loss = summary["heldout_loss"]
    value = "the store has no held-out text" if loss is None else float(loss)
    return {**explain_missing(_HAS_NO_MASKS[run.row.kind]), f"heldout_{run.row.kind}_loss": value}


def _check_vectors(row: StudyRow, store: str) -> dict[str, Any]:
    """Identify a row of frozen vectors that trains no run."""
    return {"kind": row.kind, "reads": row.reads, **_identify_tagger(row)}


_PRETRAIN = RowKind(
    check=_check,
    cost=_count_cost,
    command=_build_command,
    scores=_score_run,
    address=lambda run: f"orbax:{run.folder}",
    fields=("config", "flags", "finetune"),
    scores_on_device=True,
)
_CHECKPOINT = RowKind(
    check=_check_checkpoint,
    scores=_score_checkpoint,
    address=_locate_checkpoint,
    fields=("flags", "finetune"),
    reads=("pretrain",),
    scores_on_device=True,
)
_UNTRAINED = dataclasses.replace(
    _CHECKPOINT,
    scores=lambda *_: explain_missing("it is not pre-trained"),
    fields=("finetune",),
    finetune_flags=("--config.from_scratch=True",),
    scores_on_device=False,
)
_SKIPGRAM = RowKind(
    check=_check_baseline,
    cost=_count_baseline_cost,
    command=_build_baseline_command,
    scores=_score_baseline,
    address=lambda run: str(run.folder),
    fields=("flags", "tagger"),
    vectors=SKIPGRAM,
)
_COUNTS = RowKind(
    check=_check_vectors,
    scores=lambda run, *_: explain_missing(_HAS_NO_MASKS[run.row.kind]),
    address=lambda run: run.store,
    fields=("tagger",),
    vectors=COUNTS,
)
KINDS: dict[str, RowKind] = {
    "pretrain": _PRETRAIN,
    "rung": dataclasses.replace(_PRETRAIN, scores=_score_rung, scores_on_device=False),
    "checkpoint": _CHECKPOINT,
    "untrained": _UNTRAINED,
    "given": dataclasses.replace(
        _CHECKPOINT,
        check=_check_given,
        scores=lambda run, *more: score_masked_words(_parse_address(run.row), run.store, *more),
        address=lambda run: _parse_address(run.row),
        reads=(),
    ),
    "frozen": dataclasses.replace(
        _UNTRAINED,
        check=_check_vectors,
        scores=lambda run, *_: explain_missing(f"the same as of {run.row.reads}"),
        fields=("tagger",),
        vectors=BERT,
    ),
    COUNTS: _COUNTS,
    SKIPGRAM: _SKIPGRAM,
    BILM: dataclasses.replace(_SKIPGRAM, vectors=ELMO),
    TAGLM: dataclasses.replace(
        _COUNTS,
        address=lambda run: ",".join(map(str, run.sources)),
        reads=(SKIPGRAM, BILM),
        vectors=TAGLM,
    ),
}


def find_kind(row: StudyRow) -> RowKind:
    """Return the kind of a row; raise Refused if the name is unknown."""
    if row.kind not in KINDS:
        raise Refused(f"its kind is {row.kind!r}; it must be one of {', '.join(KINDS)}")
    return KINDS[row.kind]
