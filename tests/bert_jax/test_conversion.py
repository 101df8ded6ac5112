"""Exports in every layout: what lies there, by its own reader, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from bert_jax import (
    conversion,
    hf_export,
    mask_filling,
    masked_lm,
    named_tensors,
    pretrained,
    receipt,
)
from bert_jax.exit_codes import Refused
from bert_jax.task_layer import TaskLayer
from data_pipeline.whole_folder import whole_folder
from tests.bert_jax.small_checkpoints import PIECES, SIZES, tensors, write

TANH = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A BERT with both heads that every layout can hold."""
    return pretrained.load(str(write(tmp_path_factory.mktemp("whole"), tensors(), **TANH)))


def export(held, address, drawn=()):
    to = conversion.target(address)
    conversion.check(held, to)
    return conversion.write(held, to, drawn)


@pytest.fixture(scope="module")
def hugging_face(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "hf"
    largest = export(whole, f"hf:{folder}")
    assert list(largest) == ["hidden", "pooled", "MLM logits", "NSP logits"]
    assert max(largest.values()) == 0.0
    return folder


def test_hugging_face_gets_the_arrays_that_it_gave(hugging_face):
    held = safetensors.numpy.load_file(hugging_face / "model.safetensors")
    given = tensors()
    assert held.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(held[name], array)
    with safetensors.safe_open(hugging_face / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((hugging_face / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert {name: config[name] for name in SIZES} == SIZES
    assert (config["hidden_act"], config["layer_norm_eps"]) == ("gelu_new", 1e-12)


def test_hugging_face_gets_the_tokeniser(hugging_face):
    tokenizer = tokenizers.Tokenizer.from_file(str(hugging_face / "tokenizer.json"))
    assert tokenizer.encode("A cat sees dogs.").ids == [2, 5, 6, 8, 7, 9, 10, 3]
    assert (hugging_face / "vocab.txt").read_text().split() == PIECES
    settings = json.loads((hugging_face / "tokenizer_config.json").read_text())
    assert (settings["tokenizer_class"], settings["do_lower_case"]) == ("BertTokenizer", True)
    assert settings["model_max_length"] == SIZES["max_position_embeddings"]
    assert settings["mask_token"] == "[MASK]"
    pooling = json.loads((hugging_face / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == SIZES["hidden_size"]


def test_the_card_says_what_it_is(hugging_face):
    card = (hugging_face / "README.md").read_text()
    assert "# hf\n" in card
    assert "| width, heads | 14, 2 |" in card
    assert "BertForPreTraining.from_pretrained('hf')" in card
    assert "To be filled in by whoever publishes this model" in card
    assert "/tmp" not in card


def test_google_gets_its_names_and_a_run_reads_them_back(whole, tmp_path):
    import tensorflow as tf

    export(whole, f"google:{tmp_path / 'google'}/")
    there = tf.train.load_checkpoint(str(tmp_path / "google" / "bert_model.ckpt"))
    given = tensors()
    shapes = there.get_variable_to_shape_map()
    assert len(shapes) == len(given)
    for name, theirs in (
        ("bert.embeddings.word_embeddings.weight", "bert/embeddings/word_embeddings"),
        ("bert.embeddings.LayerNorm.weight", "bert/embeddings/LayerNorm/gamma"),
        ("cls.predictions.bias", "cls/predictions/output_bias"),
        ("cls.seq_relationship.weight", "cls/seq_relationship/output_weights"),
    ):
        np.testing.assert_array_equal(there.get_tensor(theirs), given[name])
    np.testing.assert_array_equal(
        there.get_tensor("bert/encoder/layer_1/intermediate/dense/kernel"),
        given["bert.encoder.layer.1.intermediate.dense.weight"].T,
    )
    config = json.loads((tmp_path / "google" / "bert_config.json").read_text())
    assert config["hidden_act"] == "gelu"

    google = pretrained.load(str(tmp_path / "google"))
    assert google.config == whole.config
    export(google, f"orbax:{tmp_path / 'run'}")
    back = pretrained.load(str(tmp_path / "run"))
    expected = named_tensors.by_path(whole.params)
    for path, leaf in named_tensors.by_path(back.params).items():
        np.testing.assert_array_equal(leaf, expected[path])
    model = masked_lm.load(str(tmp_path / "run"))
    guesses = mask_filling.guess(model, [mask_filling.question(model, "a [MASK] sees .")], 3)
    assert len(guesses[0][0]) == 3
    assert receipt.read(tmp_path / "run").converted_from.startswith("/")


@pytest.mark.parametrize(
    ("kind", "classes", "architecture", "name"),
    [
        ("classify", 3, "BertForSequenceClassification", "classifier"),
        ("regress", 1, "BertForSequenceClassification", "classifier"),
        ("choose", 1, "BertForMultipleChoice", "classifier"),
        ("span", 2, "BertForQuestionAnswering", "qa_outputs"),
        ("tag", 3, "BertForTokenClassification", "classifier"),
    ],
)
def test_a_fine_tuned_model_keeps_the_layer_of_its_task(
    kind, classes, architecture, name, tmp_path
):
    read = pretrained.load(str(write(tmp_path / "given", tensors(has_heads=False), **TANH)))
    kernel_DC = np.random.default_rng(1).normal(size=(14, classes)).astype(np.float32)
    layer = {"kernel": kernel_DC, "bias": np.arange(classes, dtype=np.float32)}
    labels = ("no", "yes", "perhaps") if classes == 3 else ()
    held = dataclasses.replace(
        read,
        params=read.params | {"classifier": layer},
        task=TaskLayer("Mine", kind, labels),
    )
    to = conversion.target(f"hf:{tmp_path / 'out'}")
    assert conversion.missing(held) == ()
    assert conversion.fitting(held, to) is held
    if kind == "classify":
        largest = conversion.write(held, to, ())
        assert largest["[CLS] logits"] == largest["token logits"] == 0.0
    else:
        to.folder.mkdir()
        hf_export.write(held, to.folder)
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(found[f"{name}.weight"], kernel_DC.T)
    np.testing.assert_array_equal(found[f"{name}.bias"], layer["bias"])
    assert "bert.pooler.dense.weight" in found
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [architecture]
    if labels:
        assert config["id2label"] == {"0": "no", "1": "yes", "2": "perhaps"}
    google = conversion.target(f"google:{tmp_path / 'google'}/")
    assert conversion.fitting(held, google).params.keys() == read.params.keys()


def test_numbers_leave_in_the_units_of_their_table(tmp_path):
    """Learned as deviations from a mean, which transformers would give in place of the numbers."""
    read = pretrained.load(str(write(tmp_path / "given", tensors(has_heads=False), **TANH)))
    kernel_D1 = np.random.default_rng(1).normal(size=(14, 1)).astype(np.float32)
    held = dataclasses.replace(
        read,
        params=read.params | {"classifier": {"kernel": kernel_D1, "bias": np.float32([0.25])}},
        task=TaskLayer("Prices", "regress", (), mean=300.0, deviation=40.0),
    )
    fitted = conversion.fitting(held, conversion.target(f"hf:{tmp_path / 'out'}"))
    (tmp_path / "new").mkdir()
    hf_export.write(fitted, tmp_path / "new")
    found = safetensors.numpy.load_file(tmp_path / "new" / "model.safetensors")
    np.testing.assert_allclose(found["classifier.weight"], kernel_D1.T * 40.0, rtol=1e-6)
    np.testing.assert_allclose(found["classifier.bias"], [310.0], rtol=1e-6)
    again = conversion.fitting(fitted, conversion.target(f"hf:{tmp_path / 'out'}"))
    assert again.params is fitted.params  # what gives numbers is not scaled again


def test_an_encoder_alone_stays_one_unless_heads_are_asked_for(tmp_path):
    some = {n: a for n, a in tensors("", has_heads=False).items() if "pooler" not in n}
    held = pretrained.load(str(write(tmp_path / "given", some)))
    assert conversion.missing(held) == ("pooler", "mlm", "nsp")
    assert list(export(held, f"hf:{tmp_path / 'alone'}")) == ["hidden"]
    names = safetensors.numpy.load_file(tmp_path / "alone" / "model.safetensors").keys()
    assert names == some.keys()
    export(held, f"orbax:{tmp_path / 'run'}")
    assert pretrained.load(str(tmp_path / "run")).params.keys() == {"embeddings", "layers"}
    with pytest.raises(ValueError, match="has no masked language model's head"):
        masked_lm.load(str(tmp_path / "run"))

    full = conversion.completed(held, seed=3)
    assert conversion.missing(full) == ()
    export(full, f"hf:{tmp_path / 'full'}", ("pooler", "mlm", "nsp"))
    card = (tmp_path / "full" / "README.md").read_text()
    assert "Not trained, but drawn at random for this export: pooler, mlm, nsp." in card
    kernel = full.params["pooler"]["kernel"]
    assert 0.01 < kernel.std() < 0.03
    assert not np.array_equal(kernel, conversion.completed(held, seed=4).params["pooler"]["kernel"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "Google's code has no exact gelu: .* --hidden_act=gelu_tanh"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps 1e-05, and Google's code takes none but 1e-12"),
    ],
)
def test_google_is_given_nothing_that_it_computes_otherwise(changes, words, tmp_path):
    held = pretrained.load(str(write(tmp_path / "given", tensors(), **(TANH | changes))))
    with pytest.raises(ValueError, match=words):
        export(held, f"google:{tmp_path / 'google'}/")
    assert not (tmp_path / "google").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("exports/mine", "must name the layout: hf:DIR"),
        ("hf:", "must name the layout"),
        ("hf:gs://bucket/mine", "written to a folder of this machine"),
        ("hf:{}", "holds a.txt and 1 more; give a new or an empty folder"),
        ("google:{}/bert_model.ckpt", "holds a.txt and 1 more"),
        ("orbax:{}/a.txt", "a.txt is a file; give a new folder"),
    ],
)
def test_a_place_that_is_taken_is_refused(address, words, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("somebody's")
    with pytest.raises(ValueError, match=words):
        conversion.target(address.format(tmp_path))


def test_a_copy_that_differs_is_not_kept(whole, tmp_path, monkeypatch):
    honest = pretrained.load

    def with_a_flipped_bit(address):
        read = honest(address)
        params = {**read.params, "nsp": {**read.params["nsp"], "bias": np.ones(2, np.float32)}}
        return dataclasses.replace(read, params=params)

    monkeypatch.setattr(pretrained, "load", with_a_flipped_bit)
    with pytest.raises(Refused, match=r"NSP logits of what was written differ .* nothing was kept"):
        export(whole, f"hf:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_copy_that_cannot_be_read_is_not_kept(whole, tmp_path, monkeypatch):
    def with_a_lost_tensor(held, folder):
        hf_export_write(held, folder)
        path = folder / "model.safetensors"
        there = safetensors.numpy.load_file(path)
        del there["bert.embeddings.LayerNorm.weight"]
        safetensors.numpy.save_file(there, path)

    hf_export_write = hf_export.write
    monkeypatch.setattr(hf_export, "write", with_a_lost_tensor)
    with pytest.raises(Refused, match=r"cannot be read back, and nothing was kept: .*disk"):
        export(whole, f"hf:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_write_one_folder(whole, tmp_path):
    to = conversion.target(f"hf:{tmp_path / 'out'}")
    with (
        whole_folder(to.folder, hf_export.LAST) as files,
        pytest.raises(Refused, match=r"where another process is at work; wait until it is done"),
    ):
        (files / hf_export.LAST).write_text("whole")
        conversion.write(whole, to, ())
    assert (to.folder / hf_export.LAST).read_text() == "whole"


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    held = tensors()
    held["bert.pooler.dense.bias"][3] = np.nan
    read = pretrained.load(str(write(tmp_path / "given", held)))
    with pytest.raises(ValueError, match=r"not finite in pooler/bias"):
        export(read, f"hf:{tmp_path / 'out'}")
