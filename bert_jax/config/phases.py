"""Compute what follows from the phases of a config: steps, rows, rates, objectives."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from bert_jax.config.finetune_schema import FinetunePhase, PruneConfig
from bert_jax.config.model_schema import THETAS, ModelConfig
from bert_jax.config.schema import CAUSAL, Config, Phase, RunConfig, SharedConfig
from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions, parse_store_weights
from data_pipeline.spec.schema import RowShape, row_shape

_TILE = 128  # columns of a TPU register


def predictions_for(seq_len: int, masked_lm_prob: float) -> int:
    """Return the prediction slots that a full row of seq_len tokens needs.

    A row of l tokens has max(1, round(l * masked_lm_prob)) predictions; rounding up fits them all.
    """
    wanted = math.ceil(seq_len * masked_lm_prob - 1e-9)  # 0.15 * 140 may be 21.000000000000004
    return max(1, min(wanted, seq_len - 3))


def ramp_batch(phase: Phase, first: int, tokens: int, multiple: int) -> tuple[Phase, ...]:
    """Put shorter phases before a phase; their batch grows linearly from `first` rows to its rows.

    Each new phase has `multiple` more rows than the one before and an equal share of `tokens`,
    rounded so that the sum so far is right to the nearest step. Padding counts as tokens, as in
    optim.warmup_tokens. The steps of `phase` are unchanged; if it restarts the schedule, the first
    new phase does so instead. Each phase compiles, and ends with an evaluation.

    Raises:
      Refused: `multiple` does not divide the growth, or a share of tokens has no step.

    Source: Warner et al. 2024, section 2.2.3: ModernBERT-Base grows from 768 to 4,608 in 50 B.
    """
    growth = phase.batch_size - first
    if first < 1 or growth < 1 or multiple < 1 or growth % multiple:
        raise Refused(
            f"the batch grows from first = {first} to batch_size = {phase.batch_size} by multiple "
            f"= {multiple}; it must grow by a whole number of multiples, from 1 or more rows"
        )
    sizes = range(first, phase.batch_size, multiple)
    share, trained, ramp = tokens / len(sizes), 0, []
    for number, batch_size in enumerate(sizes, 1):
        step_tokens = batch_size * phase.seq_len
        steps = round((number * share - trained) / step_tokens)
        if steps < 1:
            raise Refused(
                f"tokens = {tokens:,} gives each of {len(sizes)} batch sizes {share:,.0f} tokens, "
                f"and a step of {batch_size} rows has {step_tokens:,}; take more tokens or a "
                "larger multiple"
            )
        ramp.append(dataclasses.replace(phase, batch_size=batch_size, steps=steps))
        trained += steps * step_tokens
    restart = [field for field in dataclasses.fields(Phase) if field.name.startswith("restart_")]
    none: dict[str, Any] = {field.name: field.default for field in restart}
    return ramp[0], *(dataclasses.replace(later, **none) for later in (*ramp[1:], phase))


def list_init_layers(config: SharedConfig) -> list[int]:
    """List the numbers in config.init_layers; [] takes all layers.

    Raises:
      Refused: it is not a list of numbers joined by commas.
    """
    texts = config.init_layers.split(",") if config.init_layers else []
    if not all(text.isascii() and text.isdecimal() and len(text) <= 4 for text in texts):
        raise Refused(
            f"config.init_layers is {config.init_layers!r:.60}; it must be numbers of layers "
            "joined by commas, as 0,2,4,7,9,11, or empty to take all layers"
        )
    return [int(text) for text in texts]


def split_into_rounds(phase: FinetunePhase, prune: PruneConfig) -> tuple[FinetunePhase, ...]:
    """Split the phase of a fine-tuning where neurons are removed; the sum of steps is unchanged.

    Sizes fall by equal parts to prune.intermediate_size, rounded up to a multiple of the largest
    power of two, 128 at most, that divides the first and the last size.

    Raises:
      Refused: nothing would be removed; a round would have no neuron or no step.
    """
    first, last, rounds = phase.intermediate_size, prune.intermediate_size, prune.rounds
    if last == 0:
        return (phase,)
    if last >= first:
        raise Refused(
            f"config.prune.intermediate_size is {last}, and each feed-forward part of config.init "
            f"has {first} neurons; give fewer, or 0 to remove none"
        )
    unit = math.gcd(first, last, _TILE)
    units = (first - last) // unit
    sizes = [first - units * done // rounds * unit for done in range(rounds + 1)]
    ends = [round(phase.steps * prune.share * done / rounds) for done in range(1, rounds + 1)]
    lengths = [end - begin for begin, end in itertools.pairwise([0, *ends, phase.steps])]
    if units < rounds or min(lengths) < 1:
        raise Refused(
            f"config.prune.rounds is {rounds}, and there are {ends[-1]:,} steps up to "
            f"config.prune.share = {prune.share}, and {units:,} times {unit} neurons to remove; "
            f"take {max(min(ends[-1], units), 1):,} rounds or fewer, or a larger share"
        )
    return tuple(
        dataclasses.replace(phase, steps=steps, intermediate_size=size)
        for steps, size in zip(lengths, sizes, strict=True)
    )


def list_objectives(config: Config) -> list[str]:
    """List the name of each phase's objective."""
    return [phase.objective or config.objective for phase in config.phases]


def model_in_phase(config: RunConfig, index: int) -> ModelConfig:
    """Return the model with a phase's rotary bases, neurons and direction of attention."""
    phase, model = config.phases[index], config.model
    changed = {name: getattr(phase, name) or getattr(model, name) for name in THETAS}
    if isinstance(phase, FinetunePhase) and phase.intermediate_size:
        changed["intermediate_size"] = phase.intermediate_size
    is_causal = model.is_causal or phase.objective == CAUSAL
    return dataclasses.replace(model, is_causal=is_causal, **changed)


def data_in_phase(config: Config, index: int) -> PretrainOptions:
    """Return the sampling options of a phase, which has its own masking rate."""
    rate = config.phases[index].masked_lm_prob or config.data.masked_lm_prob
    return dataclasses.replace(config.data, masked_lm_prob=rate)


def shape_in_phase(config: Config, index: int) -> RowShape:
    """Return the sizes of a phase's row."""
    phase, data = config.phases[index], data_in_phase(config, index)
    return row_shape(data, phase.seq_len, phase.max_predictions_per_seq)


def weights_in_phase(config: Config, index: int, tokens: Sequence[int]) -> tuple[float, ...]:
    """Return each store's share of a phase's rows; `tokens` counts each store's training tokens.

    Shares sum to 1. They are the phase's store_weights, or else proportional to
    tokens ** store_temperature; if the phase sets neither, config.data does.
    """
    if len(tokens) == 1:
        return (1.0,)
    phase, data = config.phases[index], config.data
    key, text = f"config.phases[{index}].store_weights", phase.store_weights
    if not text and not phase.store_temperature:
        key, text = "config.data.store_weights", data.store_weights
    if text:
        return parse_store_weights(text, len(tokens), key)
    temperature = phase.store_temperature or data.store_temperature
    scaled = [(count / max(tokens)) ** temperature for count in tokens]
    return tuple(size / math.fsum(scaled) for size in scaled)


def data_in_evaluations(config: Config) -> PretrainOptions:
    """Return the sampling options with the masking rate of evaluations, the same in all phases."""
    rate = config.eval.masked_lm_prob or config.data.masked_lm_prob
    return dataclasses.replace(config.data, masked_lm_prob=rate)


def total_steps(config: RunConfig) -> int:
    """Return the optimizer steps of all phases."""
    return sum(phase.steps for phase in config.phases)


def phase_start(config: RunConfig, index: int) -> int:
    """Return the number of steps before a phase."""
    return sum(phase.steps for phase in config.phases[:index])


def phase_of_step(config: RunConfig, step: int) -> int:
    """Return the index of the phase that trains a step, counted from 1; 0 for step 0."""
    begun = sum(step > phase_start(config, index) for index in range(len(config.phases)))
    return max(begun - 1, 0)


def first_row(config: Config, index: int) -> int:
    """Count the rows that earlier phases take from the stream of this phase's seq_len."""
    return sum(
        phase.steps * phase.batch_size
        for phase in config.phases[:index]
        if phase.seq_len == config.phases[index].seq_len
    )
