"""Detect bad steps inside jit, and discard their updates.

A step is bad if a loss sum, a weight or the gradient norm is not finite or, with
config.guard.spike_sigmas, if loss or norm is far above the last good steps. These numbers
are summed over all devices first, so that every device and process decides alike.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import MAX_WINDOW_STEPS, GuardConfig

Tree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecentSteps:
    """Hold loss and gradient norm of a phase's most recent good steps, the newest last.

    Arrays have the maximum length, W, because a resumed run may change window_steps.
    """

    losses_W: Any  # float32, nats
    grad_norms_W: Any  # float32
    count: Any  # int32 [], good steps since the phase began


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict:
    """Hold the guard's verdict on a step; float32, for the host to read together with the sums."""

    is_bad: Any  # [], 1 or 0
    usual: Any  # [4], of recent steps: mean and deviation of the loss, then of the gradient norm


def make_recent_steps() -> RecentSteps:
    """Make a window without steps."""
    return RecentSteps(
        losses_W=jnp.zeros(MAX_WINDOW_STEPS, jnp.float32),
        grad_norms_W=jnp.zeros(MAX_WINDOW_STEPS, jnp.float32),
        count=jnp.int32(0),
    )


def judge(
    config: GuardConfig,
    window: RecentSteps,
    starts_phase: jax.Array,
    loss: jax.Array,
    grad_norm: jax.Array,
    sums: Tree,
) -> tuple[Verdict, RecentSteps]:
    """Judge a step by its float32 scalars; return the verdict and the next window.

    Good steps are added to the window. Each phase starts with an empty window, as the loss depends
    on the sequence length. `sums` are further numbers that must be finite.
    """
    count = jnp.where(starts_phase, 0, window.count)
    loss_usual = _mean_and_deviation(window.losses_W, count, config.window_steps)
    norm_usual = _mean_and_deviation(window.grad_norms_W, count, config.window_steps)
    is_bad = ~jnp.isfinite(loss) | ~jnp.isfinite(grad_norm)
    for number in jax.tree.leaves(sums):
        is_bad |= ~jnp.isfinite(number)
    if config.spike_sigmas > 0.0:
        for value, (mean, deviation) in ((loss, loss_usual), (grad_norm, norm_usual)):
            leaps = value > mean + config.spike_sigmas * deviation
            is_bad |= leaps & (count >= config.window_steps)
    grown = RecentSteps(
        losses_W=jnp.append(window.losses_W[1:], loss),
        grad_norms_W=jnp.append(window.grad_norms_W[1:], grad_norm),
        count=count + 1,
    )
    kept = dataclasses.replace(window, count=count)
    usual = jnp.stack([*loss_usual, *norm_usual])
    return Verdict(is_bad.astype(jnp.float32), usual), keep_old_if(is_bad, grown, kept)


def _mean_and_deviation(
    values_W: jax.Array, count: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """Compute mean and deviation of the last `steps` values, or of all `count` if fewer."""
    last = values_W[-steps:]
    known = jnp.minimum(count, steps)
    is_known = jnp.arange(steps) >= steps - known
    divisor = jnp.maximum(known, 1).astype(jnp.float32)
    mean = jnp.sum(jnp.where(is_known, last, 0.0)) / divisor
    squares = jnp.where(is_known, jnp.square(last - mean), 0.0)
    return mean, jnp.sqrt(jnp.sum(squares) / divisor)


@jax.jit
def all_finite(tree: Tree) -> jax.Array:
    """Return whether all numbers in a tree of arrays are finite: bool []."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def keep_old_if(is_bad: jax.Array, after: Tree, before: Tree) -> Tree:
    """Return `before` if the step is bad, else `after`; uses a select, as 0 * NaN is NaN."""
    return jax.tree.map(lambda new, old: jax.lax.select(is_bad, old, new), after, before)
