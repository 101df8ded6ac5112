"""Rows through a model: every example once, in its own order, on one device and on several."""

import dataclasses
import functools
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import MeshConfig
from bert_jax.inference import batches
from bert_jax.logging.console import Screen
from bert_jax.model.attention import Visible, hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import build_rows
from tests.bert_jax.tiny_models import SMALL, VOCAB, setting
from tests.bert_jax.train_step.gradients import draw, on_mesh

PAD = 0
LENGTHS = (5, 19, 2, 11, 17, 3, 7, 2, 13, 18, 23)


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


@functools.cache
def place_on(devices, **settings):
    """A mesh, the parameters on it, which are the same on every mesh, and a step of the model."""
    at = setting(SMALL, devices, **settings)
    params = on_mesh(draw(at.model, 0.2), at)
    return at, params, batches.compile_step(at.model, everything)


def through(rows, batch_size, devices, **settings):
    at, params, step = place_on(devices, **settings)
    results = batches.run_batches(step, params, at.mesh, rows, batch_size, PAD, 24)
    return batches.collect(results, rows.examples)


@pytest.mark.slow
def test_outputs_that_are_not_finite_are_refused(rows):
    at, params, step = place_on(1)
    params = params | {"pooler": params["pooler"] | {"bias": np.full(32, np.nan, np.float32)}}
    checkpoint = types.SimpleNamespace(address="hf:DIR", config=SMALL.model)
    words = types.SimpleNamespace(special_ids={"pad": PAD})
    placed = types.SimpleNamespace(
        checkpoint=checkpoint, vocabulary=words, params=params, mesh=at.mesh
    )
    with pytest.raises(Refused, match="checkpoint hf:DIR computes infinities or NaN"):
        list(batches.run_rows(step, placed, rows, 6))


def test_rows_longer_than_the_models_positions_are_refused(rows):
    short = dataclasses.replace(SMALL.model, max_position_embeddings=22)
    placed = types.SimpleNamespace(
        checkpoint=types.SimpleNamespace(address="hf:DIR", config=short),
        vocabulary=types.SimpleNamespace(special_ids={"pad": PAD}),
    )
    with pytest.raises(Refused, match=r"a row has 23 tokens, .* hf:DIR reads 22"):
        next(batches.run_rows(None, placed, rows, 4))
    with pytest.raises(Refused, match="batch_size is -1; it must be 1 or more"):
        next(batches.run_rows(None, placed, rows, -1))


@pytest.fixture
def one():
    """A mesh of one device, made current."""
    of = mesh.make_mesh(MeshConfig(), jax.devices()[:1])
    jax.set_mesh(of)
    return of


@pytest.fixture(scope="module")
def one_device(rows):
    return through(rows, 6, 1)


@pytest.mark.slow
def test_a_row_comes_out_as_it_does_alone(rows, one_device):
    at, params, _ = place_on(1)
    seen = Visible(jnp.ones((1, 1, 1, 1), bool))
    start, end = rows.offsets[6:8]
    is_second = np.arange(end - start) >= rows.second_starts[6]
    alone = {"ids": rows.token_ids[start:end], "segments": is_second.astype(np.int32)}
    placed = mesh.place_batch({name: array[None] for name, array in alone.items()}, at.mesh)

    @jax.jit
    def run(params, ids, segments):
        bound = at.model.bind(params)
        hidden_BSD = bound.encode(EncoderRows(ids, segments, seen))
        return hidden_BSD, bound.pool(hidden_BSD)

    with jax.set_mesh(at.mesh):
        hidden_BSD, pooled_BD = run(params, placed["ids"], placed["segments"])
    got_SD = one_device["hidden"][6, : end - start]
    np.testing.assert_allclose(got_SD, hidden_BSD[0], atol=2e-5)
    np.testing.assert_allclose(one_device["pooled"][6], pooled_BD[0], atol=2e-5)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(rows, one_device):
    several = through(rows, 11, 8, preset="fsdp+tp")
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
