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
from tests.bert_jax.train_step.gradients import (
    NO_DROPOUT,
    assert_same,
    compute,
    draw,
    on_mesh,
    one_by_one,
    side_by_side,
)

SHAPES = {
    "modernbert": {
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
OTHERS = list(SHAPES)[1:]


def shaped(name, **changes):
    return dataclasses.replace(
        CONFIG, model=dataclasses.replace(CONFIG.model, **SHAPES[name] | changes)
    )


@functools.cache
def alone(name):
    """Parameters of a shape, and the losses and gradients of examples with a row each."""
    at = setting(shaped(name), 1)
    params = draw(at.model)
    return params, compute(at, MLM, params, one_by_one())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["modernbert", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_packed_rows_on_eight_devices_have_the_losses_and_gradients_of_their_examples(name):
    params, expected = alone(name)
    at = setting(shaped(name), 8, "zero1+tp")
    assert_same(compute(at, MLM, params, side_by_side()), expected)


@pytest.mark.long
@pytest.mark.parametrize("name", ["modernbert", pytest.param("albert", marks=pytest.mark.long)])
def test_eight_devices_drop_out_what_one_does(name):
    config, batch = shaped(name), random_batch()
    params = draw(setting(config, 1).model)
    expected = compute(setting(config, 1), MLM, params, batch, drops=True)
    assert_same(compute(setting(config, 8, "fsdp"), MLM, params, batch, drops=True), expected)


@pytest.mark.long
def test_a_shared_layer_gets_the_sum_over_its_copies_and_a_single_trust_ratio():
    """Against a model with two layers of their own that happen to be equal, and LAMB in NumPy."""
    optim = OptimConfig(name="lamb", learning_rate=0.1, warmup_steps=0, clip_norm=0.0)
    config = dataclasses.replace(shaped("albert", **NO_DROPOUT), optim=optim)
    shared = config.model
    apart = dataclasses.replace(config, model=dataclasses.replace(shared, share_layers=False))
    params = draw(setting(config, 1).model)
    copies = params | {"layers": {f"{i:02d}": params["layers"]["00"] for i in range(2)}}
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


@pytest.mark.long
def test_blocks_of_packed_rows_on_eight_devices_are_the_plain_attention(monkeypatch):
    """Windows and complete rows cross the blocks; heads are on two devices, rows on four."""
    params, expected = alone("modernbert")
    config = shaped("modernbert", attention_probs_dropout_prob=0.0)
    in_blocks = dataclasses.replace(config, compute=ComputeConfig(attention="blocks"))
    monkeypatch.setattr(blocks, "BLOCK", 16)
    monkeypatch.setattr(blocks, "MIN_WINDOW_BLOCK", 8)
    assert_same(compute(setting(in_blocks, 8, "zero1+tp"), MLM, params, side_by_side()), expected)
