"""Schedules and optimisers: BERT's AdamW, bias-corrected AdamW, LAMB.

An optimiser here is an optax transformation from gradients to a direction; step.py multiplies by
the learning rate and subtracts. Gradient clipping is part of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import OptimConfig
from bert_jax.run_config import RunConfig

Tree = Any


class AdamState(NamedTuple):
    """Moments of the gradient; float32, shaped as the parameters."""

    mu: Tree
    nu: Tree


def _next_moments(
    grads: Tree, state: Any, beta1: float, beta2: float, is_bad: jax.Array | bool
) -> tuple[Tree, Tree]:
    """mu and nu with this gradient in them, or as they were where the step is bad.

    Chosen here and not after the update: what the direction reads is then what is kept, and XLA
    for CPUs copies no moment aside (docs/decisions/0038).
    """

    def moved(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(is_bad, old, new)

    mu = jax.tree.map(lambda m, g: moved(m, beta1 * m + (1.0 - beta1) * g), state.mu, grads)
    nu = jax.tree.map(lambda v, g: moved(v, beta2 * v + (1.0 - beta2) * g * g), state.nu, grads)
    return mu, nu


def scale_by_bert_adam(
    beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformationExtraArgs:
    """Adam without bias correction: m / (sqrt(v) + epsilon). A step that is_bad moves no moment.

    Source: optimization.py@eedf5716ce AdamWeightDecayOptimizer.
    """

    def init(params: Tree) -> AdamState:
        return AdamState(
            mu=jax.tree.map(jnp.zeros_like, params), nu=jax.tree.map(jnp.zeros_like, params)
        )

    def update(
        grads: Tree,
        state: AdamState,
        params: Tree | None = None,
        *,
        is_bad: jax.Array | bool = False,
        **of_others: Any,
    ) -> tuple[Tree, AdamState]:
        del params, of_others
        mu, nu = _next_moments(grads, state, beta1, beta2, is_bad)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return direction, AdamState(mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_adam(
    beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformationExtraArgs:
    """Adam with bias correction, as optax.scale_by_adam. A step that is_bad moves no moment.

    Source: Kingma and Ba 2015, algorithm 1.
    """

    def update(
        grads: Tree,
        state: optax.ScaleByAdamState,
        params: Tree | None = None,
        *,
        is_bad: jax.Array | bool = False,
        **of_others: Any,
    ) -> tuple[Tree, optax.ScaleByAdamState]:
        del params, of_others
        mu, nu = _next_moments(grads, state, beta1, beta2, is_bad)
        count = jnp.where(is_bad, state.count, optax.safe_increment(state.count))
        times = count.astype(jnp.float32)
        of_mean, of_square = 1.0 - beta1**times, 1.0 - beta2**times
        direction = jax.tree.map(
            lambda m, v: m / of_mean / (jnp.sqrt(v / of_square) + epsilon), mu, nu
        )
        return direction, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    init = optax.scale_by_adam(beta1, beta2, epsilon).init
    return optax.GradientTransformationExtraArgs(init, update)


def clip_by_global_norm(clip_norm: float) -> optax.GradientTransformation:
    """Scale the gradient down to this norm, taken over all parameters, where it is longer.

    One number multiplies it. optax's form selects between the gradient and a scaled copy, which
    XLA on CPU writes out whole and reads again for each of the two moments.

    Source: optimization.py@eedf5716ce create_optimizer, tf.clip_by_global_norm.
    """

    def clipped(grads: Tree, params: Tree | None = None) -> Tree:
        del params
        scale = clip_norm / jnp.maximum(optax.tree.norm(grads), clip_norm)
        return jax.tree.map(lambda g: g * scale, grads)

    return optax.stateless(clipped)


def decays(params: Tree) -> Tree:
    """True for the parameters that weight decay is for: all but biases and layer norms.

    Source: optimization.py@eedf5716ce exclude_from_weight_decay = LayerNorm, layer_norm, bias.
    """

    def decayed(path: tuple[Any, ...], _: Any) -> bool:
        names = [entry.key for entry in path]
        return "layer_norm" not in names and names[-1] not in ("bias", "output_bias")

    return jax.tree_util.tree_map_with_path(decayed, params)


def optimizer(config: OptimConfig) -> optax.GradientTransformationExtraArgs:
    """The transformation from gradients to the direction of descent, clipping first.

    Its update takes is_bad, bool []: such a step leaves the state as it was, and its direction,
    which may be no number, is for nobody.

    LAMB follows You et al. 2020: bias-corrected moments, decay added, then each tensor's direction
    scaled by norm(weights) / norm(direction); tensors without decay are not scaled
    (NVIDIA's and MLPerf's use_nvlamb=False). The clip is its pre-normalisation of the gradient.
    """
    decay = optax.add_decayed_weights(config.weight_decay, mask=decays)
    of_moments = scale_by_bert_adam if config.name == "bert_adamw" else scale_by_adam
    parts = [of_moments(config.beta1, config.beta2, config.epsilon), decay]
    if config.name == "lamb":
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decays))
    if config.clip_norm > 0:
        parts.insert(0, clip_by_global_norm(config.clip_norm))
    return optax.chain(*parts)


class Ramp(NamedTuple):
    """One schedule: a linear warm-up and a polynomial decay over a stretch of steps."""

    first_step: int
    steps: int
    peak: float
    warmup_steps: int


def ramps(config: RunConfig) -> list[Ramp]:
    """The schedules of a run: one from step 0, and one from each phase that restarts."""
    found = [Ramp(0, 0, config.optim.learning_rate, config.optim.warmup_steps)]
    step = 0
    for phase in config.phases:
        if phase.restart_learning_rate > 0:
            found.append(Ramp(step, 0, phase.restart_learning_rate, phase.restart_warmup_steps))
        found[-1] = found[-1]._replace(steps=found[-1].steps + phase.steps)
        step += phase.steps
    return found


def schedule(config: RunConfig) -> Callable[[jax.Array], jax.Array]:
    """Learning rate (float32) at a step (int32) counted from 0, the first step's rate being 0.

    During warm-up peak * step / warmup_steps, then
    (peak - end) * (1 - step / steps) ** power + end, steps counted from the schedule's start
    (decay_counts_warmup, Google's rule) or from the end of warm-up.

    Source: optimization.py@eedf5716ce create_optimizer.
    """
    optim = config.optim

    def rate_of(ramp: Ramp, step: jax.Array) -> jax.Array:
        done = (step - ramp.first_step).astype(jnp.float32)
        skipped = 0 if optim.decay_counts_warmup else ramp.warmup_steps
        left = 1.0 - jnp.clip((done - skipped) / max(ramp.steps - skipped, 1), 0.0, 1.0)
        decayed = (ramp.peak - optim.end_learning_rate) * left**optim.decay_power
        warming = ramp.peak * done / max(ramp.warmup_steps, 1)
        return jnp.where(done < ramp.warmup_steps, warming, decayed + optim.end_learning_rate)

    def rate(step: jax.Array) -> jax.Array:
        now = jnp.zeros((), jnp.float32)
        for ramp in ramps(config):
            now = jnp.where(step >= ramp.first_step, rate_of(ramp, step), now)
        return now

    return rate
