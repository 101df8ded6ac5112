"""Fill in the settings of a run that a budget pays for, given the size of the model and the batch.

All other settings come from the recipe and the command line, which a DialRequest holds.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bert_jax.config import Config, ModelConfig, Phase, ResolvedRun, StoreFacts, resolve, set_fields
from bert_jax.config.overrides import Override
from bert_jax.planning import slices
from bert_jax.planning.candidates import SIZE_FIELDS, EncoderShape, reshape
from bert_jax.planning.chip_prices import FILE, read_prices
from data_pipeline.io import Refused


class Tuned(NamedTuple):
    """Hold the best settings of an optimizer in small runs (docs/experiments.md)."""

    batch_tokens: int  # tokens in a step
    rate: float
    restart_share: float  # the second phase's schedule begins at this part of the rate
    warmup_shares: tuple[float, float]  # each phase's part of its steps
    min_steps: int  # width 128 is then 0.4 nats below the unigram loss


# Tuned at BASE_WIDTH, with BASE_TOKENS in all steps. Muon's rate is known at that width only.
ADAMW = Tuned(1536, 3e-3, 1.0, (0.125, 0.075), 300)
MUON = Tuned(3072, 8e-3, 0.5, (0.0735, 0.122), 150)
MUON_WEIGHT_DECAY = 0.3
BASE_WIDTH, BASE_TOKENS = 128, 3.07e6
# The batch grows with this power of the tokens; Bergsma et al. 2025 (arXiv 2505.13738) find 0.38
# for the best batch of causal models. Batches differ by half octaves, so that few are compiled. A
# quarter of AdamW's batch, at the same rate, made the loss leave its plateau late.
BATCH_POWER, MIN_OCTAVES = 0.4, -0.5
PHASE_SHARES = (0.8, 0.2)  # each phase's part of all steps
EVALUATIONS = 5  # the longest phase has about as many
MAX_WARMUP_STEPS = 10_000  # Devlin et al. 2019, appendix A.2
# Row lengths of the two phases, by the largest width that uses them; as in quickstart.py, tiny.py
# and base.py.
ROW_LENGTHS = {128: (32, 64), 256: (64, 128), 1 << 16: (128, 512)}

_BUDGET = re.compile(r"([0-9]{1,9}(?:\.[0-9]*)?)(?:([mh])|usd@(.+))")
_INDEX = re.compile(r"\[(-?\d+)\]")  # number of a phase; -1 is the last
_UNITS = "write minutes as 30m, hours as 2h, or dollars with a slice as 40usd@v5e:2x4"


class RowCounts(NamedTuple):
    """Hold what a choice needs to know about rows with a given length."""

    fill: float  # share of a row's positions that hold tokens
    evaluated: int  # rows of an evaluation


@dataclasses.dataclass(frozen=True)
class TimeBudget:
    """Hold config.budget: as it was given, in seconds, and the slice that dollars pay for."""

    text: str
    secs: float
    tpu_slice: slices.Slice | None = None


def parse_budget(text: str, num_slices: int = 1, price_list: pathlib.Path = FILE) -> TimeBudget:
    """Parse config.budget: minutes, hours, or dollars on a slice, at its price in a price list.

    Raises:
      Refused: the unit or the slice is unknown, it has no price, or the amount is 0.
    """
    match = _BUDGET.fullmatch(text)
    if not text or re.match(r"0+(\.0*)?(?![\d.,])", text):
        raise Refused(
            f"config.budget is {text or 'empty'}; a shell expands $ and the digit after it, so "
            f"$40 may arrive as 0: {_UNITS}"
        )
    if match is None:
        raise Refused(f"config.budget is {text!r}, neither a time nor dollars on a slice; {_UNITS}")
    amount, unit, topology = float(match[1]), match[2], match[3]
    if unit:
        return TimeBudget(text, amount * {"m": 60, "h": 3600}[unit])
    tpu_slice = slices.find_slice(topology, num_slices, f"--config.budget={match[1]}usd@")
    prices, chip = read_prices(price_list), tpu_slice.chip.name
    price = prices.by_chip.get(chip)
    if price is None or not price.usd_on_demand:
        raise Refused(
            f"config.budget is {text}, and {prices.path} has no price for {chip}; give time "
            "instead, as 30m or 2h"
        )
    secs = 3600 * amount / (price.usd_on_demand * tpu_slice.chips)
    return TimeBudget(text, secs, tpu_slice)


@dataclasses.dataclass(frozen=True)
class DialRequest:
    """Hold a recipe, its text, and the budget to choose a run for."""

    config: Config  # the recipe, with the settings of the command line
    proportions: ModelConfig  # the recipe's model, without a size from the command line
    given: tuple[Override, ...]  # settings of the command line, which stay
    facts: StoreFacts
    unique_tokens: int  # tokens of the training split
    count_rows: Callable[[int], RowCounts]  # takes their length
    shards: int  # parts into which the mesh cuts a batch
    budget: TimeBudget

    def is_given(self, *keys: str) -> bool:
        """Return whether the command line sets any of these fields, such as phases[1].steps."""
        paths = {_INDEX.sub(lambda text: f"[{int(text[1]) % 2}]", each.path) for each in self.given}
        return not paths.isdisjoint(keys)

    def count_tokens(self, phase: Phase) -> float:
        """Return the tokens of a step of a phase."""
        return self.count_rows(phase.seq_len).fill * phase.seq_len * phase.batch_size


def choose_octaves(tokens: float) -> float:
    """Return the octaves from the tuned batch to the batch of a run that reads so many tokens."""
    octaves = max(MIN_OCTAVES, BATCH_POWER * math.log2(max(tokens, 1.0) / BASE_TOKENS))
    return round(2 * octaves) / 2


def find_tuned(optimizer: str, shape: EncoderShape) -> Tuned:
    """Return an optimizer's tuned settings: Muon's at BASE_WIDTH, AdamW's in all other cases."""
    return MUON if optimizer == "muon" and shape.width == BASE_WIDTH else ADAMW


def _replaces_adamw(request: DialRequest, shape: EncoderShape) -> bool:
    """Return whether Muon replaces the recipe's AdamW: at the width at which it was tuned."""
    is_given = request.is_given("optim.name", "optim.transfer")
    return not is_given and request.config.optim.name == "adamw" and shape.width == BASE_WIDTH


def configure(request: DialRequest, shape: EncoderShape, octaves: float) -> ResolvedRun:
    """Return the resolved config of a size, with enough steps for any warm-up."""
    config = set_choices(request, shape, octaves, (8 * 10**8, 2 * 10**8), 10**9)
    return resolve(config, store=request.facts)


def set_choices(
    request: DialRequest,
    shape: EncoderShape,
    octaves: float,
    steps: Sequence[int],
    most_between_saves: int,
) -> Config:
    """Return the config of a size; settings from the command line are kept."""
    config, replaced = request.config, _replaces_adamw(request, shape)
    tuned = find_tuned("muon" if replaced else config.optim.name, shape)
    model = reshape(dataclasses.replace(config, model=request.proportions), shape).model
    usual = next(pair for width, pair in ROW_LENGTHS.items() if shape.width <= width)
    lengths = [
        phase.seq_len if request.is_given(f"phases[{index}].seq_len") else length
        for index, (phase, length) in enumerate(zip(config.phases, usual, strict=True))
    ]
    # The second phase's rows are not shorter, unless both lengths are given.
    if not request.is_given("phases[0].seq_len"):
        lengths[0] = min(lengths)
    elif not request.is_given("phases[1].seq_len"):
        lengths[1] = max(lengths)
    steps = [
        phase.steps if request.is_given(f"phases[{index}].steps") else count
        for index, (phase, count) in enumerate(zip(config.phases, steps, strict=True))
    ]
    rate = config.optim.learning_rate if request.is_given("optim.learning_rate") else tuned.rate
    # A given rate of 0 keeps the first schedule, which has warmed up.
    second = "phases[1].restart_learning_rate"
    restarts = not request.is_given(second) or config.phases[1].restart_learning_rate > 0
    warmups = [round(share * n) for share, n in zip(tuned.warmup_shares, steps, strict=True)]
    most = max(steps)  # the first phase's, unless the command line says otherwise
    # Warm-ups in tokens count for all schedules.
    most_warmup_steps = 0 if config.optim.warmup_tokens else MAX_WARMUP_STEPS
    settings: dict[str, Any] = {f"model.{name}": getattr(model, name) for name in SIZE_FIELDS}
    settings |= {
        "model.max_position_embeddings": max(lengths),
        "optim.learning_rate": rate,
        "optim.warmup_steps": min(warmups[0], most_warmup_steps),
        second: rate * tuned.restart_share,
        "phases[1].restart_warmup_steps": min(warmups[1], most_warmup_steps) * restarts,
        "eval.every_steps": max(1, most // EVALUATIONS),
        "checkpoint.every_steps": max(1, min(2 * most // 5, most_between_saves)),
        "log_every_steps": max(1, most // 25),
    }
    for index, (phase, length) in enumerate(zip(config.phases, lengths, strict=True)):
        unit = request.shards * phase.micro_batches
        rows = max(1, round(tuned.batch_tokens * 2**octaves / length / unit)) * unit
        settings |= {
            f"phases[{index}].seq_len": length,
            f"phases[{index}].batch_size": rows,
            f"phases[{index}].steps": steps[index],
        }
    if model.local_attention:
        settings["model.local_attention"] = max(lengths) // 4
    if replaced:
        settings |= {"optim.name": "muon", "optim.weight_decay": MUON_WEIGHT_DECAY}
    if shape.width != BASE_WIDTH and not request.is_given("optim.transfer"):
        settings |= {"optim.transfer": "mup", "optim.transfer_base_width": BASE_WIDTH}
    chosen = {key: value for key, value in settings.items() if not request.is_given(key)}
    return set_fields(config, chosen | {"budget": ""})
