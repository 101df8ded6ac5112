"""Checkpoints of anybody's: loaded by address, placed on a mesh, and computing what they did."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import Config, MeshConfig, Phase
from bert_jax.inference.fill_mask import guess_tokens, read_question
from bert_jax.interop import export, load, pretrained
from bert_jax.model import bert
from bert_jax.model.bert import Heads
from bert_jax.model.layers import init_param
from bert_jax.parallel import mesh
from bert_jax.runtime import run_record
from bert_jax.train_step import state
from bert_jax.trainer.feed import open_store
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import build_rows
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.small_checkpoints import PIECES, tensors, write
from tests.bert_jax.tiny_models import CONFIG, config_and_data, resolved, setting

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A BERT without heads."""
    return write(tmp_path_factory.mktemp("small"), tensors(has_heads=False))


def on_mesh(devices, preset):
    of = mesh.make_mesh(MeshConfig(preset=preset), jax.devices()[:devices])
    jax.set_mesh(of)
    return of


@pytest.mark.slow
def test_arrays_are_laid_out_padded_and_drawn(small):
    read = load.load(f"hf:{small}")
    assert read.heads == Heads(mlm=False, nsp=False)
    assert read.vocabulary.size == len(PIECES)
    of = on_mesh(4, "tp")
    model = bert.build(read.config, "cpu", of.shape["model"], heads=Heads(True, False, 3))
    params, drawn = pretrained.place_params(read, model, of, seed=7)

    specs = jax.tree.map(lambda leaf: leaf.spec, model.declared)
    assert jax.tree.map(lambda leaf: leaf.sharding.spec, params) == specs
    held = name_leaves(read.params)
    for (path, leaf), (keys, declared) in zip(
        name_leaves(params).items(), jax.tree.leaves_with_path(model.declared), strict=True
    ):
        expected = held[path] if path in held else init_param(jax.random.key(7), keys, declared)
        rows = expected.shape[0]
        np.testing.assert_array_equal(np.asarray(leaf)[:rows], expected)
        assert not np.any(np.asarray(leaf)[rows:])
    assert set(drawn) == name_leaves(params).keys() - held.keys()
    assert {path.split("/")[0] for path in drawn} == {"mlm", "classifier"}
    assert params["embeddings"]["word"]["embedding"].shape == (256, 14)


@pytest.mark.slow
def test_what_the_model_has_not_is_left(tmp_path):
    read = load.load(str(write(tmp_path, tensors())))
    assert read.heads == Heads(mlm=True, nsp=True)
    of = on_mesh(1, "dp")
    model = bert.build(read.config, "cpu", heads=Heads(False, False, 5))
    params, drawn = pretrained.place_params(read, model, of, seed=0)
    assert sorted(drawn) == ["classifier/bias", "classifier/kernel"]
    assert params.keys() == {"embeddings", "layers", "pooler", "classifier"}


def test_other_shapes_are_refused_by_name(small):
    read = load.load(small)  # a path is an address too
    assert read.address == str(small)
    of = on_mesh(1, "dp")
    model = bert.build(dataclasses.replace(read.config, max_position_embeddings=31), "cpu")
    words = r"embeddings/position/embedding is \[19, 14\] there and \[31, 14\] here; leave"
    with pytest.raises(ValueError, match=words):
        pretrained.place_params(read, model, of, seed=0)


@pytest.mark.parametrize(
    ("heads", "words"), [(Heads(), "mlm, nsp, which"), (Heads(False, False, 3), "classes, which")]
)
def test_heads_that_a_checkpoint_lacks_are_not_made_up(small, heads, words):
    with pytest.raises(ValueError, match=f"lacks the heads {words}"):
        pretrained.place_model(load.load(str(small)), heads)


@pytest.mark.slow
@pytest.mark.parametrize("is_int8", [False, True])
def test_the_callers_mesh_stays_current(tmp_path, is_int8):
    own = jax.make_mesh((2,), ("mine",), devices=jax.devices()[:2])
    with jax.set_mesh(own):
        read = load.load(write(tmp_path, tensors()))
        model = pretrained.place_masked_lm(read, jax.devices()[:1], is_int8)
        ((guesses,),) = guess_tokens(model, [read_question(model, "a [MASK] .")], 3)
        assert jax.sharding.get_mesh() == own and len(guesses) == 3
    assert len(repr(model)) < 5000  # a notebook shows it


def test_a_part_of_another_name_is_refused(small):
    with pytest.raises(ValueError, match=r"^part is 'encoder'; it must be discriminator or gen"):
        load.load(small, "encoder")


def test_a_vocabulary_longer_than_the_table_is_refused(tmp_path):
    folder = write(tmp_path, tensors())
    (folder / "vocab.txt").write_text("\n".join([*PIECES, *(f"word{i}" for i in range(13))]))
    with pytest.raises(ValueError, match=r"has 24 pieces, but the word table of .* has 23 rows"):
        load.load(str(folder))


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
        load.load(address)


@pytest.mark.slow
def test_a_run_of_ours_is_read_with_its_vocabulary(tiny_store, tmp_path):
    of = setting(CONFIG, 1)
    short = Phase(seq_len=24, steps=9, batch_size=8)
    data = PretrainOptions(store=str(tiny_store))
    model = dataclasses.replace(CONFIG.model, vocab_size=0)
    config = resolved(Config(data=data, model=model, phases=(short,)))
    config = dataclasses.replace(config, model=CONFIG.model)
    run_record.write(tmp_path, *config_and_data(config), parts={"untrained": []})
    with pytest.raises(ValueError, match="has not saved a checkpoint yet"):
        load.load(str(tmp_path))
    saving = Checkpoints(tmp_path / run_record.CHECKPOINTS, config.checkpoint, of.model)
    held = state.init_state(of.model, of.tx, of.where, seed=3)
    saving.save(0, held, {})
    saving.close()

    read = load.load(str(tmp_path))
    assert read.config == CONFIG.model
    assert read.vocabulary.digest == open_store(config.data).manifest["vocabulary"]["sha256"]
    expected = name_leaves(held.params)
    for path, leaf in name_leaves(read.params).items():
        np.testing.assert_array_equal(leaf, expected[path][: leaf.shape[0]])
    assert read.params["embeddings"]["word"]["embedding"].shape == (CONFIG.model.vocab_size, 32)


@pytest.mark.slow
def test_a_hundred_sentences_are_as_in_pytorch(minilm):
    golden = np.load(GOLDEN / "minilm_hidden_states.npz")  # made by the script of that name
    texts = [text.decode() for text in golden["texts"]]
    assert len(texts) == 100
    read = load.load(str(minilm))
    assert "pooler" in read.params
    flat_ids, lengths = read.vocabulary.encode(texts)
    special_ids = read.vocabulary.special_ids
    each = np.split(flat_ids, np.cumsum(lengths)[:-1])
    rows = build_rows([frame(ids.tolist(), None, read.vocabulary.template, 64) for ids in each])
    assert rows.lengths_N.tolist() == golden["lengths"].tolist()
    assert rows.token_ids.tolist() == golden["input_ids"].tolist()
    batch = rows.batch(np.arange(100), 64, special_ids["pad"])
    fields = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = export.compute_outputs(read, fields)
    hidden_LBSD = np.stack([outputs[f"{export.HIDDEN} of layer {i}"] for i in range(7)])
    for row, (places, values) in enumerate(zip(golden["places"], golden["values"], strict=True)):
        computed = hidden_LBSD[:, row, places[:, 0], places[:, 1]]
        np.testing.assert_allclose(computed, values, rtol=0, atol=1e-4)
