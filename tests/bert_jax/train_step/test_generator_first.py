"""The generator's update before the encoder's gradient: two optimizers, written out by the test.

Source of the equations: microsoft/DeBERTa@4d7fe0b rtd_task.py get_decoupled_loss_fn and
register_discriminator_fw_hook, trainer.py _train_step, fp16_optimizer.py _grad_scale, xadam.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimConfig, Phase
from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.parallel import mesh
from bert_jax.train_step import optimizers, state
from bert_jax.train_step.objectives.rtd import make_noise_words, make_rtd, sample_tokens
from tests.bert_jax.tiny_models import CONFIG, VOCAB, setting
from tests.bert_jax.train_step.gradients import (
    NO_DROPOUT,
    draw,
    logical,
    masked_once,
    on_mesh,
    restored,
    rows_of,
)

pytestmark = pytest.mark.long

CLIP, RATE, DECAY, WEIGHT, SEED = 0.05, 1e-2, 0.01, 20.0, 7
DEBERTA = {
    "position_embedding_type": "disentangled",
    "position_buckets": 8,
    "max_relative_positions": 18,
    "type_vocab_size": 0,
    **NO_DROPOUT,  # as the test's copy
    "detects_by_cls": True,
    "enhanced_mask_decoder": True,
    "generator_embeddings": "gdes",
    "generator_hidden_size": 32,
    "generator_num_attention_heads": 4,
    "generator_num_hidden_layers": 1,
}


def at(devices=1, preset="dp", micro_batches=1):
    optim = OptimConfig(learning_rate=RATE, decay="constant", warmup_steps=0, clip_norm=CLIP)
    config = dataclasses.replace(
        CONFIG,
        model=dataclasses.replace(CONFIG.model, **DEBERTA),
        optim=optim,
        seed=SEED,
        phases=(Phase(19, 11, batch_size=16, micro_batches=micro_batches),),
    )
    made = setting(config, devices, preset, heads=make_rtd(WEIGHT).heads)
    tx = optimizers.make_optimizer(config.optim, apart="generator")
    return dataclasses.replace(made, tx=tx)


def learner(of, generator_first=True):
    """A function of parameters and batches: what our step makes of them, one batch a step."""
    take_step = of.train_step(make_rtd(WEIGHT, generator_first))

    def learn(params, batches):
        jax.set_mesh(of.mesh)
        now = state.make_state(on_mesh(params, of), of.tx, of.where)
        norms = []
        for batch in batches:
            now, sums = take_step(now, mesh.place_batch(batch, of.mesh))
            norms.append(float(sums["grad_norm"]))
        return logical(now.params, of.model), norms

    return learn


@pytest.fixture(scope="module")
def on_one_device():
    return learner(at())


def write_out(of, params, batches):
    """The same by two losses and two Adams, one after the other."""
    bind = of.model.bind

    def guess(bound, batch, step):
        slots = batch["masked_lm_positions"]
        vectors = bound.generator.encode_slots(rows_of(batch), slots)
        logits = bound.generator.compute_target_logits(vectors)
        dropout = Dropout(jnp.uint32(SEED), jnp.uint32(step), number_rows(16))
        return logits, sample_tokens(logits, slots, make_noise_words(bound, batch, dropout), VOCAB)

    def generator_loss(own, others, batch, step):
        logits, sampled = guess(bind({**others, "generator": own}), batch, step)
        chances = jax.nn.log_softmax(logits[..., :VOCAB])
        is_label = batch["masked_lm_ids"][..., None] == jnp.arange(VOCAB)
        nll = -jnp.sum(jnp.where(is_label, chances, 0.0), axis=-1)
        used = batch["masked_lm_weights"]
        return jnp.sum(nll * used) / jnp.sum(used), sampled

    def encoder_loss(others, own, batch, seen, is_replaced):
        bound = bind({**others, "generator": own})
        scores = bound.rtd(bound.encode(rows_of(batch, seen)))
        shares = jnp.where(is_replaced, jax.nn.sigmoid(scores), jax.nn.sigmoid(-scores))
        text = batch["input_mask"]
        return WEIGHT * jnp.sum(-jnp.log(shares) * text) / jnp.sum(text)

    first, second = jax.jit(jax.grad(generator_loss, has_aux=True)), jax.jit(jax.grad(encoder_loss))
    zeros = jax.tree.map(np.zeros_like, params)
    means, squares = zeros, zeros

    def clip_and_move(grads, now, mean, square):
        norm = np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * min(1.0, CLIP / norm), grads)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, grads)

        def move(path, p, m, v):
            names = [entry.key for entry in path]
            kept = "layer_norm" in names or names[-1] in ("bias", "output_bias")
            return p - RATE * (m / (np.sqrt(v) + 1e-6) + (0.0 if kept else DECAY * p))

        return jax.tree_util.tree_map_with_path(move, now, mean, square), mean, square, norm

    norms = []
    for step, given in enumerate(batches):
        batch = mesh.place_batch(given, of.mesh)
        parts = [dict(tree) for tree in (params, means, squares)]
        own, own_mean, own_square = (tree.pop("generator") for tree in parts)
        others, mean, square = parts
        placed = on_mesh(params, of)
        grads, sampled = first(placed.pop("generator"), placed, batch, step)
        grads = logical({"generator": grads}, part(of.model, ["generator"]))["generator"]
        own, own_mean, own_square, g_norm = clip_and_move(grads, own, own_mean, own_square)
        original, (row, places) = restored(given)
        seen = given["input_ids"].copy()
        seen[row, places] = np.asarray(sampled)[np.nonzero(given["masked_lm_weights"])]
        rows = mesh.place_batch({"seen": seen, "replaced": seen != original}, of.mesh)
        placed = on_mesh({**others, "generator": own}, of)
        grads = second(
            others_of(placed), placed["generator"], batch, rows["seen"], rows["replaced"]
        )
        grads = logical(grads, part(of.model, others))
        others, mean, square, d_norm = clip_and_move(grads, others, mean, square)
        params = {**others, "generator": own}
        means, squares = {**mean, "generator": own_mean}, {**square, "generator": own_square}
        norms.append((g_norm, d_norm))
    return params, norms


def others_of(tree):
    return {name: leaf for name, leaf in tree.items() if name != "generator"}


def part(model, names):
    """The declarations of some parts, to take padding off their arrays."""
    return dataclasses.replace(model, declared={name: model.declared[name] for name in names})


@pytest.fixture(scope="module")
def expected():
    of = at()
    params = draw(of.model)
    params["embeddings"]["word"]["embedding"] *= 0.1
    batches = [masked_once(), masked_once()]
    batches[1]["input_ids"] = np.roll(batches[1]["input_ids"], 1, axis=0)
    batches[1]["input_mask"] = np.roll(batches[1]["input_mask"], 1, axis=0)
    return params, batches, *write_out(of, params, batches)


def largest_gap(ours, theirs):
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), ours, theirs)
    return max(jax.tree.leaves(gaps))


@pytest.mark.parametrize("is_on_mesh", [False, True])
def test_two_steps_are_those_of_two_optimizers_in_turn(expected, on_one_device, is_on_mesh):
    params, batches, theirs, norms = expected
    learn = learner(at(4, "fsdp+tp", micro_batches=2)) if is_on_mesh else on_one_device
    ours, our_norms = learn(params, batches)
    assert all(min(pair) > CLIP for pair in norms)  # both clips bind
    np.testing.assert_allclose(our_norms, [np.hypot(*pair) for pair in norms], rtol=1e-4)
    assert largest_gap(ours, theirs) < 5e-6


def test_a_joint_step_reads_the_tables_before_the_update(expected, on_one_device):
    params, batches, *_ = expected
    ours, _ = learner(at(), generator_first=False)(params, batches[:1])
    later, _ = on_one_device(params, batches[:1])
    assert largest_gap(ours["generator"], later["generator"]) < 1e-6
    assert largest_gap(others_of(ours), others_of(later)) > 1e-3


def test_a_bad_loss_of_the_generator_leaves_all_parameters_as_they_were(expected, on_one_device):
    """Though its update is computed before the step is judged."""
    params, batches, *_ = expected
    bad = batches[0] | {"masked_lm_weights": np.full_like(batches[0]["masked_lm_weights"], np.inf)}
    ours, _ = on_one_device(params, [bad])
    assert largest_gap(ours, params) == 0.0
