"""Compute the learning rate of a step, and each layer's share of the rate.

Layer-wise rates (ULMFiT) use groups counted from the top: 0 for heads, pooler and task layer; 1 for
the encoder's last layer; L for its first; L + 1 for the embeddings, whose word table is shared with
the masked language model's logits.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config, OptimConfig, RunConfig

Tree = Any
_BLOCK_STEPS = 4096  # steps whose rates are computed at once


@dataclasses.dataclass(frozen=True)
class Ramp:
    """Hold one schedule: a linear warm-up and a decay over some phases."""

    first_step: int
    peak: float
    warmup_steps: int  # 0 if the schedule is counted in tokens
    decay: str
    end: float  # learning rate at the end of the decay
    # Per phase: its first step, its number of steps, and tokens per step, padding included.
    phases: tuple[tuple[int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        """Count the steps of the phases."""
        return sum(steps for _, steps, _ in self.phases)


def list_ramps(config: RunConfig) -> list[Ramp]:
    """List the schedules of a run: one from step 0, and one from each phase that restarts."""
    optim = config.optim
    warmup_steps = 0 if optim.warmup_tokens else optim.warmup_steps
    ramps = [Ramp(0, optim.learning_rate, warmup_steps, optim.decay, optim.end_learning_rate)]
    step = 0
    for phase in config.phases:
        if phase.restart_learning_rate > 0:
            ramps.append(
                Ramp(
                    step,
                    phase.restart_learning_rate,
                    phase.restart_warmup_steps,
                    phase.restart_decay or optim.decay,
                    phase.restart_end_learning_rate or optim.end_learning_rate,
                )
            )
        phases = (*ramps[-1].phases, (step, phase.steps, phase.batch_size * phase.seq_len))
        ramps[-1] = dataclasses.replace(ramps[-1], phases=phases)
        step += phase.steps
    return ramps


def _measure_decay(config: RunConfig, ramp: Ramp) -> float:
    """Return the length of the decay over the last decay_steps steps, in the schedule's unit."""
    if not config.optim.warmup_tokens:
        return float(config.optim.decay_steps)
    left, tokens = config.optim.decay_steps, 0
    for _, steps, tokens_per_step in reversed(ramp.phases):
        tokens += min(left, steps) * tokens_per_step
        left -= min(left, steps)
    return float(tokens)


def make_schedule(config: RunConfig) -> Callable[[jax.Array], jax.Array]:
    """Make the function from a step (int32, from 0) to its learning rate (float32), 0 at step 0.

    The rate is peak * step / warmup_steps during warm-up, then end + (peak - end) * f(share done),
    where f(x) is (1 - x) ** power, 1 or 1 - sqrt(x) (config.optim.decay). The share is counted from
    the schedule's start (decay_counts_warmup, Google's rule) or from the end of warm-up; in steps,
    or with warmup_tokens in tokens. With decay_steps only the last decay_steps steps decay, and the
    rate before them is exactly the peak, so that runs of other lengths share the earlier steps.

    Source: optimization.py@eedf5716ce create_optimizer; Hägele et al. 2024, section 4 (1-sqrt).
    """
    optim = config.optim

    def rate_of(ramp: Ramp, step: jax.Array) -> jax.Array:
        if optim.warmup_tokens:
            # As floats: a run, or even a step, has more tokens than an int32 holds.
            done = sum(
                jnp.clip(step - first_step, 0, steps).astype(jnp.float32) * float(tokens)
                for first_step, steps, tokens in ramp.phases
            )
            length = float(sum(steps * tokens for _, steps, tokens in ramp.phases))
            warmup = float(optim.warmup_tokens) if ramp.first_step == 0 else 0.0
        else:
            done = (step - ramp.first_step).astype(jnp.float32)
            length, warmup = float(ramp.steps), float(ramp.warmup_steps)
        skipped = 0.0 if optim.decay_counts_warmup else warmup
        if optim.decay_steps:
            skipped = max(warmup, length - _measure_decay(config, ramp))
        left = 1.0 - jnp.clip((done - skipped) / max(length - skipped, 1.0), 0.0, 1.0)
        share = {
            "polynomial": left**optim.decay_power,
            "constant": jnp.ones_like(left),
            "one_minus_sqrt": 1.0 - jnp.sqrt(1.0 - left),
        }[ramp.decay]
        warming = ramp.peak * done / max(warmup, 1.0)
        end = ramp.peak if ramp.decay == "constant" else ramp.end  # or the sum rounds off the peak
        now = (ramp.peak - end) * share + end
        if optim.decay_steps:
            now = jnp.where(done <= skipped, ramp.peak, now)
        return jnp.where(done < warmup, warming, now)

    def rate(step: jax.Array) -> jax.Array:
        now = jnp.zeros((), jnp.float32)
        for ramp in list_ramps(config):
            now = jnp.where(step >= ramp.first_step, rate_of(ramp, step), now)
        return now

    return rate


class Pace(NamedTuple):
    """Hold what a step takes from the schedule, passed as arguments instead of compiled in.

    Runs with different schedules thereby share one program, and agree bit for bit in common steps.
    """

    rate: Any  # float32 [], the learning rate
    starts_phase: Any  # bool [], whether the step is the first of a phase


def _make_rate_blocks(config: RunConfig) -> Callable[[int], np.ndarray]:
    """Make the function from a block's number to its rates: float32[_BLOCK_STEPS].

    Each step is computed in the same place of an array of the same length, whatever the length of
    the run, because the remainder of a vectorized loop may round differently.
    """
    compute = jax.jit(make_schedule(config))
    steps_N = np.arange(_BLOCK_STEPS, dtype=np.int32)

    @functools.lru_cache(maxsize=2)
    def compute_block(block: int) -> np.ndarray:
        return np.asarray(compute(block * _BLOCK_STEPS + steps_N))

    return compute_block


def compute_rates(config: RunConfig, steps: int) -> np.ndarray:
    """Return the learning rates of the first steps of a run: float32[steps]."""
    compute_block = _make_rate_blocks(config)
    blocks = [compute_block(block) for block in range(-(-steps // _BLOCK_STEPS))]
    return np.concatenate([np.zeros(0, np.float32), *blocks])[:steps]


def make_pace_of(config: RunConfig) -> Callable[[int], Pace]:
    """Make the host function from the number of finished steps to the next step's pace."""
    compute_block, last = _make_rate_blocks(config), config_lib.total_steps(config) - 1
    starts = {config_lib.phase_start(config, index) for index in range(len(config.phases))}

    def pace_of(step: int) -> Pace:
        block, place = divmod(min(step, last), _BLOCK_STEPS)
        return Pace(compute_block(block)[place], np.bool_(step in starts))

    return pace_of


def scale_rates(config: OptimConfig, params: Tree, rate: jax.Array, step: jax.Array) -> Tree:
    """Scale the rate for each parameter: a tree like `params`, of float32 [].

    Group g has rate * layer_rate_decay ** (g + layer_rate_top - 1), and the heads' group 0 `rate`.
    Before step g * unfreeze_every_steps the group's rate is 0, which freezes the group, weight
    decay included. With the defaults every leaf is `rate` itself, and nothing is computed.

    Source: Howard and Ruder 2018 (ULMFiT), sections 3.2 (discriminative fine-tuning, decay
    1 / 2.6) and 3.3 (gradual unfreezing); layer_rate_top=2: electra, model/optimization.py
    @ac8d487dcf _get_layer_lrs.
    """
    layers = len(params["layers"])

    def rate_of(path: tuple[Any, ...], _: Any) -> jax.Array:
        part, group, group_rate = path[0].key, 0, rate
        if part in ("embeddings", "distances"):
            group = layers + 1
        elif part == "layers":
            group = layers - int(path[1].key)
        if config.layer_rate_decay != 1.0 and group > 0:
            power = group + config.layer_rate_top - 1
            group_rate = group_rate * jnp.float32(config.layer_rate_decay**power)
        if config.unfreeze_every_steps > 0 and group > 0:
            is_trained = step >= group * config.unfreeze_every_steps
            group_rate = jnp.where(is_trained, group_rate, jnp.zeros((), jnp.float32))
        return group_rate

    return jax.tree_util.tree_map_with_path(rate_of, params)


def describe_rates(config: OptimConfig, layers: int, total_steps: int) -> str:
    """Summarize layer-wise rates that are not the default; "" if there are none."""
    parts = []
    if config.layer_rate_decay != 1.0:
        decay, top = config.layer_rate_decay, config.layer_rate_top
        last = "" if top == 1 else f"the last {decay**top:.2g} and "
        parts.append(
            f"each layer has {decay:.3g} of the rate of the one above, {last}the "
            f"embeddings {decay ** (layers + top):.2g} of the heads'"
        )
    every = config.unfreeze_every_steps
    if every > 0:
        frozen = sum(group * every >= total_steps for group in range(1, layers + 2))
        end = f"all are trained from step {(layers + 1) * every + 1:,} on"
        if frozen:
            end = f"{frozen} of {layers + 2} parts stay frozen to the end"
        parts.append(f"first the heads alone, then one part more every {every:,} steps; {end}")
    return "; ".join(parts)


_BLOCKS = " ▁▂▃▄▅▆▇█"


def sample_rates(config: RunConfig, most: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Sample the schedule: steps from first to last, including every bend, and their rates."""
    total = config_lib.total_steps(config)
    bends = [
        ramp.first_step + step
        for ramp in list_ramps(config)
        for step in (
            *(-1, 0, ramp.warmup_steps - 1, ramp.warmup_steps),
            ramp.steps - config.optim.decay_steps,
        )
    ]
    even = np.linspace(0, total - 1, min(most, total)).astype(int)
    inside = [step for step in bends if 0 <= step < total]
    steps_N = np.unique(np.concatenate([even, np.asarray(inside, int)]))
    return steps_N, np.asarray(make_schedule(config)(jnp.asarray(steps_N, jnp.int32)))


def render_rates_as_text(config: Config, width: int, height: int) -> list[str]:
    """Render the schedule as lines of block characters, top line first."""
    total = config_lib.total_steps(config)
    edges = np.linspace(0, total, width + 1)
    steps_N, rates_N = sample_rates(config)
    means = np.interp((edges[:-1] + edges[1:]) / 2, steps_N, rates_N)
    eighths = np.ceil(means / max(means.max(), 1e-30) * height * 8).astype(int)
    return [
        "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in eighths)
        for row in reversed(range(height))
    ]
