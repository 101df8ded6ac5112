"""Train encoders with bert_jax.train, and score them: fine-tuned, or as frozen vectors.

`pretrain` trains a run. Three kinds read one of another row: `checkpoint` fine-tunes it with
settings of its own or at another step, `untrained` fine-tunes its sizes from new weights, `frozen`
learns tasks on its last four layers. `given` fine-tunes a checkpoint from elsewhere.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.baselines.vectors import BERT
from bert_jax.config import Config, validate
from bert_jax.config.study import StudyRow, StudyTask
from bert_jax.inference import pseudo_likelihood, store_scores
from bert_jax.inference.store_scores import Selection
from bert_jax.interop import load, warm_start
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.model.flops import count_train_flops
from bert_jax.reporting.console import Screen
from bert_jax.reporting.metrics_writer import METRICS, SUMMARY
from bert_jax.studies.baselines import costs_nothing, learn_frozen
from bert_jax.studies.row_kind import (
    MASKED_WORDS,
    PSEUDO_PERPLEXITY,
    Cost,
    RowKind,
    Run,
    Scores,
    flags_of,
    lack_both,
    load_config,
    refuse_settings,
    settings_of,
)
from data_pipeline.io import small_files
from data_pipeline.io.jsonl import read_metrics
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import row_shape
from data_pipeline.store import HELDOUT, Split, open_store
from data_pipeline.vocab import load_vocabulary

PER_SEED = ("seed", "data.random_seed")  # settings that differ between the runs of a row
# Of a run's summary, and of which rows.
OWN_MEASURES = {
    "heldout_causal_loss": "predict the next token",
    "heldout_nsp_accuracy": "learn which sentence is the next",
    "heldout_rtd_auc": "find replaced tokens",
}
_SCORED_ROWS_PER_STEP, _MOST_SCORED_ROWS = 64, 1 << 20
_SENTENCES = 256  # of which the pseudo-perplexity is computed
_STEP = "step"  # in the flags of a checkpoint
_ADDRESS = "checkpoint"  # in the flags of a given one


def load_row(row: StudyRow, store: str) -> Config:
    """Load the config of a row that pre-trains, on the study's store.

    Raises:
      ValueError: a setting is wrong, or the config names another store.
    """
    config = load_config(Config, row.config, flags_of(row.flags))
    if config.data.store not in ("", store):
        raise ValueError(
            f"config.data.store is {config.data.store}, the study's store is {store}; all rows "
            "train on the study's: leave it out"
        )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, store=store))


def _check(row: StudyRow, store: str) -> dict[str, Any]:
    config = load_row(row, store)
    validate.check(config)
    settings = config_lib.flatten(config_lib.recorded(config))
    own = {"finetune": row.finetune} if row.finetune else {}
    return {key: value for key, value in settings.items() if key not in PER_SEED} | own


def _cost(row: StudyRow, store: str, vocab_size: int) -> Cost:
    config = config_lib.with_vocab_size(load_row(row, store), vocab_size)
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


def _command(run: Run) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax.train", f"--config={run.row.config}"),
        *(f"--workdir={run.folder}", *flags_of(run.row.flags), f"--config.data.store={run.store}"),
        *(f"--config.seed={run.seed}", f"--config.data.random_seed={run.seed}"),
    ]


def _is_finished(folder: pathlib.Path) -> bool:
    return (folder / SUMMARY).is_file()


def _scores(run: Run, seq_len: int, screen: Screen) -> Scores:
    """Return the scores of masked words, and what the run's summary has of its own objective."""
    summary = small_files.read_object(run.folder / SUMMARY, run.folder)
    own = {name: float(summary[name]) for name in OWN_MEASURES if name in summary}
    return {**score_masked_words(str(run.folder), run.store, seq_len, screen), **own}


def score_masked_words(address: str, store: str, seq_len: int, screen: Screen) -> Scores:
    """Return the loss on masked words of full rows and the pseudo-perplexity of sentences.

    Both are of held-out text, the same for every model; or why a model has none that compares.
    """
    checkpoint = load.load(address)
    shape = checkpoint.config
    if shape.is_causal:
        return lack_both("it reads from the left alone, and fills no mask from both sides")
    if checkpoint.heads.rtd:
        return lack_both("its encoder finds replaced tokens, and predicts none")
    if shape.position_embedding_type == "relative":
        return lack_both("it predicts words in an order, without [MASK]")
    options = PretrainOptions(
        store=store,
        segments="full_sentences",
        short_seq_prob=0.0,
        mask_token_share=1.0,  # a model may have learned to copy what is kept
        random_token_share=0.0,
    )
    opened = open_store(store)
    selection = Selection(opened, HELDOUT, options, seq_len, _MOST_SCORED_ROWS)
    model = place_masked_lm(checkpoint)
    loss = store_scores.score_store(model, selection, _SCORED_ROWS_PER_STEP, screen)["mlm_loss"]
    sentences = choose_sentences(opened.heldout, seq_len - 2)
    if not sentences:
        reason = f"no held-out sentence has {seq_len - 2} tokens or fewer"
        return {MASKED_WORDS: float(loss), PSEUDO_PERPLEXITY: reason}
    scores = pseudo_likelihood.score_sentences(model, sentences, _SCORED_ROWS_PER_STEP, screen)
    perplexity = pseudo_likelihood.add_scores(scores).perplexity
    return {MASKED_WORDS: float(loss), PSEUDO_PERPLEXITY: perplexity}


def choose_sentences(split: Split, longest: int) -> list[np.ndarray]:
    """Return the token ids of some sentences of `longest` tokens at most, from all over a split."""
    offsets = np.asarray(split.sentence_offsets)
    fitting = np.flatnonzero(np.diff(offsets) <= longest)
    count = min(len(fitting), _SENTENCES)
    chosen = fitting[np.linspace(0, len(fitting) - 1, count).astype(int)] if count else fitting
    ids = split.token_ids
    return [np.asarray(ids[offsets[i] : offsets[i + 1]], np.int32) for i in chosen]


def _finetune(run: Run, task: StudyTask, folder: pathlib.Path, address: str) -> list[str]:
    return [
        *(sys.executable, "-m", "bert_jax.finetune", f"--config={task.config}"),
        *(f"--workdir={folder}", f"--config.init={address}"),
        *(*flags_of(task.flags), *flags_of(run.row.finetune)),
        *(f"--config.seed={run.seed}", f"--config.data.order_seed={run.seed}"),
    ]


def _task_command(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str]:
    return _finetune(run, task, folder, f"orbax:{run.folder}")


def _check_checkpoint(row: StudyRow, store: str) -> dict[str, Any]:
    refuse_settings(row, "config")
    settings = settings_of(row.flags)
    for name, value in settings.items():
        if name != _STEP or not value.isdecimal():
            raise ValueError(
                f"its flags have {name}={value}; a checkpoint has step=N alone, and `finetune` for "
                "its fine-tunings"
            )
    return {"kind": row.kind, "reads": row.reads, "finetune": row.finetune, **settings}


def _checkpoint_address(run: Run) -> str:
    """Return the run that is read, with the step if the row names one."""
    step = settings_of(run.row.flags).get(_STEP, "")
    return f"orbax:{run.sources[0]}@{step}" if step else f"orbax:{run.sources[0]}"


def _score_checkpoint(run: Run, seq_len: int, screen: Screen) -> Scores:
    """Return the scores of masked words, and what the run's own evaluation was at the step."""
    scores = score_masked_words(_checkpoint_address(run), run.store, seq_len, screen)
    step = settings_of(run.row.flags).get(_STEP)
    lines = read_metrics(run.sources[0] / METRICS)
    evaluated = [line for line in lines if line["split"] == HELDOUT]
    if step:
        evaluated = [line for line in evaluated if line["step"] == int(step)]
    own = evaluated[-1] if evaluated else {}
    names = {name: name.removeprefix(f"{HELDOUT}_") for name in OWN_MEASURES}
    return {**scores, **{name: own[key] for name, key in names.items() if key in own}}


def _finetune_checkpoint(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str]:
    return _finetune(run, task, folder, _checkpoint_address(run))


def _check_untrained(row: StudyRow, store: str) -> dict[str, Any]:
    refuse_settings(row, "config", "flags")
    return {"kind": row.kind, "reads": row.reads, "finetune": row.finetune}


def _score_untrained(run: Run, seq_len: int, screen: Screen) -> Scores:
    return lack_both("its weights are new at each task")


def _finetune_untrained(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str]:
    command = _finetune(run, task, folder, f"orbax:{run.sources[0]}")
    return [*command, "--config.from_scratch=True"]


def _given_address(row: StudyRow) -> str:
    settings = settings_of(row.flags)
    address = settings.pop(_ADDRESS, "")
    if settings or not address:
        raise ValueError(
            f"its flags are {row.flags!r}; of a given checkpoint they are {_ADDRESS}=hf:DIR, "
            "google:PREFIX or the workdir of a run, and nothing else"
        )
    return address


def _check_given(row: StudyRow, store: str) -> dict[str, Any]:
    """Identify a checkpoint by its weights, so that a copy elsewhere is the same."""
    refuse_settings(row, "config")
    weights = warm_start.hash_weights(load.load(_given_address(row)))
    return {"kind": row.kind, "weights": weights, "finetune": row.finetune}


def _score_given(run: Run, seq_len: int, screen: Screen) -> Scores:
    address = _given_address(run.row)
    checkpoint, store = load.load(address), open_store(run.store)
    lowercase = store.manifest["vocabulary"]["lowercase"]
    own = load_vocabulary(store.vocab_path, lowercase, checks_case=False)
    if checkpoint.vocabulary.pieces() != own.pieces():
        return lack_both("its tokens are not the store's")
    if not checkpoint.heads.mlm:
        return lack_both("it came without the head that predicts words")
    return score_masked_words(address, run.store, seq_len, screen)


def _finetune_given(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str]:
    return _finetune(run, task, folder, _given_address(run.row))


def _check_frozen(row: StudyRow, store: str) -> dict[str, Any]:
    refuse_settings(row, "config", "flags", "finetune")
    return {"kind": row.kind, "reads": row.reads}


def _score_frozen(run: Run, seq_len: int, screen: Screen) -> Scores:
    return lack_both(f"it is that of {run.row.reads}")


def _learn_frozen(run: Run, task: StudyTask, folder: pathlib.Path) -> list[str] | str:
    return learn_frozen(BERT, f"orbax:{run.sources[0]}", run, task, folder)


PRETRAIN = RowKind(
    *(_check, _cost, _command, _is_finished, _scores, _task_command),
    scores_on_device=True,
)
CHECKPOINT = RowKind(
    *(_check_checkpoint, costs_nothing, None, _is_finished),
    *(_score_checkpoint, _finetune_checkpoint, ("pretrain",)),
    scores_on_device=True,
)
UNTRAINED = RowKind(
    *(_check_untrained, costs_nothing, None, _is_finished),
    *(_score_untrained, _finetune_untrained, ("pretrain",)),
)
GIVEN = RowKind(
    *(_check_given, costs_nothing, None, _is_finished, _score_given, _finetune_given),
    scores_on_device=True,
)
FROZEN = RowKind(
    *(_check_frozen, costs_nothing, None, _is_finished),
    *(_score_frozen, _learn_frozen, ("pretrain",)),
)
