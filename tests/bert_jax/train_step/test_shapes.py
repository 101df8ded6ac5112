"""Encoders of other shapes than BERT's: packed rows as unpacked ones, eight devices as one."""

import dataclasses
import functools
import operator

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, OptimConfig
from bert_jax.model.attention import blocks
from bert_jax.parallel import mesh
from bert_jax.train_step import state
from bert_jax.train_step.objectives import MLM
from tests.bert_jax.tiny_models import CONFIG, random_batch, setting
from tests.bert_jax.train_step.gradients import assert_same, compute, draw, on_mesh
from tests.bert_jax.train_step.test_objectives import one_by_one, side_by_side

SHAPES = {
    "modernbert": {
        "num_hidden_layers": 3,
        "hidden_act": "gelu_erf",
        "type_vocab_size": 0,
        "position_embedding_type": "rotary",
        "global_rope_theta": 160_000.0,
        "local_attention": 6,
        "global_attn_every_n_layers": 2,
        "norm_position": "pre",
        "norm_bias": False,
        "linear_bias": False,
        "gated_mlp": True,
        "dropout_sites": "attention",
        "pooler_type": "mlm_transform",
        "initializer": "megatron",
    },
    "swiglu with RMS norms": {
        "hidden_act": "silu",
        "position_embedding_type": "rotary",
        "norm_position": "pre",
        "norm_type": "rms_norm",
        "embedding_norm": False,
        "linear_bias": False,
        "gated_mlp": True,
    },
    "albert": {"embedding_size": 16, "share_layers": True},
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name == "modernbert" else pytest.mark.slow)
        for name in SHAPES
    ],
    scope="module",
)
def config(request):
    return dataclasses.replace(
        CONFIG, model=dataclasses.replace(CONFIG.model, **SHAPES[request.param])
    )


@pytest.fixture(scope="module")
def params(config):
    return draw(setting(config, 1).model)


def test_packed_rows_have_the_losses_and_gradients_of_their_examples(config, params):
    expected = compute(setting(config, 1), MLM, params, one_by_one())
    assert_same(compute(setting(config, 1), MLM, params, side_by_side()), expected)


@pytest.mark.parametrize("preset", ["zero1+tp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_eight_devices_have_the_losses_and_gradients_of_one(config, params, preset):
    batch = random_batch()
    expected = compute(setting(config, 1), MLM, params, batch, drops=True)
    assert_same(compute(setting(config, 8, preset), MLM, params, batch, drops=True), expected)


@pytest.mark.slow
def test_a_shared_layer_gets_the_sum_over_its_copies_and_a_single_trust_ratio():
    """Against a model with three layers of their own that happen to be equal, and LAMB in NumPy."""
    shared = dataclasses.replace(
        CONFIG.model,
        embedding_size=16,
        share_layers=True,
        num_hidden_layers=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config = dataclasses.replace(
        CONFIG,
        model=shared,
        optim=OptimConfig(name="lamb", learning_rate=0.1, warmup_steps=0, clip_norm=0.0),
    )
    apart = dataclasses.replace(config, model=dataclasses.replace(shared, share_layers=False))
    params = draw(setting(config, 1).model)
    copies = params | {"layers": {f"{i:02d}": params["layers"]["00"] for i in range(3)}}
    batch = random_batch()
    loss, grads = compute(setting(config, 1), MLM, params, batch)
    loss_of_copies, grads_of_copies = compute(setting(apart, 1), MLM, copies, batch)
    total = jax.tree.map(lambda *each: sum(each), *grads_of_copies["layers"].values())
    summed = grads_of_copies | {"layers": {"00": total}}
    assert_same((loss, grads), (loss_of_copies, summed))

    at = setting(config, 1)
    first = state.make_state(on_mesh(params, at), at.tx, at.where)
    after = at.train_step(MLM)(first, mesh.place_batch(batch, at.mesh))[0].params
    name = ("mlp", "intermediate", "kernel")
    kernel, grad, moved = (
        np.asarray(functools.reduce(operator.getitem, name, tree["layers"]["00"]), np.float64)
        for tree in (params, summed, after)
    )
    # You et al. 2020, algorithm 2, at its first step: m / sqrt(v) is the sign of the gradient.
    direction = grad / (np.abs(grad) + 1e-6) + 0.01 * kernel
    ratio = np.linalg.norm(kernel) / np.linalg.norm(direction)
    np.testing.assert_allclose(moved, kernel - 0.1 * ratio * direction, atol=2e-5)


@pytest.mark.slow
def test_blocks_of_packed_rows_on_eight_devices_are_the_plain_attention(
    config, params, monkeypatch
):
    """Windows and complete rows cross the blocks; heads are on two devices, rows on four."""
    model = dataclasses.replace(config.model, attention_probs_dropout_prob=0.0)
    plain = dataclasses.replace(config, model=model)
    in_blocks = dataclasses.replace(plain, compute=ComputeConfig(attention="blocks"))
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(blocks, "MIN_WINDOW_BLOCK", 8)
    expected = compute(setting(plain, 1), MLM, params, one_by_one())
    assert_same(compute(setting(in_blocks, 8, "zero1+tp"), MLM, params, side_by_side()), expected)
