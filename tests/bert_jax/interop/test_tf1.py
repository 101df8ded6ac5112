"""Checkpoints of Google's TF1 code: a real one, and what is refused of its files."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.interop import load, tf1
from bert_jax.model.bert import Heads
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.bert_jax.small_checkpoints import PIECES, tensors, write

pytestmark = pytest.mark.slow  # TensorFlow takes twenty seconds to import


@pytest.fixture
def tiny(shared_data):
    return shared_data / "tiny_checkpoints" / "keras-bert_tf1_tiny"


def test_a_real_checkpoint_is_read_whole(tiny):
    import tensorflow as tf

    read = load.load(f"google:{tiny / 'bert_model.ckpt'}")
    assert read.heads == Heads(mlm=True, nsp=True)
    assert read.config.hidden_act == "gelu_tanh"
    assert read.vocabulary.size == read.config.vocab_size == 15
    there = tf.train.load_checkpoint(str(tiny / "bert_model.ckpt"))
    names = [n for n in there.get_variable_to_shape_map() if "adam_" not in n]
    numbers = sum(there.get_tensor(n).size for n in names if n != "global_step")
    assert read.parameter_count == numbers
    assert read.unread == ()
    leaves = name_leaves(read.params)
    for path, name in (
        ("layers/01/mlp/output/kernel", "bert/encoder/layer_1/output/dense/kernel"),
        ("embeddings/layer_norm/scale", "bert/embeddings/LayerNorm/gamma"),
        ("mlm/output_bias", "cls/predictions/output_bias"),
    ):
        np.testing.assert_array_equal(leaves[path], there.get_tensor(name))
    nsp_weights = there.get_tensor("cls/seq_relationship/output_weights")
    np.testing.assert_array_equal(leaves["nsp/kernel"].T, nsp_weights)


@pytest.mark.parametrize("name", ["", "bert_model.ckpt.index", "bert_model.ckpt"])
def test_a_checkpoint_goes_by_its_folder_and_by_its_files(tiny, name):
    assert tf1.find_prefix(str(tiny / name)) == tiny / "bert_model.ckpt"
    assert load.split_address(str(tiny / name))[0] == load.GOOGLE


def test_files_that_are_missing_or_damaged_are_named(tiny, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:4000])
    for change in (lambda: None, data.unlink):
        change()
        with pytest.raises(ValueError, match=r"bert_model\.ckpt.* is damaged"):
            tf1.read(folder / "bert_model.ckpt")
    (folder / "bert_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no bert_config\.json; put the one that it was"):
        tf1.read(folder / "bert_model.ckpt")


@pytest.fixture
def exported(tmp_path):
    """A small BERT in Google's layout, of a checkpoint that is lowercased or not."""

    def export(do_lower_case=True, added=()):
        given = write(tmp_path / "given", tensors(), hidden_act="gelu_new", layer_norm_eps=1e-12)
        if added:
            tokenizer = make_wordpiece_tokenizer(PIECES, "[UNK]", do_lower_case)
            tokenizer.add_tokens([*added])
            tokenizer.save(str(given / "tokenizer.json"))
            (given / "vocab.txt").unlink()
        settings = json.dumps({"do_lower_case": do_lower_case})
        (given / "tokenizer_config.json").write_text(settings)
        prefix = tmp_path / "google" / "bert_model.ckpt"
        prefix.parent.mkdir()
        tf1.write(load.load(f"hf:{given}"), prefix)
        return prefix

    return export


def test_layers_that_the_config_does_not_name_are_refused(exported):
    """As Hugging Face's are: half an encoder computes something else."""
    prefix = exported()
    path = prefix.with_name("bert_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match=r"holds bert/encoder/layer_1/.*bert_config\.json"):
        load.load(f"google:{prefix}")


def test_settings_that_the_file_lacks_have_the_defaults_of_googles_code(exported):
    """modeling.py@eedf5716ce BertConfig tells 16 segments apart, of which ours has 3."""
    prefix = exported()
    path = prefix.with_name("bert_config.json")
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"hidden_act": "gelu"}))
    assert load.load(f"google:{prefix}").config.hidden_act == "gelu_tanh"
    path.write_text(json.dumps(settings | {"hidden_act": "relu"}))
    assert load.load(f"google:{prefix}").config.hidden_act == "relu"
    del settings["type_vocab_size"], settings["hidden_act"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"token_type_embeddings as \[3, 14\] .* \[16, 14\]"):
        load.load(f"google:{prefix}")


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_case_of_a_list_without_capitals_comes_back(exported, do_lower_case):
    """As of a Chinese list: what the pieces look like says nothing of it."""
    read = load.load(f"google:{exported(do_lower_case)}")
    assert read.vocabulary.lowercase == do_lower_case


def test_an_added_line_break_takes_one_line_of_the_list(exported):
    """Google's code counts lines, and strips each."""
    prefix = exported(added=["\n", "dogs"])
    read = load.load(f"google:{prefix}").vocabulary
    lines = prefix.with_name("vocab.txt").read_text().split("\n")
    assert [lines.index(piece) for piece in (".", "dogs")] == [10, 12]
    assert read.encode(["\ndogs"])[0].tolist() == [11, 12]


def test_the_layer_of_a_task_is_named_and_its_slots_are_not(exported, monkeypatch):
    """run_classifier.py calls it output_weights, beside the names of BERT's own arrays."""
    prefix = exported()
    of_bert = tf1._open_tensors(prefix)
    more = {"output_weights": (2, 14), "output_weights/adam_m": (2, 14), "output_bias": (2,)}
    held = dataclasses.replace(of_bert, dims={**of_bert.dims, **more, "global_step": ()})
    monkeypatch.setattr(tf1, "_open_tensors", lambda of: held)
    assert load.load(f"google:{prefix}").unread == ("output_bias", "output_weights")
