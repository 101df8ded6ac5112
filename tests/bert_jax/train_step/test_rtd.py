"""Replaced-token detection: NumPy's loss, who learns from which loss, the same on every mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimConfig
from bert_jax.model.layers import Initial
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics, state, step
from bert_jax.train_step.objectives import MLM, Objective
from bert_jax.train_step.objectives.rtd import RTD, make_rtd, sample_tokens
from tests.bert_jax.tiny_models import CONFIG, VOCAB, setting
from tests.bert_jax.train_step.gradients import (
    assert_same,
    compute,
    draw,
    filled_up,
    logical,
    masked_once,
    on_mesh,
    restored,
    rows_of,
    side_by_side,
)

SIZES = {
    "num_hidden_layers": 1,
    "embedding_size": 24,
    "generator_hidden_size": 16,
    "generator_num_attention_heads": 2,
    "generator_intermediate_size": 40,
}


def at(devices=1, preset="dp", sharing="shared", **changes):
    """The model of RTD on so many devices, its mesh made current."""
    model = dataclasses.replace(CONFIG.model, **SIZES, generator_embeddings=sharing)
    config = dataclasses.replace(CONFIG, model=model, **changes)
    return setting(config, devices, preset, heads=RTD.heads)


@pytest.fixture(scope="module")
def params():
    return draw(at().model)


@pytest.mark.slow
def test_metrics_are_those_that_numpy_computes_from_the_logits(params):
    """What the generator sampled is found again as the tokens that the encoder was given."""
    of, batch = at(), masked_once()

    def outputs(bound, given):
        hidden = bound.generator.encode(rows_of(given))
        logits = bound.generator.compute_mlm_logits(hidden, given["masked_lm_positions"])
        return jnp.reshape(logits, (len(logits), -1))

    watched = dataclasses.replace(RTD, outputs=outputs)
    placed = mesh.place_batch(batch, of.mesh)
    sums = jax.device_get(step.make_eval_step(of.model, watched)(on_mesh(params, of), placed))
    logits = sums.pop("outputs")
    means = metrics.compute_heldout_means(metrics.add_step({}, metrics.flatten(sums)))
    logits = logits.reshape(16, 5, -1)[..., :VOCAB].astype(np.float64)
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, batch["masked_lm_ids"][..., None], -1
    ).squeeze(-1)
    used = batch["masked_lm_weights"] > 0
    assert means["mlm_loss"] == pytest.approx(nll[used].mean(), rel=1e-5)

    def see(params, given):
        bound = of.model.bind(params)
        encode, seen = bound.encode, []

        def spy(rows):
            seen.append(rows.input_ids_BS)
            return encode(rows)

        bound.encode = spy
        RTD.terms(bound, given, None)
        (ids,) = seen
        return ids, bound.rtd(encode(rows_of(given, ids)))

    ids, scores = jax.device_get(jax.jit(see)(on_mesh(params, of), placed))
    original, (row, places) = restored(batch)
    elsewhere = np.ones(ids.shape, bool)
    elsewhere[row, places] = False
    np.testing.assert_array_equal(ids[elsewhere], batch["input_ids"][elsewhere])
    is_text = batch["input_mask"] > 0
    replaced, scores = (ids != original)[is_text], scores[is_text].astype(np.float64)
    share = 1 / (1 + np.exp(-scores))
    entropy = -np.log(np.where(replaced, share, 1 - share))
    assert means["rtd_loss"] == pytest.approx(entropy.mean(), rel=1e-5)
    assert means["rtd_accuracy"] == pytest.approx(np.mean((scores > 0) == replaced), rel=1e-6)
    assert means["rtd_replaced_share"] == pytest.approx(replaced.mean(), rel=1e-6)
    assert means["majority_rtd_accuracy"] == pytest.approx(1 - replaced.mean(), rel=1e-6)
    assert means["rtd_replaced_accuracy"] == pytest.approx(np.mean(scores[replaced] > 0), rel=1e-6)
    higher = scores[replaced][:, None] - scores[~replaced]
    area = np.mean(higher > 0) + np.mean(higher == 0) / 2
    assert means["rtd_auc"] == pytest.approx(area, abs=0.03)
    assert means["loss"] == pytest.approx(means["mlm_loss"] + 50 * means["rtd_loss"], rel=1e-6)


@pytest.mark.slow
def test_tokens_are_sampled_as_often_as_the_softmax_says():
    at()
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 17).astype(np.float32)
    rows, slots = 64, 250
    words = tuple(jnp.asarray(rng.integers(0, 2**32, rows, dtype=np.uint32)) for _ in range(2))
    spread = jnp.broadcast_to(jnp.asarray(logits), (rows, slots, 17))
    positions = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32), (rows, slots))
    sampled = np.asarray(jax.jit(sample_tokens, static_argnums=3)(spread, positions, words, 17))
    shares = np.bincount(sampled.ravel(), minlength=17) / sampled.size
    expected = np.exp(logits) / np.exp(logits).sum()
    deviation = np.sqrt(expected * (1 - expected) / sampled.size)
    assert np.abs((shares - expected) / deviation).max() < 4.0


def one_term(name):
    """The objective with one of its losses alone."""
    return Objective(
        lambda batch: {name: RTD.weights(batch)[name]},
        lambda *given: {name: RTD.terms(*given)[name]},
    )


@pytest.mark.long
@pytest.mark.parametrize("sharing", ["shared", "gdes"])
def test_the_loss_of_the_detection_moves_no_weight_of_the_generator(sharing):
    """With gdes each loss moves tables of its own."""
    of, batch = at(sharing=sharing), masked_once()
    params = draw(of.model)
    detection = compute(of, one_term("rtd"), params, batch, drops=True)[1]
    assert all((leaf == 0.0).all() for leaf in jax.tree.leaves(detection["generator"]))
    for part in ("embeddings", "layers", "rtd"):
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(detection[part])), part
    if sharing == "shared":
        return
    assert {"word", "position", "segment"} <= detection["generator"]["embeddings"].keys()
    words = compute(of, one_term("mlm"), params, batch, drops=True)[1]
    for part in ("embeddings", "layers", "rtd"):
        assert all((leaf == 0.0).all() for leaf in jax.tree.leaves(words[part])), part


def test_gdes_begins_with_the_generators_tables_and_no_difference():
    gdes, shared = (at(sharing=sharing).model.declared for sharing in ("gdes", "shared"))
    for table in ("word", "position", "segment"):
        difference = gdes["embeddings"][table]["embedding"]
        base = gdes["generator"]["embeddings"][table]["embedding"]
        assert difference.initial == Initial() and base.initial.stddev > 0.01
        assert difference.logical_dims == base.logical_dims
    assert "word" not in shared["generator"]["embeddings"] and "word" in shared["embeddings"]


@pytest.mark.long
def test_with_weight_0_the_generator_learns_as_from_masked_words_alone(params):
    optimizer = OptimConfig(learning_rate=1e-2, warmup_steps=0, weight_decay=0.0, clip_norm=0.0)
    of = at(optim=optimizer)
    batch = mesh.place_batch(masked_once(), of.mesh)

    def learn_words(bound, given, dropout):
        return MLM.terms(bound.generator, given, dropout.for_generator())

    words = Objective(MLM.weights, learn_words)
    ends = []
    for objective in (make_rtd(0.0), words):
        now = state.make_state(on_mesh(params, of), of.tx, of.where)
        take_step = of.train_step(objective)
        for _ in range(2):
            now, sums = take_step(now, batch)
        ends.append((logical(now.params, of.model), float(sums["terms"]["mlm"].loss_sum)))
    (ours, our_loss), (theirs, their_loss) = ends
    assert our_loss == pytest.approx(their_loss, rel=1e-6)
    # One element's gradient may be rounding alone, which Adam scales up to a step of its own.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), ours, theirs)


@pytest.mark.long
def test_eight_devices_and_micro_batches_have_the_metrics_and_gradients_of_one(params):
    batch = masked_once()
    expected = compute(at(), RTD, params, batch, drops=True)
    got = compute(at(8, "zero1+tp"), RTD, params, batch, True, micro_batches=2)
    assert 0.0 < expected[0]["rtd_replaced_share"] < 0.5
    assert_same(got, expected)


@pytest.mark.long
def test_packed_rows_have_the_metrics_and_gradients_of_their_examples(params):
    """With biases so far apart that the noise, another in another row, decides nothing."""
    of, batch = at(), masked_once(32)
    rng = np.random.default_rng(1)
    head = params["generator"]["mlm"]
    biased = head | {"output_bias": rng.normal(0, 300, VOCAB).astype(np.float32)}
    params = params | {"generator": params["generator"] | {"mlm": biased}}
    beside = side_by_side(batch)
    assert_same(compute(of, RTD, params, beside), compute(of, RTD, params, batch))


@pytest.mark.slow
def test_an_evaluation_fills_a_row_alike_in_a_batch_of_any_size(params):
    of, batch = at(), masked_once()
    evaluate = step.make_eval_step(of.model, RTD)
    placed = on_mesh(params, of)
    totals = []
    for size in (16, 6):  # the last batch of 6 has two rows to spare
        total = {}
        for start in range(0, 16, size):
            part = {name: array[start : start + size] for name, array in batch.items()}
            part = filled_up(part, size)
            sums = jax.device_get(evaluate(placed, mesh.place_batch(part, of.mesh)))
            total = metrics.add_step(total, metrics.flatten(sums))
        totals.append(metrics.compute_heldout_means(total))
    for name in ("mlm_loss", "rtd_loss", "rtd_accuracy", "rtd_replaced_share"):
        assert totals[0][name] == pytest.approx(totals[1][name], rel=1e-5), name
