"""Rows through a model: every example once, in its own order, on one device and on several."""

import dataclasses
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bert_jax.config import MeshConfig
from bert_jax.inference import batches
from bert_jax.logging.console import Screen
from bert_jax.model import bert
from bert_jax.model.attention import Visible, hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from data_pipeline.io.refused import Refused
from data_pipeline.labelled.rows import build_rows
from tests.bert_jax.tiny_models import MODEL, VOCAB

PAD = 0
LENGTHS = (5, 19, 2, 11, 17, 3, 7, 2, 13, 18, 23)
ONE_LAYER = dataclasses.replace(MODEL, num_hidden_layers=1)


@pytest.fixture(scope="module")
def rows():
    """Eleven rows, most with two segments; no batch of four is full of them."""
    rng = np.random.default_rng(3)
    return build_rows(
        [(list(rng.integers(1, VOCAB, n)), int(rng.integers(1, n + 1))) for n in LENGTHS]
    )


def everything(model, batch):
    visible = hide_padding(batch["input_mask"])
    hidden = model.encode(EncoderRows(batch["input_ids"], batch["segment_ids"], visible))
    return {"hidden": hidden, "pooled": model.pool(hidden)}


def placed_model(of):
    """The model on a mesh, with the same random numbers on every mesh."""
    jax.set_mesh(of)
    model = bert.build(ONE_LAYER, "cpu", of.shape["model"])
    rng = np.random.default_rng(5)

    def drawn(declared):
        whole = np.zeros(declared.dims, np.float32)
        inside = tuple(slice(size) for size in declared.logical_dims)
        whole[inside] = rng.normal(0.0, 0.2, declared.logical_dims)
        return jax.device_put(whole, NamedSharding(of, declared.spec))

    return model, jax.tree.map(drawn, model.declared)


def through(rows, of, batch_size):
    model, params = placed_model(of)
    step = batches.compile_step(model, everything)
    results = batches.run_batches(step, params, of, rows, batch_size, PAD, 24)
    return batches.collect(results, rows.examples)


def test_outputs_that_are_not_finite_are_refused(rows, one):
    model, params = placed_model(one)
    params["pooler"]["bias"] = params["pooler"]["bias"].at[1].set(jnp.nan)
    checkpoint = types.SimpleNamespace(address="hf:DIR", config=ONE_LAYER)
    words = types.SimpleNamespace(special_ids={"pad": PAD})
    placed = types.SimpleNamespace(checkpoint=checkpoint, vocabulary=words, params=params, mesh=one)
    step = batches.compile_step(model, everything)
    with pytest.raises(Refused, match="checkpoint hf:DIR computes infinities or NaN"):
        list(batches.run_rows(step, placed, rows, 4))


def test_rows_longer_than_the_models_positions_are_refused(rows):
    short = dataclasses.replace(ONE_LAYER, max_position_embeddings=22)
    placed = types.SimpleNamespace(
        checkpoint=types.SimpleNamespace(address="hf:DIR", config=short),
        vocabulary=types.SimpleNamespace(special_ids={"pad": PAD}),
    )
    with pytest.raises(Refused, match=r"a row has 23 tokens, .* hf:DIR reads 22"):
        next(batches.run_rows(None, placed, rows, 4))


@pytest.fixture
def one():
    """A mesh of one device, made current."""
    of = mesh.make_mesh(MeshConfig(), jax.devices()[:1])
    jax.set_mesh(of)
    return of


@pytest.fixture(scope="module")
def one_device(rows):
    return through(rows, mesh.make_mesh(MeshConfig(), jax.devices()[:1]), 4)


def test_a_row_comes_out_as_it_does_alone(rows, one_device, one):
    model, params = placed_model(one)
    seen = Visible(jnp.ones((1, 1, 1, 1), bool))
    start, end = rows.offsets[6:8]
    ids_S, at = rows.token_ids[start:end], np.arange(end - start)
    alone = {"ids": ids_S, "segments": (at >= rows.second_starts[6]).astype(np.int32)}
    placed = mesh.place_batch({name: array[None] for name, array in alone.items()}, one)

    @jax.jit
    def run(params, ids, segments):
        bound = model.bind(params)
        hidden_BSD = bound.encode(EncoderRows(ids, segments, seen))
        return hidden_BSD, bound.pool(hidden_BSD)

    hidden_BSD, pooled_BD = run(params, placed["ids"], placed["segments"])
    got_SD = one_device["hidden"][6, : end - start]
    np.testing.assert_allclose(got_SD, hidden_BSD[0], atol=2e-5)
    np.testing.assert_allclose(one_device["pooled"][6], pooled_BD[0], atol=2e-5)


def test_eight_devices_give_what_one_gives(rows, one_device):
    several = through(rows, mesh.make_mesh(MeshConfig(preset="fsdp+tp", model_size=2)), 11)
    assert several["hidden"].shape == (11, 24, 32)
    for number, length in enumerate(LENGTHS):
        got, wanted = several["hidden"][number, :length], one_device["hidden"][number, :length]
        np.testing.assert_allclose(got, wanted, atol=2e-5)
    np.testing.assert_allclose(several["pooled"], one_device["pooled"], atol=2e-5)


def test_batches_fall_in_length_and_hold_nothing_twice(rows, one):
    step = jax.jit(lambda params, batch: {"ids": batch["input_ids"]})
    results = list(batches.run_batches(step, {}, one, rows, 4, PAD, 23))
    assert sorted(np.concatenate([index for index, _ in results])) == list(range(11))
    assert [outputs["ids"].shape for _, outputs in results] == [(4, 23), (4, 16), (3, 16)]
    for index_B, outputs in results:
        for number, ids_S in zip(index_B, outputs["ids"], strict=True):
            row = rows.token_ids[rows.offsets[number] : rows.offsets[number + 1]]
            np.testing.assert_array_equal(ids_S[: len(row)], row)


def test_a_step_runs_on_its_own_mesh_in_any_thread(rows, one):
    """Another model may have been placed since; in a new thread no mesh is current."""
    other = mesh.make_mesh(MeshConfig(), jax.devices()[1:2])
    seen = []

    def step(params, batch):
        seen.append(jax.sharding.get_mesh())
        return {"ids": batch["input_ids"]}

    def run():
        for _ in batches.run_batches(step, {}, one, rows, 11, PAD, 23):
            seen.append(jax.sharding.get_mesh())

    with jax.set_mesh(other):
        run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[:3] == [one, other, one] and len(seen) == 4


def test_outputs_are_collected_in_the_order_of_the_examples(capsys):
    results = [(np.array([1, 0]), {"x": np.array([1.0, 0.0])}), (np.array([2]), {"x": np.ones(1)})]
    shown = batches.report_progress(iter(results), 3, "rows", Screen(is_writer=True))
    np.testing.assert_array_equal(batches.collect(shown, 3)["x"], [0.0, 1.0, 1.0])
    assert capsys.readouterr().out == ""
    assert batches.collect(iter([]), 0) == {}
