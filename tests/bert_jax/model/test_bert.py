"""The model against a NumPy BERT written from the paper and Google's modeling.py."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, MeshConfig, ModelConfig
from bert_jax.model import bert
from bert_jax.model.attention import Visible
from bert_jax.model.bert import EncoderRows
from bert_jax.model.dropout import (
    ATTENTION_OUTPUT,
    ATTENTION_WEIGHTS,
    KEYS,
    MLP_OUTPUT,
    POSITIONS,
    Dropout,
    number_rows,
)
from bert_jax.parallel import mesh
from bert_jax.train_step import step
from bert_jax.train_step.objectives import MLM_NSP
from configs import base, large
from tests.bert_jax.model.test_ops import norm_numpy
from tests.bert_jax.tiny_models import MODEL, VOCAB, random_batch

HEADS, HEAD_WIDTH = MODEL.num_attention_heads, MODEL.hidden_size // MODEL.num_attention_heads


@pytest.fixture(scope="module")
def model_and_params():
    jax.set_mesh(mesh.make_mesh(MeshConfig(), jax.devices()[:1]))
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    model = bert.build(dataclasses.replace(MODEL, **rates), "cpu")
    rng = np.random.default_rng(5)

    def noisy(leaf):  # biases and norms away from 0 and 1, or a wrong one would not show
        return np.asarray(leaf) + rng.normal(0, 0.1, leaf.shape).astype(np.float32)

    return model, jax.tree.map(noisy, model.init(jax.random.key(0)))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_numpy(x, p, mask, drop):
    """One head at a time; mask[S] is 1 where a key may be seen. x[S,D]."""
    weights, values = [], []
    for h in range(HEADS):
        of_h = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
        q, k, v = (
            x @ p[name]["kernel"][:, of_h] + p[name]["bias"][of_h]
            for name in ("query", "key", "value")
        )
        scores = q @ k.T / math.sqrt(HEAD_WIDTH) + (1 - mask)[None, :] * -10000.0
        weights.append(softmax(scores))
        values.append(v)
    weights = drop(np.array(weights), ATTENTION_WEIGHTS)
    heads = [weights[h] @ v for h, v in enumerate(values)]
    out = np.concatenate(heads, axis=1) @ p["output"]["kernel"] + p["output"]["bias"]
    return norm_numpy(x + drop(out, ATTENTION_OUTPUT), **p["layer_norm"])


def dropping(dropout, rows):
    """A function (row, layer, x of one row, site) that drops as this dropout does.

    The masks are those of Dropout, whose own tests compute them from the hash; here is who drops
    what, where and at which rate: modeling.py@eedf5716ce.
    """
    drop = jax.jit(Dropout.apply, static_argnums=(2, 5))

    @functools.cache
    def mask(dims, layer, site):
        rate, axis = (0.2, KEYS) if site == ATTENTION_WEIGHTS else (0.3, POSITIONS)
        ones = jnp.ones((rows, *dims), jnp.float32)
        return np.asarray(drop(dropout, ones, rate, layer, site, axis))

    return lambda row, layer, x, site: x * mask(x.shape, layer, site)[row]


def bert_numpy(params, batch, drop=lambda row, layer, x, site: x):
    """Hidden vectors, MLM logits and NSP logits, one sequence at a time, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    e = params["embeddings"]
    hidden, mlm, nsp = [], [], []
    for row in range(len(batch["input_ids"])):
        ids, segments = batch["input_ids"][row], batch["segment_ids"][row]
        x = e["word"]["embedding"][ids] + e["position"]["embedding"][: len(ids)]
        x = norm_numpy(x + e["segment"]["embedding"][segments], **e["layer_norm"])
        x = drop(row, len(params["layers"]), x, MLP_OUTPUT)
        for number, layer in enumerate(params["layers"].values()):
            drop_here = functools.partial(drop, row, number)
            x = attention_numpy(x, layer["attention"], batch["input_mask"][row], drop_here)
            mlp = layer["mlp"]
            inner = gelu(x @ mlp["intermediate"]["kernel"] + mlp["intermediate"]["bias"])
            out = inner @ mlp["output"]["kernel"] + mlp["output"]["bias"]
            x = norm_numpy(x + drop_here(out, MLP_OUTPUT), **mlp["layer_norm"])
        hidden.append(x)
        head = params["mlm"]
        at = x[batch["masked_lm_positions"][row]] @ head["transform"]["kernel"]
        at = norm_numpy(gelu(at + head["transform"]["bias"]), **head["layer_norm"])
        mlm.append(at @ e["word"]["embedding"][:VOCAB].T + head["output_bias"][:VOCAB])
        pooled = np.tanh(x[0] @ params["pooler"]["kernel"] + params["pooler"]["bias"])
        nsp.append(pooled @ params["nsp"]["kernel"] + params["nsp"]["bias"])
    return np.array(hidden), np.array(mlm), np.array(nsp)


@pytest.mark.slow
def test_outputs_are_those_of_a_numpy_bert(model_and_params):
    """With dropout; the losses below are those of one without."""
    model, params = model_and_params
    batch = random_batch(batch_size=4)
    dropout = Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(4))
    hidden, mlm, nsp = bert_numpy(params, batch, dropping(dropout, 4))

    def run(params, batch):
        bound = model.bind(params)
        visible = Visible((batch["input_mask"] != 0)[:, None, None, :])
        hidden = bound.encode(
            EncoderRows(batch["input_ids"], batch["segment_ids"], visible, dropout)
        )
        logits = bound.compute_mlm_logits(hidden, batch["masked_lm_positions"])
        return hidden, logits, bound.compute_nsp_logits(hidden)

    placed = mesh.place_batch(batch, jax.sharding.get_mesh())
    got_hidden, got_mlm, got_nsp = jax.jit(run)(params, placed)
    np.testing.assert_allclose(got_hidden, hidden, atol=2e-5)
    np.testing.assert_allclose(got_mlm[..., :VOCAB], mlm, atol=2e-5)
    np.testing.assert_allclose(got_nsp, nsp, atol=2e-5)
    assert (np.asarray(got_mlm[..., VOCAB:]) < -1e8).all()  # rows that only pad the vocabulary


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_loss_is_the_sum_of_two_weighted_means(model_and_params, dtype, error):
    _, params = model_and_params
    batch = random_batch(batch_size=4)
    _, mlm, nsp = bert_numpy(params, batch)
    weights = batch["masked_lm_weights"]
    right = np.take_along_axis(softmax(mlm), batch["masked_lm_ids"][..., None], -1)[..., 0]
    mlm_loss = -(np.log(right) * weights).sum() / weights.sum()
    nsp_loss = -np.log(softmax(nsp)[np.arange(4), batch["next_sentence_labels"]]).mean()
    model = bert.build(MODEL, "cpu", compute=ComputeConfig(compute_dtype=dtype))
    placed = mesh.place_batch(batch, jax.sharding.get_mesh())
    sums = step.make_eval_step(model, MLM_NSP)(params, placed)
    got = {n: float(t.loss_sum / sums["weights"][n]) for n, t in sums["terms"].items()}
    assert got == pytest.approx({"mlm": mlm_loss, "nsp": nsp_loss}, rel=error)
    assert sums["terms"]["mlm"].loss_sum.dtype == np.float32
    assert (got["mlm"] == pytest.approx(mlm_loss, rel=1e-5)) == (dtype == "float32")
    if dtype == "float32":
        hits = ((mlm.argmax(-1) == batch["masked_lm_ids"]) * weights).sum()
        assert float(sums["terms"]["mlm"].correct_sum) == hits


@pytest.mark.parametrize(
    ("config_file", "encoder", "with_heads"),
    [(base, 109_482_240, 110_106_428), (large, 335_141_888, 336_226_108)],
)
def test_published_sizes(config_file, encoder, with_heads):
    sizes = dict(config_file.get_config().model)
    model = bert.build(ModelConfig(**(sizes | {"vocab_size": 30_522})), "tpu")
    assert model.parameter_count == with_heads
    heads = sum(
        math.prod(of.logical_dims)
        for name in ("mlm", "nsp")
        for of in jax.tree.leaves(model.declared[name])
    )
    assert with_heads - heads == encoder


@pytest.mark.slow
def test_initial_values_are_a_cut_normal():
    model = bert.build(dataclasses.replace(MODEL, vocab_size=4099), "cpu")
    params = model.init(jax.random.key(1))
    table = np.asarray(params["embeddings"]["word"]["embedding"])
    assert np.abs(table).max() <= 0.04
    # A normal cut at two deviations keeps 0.8796 of its deviation.
    assert table[:4099].std() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert (table[4099:] == 0).all()
    assert (np.asarray(params["mlm"]["layer_norm"]["scale"]) == 1).all()
    assert (np.asarray(params["mlm"]["output_bias"]) == 0).all()
    first, second = (params["layers"][n]["mlp"]["output"]["kernel"] for n in ("00", "01"))
    assert not np.allclose(first, second)
