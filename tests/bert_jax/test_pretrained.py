"""Checkpoints of anybody's: loaded by address, placed on a mesh, and computing what they did."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from bert_jax import mesh, named_tensors, pretrained, receipt, state
from bert_jax.attention import unpadded
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import Config, MeshConfig
from bert_jax.feed import Feed, open_store
from bert_jax.models import bert
from bert_jax.models.bert import Heads
from data_pipeline.framing import frame
from data_pipeline.options import PretrainOptions
from tests.bert_jax.small_checkpoints import PIECES, tensors, write
from tests.bert_jax.tiny_models import CONFIG, setting

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A BERT without heads."""
    return write(tmp_path_factory.mktemp("small"), tensors(has_heads=False))


def on_mesh(devices, preset):
    of = mesh.make(MeshConfig(preset=preset), jax.devices()[:devices])
    jax.set_mesh(of)
    return of


def test_arrays_are_laid_out_padded_and_drawn(small):
    read = pretrained.load(f"hf:{small}")
    assert read.heads == Heads(mlm=False, nsp=False)
    assert read.vocabulary.size == len(PIECES)
    of = on_mesh(4, "tp")
    model = bert.build(read.config, "cpu", of.shape["model"], heads=Heads(True, False, 3))
    params, drawn = pretrained.placed(read, model, of, seed=7)

    assert jax.tree.map(lambda leaf: leaf.sharding.spec, params) == model.specs
    held = named_tensors.by_path(read.params)
    fresh = named_tensors.by_path(model.init(jax.random.key(7)))
    for path, leaf in named_tensors.by_path(params).items():
        expected = held.get(path, fresh[path])
        rows = expected.shape[0]
        np.testing.assert_array_equal(np.asarray(leaf)[:rows], expected)
        assert not np.any(np.asarray(leaf)[rows:])
    assert set(drawn) == fresh.keys() - held.keys()
    assert {path.split("/")[0] for path in drawn} == {"mlm", "classifier"}
    assert params["embeddings"]["word"]["embedding"].shape == (256, 14)


def test_what_the_model_has_not_is_left(tmp_path):
    read = pretrained.load(str(write(tmp_path, tensors())))
    assert read.heads == Heads(mlm=True, nsp=True)
    of = on_mesh(1, "dp")
    model = bert.build(read.config, "cpu", heads=Heads(False, False, 5))
    params, drawn = pretrained.placed(read, model, of, seed=0)
    assert sorted(drawn) == ["classifier/bias", "classifier/kernel"]
    assert params.keys() == {"embeddings", "layers", "pooler", "classifier"}


def test_other_shapes_are_refused_by_name(small):
    read = pretrained.load(str(small))
    of = on_mesh(1, "dp")
    model = bert.build(dataclasses.replace(read.config, max_position_embeddings=31), "cpu")
    words = r"embeddings/position/embedding is \[19, 14\] there and \[31, 14\] here; leave"
    with pytest.raises(ValueError, match=words):
        pretrained.placed(read, model, of, seed=0)


def test_a_vocabulary_longer_than_the_table_is_refused(tmp_path):
    folder = write(tmp_path, tensors())
    pieces = [*PIECES, *(f"word{i}" for i in range(13))]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    with pytest.raises(ValueError, match=r"has 24 pieces, but the word table of .* has 23 rows"):
        pretrained.load(str(folder))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("bert-base-uncased", "'bert-base-uncased' is not a folder .* or hf:NAME"),
        ("hf:", "'hf:' names no place; give hf:DIR"),
        ("hf:/nowhere/at/all", "'hf:/nowhere/at/all' is not a folder"),
        ("google:/nowhere/bert_model.ckpt", r"bert_model\.ckpt\.index does not exist"),
        ("/", "/ holds no checkpoint; give hf:DIR"),
    ],
)
def test_a_place_without_a_checkpoint_is_refused(address, words):
    with pytest.raises(ValueError, match=words):
        pretrained.load(address)


def test_a_run_of_ours_is_read_with_its_vocabulary(tiny_store, tmp_path):
    of = setting(CONFIG, 1)
    config = Config(data=PretrainOptions(store=str(tiny_store)), model=CONFIG.model)
    receipt.write(tmp_path, Feed(open_store(config.data), config))
    with pytest.raises(ValueError, match="has not saved a checkpoint yet"):
        pretrained.load(str(tmp_path))
    saving = Checkpoints(tmp_path / receipt.CHECKPOINTS, config.checkpoint, of.model)
    held = state.init(of.model, of.tx, of.where, seed=3)
    saving.save(0, held, {})
    saving.close()

    read = pretrained.load(str(tmp_path))
    assert read.config == CONFIG.model
    assert read.vocabulary.digest == open_store(config.data).manifest["vocabulary"]["sha256"]
    expected = named_tensors.by_path(held.params)
    for path, leaf in named_tensors.by_path(read.params).items():
        np.testing.assert_array_equal(leaf, expected[path][: leaf.shape[0]])
    assert read.params["embeddings"]["word"]["embedding"].shape == (CONFIG.model.vocab_size, 32)


@pytest.fixture(scope="module")
def hidden_layers(minilm):
    """MiniLM: token ids of texts, rows that are filled up, and float32[L+1,B,S,D] of them."""
    read = pretrained.load(str(minilm))
    of = on_mesh(1, "dp")
    model = bert.build(read.config, "cpu", heads=Heads(mlm=False, nsp=False))
    params, drawn = pretrained.placed(read, model, of, seed=0)
    assert drawn == []

    @jax.jit
    def hidden(params, batch):
        layers = model.bind(params).hidden_layers
        return layers(batch["ids"], batch["ids"] * 0, unpadded(batch["mask"]))

    def run(texts, max_tokens):
        flat_ids, lengths = read.vocabulary.encode(texts)
        ends = np.cumsum(lengths)
        framed = [
            frame(
                flat_ids[end - length : end].tolist(), None, read.vocabulary.special_ids, max_tokens
            )[0]
            for end, length in zip(ends, lengths, strict=True)
        ]
        batch = {"ids": np.zeros((len(texts), max_tokens), np.int32)}
        batch["mask"] = np.zeros_like(batch["ids"])
        for row, ids in enumerate(framed):
            batch["ids"][row, : len(ids)] = ids
            batch["mask"][row, : len(ids)] = 1
        return framed, batch["mask"], np.stack(hidden(params, mesh.place(batch, of)))

    return run


def test_a_hundred_sentences_are_as_in_pytorch(hidden_layers):
    golden = np.load(GOLDEN / "minilm_hidden_states.npz")  # made by the script of that name
    texts = [text.decode() for text in golden["texts"]]
    assert len(texts) == 100
    rows, _, hidden_LBSD = hidden_layers(texts, 64)
    assert [len(row) for row in rows] == golden["lengths"].tolist()
    assert np.concatenate(rows).tolist() == golden["input_ids"].tolist()
    for row, (places, values) in enumerate(zip(golden["places"], golden["values"], strict=True)):
        found = hidden_LBSD[:, row, places[:, 0], places[:, 1]]
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-4)


def test_minilm_gives_its_published_outputs(hidden_layers, shared_data):
    golden = json.loads((shared_data / "golden" / "minilm_l6_v2_known_outputs.json").read_text())
    known = golden["mean_pool_normalised_first5"]
    cases = golden["cosine_similarity"]["cases"]
    texts = [known["text"], *(case["document"] for case in cases)]
    words = [word for case in cases for word in case["words"]]
    rows, mask_NS, hidden_LNSD = hidden_layers([*texts, *words], 128)
    sums_ND = (hidden_LNSD[-1] * mask_NS[..., None]).sum(axis=1)
    vectors_ND = sums_ND / np.linalg.norm(sums_ND, axis=1, keepdims=True)
    assert rows[0] == known["input_ids"]
    np.testing.assert_allclose(vectors_ND[0, :5], known["values"], atol=known["atol"])
    vector_of = dict(zip([*texts, *words], vectors_ND, strict=True))
    for case in cases:
        for word, published in case["words"].items():
            cosine = vector_of[case["document"]] @ vector_of[word]
            assert cosine == pytest.approx(published, abs=golden["cosine_similarity"]["atol"])
