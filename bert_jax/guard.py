"""The guard of bad numbers inside the step: which steps are bad, and what they leave as it was.

A step is bad where a sum of the loss, a weight or the norm of the gradient is not finite, or, with
config.guard.spike_sigmas, where loss or norm leaps out of the last good steps. All that it is
judged by is summed over the devices before, so that every device and process judges alike.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import LONGEST_WINDOW_STEPS, GuardConfig

Tree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Window:
    """Loss and gradient norm of the newest good steps of a phase, the newest last.

    Its arrays are as long as the longest window that can be set, W: a run may go on with another.
    """

    losses_W: Any  # float32, nats
    grad_norms_W: Any  # float32
    count: Any  # int32 [], good steps since the phase began


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the guard says of a step; float32, for the host to read beside the sums."""

    is_bad: Any  # [], 1 or 0
    usual: Any  # [4], of the window: mean and deviation of the loss, then of the gradient norm


def fresh() -> Window:
    """A window without a step in it."""
    return Window(
        losses_W=jnp.zeros(LONGEST_WINDOW_STEPS, jnp.float32),
        grad_norms_W=jnp.zeros(LONGEST_WINDOW_STEPS, jnp.float32),
        count=jnp.int32(0),
    )


def judge(
    config: GuardConfig,
    window: Window,
    starts_phase: jax.Array,
    loss: jax.Array,
    grad_norm: jax.Array,
    sums: Tree,
) -> tuple[Verdict, Window]:
    """Judge a step by its numbers, which are float32 scalars; the window then, with it if good.

    A phase begins with an empty window: another length has another loss. `sums` are further
    numbers that must be finite.
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
    grown = Window(
        losses_W=jnp.append(window.losses_W[1:], loss),
        grad_norms_W=jnp.append(window.grad_norms_W[1:], grad_norm),
        count=count + 1,
    )
    kept = dataclasses.replace(window, count=count)
    usual = jnp.stack([*loss_usual, *norm_usual])
    return Verdict(is_bad.astype(jnp.float32), usual), unless(is_bad, grown, kept)


def _mean_and_deviation(
    values_W: jax.Array, count: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array]:
    """Over the last `steps` values, or as many as there are; 0 and 0 without any."""
    last = values_W[-steps:]
    there = jnp.minimum(count, steps)
    is_there = jnp.arange(steps) >= steps - there
    divisor = jnp.maximum(there, 1).astype(jnp.float32)
    mean = jnp.sum(jnp.where(is_there, last, 0.0)) / divisor
    squares = jnp.where(is_there, jnp.square(last - mean), 0.0)
    return mean, jnp.sqrt(jnp.sum(squares) / divisor)


@jax.jit
def all_finite(tree: Tree) -> jax.Array:
    """Whether no array of a tree holds a number that is not finite: bool []."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def unless(is_bad: jax.Array, after: Tree, before: Tree) -> Tree:
    """`after`, or where the step is bad `before`: chosen, not scaled, for 0 * NaN is NaN."""
    return jax.tree.map(lambda new, old: jax.lax.select(is_bad, old, new), after, before)
