"""Disentangled attention: its terms against NumPy, buckets, packed rows, devices.

tests/bert_jax/interop/test_families.py has Hugging Face's results.
"""

import dataclasses
import functools
import itertools
import math
import operator

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.model.relative import number_distances
from bert_jax.parallel import mesh
from bert_jax.train_step.objectives import MLM, RTD
from tests.bert_jax.model.test_ops import norm_numpy
from tests.bert_jax.tiny_models import CONFIG, random_batch, setting
from tests.bert_jax.train_step.gradients import assert_same, compute, draw, on_mesh
from tests.bert_jax.train_step.test_objectives import one_by_one, side_by_side

SHAPE = {
    "position_embedding_type": "disentangled",
    "type_vocab_size": 0,
    "position_buckets": 8,
    "max_relative_positions": 18,
    "num_hidden_layers": 1,
}
GENERATOR = {"generator_hidden_size": 32, "generator_num_attention_heads": 4}


def configure(**changes):
    return dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, **SHAPE | changes))


@pytest.mark.parametrize(
    ("buckets", "reach", "expected"),
    [
        # What make_log_bucket_position of transformers 5.24 and 4.57.6 gives from -9 to 9.
        (8, 24, "2 2 3 3 3 4 5 6 7 8 9 10 11 12 13 13 13 14 14"),
        (6, 9, "0 1 1 1 1 2 3 4 5 6 7 8 9 10 11 11 11 11 11"),
        (7, 13, "2 2 2 3 3 3 4 5 6 7 8 9 10 11 11 11 12 12 12"),
        (0, 5, "0 0 0 0 0 1 2 3 4 5 6 7 8 9 9 9 9 9 9"),  # without buckets
        (64, 24, " ".join(map(str, range(55, 74)))),  # a bucket for each distance
    ],
)
def test_distances_have_the_buckets_of_transformers(buckets, reach, expected):
    config = configure(position_buckets=buckets, max_relative_positions=reach).model
    assert number_distances(config, 10).tolist() == [*map(int, expected.split())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "share"), [("c2p|p2c", True), ("c2p|p2c", False), ("c2p", True), ("p2c", False)]
)
def test_terms_are_products_with_the_distance_between_query_and_key(terms, share):
    """Against loops over queries and keys: He et al. 2021, equation 4, as the authors' code."""
    config = configure(pos_att_type=terms, share_att_key=share)
    at = setting(config, 1)
    params = draw(at.model)
    rng = np.random.default_rng(5)
    batch, seq_len, heads, width = 2, 7, 4, 8
    q, k = rng.normal(size=(2, batch, seq_len, heads, width)).astype(np.float32)
    table = rng.normal(size=(2 * 8, heads * width)).astype(np.float32)
    rows = number_distances(config.model, seq_len)

    @jax.jit
    def score(params, q, k, read):
        attention = at.model.bind(params).layers["00"].attention
        return attention.distances.score(q, k, read, attention.query, attention.key)

    with jax.set_mesh(at.mesh):
        scores = score(on_mesh(params, at), q, k, table[rows[0] : rows[-1] + 1])
    layer = params["layers"]["00"]["attention"]

    def vector(name, distance):
        linear = layer[name] if share else layer["distances"][name]
        mapped = table[rows[distance + seq_len - 1]] @ linear["kernel"] + linear["bias"]
        return mapped.reshape(heads, width)

    for term, got in zip(terms.split("|"), scores, strict=True):
        expected = np.zeros((batch, heads, seq_len, seq_len))
        for i, j in np.ndindex(seq_len, seq_len):
            if term == "c2p":
                expected[:, :, i, j] = (q[:, i] * vector("key", i - j)).sum(-1)
            else:
                expected[:, :, i, j] = (k[:, j] * vector("query", i - j)).sum(-1)
        np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.slow
def test_a_detector_reads_the_norm_of_a_token_plus_its_cls():
    """Against NumPy: He et al. 2023's code, LMMaskPredictionHead, in rows and in packed rows."""
    config = configure(detects_by_cls=True, hidden_act="gelu_erf")
    at = setting(config, 1, heads=RTD.heads)
    params = draw(at.model)
    head = params["rtd"]
    x = np.random.default_rng(3).normal(size=(1, 6, 32)).astype(np.float32)
    places = np.array([[0, 4]], np.int32), np.array([[1, 1, 1, 1, 2, 2]], np.int32)

    @jax.jit
    def detect(params, x, *places):
        bound = at.model.bind(params)
        return bound.rtd(x), bound.rtd(x, *places)

    with jax.set_mesh(at.mesh):
        found, packed = detect(on_mesh(params, at), x, *places)

    def detect_numpy(cls):
        total = norm_numpy(x + cls, **head["layer_norm"], eps=config.model.layer_norm_eps)
        total = gelu(total @ head["transform"]["kernel"] + head["transform"]["bias"])
        return (total @ head["output"]["kernel"] + head["output"]["bias"])[..., 0]

    np.testing.assert_allclose(found, detect_numpy(x[:, :1]), atol=2e-5)
    of_each = np.concatenate([x[:, [0] * 4], x[:, [4] * 2]], axis=1)
    np.testing.assert_allclose(packed, detect_numpy(of_each), atol=2e-5)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def apply_layer(params, config, keys, queries, table, seen):
    """One layer on queries [S,D] that read keys [S,D], of which seen[S] may be read."""
    own, heads, length = params["attention"], config.num_attention_heads, len(keys)

    def cut(name, x):
        return (x @ own[name]["kernel"] + own[name]["bias"]).reshape(len(x), heads, -1)

    q, k, v = cut("query", queries), cut("key", keys), cut("value", keys)
    rows = number_distances(config, length)[
        np.arange(length)[:, None] - np.arange(length)[None, :] + length - 1
    ]
    scores = np.einsum("ihk,jhk->hij", q, k)
    scores += np.einsum("ihk,ijhk->hij", q, cut("key", table)[rows])
    scores += np.einsum("jhk,ijhk->hij", k, cut("query", table)[rows])
    scores = np.where(seen, scores / np.sqrt(3 * q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    read = np.einsum("hij,jhk->ihk", weights, v).reshape(queries.shape)
    x = queries + read @ own["output"]["kernel"] + own["output"]["bias"]
    x = norm_numpy(x, **own["layer_norm"])
    mlp = params["mlp"]
    units = gelu(x @ mlp["intermediate"]["kernel"] + mlp["intermediate"]["bias"])
    out = units @ mlp["output"]["kernel"] + mlp["output"]["bias"]
    return norm_numpy(x + out, **mlp["layer_norm"])


@pytest.mark.slow
def test_a_mask_decoder_reads_the_layer_before_the_last_twice():
    """Against NumPy, which decodes every place as EnhancedMaskDecoder of microsoft/DeBERTa does."""
    sizes = GENERATOR | {"num_hidden_layers": 2, "generator_embeddings": "gdes"}
    config = configure(**sizes, hidden_act="gelu_erf", enhanced_mask_decoder=True)
    at = setting(config, 1, heads=RTD.heads)
    params, batch = draw(at.model), random_batch(batch_size=2)
    own, model = params["generator"], config.model.generator

    @jax.jit
    def encode(params, batch):
        visible = hide_padding(batch["input_mask"])
        rows = EncoderRows(batch["input_ids"], batch["segment_ids"], visible)
        generator = at.model.bind(params).generator
        return generator.encode_slots(rows, batch["masked_lm_positions"])

    with jax.set_mesh(at.mesh):
        found = np.asarray(encode(on_mesh(params, at), mesh.place_batch(batch, at.mesh)))
    distances = own["distances"]
    table = norm_numpy(distances["table"]["embedding"], **distances["layer_norm"])
    for row, slots in enumerate(batch["masked_lm_positions"]):
        seen = batch["input_mask"][row] > 0
        embeddings = own["embeddings"]
        x = embeddings["word"]["embedding"][batch["input_ids"][row]]
        x = norm_numpy(x, **embeddings["layer_norm"])
        x = apply_layer(own["layers"]["00"], model, x, x, table, seen)
        asking = x + own["decoder_positions"]["embedding"][: len(x)]
        for _ in range(2):
            asking = apply_layer(own["layers"]["01"], model, x, asking, table, seen)
        np.testing.assert_allclose(found[row], asking[slots], atol=2e-5)


@pytest.mark.long
def test_packed_rows_and_eight_devices_have_the_losses_and_gradients_of_examples():
    """A table of positions too, and maps of its own, which are on two devices."""
    config = configure(share_att_key=False, position_biased_input=True)
    at = setting(config, 1)
    params, batch = draw(at.model), random_batch()
    alone = compute(at, MLM, params, one_by_one())
    dropped = compute(at, MLM, params, batch, drops=True)
    at = setting(config, 8, "zero1+tp")
    assert_same(compute(at, MLM, params, side_by_side()), alone)
    assert_same(compute(at, MLM, params, batch, drops=True), dropped)


@pytest.mark.long
def test_a_mask_decoder_counts_the_places_of_an_example_in_packed_rows_on_eight_devices():
    """The generator alone, whose masked words take no noise; recomputed on the devices."""
    config = configure(enhanced_mask_decoder=True)
    at = setting(config, 1)
    params = draw(at.model)
    expected = compute(at, MLM, params, one_by_one())
    assert np.abs(expected[1]["decoder_positions"]["embedding"]).max() > 0
    how = ComputeConfig(remat="layer", rolled_layers=True)
    other = setting(dataclasses.replace(config, compute=how), 8, "zero1+tp")
    assert_same(compute(other, MLM, params, side_by_side()), expected)


EMBEDDINGS = [["embeddings"], ["generator", "embeddings"]]
NAMES = ["word", "position"]
TABLES = {"generator_embeddings": "gdes", "position_biased_input": True, "detects_by_cls": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "tables", "preset", "how"),
    [
        (TABLES, [*itertools.product(EMBEDDINGS, NAMES)], "zero1+tp", ComputeConfig()),
        (
            {"enhanced_mask_decoder": True},
            [(["generator"], "decoder_positions")],
            "fsdp",
            ComputeConfig(remat="layer", rolled_layers=True),
        ),
    ],
)
def test_a_detector_and_its_generator_are_the_same_on_eight_devices(changes, tables, preset, how):
    """The generator and the encoder have tables of distances of their own."""
    config = configure(**GENERATOR, **changes)
    at = setting(config, 1, heads=RTD.heads)
    params = draw(at.model)
    expected = compute(at, RTD, params, random_batch(), drops=True)
    for place, name in tables:
        grads = functools.reduce(operator.getitem, place, expected[1])[name]["embedding"]
        assert np.abs(grads).max() > 0
    other = setting(dataclasses.replace(config, compute=how), 8, preset, heads=RTD.heads)
    assert_same(compute(other, RTD, params, random_batch(), drops=True), expected)
