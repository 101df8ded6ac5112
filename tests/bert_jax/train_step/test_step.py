"""The training step: the same on every mesh, over micro-batches, and against plain gradients."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from bert_jax.config import OptimConfig
from bert_jax.model import ops
from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.parallel import collectives, mesh
from bert_jax.train_step import state, step
from bert_jax.train_step.objectives import MLM_NSP
from tests.bert_jax.tiny_models import CONFIG, SMALL, random_batch, setting
from tests.bert_jax.train_step.gradients import PLAIN, assert_same, compute, draw, logical, on_mesh

MESHES = [  # preset, devices, length of the model axis, micro-batches
    ("fsdp+tp", 8, 2, 2),
    pytest.param("zero1+tp", 8, 2, 1, marks=pytest.mark.long),
    pytest.param("zero1", 8, 2, 2, marks=pytest.mark.long),
    pytest.param("tp", 8, 4, 1, marks=pytest.mark.long),
    pytest.param("dp", 1, 1, 4, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def params():
    at = setting(SMALL, 1)
    return logical(at.model.init(jax.random.key(7)), at.model)


@pytest.fixture(scope="module")
def one_device(params):
    return compute(setting(SMALL, 1), MLM_NSP, params, random_batch(), drops=True)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "devices", "model_size", "micro_batches"), MESHES)
def test_devices_and_micro_batches_give_the_losses_and_gradients_of_one(
    params, one_device, preset, devices, model_size, micro_batches
):
    at = setting(SMALL, devices, preset, model_size)
    assert_same(compute(at, MLM_NSP, params, random_batch(), True, micro_batches), one_device)


@pytest.mark.slow
def test_the_exchange_of_large_v5e_slices_gives_the_losses_and_gradients_of_one(
    params, one_device, monkeypatch
):
    monkeypatch.setitem(collectives.ALL_TO_ALL_CHIPS, collectives.V5E, 1)
    monkeypatch.setattr(mesh, "device_kind", lambda _: collectives.V5E)
    at = setting(SMALL, 2, "zero1", 1)
    assert_same(compute(at, MLM_NSP, params, random_batch(), drops=True), one_device)


@pytest.mark.slow
def test_initial_parameters_do_not_depend_on_the_mesh(params):
    at = setting(SMALL, 8, "fsdp+tp")
    got = logical(at.model.init(jax.random.key(7)), at.model)
    # Up to rounding (of values around 0.02): other meshes compile the same arithmetic otherwise.
    jax.tree.map(lambda g, p: np.testing.assert_allclose(g, p, rtol=1e-6, atol=1e-8), got, params)


@pytest.mark.long
def test_a_step_is_made_of_the_parts_of_its_own_number():
    """Masks of dropout, learning rate and rates of layers; with micro-batches as without."""
    number = 6
    rates = OptimConfig(learning_rate=1e-2, warmup_steps=4, unfreeze_every_steps=3)
    (phase,) = CONFIG.phases
    config = dataclasses.replace(
        CONFIG, optim=rates, phases=(dataclasses.replace(phase, micro_batches=4),)
    )
    at = setting(config, 1)
    params = draw(at.model, 0.02)
    batch = mesh.place_batch(random_batch(), at.mesh)
    dropout = Dropout(
        jax.numpy.uint32(config.seed), jax.numpy.uint32(number), rows_B=number_rows(16)
    )
    before = state.make_state(on_mesh(params, at), at.tx, at.where)
    before = dataclasses.replace(before, step=jax.numpy.int32(number))

    @jax.jit
    def by_hand(before, batch):
        grads, terms, weights = step.compute_gradients(
            step.StepLoss(at.model, MLM_NSP, dropout), before.params, batch
        )
        direction, _ = at.tx.update(grads, before.opt_state, before.params)
        return direction, optax.tree.norm(grads), terms, weights

    direction, grad_norm, terms, weights = by_hand(before, batch)
    rate = 1e-2 * (1 - number / 11)
    # Heads, layer 1 from step 3, layer 0 from step 6, the embeddings not before step 9.
    expected = jax.tree.map(lambda p, d: p - rate * d, params, logical(direction, at.model))
    expected |= {"embeddings": params["embeddings"]}
    after, sums = at.train_step(MLM_NSP)(before, batch)
    for name, term in terms.items():
        got = float(sums["terms"][name].loss_sum / sums["weights"][name])
        assert got == pytest.approx(float(term.loss_sum / weights[name]), rel=2e-6), name
    assert float(sums["learning_rate"]) == pytest.approx(rate, rel=1e-6)
    assert float(sums["grad_norm"]) == pytest.approx(float(grad_norm), rel=1e-5)
    assert int(after.step) == number + 1 and int(after.guard.count) == 1
    # An element whose gradient is rounding alone moves by a step of its own.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5),
        logical(after.params, at.model),
        expected,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param("bert_adamw", "zero1", marks=pytest.mark.long),
        ("lamb", "fsdp+tp"),
        ("muon", "zero1+tp"),
    ],
)
def test_two_updates_on_eight_devices_are_those_on_one(params, name, preset):
    """Clipping, moments, LAMB's norms, Muon's matrices, layer rates and the cut state."""
    optim = OptimConfig(
        name=name, learning_rate=1e-2, warmup_steps=1, clip_norm=0.5, layer_rate_decay=0.8
    )
    config = dataclasses.replace(PLAIN, optim=optim)
    ends = []
    for devices, how in ((1, "dp"), (8, preset)):
        at = setting(config, devices, how)
        take_step = at.train_step(MLM_NSP)
        now = state.make_state(on_mesh(params, at), at.tx, at.where)
        for seed in (1, 2):
            now, _ = take_step(now, mesh.place_batch(random_batch(seed), at.mesh))
        ends.append(logical(now.params, at.model))
    # One element's gradient may be rounding alone, which Adam scales up to a step of its own.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), *ends)


@pytest.mark.slow
def test_table_gradients_are_added_up_in_float32():
    """In bfloat16 a sum of 4,096 ones stops at 256."""
    at = setting(CONFIG, 1)
    ids = mesh.place_batch({"ids": np.zeros((16, 256), np.int32)}, at.mesh)["ids"]
    table = jax.numpy.ones((4, 8), jax.numpy.float32)
    gradient = jax.grad(
        lambda t: ops.lookup(t, ids, jax.numpy.bfloat16).sum(dtype=jax.numpy.float32)
    )(table)
    np.testing.assert_array_equal(gradient[0], 4096.0)
