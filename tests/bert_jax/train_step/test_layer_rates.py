"""Rates of layers and their unfreezing, against NumPy written from ULMFiT's two sections."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimConfig, settings_from
from bert_jax.parallel import mesh
from bert_jax.train_step import schedule as layer_rates
from bert_jax.train_step import state
from bert_jax.train_step.objectives import MLM_NSP
from bert_jax.trainer.compile import build_parts
from bert_jax.trainer.summary import list_opening_rows
from configs.finetune import electra
from tests.bert_jax.tiny_models import CONFIG, random_batch, setting
from tests.bert_jax.train_step.gradients import NO_DROPOUT, draw, on_mesh

DECAY = 1 / 2.6
OPTIM = OptimConfig(
    learning_rate=1e-2,
    warmup_steps=0,
    layer_rate_decay=DECAY,
    unfreeze_every_steps=1,
    weight_decay=0.1,
)
STEPS = 4
# From the top: what is trained from step 0, from 1, from 2, from 3.
PARTS = (("pooler", "mlm", "nsp", "classifier"), ("01",), ("00",), ("embeddings",))


def part_of(path):
    names = [entry.key for entry in path]
    return next(number for number, part in enumerate(PARTS) if set(part) & set(names[:2]))


def test_the_rates_are_those_of_the_paper():
    """Each layer's is that of the layer above divided by 2.6, once it is unfrozen."""
    config = dataclasses.replace(OPTIM, unfreeze_every_steps=10)
    params = {
        "embeddings": {"word": 0, "layer_norm": {"scale": 0}},
        "layers": {f"{i:02d}": {"attention": {"query": 0}} for i in range(3)},
        "mlm": {"output_bias": 0},
        "classifier": 0,
    }
    for now, trained in ((0, 1), (9, 1), (10, 2), (29, 3), (30, 4), (39, 4), (40, 5), (500, 5)):
        got = layer_rates.scale_rates(config, params, jnp.float32(0.01), jnp.int32(now))
        eta = 0.01
        from_the_top = []
        for number in range(5):
            from_the_top.append(eta if number < trained else 0.0)
            eta /= 2.6
        heads, last, middle, first, below = from_the_top
        expected = {
            "embeddings": {"word": below, "layer_norm": {"scale": below}},
            "layers": {
                name: {"attention": {"query": rate}}
                for name, rate in (("00", first), ("01", middle), ("02", last))
            },
            "mlm": {"output_bias": heads},
            "classifier": heads,
        }
        jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-6), got, expected)


def test_the_rates_of_electra_are_those_of_its_code():
    """Its _get_layer_lrs: decay ** (layers + 2 - depth) of depths 0, layer + 1 and layers + 2."""
    config = settings_from(OptimConfig, electra.get_config("task=rte,size=large").optim)
    params = {
        "embeddings": {"word": 0, "projection": 0},
        "layers": {f"{i:02d}": 0 for i in range(24)},
        "pooler": 0,
        "classifier": 0,
    }
    got = layer_rates.scale_rates(config, params, jnp.float32(5e-5), jnp.int32(0))
    depths = {f"{i:02d}": i + 1 for i in range(24)}
    for name, rate in got["layers"].items():
        np.testing.assert_allclose(rate, 5e-5 * 0.9 ** (24 + 2 - depths[name]), rtol=1e-6)
    np.testing.assert_allclose(got["layers"]["23"], 5e-5 * 0.9**2, rtol=1e-6)
    for rate in got["embeddings"].values():
        np.testing.assert_allclose(rate, 5e-5 * 0.9**26, rtol=1e-6)
    assert float(got["pooler"]) == float(got["classifier"]) == np.float32(5e-5)
    assert config.learning_rate == 5e-5
    words = layer_rates.describe_rates(config, layers=24, total_steps=100)
    assert "0.9 of the rate of the one above, the last 0.81 and the embeddings 0.065 of" in words


def test_the_defaults_compute_nothing():
    rate = jnp.float32(0.01)
    tree = {"embeddings": 0, "layers": {"00": 0, "01": 0}, "mlm": 0}
    got = layer_rates.scale_rates(OptimConfig(), tree, rate, jnp.int32(0))
    assert all(leaf is rate for leaf in jax.tree.leaves(got))


@pytest.mark.slow
def test_a_step_moves_what_is_unfrozen_by_its_share():
    """BERT's Adam by hand from the moments; what is frozen stays the same bit for bit."""
    model = dataclasses.replace(CONFIG.model, **NO_DROPOUT)
    at = setting(dataclasses.replace(CONFIG, model=model, optim=OPTIM), 1)
    take_step = at.train_step(MLM_NSP)
    now = state.make_state(on_mesh(draw(at.model, 0.02), at), at.tx, at.where)
    for number in range(STEPS):
        before = jax.tree.map(np.array, now.params)
        now, _ = take_step(now, mesh.place_batch(random_batch(number), at.mesh))
        adam = next(part for part in now.opt_state if hasattr(part, "mu"))
        params, mu, nu = (jax.tree.map(np.array, tree) for tree in (now.params, adam.mu, adam.nu))
        rate = OPTIM.learning_rate * (1 - number / CONFIG.phases[0].steps)

        def moved(path, p, m, v, now, number=number, rate=rate):
            part = part_of(path)
            if part > number:
                np.testing.assert_array_equal(now, p, err_msg=str(path))
                return
            names = {entry.key for entry in path}
            decays = not names & {"layer_norm", "bias", "output_bias"}
            direction = m / (np.sqrt(v) + OPTIM.epsilon) + OPTIM.weight_decay * decays * p
            expected = p - rate / 2.6**part * direction
            np.testing.assert_allclose(now, expected, rtol=1e-5, atol=1e-7, err_msg=str(path))
            # Softmax ignores the bias of the keys: its gradient is rounding noise.
            assert np.any(now != p) or names >= {"key", "bias"}

        jax.tree_util.tree_map_with_path(moved, before, mu, nu, params)


def test_the_screen_says_how_many_parts_stay_frozen():
    assert layer_rates.describe_rates(OptimConfig(), layers=2, total_steps=100) == ""
    for every, end in ((10, "are trained from step 31 on"), (50, "2 of 4 parts stay frozen")):
        optim = OptimConfig(layer_rate_decay=0.5, unfreeze_every_steps=every)
        words = layer_rates.describe_rates(optim, layers=2, total_steps=100)
        assert "0.5 of the rate of the one above, the embeddings 0.12 of the heads'" in words
        assert f"one part more every {every} steps" in words and end in words


def test_the_screen_counts_shared_layers_once():
    """ALBERT's layers are one part of the model, whose rate is that of the last."""
    shared = dataclasses.replace(CONFIG.model, share_layers=True)
    config = dataclasses.replace(CONFIG, model=shared, optim=OPTIM)
    parts = build_parts(config, [MLM_NSP], devices=jax.devices()[:1])
    rest = {"data_rows": (), "profiled": None, "changes": (), "trunk": None}
    rows = dict(list_opening_rows(SimpleNamespace(config=config, parts=parts, **rest), None))
    assert "the embeddings 0.15 of the heads'" in rows["rates"]
    assert "all are trained from step 3 on" in rows["rates"]
