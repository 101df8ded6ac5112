"""Build the rungs of a ladder: small models of one recipe, each with a schedule of its own.

A rung is the first phase of the user's config at another width, with a layer per 64 of width (two
at least) and heads as wide as the config's, for a number of tokens. Its rate is transferred from
the narrowest width (optim.transfer=mup), and a tenth of its steps warm up. The middle of a longer
run gives no point of the law, as its rate has not decayed there.
"""

import dataclasses
import decimal
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import Config, ModelConfig
from bert_jax.lab.kinds import HELDOUT_LOSS, find_kind
from bert_jax.lab.row_kind import RowCost, build_flags
from bert_jax.lab.runs import parse_list
from bert_jax.lab.study_config import StudyConfig, StudyRow
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.planning.budget import OBJECTIVES
from bert_jax.planning.fit import fit
from bert_jax.planning.law import (
    LADDER,
    Law,
    Point,
    count_in_words,
    count_layer_parameters,
    count_most_parameters,
)
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import Store

FIRST_PHASE = "configs/first_phase.py"
UNIGRAM_LOSS, NGRAM_LOSS = "unigram_mlm_loss", "ngram_mlm_loss"  # keys of a summary
_BATCH = "phases[0].batch_size"  # the one setting of a rung that a user may override
_MIN_STEPS, _MIN_ROWS = 500, 8
_WIDTH_OF_A_LAYER, _NARROW_HEAD = 64, 32
# The largest token count is the store's, within these limits; the others are its half and quarter.
# At width 128 runs of 3 million tokens are still falling (docs/results/training.md).
_MIN_TOKENS, _MAX_TOKENS = 32_000_000, 128_000_000
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Hold what all rungs share: the config, as given and as read, and the base sizes."""

    given: GivenConfig[Config]  # flags for later phases and the store are left out
    config: Config
    base_width: int
    learning_rate: float
    batch_size: int
    head_width: int


@dataclasses.dataclass(frozen=True)
class Rung:
    """Hold a model to train: its size, the positions it reads, and its row of the study."""

    width: int
    layers: int
    parameters: int  # the layers' weights
    steps: int
    row: StudyRow


@dataclasses.dataclass(frozen=True)
class RungResult:
    """Hold a rung that was trained. Fields are keys of ladder.json and public."""

    name: str
    width: int
    layers: int
    parameters: int
    tokens: float  # padding is not counted
    unique_tokens: float
    operations: float
    loss: float
    unigram_loss: float
    ngram_loss: float
    positions: int  # padding counted
    is_used: bool  # the rung has learned enough to be fitted

    @property
    def learned(self) -> float:
        """Return how far the loss is from the unigram loss (0) to the n-gram loss (1)."""
        return (self.unigram_loss - self.loss) / (self.unigram_loss - self.ngram_loss)

    @property
    def point(self) -> Point:
        """Return the point that a law is fitted to."""
        return Point(self.parameters, self.tokens, self.unique_tokens, self.loss)


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Hold the prediction for a larger run. Fields are keys of ladder.json and public."""

    name: str
    width: int
    parameters: int
    tokens: float
    operations: float
    loss: float
    low: float
    high: float
    command: str  # trains it


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Hold the runs of a ladder, the law fitted to them or why there is none, and its forecasts."""

    outcomes: Sequence[RungResult]
    law: Law | None
    error: str
    forecasts: Sequence[Forecast]

    def notes(self) -> list[str]:
        """Describe the runs left out, the law's origin, or why there is no law."""
        left_out = [
            f"{each.name} is left out: its loss {each.loss:.3f} has come {each.learned:.0%} of the "
            f"way from the unigram loss {each.unigram_loss:.3f} to the n-gram loss "
            f"{each.ngram_loss:.3f}; it needs more tokens, a smaller "
            "--config.phases[0].batch_size, or a lower --learned"
            for each in self.outcomes
            if not each.is_used
        ]
        return [*left_out, self.law.describe() if self.law else self.error]

    def write(self, folder: pathlib.Path) -> None:
        """Write ladder.json."""
        content = {
            "rungs": [dataclasses.asdict(each) for each in self.outcomes],
            "law": self.law.to_json() if self.law else None,
            "error": self.error,
            "predictions": [dataclasses.asdict(each) for each in self.forecasts],
        }
        write_json(folder / LADDER, content)


def parse_counts(text: str, flag: str) -> list[int]:
    """Parse counts joined by commas, as 64,128 or 4M,16M.

    Raises:
      Refused: one of them is no whole number above 0, or stands there twice.
    """

    def parse_count(part: str) -> int:
        parts = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kmb]?)", part.strip().lower())
        count = decimal.Decimal(parts[1]) * _SUFFIXES[parts[2]] if parts else 0
        if count < 1 or count != int(count):
            raise ValueError(part)
        return int(count)

    words = "whole numbers joined by commas, as 64,128 or 4M,16M"
    return sorted(parse_list(flag, text, parse_count, words))


def choose_tokens(unique_tokens: int) -> list[int]:
    """Choose the token counts for a store of so many training tokens."""
    largest = min(max(unique_tokens, _MIN_TOKENS), _MAX_TOKENS)
    return [largest // 4, largest // 2, largest]


def make_recipe(
    given: GivenConfig[Config], widths: Sequence[int], tokens: Sequence[int], learning_rate: float
) -> Recipe:
    """Decide what the rungs of a config share.

    Raises:
      Refused: the config learns something else than masked words, or begins with a checkpoint;
        there is one width or token count.
    """
    config = given.load()
    if not config.phases:
        raise Refused("config.phases is empty; a ladder trains the first phase")
    if min(len(widths), len(tokens)) < 2:
        raise Refused(
            f"--widths={','.join(map(str, widths))} and --tokens={','.join(map(str, tokens))}: no "
            "law fits a single width or token count; give two of each or more"
        )
    first, base = config.phases[0], min(widths)
    objective = first.objective or config.objective
    if objective not in OBJECTIVES:
        raise Refused(
            f"config.objective is {objective!r}; a ladder predicts the loss of masked words: "
            f"set {' or '.join(OBJECTIVES)}"
        )
    if config.init:
        raise Refused(f"config.init is {config.init}; a ladder trains new weights: leave it empty")
    batch_size = first.batch_size
    if not any(each.path == _BATCH for each in given.overrides):
        most = min(batch_size, min(tokens) // (first.seq_len * _MIN_STEPS))
        batch_size = max(_MIN_ROWS, 1 << max(most, 1).bit_length() - 1)
    head_width = config.model.hidden_size // config.model.num_attention_heads
    if base < 2 * head_width or any(width % head_width for width in widths):
        head_width = min(_NARROW_HEAD, max(1, base // 2))
    own = ("phases[", "data.store")
    kept = tuple(
        each
        for each in given.overrides
        if each.path.startswith("phases[0]") or not each.path.startswith(own)
    )
    given = dataclasses.replace(given, overrides=kept)
    return Recipe(given, config, base, learning_rate, batch_size, head_width)


def make_rung(recipe: Recipe, width: int, tokens: int) -> Rung:
    """Make the rung of a width and of so many positions, rounded to steps.

    Raises:
      Refused: heads do not divide the width, or an override is of a setting that the ladder
        decides.
    """
    if width % recipe.head_width:
        raise Refused(
            f"--widths or --predict has {width}, not a multiple of the head width "
            f"{recipe.head_width}; give multiples"
        )
    model, phase = recipe.config.model, recipe.config.phases[0]
    inner = round(width * model.intermediate_size / model.hidden_size / 8) * 8
    model = dataclasses.replace(
        model,
        hidden_size=width,
        num_hidden_layers=max(2, width // _WIDTH_OF_A_LAYER),
        num_attention_heads=width // recipe.head_width,
        intermediate_size=max(8, inner),
    )
    steps = max(1, round(tokens / (recipe.batch_size * phase.seq_len)))
    settings = _make_settings(recipe, model, steps)
    for override in recipe.given.overrides:
        if override.path in settings and override.path != _BATCH:
            raise Refused(
                f"{override}: a ladder decides it, by --widths, --tokens or --learning_rate; leave "
                "it out"
            )
    flags = [f"{each.path}={each.text}" for each in recipe.given.overrides]
    own = config_lib.flatten(recipe.config)
    flags += [f"{key}={value}" for key, value in settings.items() if own[key] != value]
    row = StudyRow(
        f"w{width}-{count_in_words(tokens)}",
        kind="rung",
        config=f"{FIRST_PHASE}:{recipe.given.place}",
        flags=" ".join(map(shlex.quote, flags)),
    )
    return Rung(width, model.num_hidden_layers, count_layer_parameters(model), steps, row)


def refuse_overfitting(rungs: Sequence[Rung], asked: Sequence[Rung], unique_tokens: int) -> None:
    """Refuse to predict a model that is too large for the store's text.

    Raises:
      Refused: a requested rung has more parameters than the law can predict.
    """
    ratios = [rung.parameters / unique_tokens for rung in rungs]
    most = count_most_parameters(unique_tokens, ratios)
    for rung in asked:
        if rung.parameters > most:
            raise Refused(
                f"--predict asks for a width of {rung.width}, {rung.parameters:,} parameters of "
                f"layers, on {unique_tokens:,} tokens of text; a model of more than {most:,.0f} "
                "overfits them, which the law does not cover: ask for a narrower width, or build "
                "a store of more text"
            )


def _make_settings(recipe: Recipe, model: ModelConfig, steps: int) -> dict[str, Any]:
    """Return the settings of a rung that are not its config's, by their keys."""
    config, optim = recipe.config, recipe.config.optim
    # Keeps the config's initialization for kernels of the config's own width.
    wider = (config.model.hidden_size / recipe.base_width) ** 0.5
    end = optim.end_learning_rate / optim.learning_rate
    return {
        "model.hidden_size": model.hidden_size,
        "model.num_hidden_layers": model.num_hidden_layers,
        "model.num_attention_heads": model.num_attention_heads,
        "model.intermediate_size": model.intermediate_size,
        "model.initializer_range": _round(model.initializer_range * wider),
        "optim.learning_rate": recipe.learning_rate,
        "optim.end_learning_rate": _round(end * recipe.learning_rate),
        "optim.warmup_steps": steps // 10,
        "optim.warmup_tokens": 0,
        **({"optim.name": "adamw"} if optim.name == "muon" else {}),  # mup is for Adam
        "optim.transfer": "mup",
        "optim.transfer_base_width": recipe.base_width,
        "optim.transfer_base_head_width": 0,
        "phases[0].steps": steps,
        _BATCH: recipe.batch_size,
        "phases[0].micro_batches": 1,
        "phases[0].restart_learning_rate": 0.0,
        "phases[0].restart_warmup_steps": 0,
        "phases[0].restart_decay": "",
        "phases[0].restart_end_learning_rate": 0.0,
        "eval.every_steps": steps,
        "checkpoint.every_steps": max(1, steps // 4),
        "log_every_steps": max(1, steps // 50),
    }


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def make_study(rungs: Sequence[Rung], store: str) -> StudyConfig:
    """Make the study whose rows are the rungs."""
    return StudyConfig(
        rows=tuple(rung.row for rung in rungs), store=store, seeds=1, equal="nothing"
    )


def write_command(rung: Rung, store: str) -> str:
    """Write the command that trains a rung by itself."""
    words = [
        *("python", "-m", "bert_jax.train", f"--config={rung.row.config}"),
        *(f"--config.data.store={store}", "--workdir=DIR", *build_flags(rung.row.flags)),
    ]
    return shlex.join(words)


def read_outcome(
    rung: Rung, workdir: pathlib.Path, store: Store, cost: RowCost, learned: float
) -> RungResult:
    """Read a rung's tokens and losses from its run; `learned` is the least share for is_used.

    Raises:
      DamagedFile: its summary lacks a number.
    """
    path = workdir / SUMMARY
    content = small_files.read_object(path)
    phases = small_files.field(content, "phases", list, path)
    if len(phases) != 1 or not isinstance(phases[0], dict):
        raise DamagedFile(f"{path} is not the summary of a run of one phase; delete the run")
    tokens = small_files.field(phases[0], "tokens_per_step", float, path) * rung.steps
    loss, unigram_loss, ngram_loss = (
        float(small_files.field(content, key, float, path))
        for key in (HELDOUT_LOSS, UNIGRAM_LOSS, NGRAM_LOSS)
    )
    return RungResult(
        name=rung.row.name,
        width=rung.width,
        layers=rung.layers,
        parameters=rung.parameters,
        tokens=tokens,
        unique_tokens=float(store.train.tokens),
        operations=cost.operations,
        loss=loss,
        unigram_loss=unigram_loss,
        ngram_loss=ngram_loss,
        positions=round(cost.tokens),
        is_used=unigram_loss - loss >= learned * (unigram_loss - ngram_loss),
    )


def fit_ladder(outcomes: Sequence[RungResult], asked: Sequence[Rung], store: Store) -> Ladder:
    """Fit a law to the rungs that have learned enough, and predict the rungs in `asked`."""
    vocabulary = store.manifest["vocabulary"]
    try:
        law = fit(
            [each.point for each in outcomes if each.is_used],
            corpus=f"the store {store.directory}",
            vocabulary=f"{vocabulary['kind']}, {vocabulary['size']:,} tokens",
        )
    except Refused as error:
        return Ladder(outcomes, None, str(error), [])
    forecasts = [_predict(rung, law, outcomes[-1], store) for rung in asked]
    return Ladder(outcomes, law, "", forecasts)


def _predict(rung: Rung, law: Law, last: RungResult, store: Store) -> Forecast:
    """Predict a run that was not trained; its share of padding is the last trained run's."""
    cost = find_kind(rung.row).cost(rung.row, str(store.directory), store.vocab_size)
    tokens = cost.tokens * last.tokens / last.positions
    return Forecast(
        name=rung.row.name,
        width=rung.width,
        parameters=rung.parameters,
        tokens=tokens,
        operations=cost.operations,
        command=write_command(rung, str(store.directory)),
        **law.predict(rung.parameters, tokens, store.train.tokens)._asdict(),
    )
