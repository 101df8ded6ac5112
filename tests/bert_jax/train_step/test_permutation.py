"""XLNet's objective: who sees whom, packed rows, devices; tests/bert_jax/interop has its oracle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.dropout import Dropout, number_rows
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.encoder import Layer
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives import PERMUTATION
from bert_jax.train_step.objectives.objective import restore_ids
from bert_jax.train_step.objectives.permutation import draw_order
from tests.bert_jax.tiny_models import CONFIG, setting
from tests.bert_jax.train_step.gradients import (
    EXAMPLES,
    assert_same,
    compute,
    draw,
    masked_once,
    on_mesh,
    rows_of,
    side_by_side,
)

pytestmark = pytest.mark.slow
SHAPE = {
    "position_embedding_type": "relative",
    "type_vocab_size": 0,
    "embedding_norm": False,
    "mlm_transform": False,
}


CONFIG = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, **SHAPE))
UNUSED = 1e-30  # a weight that is above 0 and adds nothing


def one_by_one():
    """Examples with a row each, whose targets are all at different places and before the last."""
    return masked_once(EXAMPLES)


@pytest.fixture(scope="module")
def params():
    return draw(setting(CONFIG, 1).model)


def test_tokens_are_put_back_and_unused_slots_change_nothing():
    batch = {
        "input_ids": jnp.asarray([[9, 4, 5, 4, 0]]),
        "masked_lm_positions": jnp.asarray([[1, 3, 0]]),
        "masked_lm_ids": jnp.asarray([[7, 8, 0]]),
        "masked_lm_weights": jnp.asarray([[1.0, 1.0, 0.0]]),
    }
    assert restore_ids(batch).tolist() == [[9, 7, 5, 8, 0]]


@pytest.mark.long
def test_a_target_reads_the_context_and_the_targets_before_it(params, monkeypatch):
    """Where the loss of one target has a gradient: never at its own token."""
    at = setting(CONFIG, 1)
    rows = one_by_one()
    row = int(np.argmax(rows["masked_lm_weights"].sum(axis=1)))
    # Twice, of which one predicts nothing below: where a batch has one row, jax 0.12 loses the
    # sharding of a slice of shape [1,1], which jnp.roll cuts.
    batch = {name: array[[row, row]] for name, array in rows.items()}
    count = int(batch["masked_lm_weights"][0].sum())
    assert count == 5
    places = batch["masked_lm_positions"][0]
    plain = Embeddings.__call__

    def loss(moved_SD, params, placed):
        monkeypatch.setattr(Embeddings, "__call__", lambda *given: plain(*given) + moved_SD)
        terms = PERMUTATION.terms(at.model.bind(params), placed, None)
        return terms["permutation"].loss_sum

    gradient = jax.jit(jax.grad(loss))
    on_one = on_mesh(params, at)
    placed = mesh.place_batch(batch, at.mesh)
    order_S = np.asarray(draw_order(at.model.bind(on_one), placed, restore_ids(placed), None))[0]
    is_target_S = np.isin(np.arange(len(order_S)), places)
    for slot, place in enumerate(places):
        weights = np.full((2, count), UNUSED, np.float32)
        weights[0, slot] = 1.0
        placed = mesh.place_batch(batch | {"masked_lm_weights": weights}, at.mesh)
        moved_SD = jnp.zeros((len(order_S), CONFIG.model.hidden_size))
        matters_S = np.abs(np.asarray(gradient(moved_SD, on_one, placed))).max(axis=1) > 1e-12
        is_before_S = is_target_S & (order_S < order_S[place])
        is_read_S = (batch["input_mask"][0] == 1) & (~is_target_S | is_before_S)
        np.testing.assert_array_equal(matters_S, is_read_S)


def test_each_stream_drops_out_by_masks_of_its_own(params, monkeypatch):
    """Layers and positions are equal, so only the seed tells the streams apart."""
    written = {}
    plain, predict = Layer.__call__, Layer.predict

    def tokens(self, x, views, number, dropout):
        written["tokens"] = dropout.seed
        return plain(self, x, views, number, dropout)

    def targets(self, targets, x, relations, number, dropout):
        written["targets"] = dropout.seed
        return predict(self, targets, x, relations, number, dropout)

    monkeypatch.setattr(Layer, "__call__", tokens)
    monkeypatch.setattr(Layer, "predict", targets)
    at = setting(CONFIG, 1)
    dropout = Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(EXAMPLES))

    @jax.jit
    def run(params, batch):
        terms = PERMUTATION.terms(at.model.bind(params), batch, dropout)
        return terms["permutation"].loss_sum, written

    placed = mesh.place_batch(one_by_one(), at.mesh)
    loss, seeds = run(on_mesh(params, at), placed)
    assert float(loss) > 0
    assert int(seeds["tokens"]) == 3 != int(seeds["targets"])


@pytest.mark.long
def test_packed_rows_have_the_losses_and_gradients_of_their_examples(params):
    expected = compute(setting(CONFIG, 1), PERMUTATION, params, one_by_one())
    rows = side_by_side(one_by_one())
    assert_same(compute(setting(CONFIG, 1), PERMUTATION, params, rows), expected)


@pytest.mark.long
def test_eight_devices_and_micro_batches_have_the_losses_and_gradients_of_one(params):
    expected = compute(setting(CONFIG, 1), PERMUTATION, params, one_by_one(), drops=True)
    at = setting(CONFIG, 8, "zero1+tp")
    got = compute(at, PERMUTATION, params, one_by_one(), drops=True, micro_batches=2)
    assert_same(got, expected)


def test_a_masked_token_is_predicted_from_all_others_but_masked_ones(params):
    """As fill_mask does: neither the ids at the masks nor their own matter."""
    at = setting(CONFIG, 1)
    batch = one_by_one()
    on_one = on_mesh(params, at)

    @jax.jit
    def vectors(params, batch):
        slots = batch["masked_lm_positions"], batch["masked_lm_weights"]
        return at.model.bind(params).encode_masked(rows_of(batch), *slots)

    expected = vectors(on_one, mesh.place_batch(batch, at.mesh))
    is_used = batch["masked_lm_weights"] > 0
    other = batch["input_ids"].copy()
    rows, slots = np.nonzero(is_used)
    other[rows, batch["masked_lm_positions"][rows, slots]] = 3
    same = vectors(on_one, mesh.place_batch(batch | {"input_ids": other}, at.mesh))
    np.testing.assert_array_equal(np.asarray(same)[is_used], np.asarray(expected)[is_used])
    other[:, 0] += 1  # a token that is nowhere masked
    changed = vectors(on_one, mesh.place_batch(batch | {"input_ids": other}, at.mesh))
    assert (np.asarray(changed) != np.asarray(expected)).any(axis=-1)[is_used].all()


@pytest.mark.parametrize("position", ["post", "pre"])
def test_targets_that_begin_as_tokens_and_see_as_they_do_end_as_tokens(position):
    """Both streams are the same layers, with the same norms before or after their parts."""
    config = dataclasses.replace(CONFIG.model, norm_position=position)
    at = setting(dataclasses.replace(CONFIG, model=config), 1)
    params = draw(at.model)
    params["embeddings"]["target"][0, 0] = params["embeddings"]["word"]["embedding"][7]
    batch = one_by_one()
    batch["input_ids"][:] = 7
    places = np.broadcast_to(np.arange(batch["input_ids"].shape[1]), batch["input_ids"].shape)

    @jax.jit
    def streams(params, batch, places):
        bert, rows = at.model.bind(params), rows_of(batch)
        return bert.encode(rows), bert.encode_targets(rows, places, rows.visible.mask)

    placed = mesh.place_batch(batch | {"places": places}, at.mesh)
    tokens, targets = streams(on_mesh(params, at), placed, placed["places"])
    np.testing.assert_allclose(targets, tokens, rtol=0, atol=2e-5)
