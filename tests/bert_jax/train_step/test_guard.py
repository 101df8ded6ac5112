"""Which steps the guard calls bad, against NumPy; and that these leave the state as it was."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import GuardConfig, OptimConfig
from bert_jax.parallel import mesh
from bert_jax.train_step import guard, state
from bert_jax.train_step.objectives import MLM_NSP
from tests.bert_jax.tiny_models import random_batch, setting
from tests.bert_jax.train_step.gradients import PLAIN, draw, on_mesh

SPIKES = GuardConfig(spike_sigmas=3.0, window_steps=5)
FINITE = GuardConfig(window_steps=5)


def judged(config, losses, norms, phase_starts=(0,), weights=None):
    """Which of these steps are bad, in turn, and the verdict and window after the last."""
    judge = jax.jit(functools.partial(guard.judge, config))
    window, bad = guard.make_recent_steps(), []
    weights = np.ones(len(losses)) if weights is None else weights
    for number, (loss, norm, weight) in enumerate(zip(losses, norms, weights, strict=True)):
        numbers = [jnp.float32(one) for one in (loss, norm, weight)]
        verdict, window = judge(window, jnp.bool(number in phase_starts), *numbers)
        if verdict.is_bad:
            bad.append(number)
    return bad, verdict, window


def oracle(config, losses, norms, phase_starts=(0,)):
    """The same in NumPy, in float64."""
    good, bad = [], []
    for number, numbers in enumerate(zip(losses, norms, strict=True)):
        if number in phase_starts:
            good = []
        is_bad = not np.isfinite(numbers).all()
        if len(good) >= config.window_steps and config.spike_sigmas and not is_bad:
            window = np.array(good[-config.window_steps :])
            limit = window.mean(axis=0) + config.spike_sigmas * window.std(axis=0)
            is_bad = bool((np.array(numbers) > limit).any())
        if is_bad:
            bad.append(number)
        else:
            good.append(numbers)
    return bad


@pytest.mark.slow
@pytest.mark.parametrize("config", [SPIKES, FINITE, GuardConfig(spike_sigmas=1.5, window_steps=3)])
def test_it_calls_the_steps_bad_that_numpy_does(config):
    rng = np.random.default_rng(5)
    losses, norms = rng.normal(7.0, 0.2, 60), rng.lognormal(0.0, 0.3, 60)
    losses[[3, 20, 41]] += 4.0
    norms[[30, 50]] *= 40.0
    losses[[10, 11]] = np.nan
    norms[[2, 55]] = np.inf
    starts = (0, 37)
    bad, _, _ = judged(config, losses, norms, starts)
    assert bad == oracle(config, losses, norms, starts)
    assert {2, 10, 11, 55} <= set(bad)
    if config == SPIKES:
        assert {20, 30, 50} <= set(bad)  # not 3, before there is a window, nor 41, a new phase's
        assert not {3, 41} & set(bad)
    # A weight that is not finite is enough.
    assert judged(config, [7.0, 7.0], [1.0, 1.0], weights=[1.0, np.inf])[0] == [1]


def test_the_verdict_has_mean_and_deviation_of_as_many_good_steps_as_there_are():
    losses, norms = [7.0, np.nan, 5.0, 6.0], [1.0, 1.0, 3.0, 2.0]
    _, verdict, window = judged(FINITE, losses, norms)
    before = np.array([[7.0, 5.0], [1.0, 3.0]])  # of the last step
    expected = np.stack([before.mean(axis=1), before.std(axis=1)], axis=1).ravel()
    np.testing.assert_allclose(verdict.usual, expected, rtol=1e-6)
    assert int(window.count) == 3
    np.testing.assert_array_equal(window.losses_W[-3:], [7.0, 5.0, 6.0])


@pytest.fixture(scope="module")
def taken():
    """Four devices take a good step, a bad one of which one device has the bad row, and a good."""
    config = dataclasses.replace(PLAIN, optim=OptimConfig("adamw", 1e-2, warmup_steps=3))
    at = setting(config, 4, "zero1")
    take = at.train_step(MLM_NSP)
    now = state.make_state(on_mesh(draw(at.model, 0.02), at), at.tx, at.where)
    seen = []
    for poisoned in (False, True, False):
        batch = random_batch(len(seen))
        batch["masked_lm_weights"][13] *= np.nan if poisoned else 1.0
        now, sums = take(now, mesh.place_batch(batch, at.mesh))
        seen.append((jax.tree.map(np.asarray, now), sums))
    return seen


@pytest.mark.slow
def test_a_bad_row_on_one_device_leaves_the_whole_state_as_it_was(taken):
    (before, good), (after, bad), (later, _) = taken
    assert (float(good["guard"].is_bad), float(bad["guard"].is_bad)) == (0.0, 1.0)
    assert [int(one.step) for one in (before, after, later)] == [1, 2, 3]
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, after.opt_state)
    jax.tree.map(np.testing.assert_array_equal, before.guard, after.guard)
    assert int(later.guard.count) == 2
    counts = [leaf for leaf in jax.tree.leaves(later.opt_state) if leaf.ndim == 0]
    assert counts == [2]

    # The steps after a bad one learn.
    moved = jax.tree.map(lambda new, old: (new != old).any(), later.params, after.params)
    assert all(jax.tree.leaves(moved))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(later))


def test_the_window_is_no_part_of_what_is_built_as_the_parameters():
    at = setting(PLAIN, 1)
    first = state.make_abstract_state(at.model, at.tx, at.where)
    marked = state.map_like_params(lambda leaf, of: of, first, at.model.declared)
    assert marked.guard == first.guard
    assert marked.params == at.model.declared


def test_all_finite_finds_one_number():
    tree = {"a": jnp.zeros((3, 5)), "b": jnp.ones(7)}
    assert bool(guard.all_finite(tree))
    for number in (jnp.nan, -jnp.inf):
        assert not bool(guard.all_finite(tree | {"b": tree["b"].at[4].set(number)}))
