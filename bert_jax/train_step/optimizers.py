"""Make optimizers: BERT's AdamW, AdamW, StableAdamW, LAMB, Muon.

An optimizer is an optax transformation from gradients to a descent direction, including clipping;
train_step/step.py multiplies by the learning rate and subtracts.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.sharding import PartitionSpec

from bert_jax.config import OptimConfig
from bert_jax.train_step import guard
from bert_jax.train_step.mup import ScaleOf

Tree = Any
# Root mean square of a Muon update, about as large as AdamW's, so that one learning rate and one
# weight decay serve both. Source: Liu et al. 2025 (Muon is Scalable), 2.2.
MUON_RMS = 0.2


class AdamState(NamedTuple):
    """Hold the moments of the gradient; float32, shaped as the parameters."""

    mu: Tree
    nu: Tree


def _update_moments(
    grads: Tree,
    state: Any,
    beta1: float | jax.Array,
    beta2: float | jax.Array,
    is_bad: jax.Array | bool,
) -> tuple[Tree, Tree]:
    """Update mu and nu with this gradient, or keep them if the step is bad.

    Selecting before the direction is computed lets XLA:CPU avoid copies (decision 38).
    """

    def moved(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(is_bad, old, new)

    mu = jax.tree.map(lambda m, g: moved(m, beta1 * m + (1.0 - beta1) * g), state.mu, grads)
    nu = jax.tree.map(lambda v, g: moved(v, beta2 * v + (1.0 - beta2) * g * g), state.nu, grads)
    return mu, nu


def scale_by_moments(
    beta1: float, beta2: float, epsilon: float, corrects_bias: bool
) -> optax.GradientTransformationExtraArgs:
    """Make Adam: m / (sqrt(v) + epsilon), or optax.scale_by_adam if corrects_bias is set.

    A bad step keeps the moments.

    Source: optimization.py@eedf5716ce AdamWeightDecayOptimizer; with bias correction Kingma and Ba
    2015, algorithm 1.
    """

    def init(params: Tree) -> AdamState | optax.ScaleByAdamState:
        if corrects_bias:
            return optax.scale_by_adam().init(params)  # type: ignore[return-value]
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return AdamState(mu, nu)

    def update(
        grads: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        is_bad: jax.Array | bool = False,
        **extra_args: Any,
    ) -> tuple[Tree, AdamState | optax.ScaleByAdamState]:
        del params, extra_args
        mu, nu = _update_moments(grads, state, beta1, beta2, is_bad)
        if not corrects_bias:
            direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
            return direction, AdamState(mu, nu)
        count = jnp.where(is_bad, state.count, optax.safe_increment(state.count))
        times = count.astype(jnp.float32)
        mean_correction, square_correction = 1.0 - beta1**times, 1.0 - beta2**times
        direction = jax.tree.map(
            lambda m, v: m / mean_correction / (jnp.sqrt(v / square_correction) + epsilon), mu, nu
        )
        return direction, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_stable_adam(
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    scale_of: ScaleOf | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Make Adam with each tensor's update, decay included, divided by max(1, RMS(g / sqrt(v))).

    The betas are corrected instead of the moments: b' = (b - b^t) / (1 - b^t). A bad step keeps the
    state. scale_of scales the rate of a parameter, but not its decay.

    Source: Wortsman et al. 2023 (StableAdamW), algorithm 2; Warner et al. 2024 (ModernBERT).
    """

    def update(
        grads: Tree,
        state: optax.ScaleByAdamState,
        params: Tree,
        *,
        is_bad: jax.Array | bool = False,
        **extra_args: Any,
    ) -> tuple[Tree, optax.ScaleByAdamState]:
        del extra_args
        count = jnp.where(is_bad, state.count, optax.safe_increment(state.count))
        times = count.astype(jnp.float32)
        mean_decay, square_decay = (
            (beta - beta**times) / (1.0 - beta**times) for beta in (beta1, beta2)
        )
        mu, nu = _update_moments(grads, state, mean_decay, square_decay, is_bad)

        def direct(g: jax.Array, m: jax.Array, v: jax.Array, p: jax.Array, decays: bool) -> Any:
            rms = jnp.sqrt(jnp.mean(g * g / jnp.maximum(v, epsilon**2)))
            step = m / (jnp.sqrt(v) + epsilon) + (weight_decay * p if decays else 0.0)
            return step / jnp.maximum(1.0, rms)

        mean = mu if scale_of is None else _scale_directions(scale_of, mu)
        direction = jax.tree.map(direct, grads, mean, nu, params, mask_decayed(params))
        return direction, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    init = optax.scale_by_adam(beta1, beta2, epsilon).init
    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_muon(momentum: float) -> optax.GradientTransformationExtraArgs:
    """Make Muon for 2D kernels: orthogonalized momentum times MUON_RMS * sqrt(longer side).

    The momentum is Nesterov's; five Newton-Schulz iterations orthogonalize it nearly. A bad step
    keeps the state.

    Source: Jordan et al. 2024 (Muon); Liu et al. 2025 for the scale.
    """
    muon = optax.contrib.scale_by_muon(
        beta=momentum,
        weight_dimension_numbers=lambda tree: jax.tree.map(
            lambda _: optax.contrib.MuonDimensionNumbers(), tree
        ),
    )

    def update(
        grads: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        is_bad: jax.Array | bool = False,
        **extra_args: Any,
    ) -> tuple[Tree, Any]:
        del params, extra_args
        # Matrix products need whole kernels; the state is saved in pieces.
        whole = jax.tree.map(_gather, (grads, state))
        orthogonal, moved = muon.update(*whole)
        moved = jax.tree.map(_shard_as, state, moved)
        kept = guard.keep_old_if(jnp.asarray(is_bad), moved, state)
        direction = jax.tree.map(
            lambda g, d: MUON_RMS * max(d.shape) ** 0.5 * _shard_as(g, d), grads, orthogonal
        )
        return direction, kept

    return optax.GradientTransformationExtraArgs(muon.init, update)


def _gather(part: jax.Array) -> jax.Array:
    return jax.sharding.reshard(part, PartitionSpec())


def _shard_as(like: jax.Array, whole: jax.Array) -> jax.Array:
    return jax.sharding.reshard(whole, jax.typeof(like).sharding)


def mask_layer_kernels(params: Tree) -> Tree:
    """Return a tree of bools: True for the 2D kernels of encoder layers, which Muon updates."""

    def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
        names = [entry.key for entry in path]
        return "layers" in names and names[-1] == "kernel" and leaf.ndim == 2

    return jax.tree_util.tree_map_with_path(is_kernel, params)


def _scale_directions(scale_of: ScaleOf, directions: Tree) -> Tree:
    return jax.tree_util.tree_map_with_path(
        lambda path, direction: direction * scale_of(path).rate, directions
    )


def clip_by_global_norm(clip_norm: float, apart: str = "") -> optax.GradientTransformation:
    """Clip gradients by their global norm; clip the part `apart`, if any, by its own norm.

    Multiplies by a scalar. optax instead selects between the gradient and a scaled copy, which
    XLA:CPU materializes and reads again for each of the two moments.

    Source: optimization.py@eedf5716ce create_optimizer, tf.clip_by_global_norm.
    """

    def clipped(grads: Tree, params: Tree | None = None) -> Tree:
        del params
        if apart:
            part = {apart: grads[apart]}
            return clip({name: g for name, g in grads.items() if name != apart}) | clip(part)
        return clip(grads)

    def clip(grads: Tree) -> Tree:
        scale = clip_norm / jnp.maximum(optax.tree.norm(grads), clip_norm)
        return jax.tree.map(lambda g: g * scale, grads)

    return optax.stateless(clipped)


def mask_decayed(params: Tree) -> Tree:
    """Return a tree of bools: True for parameters with weight decay, all but biases and norms.

    XLNet's r_w_bias, r_r_bias, r_s_bias and seg_embed decay, as in its code.

    Source: optimization.py@eedf5716ce exclude_from_weight_decay = LayerNorm, layer_norm, bias;
    zihangdai/xlnet model_utils.py include_in_weight_decay.
    """

    def decayed(path: tuple[Any, ...], _: Any) -> bool:
        names = [entry.key for entry in path]
        return "layer_norm" not in names and names[-1] not in ("bias", "output_bias")

    return jax.tree_util.tree_map_with_path(decayed, params)


def make_optimizer(
    config: OptimConfig, scale_of: ScaleOf | None = None, apart: str = ""
) -> optax.GradientTransformationExtraArgs:
    """Make the transformation from gradients to the direction of descent, clipping first.

    The part `apart` of the parameters, if any, is clipped by its own norm.

    The transformation's update takes is_bad, bool []. A bad step keeps the optimizer's state; the
    direction of a bad step may be NaN and must not be used.

    LAMB follows You et al. 2020: bias-corrected moments, decay added, then each tensor's direction
    scaled by norm(weights) / norm(direction); tensors without decay are not scaled
    (NVIDIA's and MLPerf's use_nvlamb=False). The clip is its pre-normalization of the gradient.

    stable_adamw decays weights by weight_decay * rate / config.learning_rate per step, also in a
    phase that restarts the schedule at another peak. optimi's max_lr is likewise set once and saved
    with the optimizer; whether ModernBERT's restart_override sets it again is not verified.

    scale_of, from mup.find_scales, scales the rate of each parameter before decay is added, so a
    step shrinks all weights alike, whatever the width.
    """
    betas = config.beta1, config.beta2, config.epsilon
    if config.name == "muon":
        adam = scale_by_moments(*betas, corrects_bias=True)
        parts = [
            optax.masked(scale_by_muon(config.muon_momentum), mask_layer_kernels),
            optax.masked(
                adam, lambda params: jax.tree.map(operator.not_, mask_layer_kernels(params))
            ),
            optax.add_decayed_weights(config.weight_decay, mask=mask_decayed),
        ]
    elif config.name == "stable_adamw":
        # Decoupled from the learning rate: a step at the peak rate shrinks weights by weight_decay.
        decay_rate = config.weight_decay / config.learning_rate
        parts = [scale_by_stable_adam(*betas, decay_rate, scale_of)]
    else:
        decay = optax.add_decayed_weights(config.weight_decay, mask=mask_decayed)
        parts = [scale_by_moments(*betas, config.name != "bert_adamw"), decay]
        if scale_of is not None:
            scaled = functools.partial(_scale_directions, scale_of)
            parts.insert(1, optax.stateless(lambda directions, params: scaled(directions)))
    if config.name == "lamb":
        parts.append(optax.masked(optax.scale_by_trust_ratio(), mask_decayed))
    # Without clipping the arrays keep their names, so a resumed run may change the setting.
    clips = config.clip_norm > 0
    clip = clip_by_global_norm(config.clip_norm, apart) if clips else optax.identity()
    return optax.chain(clip, *parts)
