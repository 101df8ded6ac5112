"""Rates that transfer over width: against explicit multipliers, and by a coordinate check."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import EvalConfig, OptimConfig, validate
from bert_jax.model import bert
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from bert_jax.train_step import mup, optimizers
from bert_jax.train_step.objectives import MLM_NSP
from bert_jax.train_step.objectives.objective import find_visible
from bert_jax.trainer.setup import build_setup
from bert_jax.trainer.summary import list_opening_rows
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import CONFIG, random_batch
from tests.bert_jax.train_step.gradients import NO_DROPOUT

MODERN = {
    "position_embedding_type": "rotary",
    "norm_position": "pre",
    "gated_mlp": True,
    "norm_bias": False,
    "linear_bias": False,
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
}
MUP = {"transfer": "mup", "transfer_base_width": 64}


def of_width(width, settings=MUP, **model):
    """Heads of 16, more of them in a wider model."""
    shape = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // 16,
    }
    shape = dataclasses.replace(CONFIG.model, **shape | NO_DROPOUT | model)
    settings = {"name": "adamw", "learning_rate": 1e-2, "warmup_steps": 0} | settings
    return dataclasses.replace(CONFIG, model=shape, optim=OptimConfig(**settings))


@pytest.fixture(autouse=True)
def on_one_device():
    jax.set_mesh(mesh.make_mesh(CONFIG.mesh, jax.devices()[:1]))


def placed_batch():
    return mesh.place_batch(random_batch(), jax.sharding.get_mesh())


def initialize(config):
    model = bert.build(config.model, "cpu")
    return model, mup.scale_initial(config, model.init(jax.random.key(1)))


def loss_of(model, params, batch):
    terms, weights = MLM_NSP.terms(model.bind(params), batch, None), MLM_NSP.weights(batch)
    return sum(term.loss_sum / weights[name] for name, term in terms.items())


def train(config, steps=4):
    """Train on one batch; return the model, its parameters before and after, and the losses."""
    model, params = initialize(config)
    tx = optimizers.make_optimizer(config.optim, mup.find_scales(config))
    batch, rate = placed_batch(), config.optim.learning_rate

    @jax.jit
    def take_step(params, state):
        loss, grads = jax.value_and_grad(lambda params: loss_of(model, params, batch))(params)
        directions, state = tx.update(grads, state, params, is_bad=False)
        return jax.tree.map(lambda p, d: p - rate * d, params, directions), state, loss

    state, losses, before = tx.init(params), [], params
    for _ in range(steps):
        params, state, loss = take_step(params, state)
        losses.append(float(loss))
    return model, before, params, losses


def factors(config):
    """The factors of every parameter, by its path with slashes."""
    scale_of, declared = mup.find_scales(config), bert.build(config.model, "cpu").declared
    return {
        "/".join(entry.key for entry in path): dataclasses.astuple(scale_of(path))
        for path, _ in jax.tree_util.tree_leaves_with_path(declared)
    }


def test_every_parameter_has_the_factors_of_the_table():
    found = factors(of_width(256, MUP | {"transfer_base_head_width": 4}))
    hidden, constant = (0.5, 0.25), (1.0, 1.0)
    for layer in ("layers/00", "layers/01"):
        assert found.pop(f"{layer}/attention/query/kernel") == (0.25, 0.125)
        assert found.pop(f"{layer}/attention/query/bias") == (0.5, 0.5)
        for name in ("attention/key", "attention/value", "attention/output"):
            assert found.pop(f"{layer}/{name}/kernel") == hidden
        for name in ("mlp/intermediate", "mlp/output"):
            assert found.pop(f"{layer}/{name}/kernel") == hidden
    assert found.pop("pooler/kernel") == found.pop("mlm/transform/kernel") == hidden
    for name in ("nsp/kernel", "mlm/layer_norm/scale", "mlm/layer_norm/bias"):
        assert found.pop(name) == (0.25, 0.25)
    assert {"embeddings/word/embedding", "mlm/output_bias", "nsp/bias"} < found.keys()
    assert set(found.values()) == {constant}
    modern = factors(of_width(128, **MODERN))
    assert modern["layers/00/mlp/gated/kernel"] == (0.5**0.5, 0.5)
    assert modern["layer_norm/scale"] == constant


def test_at_the_base_width_nothing_is_scaled():
    config = of_width(64)
    params = {"mlm": {"layer_norm": {"scale": jnp.ones(64)}}}
    assert mup.find_scales(config) is None and mup.describe(config) == ""
    assert mup.scale_initial(config, params) is params
    assert mup.find_scales(of_width(128, {})) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_adamw", "adamw", "stable_adamw"])
def test_an_optimizer_scales_its_updates_and_not_its_decay(name):
    rng = np.random.default_rng(2)
    params = {"layers": {"00": {"mlp": {"output": {"kernel": rng.normal(size=(5, 3))}}}}}
    grads = [jax.tree.map(lambda p, size=size: p * size + 1.0, params) for size in (1.0, 9.0)]

    def directions(weight_decay, scale_of):
        settings = OptimConfig(name=name, weight_decay=weight_decay, learning_rate=0.5)
        tx = optimizers.make_optimizer(settings, scale_of)
        state = tx.init(params)
        for each in grads:
            moved, state = tx.update(each, state, params, is_bad=False)
        return jax.tree.leaves(moved)[0]

    scale_of = mup.find_scales(of_width(256))
    alone, scaled = directions(0.0, None), directions(0.0, scale_of)
    np.testing.assert_allclose(scaled, 0.25 * alone, rtol=1e-6)
    decay = directions(0.7, None) - alone
    np.testing.assert_allclose(directions(0.7, scale_of) - scaled, decay, rtol=1e-5, atol=1e-7)
    assert np.abs(decay).max() > 0.1


@pytest.mark.long
def test_training_is_that_of_multipliers_in_the_model():
    """Table 8 as it is written: multipliers of logits and scores, and plain Adam in NumPy."""
    settings = {"clip_norm": 0.0, "epsilon": 1e-30, "transfer_base_head_width": 8}
    decay, rate, beta1, beta2 = 0.5, 1e-2, 0.9, 0.999
    settings |= {"transfer_base_width": 16, "weight_decay": decay}
    config = of_width(64, MUP | settings, num_hidden_layers=1)
    model, params, _, losses = train(config)
    times, of_scores = 4.0, 0.5**0.5

    def multiplier(path, _):
        names = [entry.key for entry in path]
        if names[:2] == ["mlm", "layer_norm"] or names == ["nsp", "kernel"]:
            return 1.0 / times
        return of_scores if "query" in names else 1.0

    def rate_of(path, _):
        names = [entry.key for entry in path]
        is_hidden = names[-1] == "kernel" and names[0] != "nsp"
        return rate / times if is_hidden else rate

    multipliers = jax.tree_util.tree_map_with_path(multiplier, params)
    rates = jax.tree_util.tree_map_with_path(rate_of, params)
    decays = jax.tree.map(lambda is_decayed: decay * is_decayed, optimizers.mask_decayed(params))
    inside = jax.tree.map(lambda p, factor: p / factor, params, multipliers)
    np.testing.assert_array_equal(inside["mlm"]["layer_norm"]["scale"], 1.0)
    batch = placed_batch()

    @jax.jit
    @jax.value_and_grad
    def compute(inside):
        used = jax.tree.map(lambda p, factor: p * factor, inside, multipliers)
        return loss_of(model, used, batch)

    mean = square = jax.tree.map(np.zeros_like, inside)
    expected = []
    for number in range(1, 5):
        loss, grads = compute(inside)
        expected.append(float(loss))
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mean, grads)
        square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, square, grads)

        def move(p, m, v, own, shrinks, number=number):
            root = np.sqrt(v / (1 - beta2**number)) + 1e-30
            return p - own * m / (1 - beta1**number) / root - rate * shrinks * p

        inside = jax.tree.map(move, inside, mean, square, rates, decays)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert expected[3] < expected[0] - 0.1


def coordinates(config):
    """Sizes, as root mean squares, of what four steps change in each layer and in the logits."""
    model, before, after, _ = train(config)
    batch = placed_batch()

    @jax.jit
    def look(params):
        bound = model.bind(params)
        layers = bound.encode_layers(
            EncoderRows(batch["input_ids"], batch["segment_ids"], find_visible(batch))
        )
        logits = bound.compute_mlm_logits(layers[-1], batch["masked_lm_positions"])
        return [*layers, logits[..., : config.model.vocab_size]]

    pairs = zip(look(before), look(after), strict=True)
    return np.array([float(jnp.sqrt(jnp.mean(jnp.square(y - x)))) for x, y in pairs])


@pytest.mark.long
@pytest.mark.parametrize("model", [{}, MODERN], ids=["post-norm", "pre-norm"])
def test_activations_and_logits_change_alike_at_any_width_and_without_transfer_they_do_not(model):
    """The coordinate check of Tensor Programs V, appendix D.1, and its control."""
    narrow, wide, control = (
        coordinates(of_width(width, settings, **model))
        for width, settings in ((64, MUP), (512, MUP), (512, {}))
    )
    assert np.all(narrow > 0.3) and np.all(wide > 0.3)
    assert np.max(wide / narrow) < 1.2
    assert np.max(control / narrow) > 3.0 and control[-1] > 3.0 * narrow[-1]


@pytest.mark.long
def test_a_run_begins_and_descends_with_them(tiny_store, tmp_path):
    config = dataclasses.replace(
        of_width(128, vocab_size=0, num_hidden_layers=1),
        data=PretrainOptions(store=str(tiny_store)),
    )
    config = dataclasses.replace(config, eval=EvalConfig(examples=16))
    setup = build_setup(config, tmp_path / "run", jax.devices()[:1])
    params = setup.initial_params()
    np.testing.assert_array_equal(params["mlm"]["layer_norm"]["scale"], 0.5)
    stddev = float(jnp.std(params["layers"]["00"]["mlp"]["output"]["kernel"]))
    tables = float(jnp.std(params["embeddings"]["position"]["embedding"]))
    assert stddev / tables == pytest.approx(0.5**0.5, rel=0.05)
    grads = jax.tree.map(jnp.ones_like, params)
    tx = setup.parts.tx
    directions, _ = tx.update(grads, tx.init(params), params, is_bad=False)
    kernel, bias = (directions["layers"]["00"]["mlp"]["output"][n] for n in ("kernel", "bias"))
    decay = config.optim.weight_decay * params["layers"]["00"]["mlp"]["output"]["kernel"]
    np.testing.assert_allclose(kernel - decay, 0.5 * bias[0], rtol=1e-4)
    (words,) = [text for label, text in list_opening_rows(setup, None) if label == "transfer"]
    assert words == (
        "tuned at width 64; kernels are 2 times as wide here and have 0.5 of the learning rate"
    )


@pytest.mark.parametrize(
    ("settings", "model", "key"),
    [
        ({"transfer": "mup"}, {}, "optim.transfer_base_width"),
        ({"transfer_base_width": 64}, {}, "optim.transfer_base_width"),
        ({"transfer_base_head_width": 64}, {}, "optim.transfer_base_head_width"),
        (MUP | {"name": "lamb"}, {}, "optim.name"),
        (MUP, {"mlm_transform": False}, "model.mlm_transform"),
        (MUP, {"embedding_size": 32}, "model.embedding_size"),
        (MUP, {"share_layers": True}, "model.share_layers"),
    ],
)
def test_settings_without_a_rule_are_refused_by_name(settings, model, key):
    with pytest.raises(ValueError, match=f"config.{key} is "):
        validate.check(of_width(128, settings, **model))
    validate.check(of_width(128))
