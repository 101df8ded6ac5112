"""Optimizers and schedules against NumPy written from their equations."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import Config, MeshConfig, OptimConfig, Phase
from bert_jax.parallel import mesh
from bert_jax.train_step import guard, optimizers, schedule

STEPS = 5


@pytest.fixture(autouse=True)
def one_device():
    """The mesh of a run, on which Muon gathers kernels."""
    with jax.set_mesh(mesh.make_mesh(MeshConfig(), jax.devices()[:1])):
        yield


def params_and_gradients():
    rng = np.random.default_rng(3)
    shapes = {
        "dense": {"kernel": (3, 5), "bias": (5,)},
        "layers": {"00": {"kernel": (6, 4), "bias": (4,)}},
        "layer_norm": {"scale": (7,), "bias": (7,)},
        "mlm": {"output_bias": (11,)},
    }
    draws = [
        jax.tree.map(lambda s: rng.normal(size=s), shapes, is_leaf=lambda s: isinstance(s, tuple))
        for _ in range(1 + STEPS)
    ]
    return draws[0], draws[1:]


@functools.cache
def compiled(config):
    """An optimizer and a step of it: (state, params, gradients, rate, is_bad) -> both anew."""
    tx = optimizers.make_optimizer(config)

    @jax.jit
    def take(state, params, grads, rate, is_bad):
        direction, state = tx.update(grads, state, params, is_bad=is_bad)
        return state, jax.tree.map(lambda p, d: p - rate * d, params, direction)

    return tx, take


def in_float32(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def newton_schulz(x):
    """Jordan et al. 2024: five times X <- aX + (bA + cA^2)X with A = XX^T, from norm 1."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def reference(config, params, grads, rate):
    """The same in float64: clip by the global norm, moments, decay, LAMB's ratio, Muon's matrix."""
    params = jax.tree.map(np.array, params)
    leaves, structure = jax.tree.flatten(params)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    kernel_only = [leaf.ndim == 2 for leaf in leaves]  # neither bias nor norm
    m, v, momentum = ([np.zeros_like(p) for p in leaves] for _ in range(3))
    for t, grad in enumerate(grads, 1):
        g = jax.tree.leaves(grad)
        norm = np.sqrt(sum((x**2).sum() for x in g))
        g = [x * min(1.0, config.clip_norm / norm) for x in g] if config.clip_norm else g
        before = list(m), list(v)
        for i, p in enumerate(leaves):
            m[i] = config.beta1 * m[i] + (1 - config.beta1) * g[i]
            v[i] = config.beta2 * v[i] + (1 - config.beta2) * g[i] ** 2
            if config.name == "stable_adamw":  # the betas are corrected, the decay is decoupled
                b1, b2 = ((b - b**t) / (1 - b**t) for b in (config.beta1, config.beta2))
                m[i] = before[0][i] * b1 + (1 - b1) * g[i]
                v[i] = before[1][i] * b2 + (1 - b2) * g[i] ** 2
                rms = np.sqrt(np.mean(g[i] ** 2 / np.maximum(v[i], config.epsilon**2)))
                scaled = rate / max(1.0, rms)
                if kernel_only[i]:
                    p = p * (1 - config.weight_decay * scaled / config.learning_rate)
                leaves[i] = p - scaled * m[i] / (np.sqrt(v[i]) + config.epsilon)
                continue
            if config.name == "muon" and kernel_only[i] and "layers" in paths[i]:
                beta = config.muon_momentum
                momentum[i] = beta * momentum[i] + (1 - beta) * g[i]
                ahead = beta * momentum[i] / (1 - beta ** (t + 1)) + (1 - beta) * g[i] / (
                    1 - beta**t
                )
                update = 0.2 * np.sqrt(max(p.shape)) * newton_schulz(ahead)
                leaves[i] = p - rate * (update + config.weight_decay * p)
                continue
            corrected = config.name != "bert_adamw"
            mean = m[i] / (1 - config.beta1**t) if corrected else m[i]
            square = v[i] / (1 - config.beta2**t) if corrected else v[i]
            update = mean / (np.sqrt(square) + config.epsilon)
            if kernel_only[i]:
                update = update + config.weight_decay * p
                if config.name == "lamb":
                    update = update * np.linalg.norm(p) / np.linalg.norm(update)
            leaves[i] = p - rate * update
    return jax.tree.unflatten(structure, leaves)


NAMES = ["bert_adamw", "adamw", "stable_adamw", "lamb", "muon"]


def named(name, clip_norm=1.0):
    return OptimConfig(name=name, clip_norm=clip_norm, weight_decay=0.1, learning_rate=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clip_norm"), [("adamw", 0.0), *((name, 1.0) for name in NAMES)])
def test_optimizers_follow_their_equations(name, clip_norm):
    config = named(name, clip_norm)
    params, grads = params_and_gradients()
    tx, take = compiled(config)
    got = in_float32(params)
    state = tx.init(got)
    for grad in grads:
        state, got = take(state, got, in_float32(grad), 0.05, False)
    expected = reference(config, params, grads, 0.05)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-6), got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_may_clip_or_not(name):
    params = in_float32(params_and_gradients()[0])
    clipped, free = (
        jax.eval_shape(optimizers.make_optimizer(named(name, clip_norm)).init, params)
        for clip_norm in (1.0, 0.0)
    )
    assert name_leaves(clipped) == name_leaves(free) != {}


@pytest.mark.slow
def test_stable_adam_measures_small_gradients_against_the_square_of_epsilon():
    """Gradients between epsilon and its root are divided by their own size; smaller ones are not.

    After one step v = g^2: the RMS of g / max(|g|, epsilon) is 1 for |g| = 1e-4 and 0.1 for 1e-7.
    At the second, of 8 times the size, b2' = 0.95 * 0.05 / (1 - 0.95^2) and the RMS is above 1.
    """
    config = OptimConfig(
        name="stable_adamw", beta2=0.95, epsilon=1e-6, weight_decay=0.0, clip_norm=0.0
    )
    tx = optimizers.make_optimizer(config)
    for size in (1e-4, 1e-7):
        params = {"bias": jnp.zeros(3)}
        state = tx.init(params)
        m = v = 0.0
        for t, g in enumerate((size, 8 * size), 1):
            direction, state = tx.update({"bias": jnp.full(3, g)}, state, params)
            b1, b2 = ((b - b**t) / (1 - b**t) for b in (config.beta1, config.beta2))
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            rms = g / max(np.sqrt(v), 1e-6)
            expected = m / (np.sqrt(v) + 1e-6) / max(1.0, rms)
            np.testing.assert_allclose(direction["bias"], expected, rtol=1e-5)
        assert (rms > 1.3) == (size == 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_step_leaves_the_state_as_it_was(name):
    tx, take = compiled(named(name))
    params, grads = params_and_gradients()
    params, first, second = map(in_float32, (params, *grads[:2]))
    state, _ = take(tx.init(params), params, first, 0.05, False)
    bad = jax.tree.map(lambda g: g * jnp.nan, second)
    kept, _ = take(state, params, bad, 0.05, True)
    jax.tree.map(np.testing.assert_array_equal, kept, state)
    moved, _ = take(state, params, second, 0.05, False)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (moved, state)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_adamw", "adamw"])
def test_a_step_on_a_cpu_copies_no_moment_and_no_weight(name):
    """XLA would compute the moments again within the weights, from copies of the old ones."""
    tx = optimizers.make_optimizer(OptimConfig(name=name))

    def step(params, state, grads, is_bad):
        direction, state = tx.update(grads, state, params, is_bad=is_bad)
        moved = jax.tree.map(lambda p, d: p - 0.01 * d, params, direction)
        return guard.keep_old_if(is_bad, moved, params), state

    params = {"kernel": jnp.ones((96, 128)), "bias": jnp.ones(128)}
    args = params, tx.init(params), params, jnp.bool_(False)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*args).compile()
    copied = re.findall(r"f32\[[^]]*\][^ ]* copy\(", compiled.as_text())
    assert copied == []
    assert compiled.memory_analysis().temp_size_in_bytes < params["kernel"].nbytes


def rates(config, steps):
    return np.asarray(jax.jit(jax.vmap(schedule.make_schedule(config)))(jnp.int32(steps)))


def test_googles_schedule_steps_down_at_the_end_of_warm_up():
    config = Config(
        phases=(Phase(16, 900), Phase(32, 100)),
        optim=OptimConfig(learning_rate=1e-4, warmup_steps=10),
    )
    steps = np.array([0, 1, 9, 10, 500, 899, 900, 999, 1000])
    expected = np.where(steps < 10, 1e-4 * steps / 10, 1e-4 * (1 - steps / 1000))
    np.testing.assert_allclose(rates(config, steps), expected, rtol=1e-4, atol=1e-12)


def test_decay_from_the_end_of_warm_up_has_no_step():
    settings = {"decay_counts_warmup": False, "decay_power": 0.5, "end_learning_rate": 1e-4}
    optim_config = OptimConfig(learning_rate=1e-3, warmup_steps=10, **settings)
    got = rates(Config(phases=(Phase(16, 110),), optim=optim_config), [5, 10, 60, 110])
    np.testing.assert_allclose(got, [5e-4, 1e-3, 9e-4 * np.sqrt(0.5) + 1e-4, 1e-4], rtol=1e-5)


def test_the_slanted_triangle_of_ulmfit_is_a_warm_up_and_a_decay_to_a_32nd():
    """Howard and Ruder 2018, equation 3; its warm-up begins at a 32nd of the peak, ours at 0."""
    steps, peak, ratio, cut_share = 200, 1e-2, 32, 0.1
    cut = int(steps * cut_share)
    t = np.arange(steps)
    p = np.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / cut_share - 1)))
    triangle = peak * (1 + p * (ratio - 1)) / ratio
    settings = {"decay_counts_warmup": False, "end_learning_rate": peak / ratio}
    optim_config = OptimConfig(learning_rate=peak, warmup_steps=cut, **settings)
    got = rates(Config(phases=(Phase(16, steps),), optim=optim_config), t)
    np.testing.assert_allclose(got[cut:], triangle[cut:], rtol=1e-5)
    np.testing.assert_allclose(triangle[:cut] - got[:cut], peak / ratio * (1 - p[:cut]), atol=1e-8)


def test_a_phase_can_restart_the_schedule():
    config = Config(
        phases=(
            Phase(16, 100),
            Phase(16, 50),
            Phase(32, 40, restart_learning_rate=4e-3, restart_warmup_steps=8),
        ),
        optim=OptimConfig(learning_rate=6e-3, warmup_steps=20, decay_power=0.5),
    )
    got = rates(config, [10, 75, 120, 149, 150, 154, 158, 170])
    first = [3e-3, *6e-3 * np.sqrt([0.5, 0.2, 1 / 150])]
    expected = [*first, 0.0, 2e-3, *4e-3 * np.sqrt([0.8, 0.5])]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-9)


def test_a_schedule_in_tokens_warms_up_holds_and_decays_over_growing_batches():
    tokens = (2 * 16, 4 * 16, 8 * 16)
    config = Config(
        phases=(
            Phase(16, 10, batch_size=2),
            Phase(16, 10, batch_size=4),
            Phase(16, 10, batch_size=8, restart_learning_rate=3e-4, restart_decay="one_minus_sqrt"),
        ),
        optim=OptimConfig(
            learning_rate=8e-4, warmup_tokens=480, decay="constant", decay_counts_warmup=False
        ),
    )
    done = np.array([0, 5, 10, 11, 12, 13, 19])  # 480 tokens: ten steps of 32, two and a half of 64
    seen = np.where(done <= 10, done * tokens[0], 320 + (done - 10) * tokens[1])
    expected = 8e-4 * np.minimum(seen / 480, 1)
    np.testing.assert_allclose(rates(config, done), expected, rtol=1e-5, atol=1e-12)
    last = np.array([20, 21, 25, 29])
    expected = 3e-4 * (1 - np.sqrt((last - 20) / 10))
    np.testing.assert_allclose(rates(config, last), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("in_tokens", [False, True])
def test_a_decay_of_its_last_steps_begins_at_the_peak_exactly(in_tokens):
    """The second phase begins a schedule anew; steps of the first have 32 tokens, then 64."""
    peak, end = 7e-4, 3e-5
    warm_up = {"warmup_tokens": 320, "warmup_steps": 0} if in_tokens else {"warmup_steps": 10}
    config = Config(
        phases=(
            Phase(16, 50, batch_size=2),
            Phase(16, 10, batch_size=4),
            Phase(16, 30, batch_size=2, restart_learning_rate=1e-4),
        ),
        optim=OptimConfig(
            **warm_up,
            **{"learning_rate": peak, "end_learning_rate": end, "decay_steps": 20},
            decay="one_minus_sqrt",
        ),
    )
    assert set(rates(config, np.arange(10, 41)).tolist()) == {float(np.float32(peak))}
    steps = np.array([41, 45, 50, 55, 59])
    share = (steps - 40) / 20
    if in_tokens:  # ten steps of 32, and ten of 64
        share = np.interp(steps, [40, 50, 60], [0, 1 / 3, 1])
    expected = end + (peak - end) * (1 - np.sqrt(share))
    np.testing.assert_allclose(rates(config, steps), expected, rtol=1e-5)
    assert set(rates(config, np.arange(60, 71)).tolist()) == {float(np.float32(1e-4))}
    assert rates(config, [80])[0] == pytest.approx(end + (1e-4 - end) * (1 - 0.5**0.5), rel=1e-5)


@pytest.mark.parametrize("peak", [3e-4, 6e-4, 1e-3])
def test_a_constant_rate_is_the_peak_that_a_later_decay_begins_from(peak):
    """A branch must have the rates of its trunk, bit for bit."""
    optim = OptimConfig(learning_rate=peak, warmup_steps=4, end_learning_rate=1e-5)
    trunk, leaf = (
        Config(optim=dataclasses.replace(optim, **changes), phases=(Phase(128, 40),))
        for changes in ({"decay": "constant"}, {"decay": "one_minus_sqrt", "decay_steps": 5})
    )
    rates_N = schedule.compute_rates(trunk, 36)
    assert set(rates_N[4:].tolist()) == {float(np.float32(peak))}
    np.testing.assert_array_equal(rates_N, schedule.compute_rates(leaf, 36))


@pytest.mark.slow
def test_a_step_has_the_rate_of_the_schedule_in_runs_of_any_length():
    optim = OptimConfig(learning_rate=1e-3, warmup_steps=7, decay="one_minus_sqrt", decay_steps=50)
    short, endless = (Config(optim=optim, phases=(Phase(128, steps),)) for steps in (5003, 10**9))
    rates_N = schedule.compute_rates(short, 5003)
    pace_of = schedule.make_pace_of(short)
    for step in (0, 3, 7, 4095, 4096, 5002):
        assert pace_of(step).rate == rates_N[step] and pace_of(step).starts_phase == (step == 0)
        expected = float(schedule.make_schedule(short)(jnp.int32(step)))
        np.testing.assert_allclose(rates_N[step], expected, rtol=1e-6, atol=1e-9)
    assert pace_of(9999).rate == rates_N[-1]
    np.testing.assert_array_equal(schedule.compute_rates(endless, 4900), rates_N[:4900])


@pytest.mark.parametrize("scale", [1, 512])  # then a step alone has 2**31 tokens
def test_a_schedule_in_tokens_may_have_more_than_an_int32_holds(scale):
    """Three billion tokens of warm-up, as ModernBERT's, then a decay of a trillion."""
    phase = Phase(1024, 250_000, batch_size=4096 * scale)
    settings = OptimConfig(
        learning_rate=8e-4,
        warmup_tokens=3 * 10**9 * scale,
        end_learning_rate=0.0,
        decay_counts_warmup=True,
    )
    config = Config(phases=(phase,), optim=settings)
    done = np.array([300, 125_000])
    warm = 8e-4 * 300 * 4096 * 1024 / 3e9
    np.testing.assert_allclose(rates(config, done), [warm, 4e-4], rtol=1e-5)
