"""Exports in every layout: what lies there, by its own reader, and what is refused."""

import dataclasses
import json
import pathlib
import re
import shlex
import sys
import types

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from bert_jax import convert
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.inference import fill_mask
from bert_jax.interop import export as conversion
from bert_jax.interop import huggingface, load, pretrained
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.pretrained import Heads, Pretrained
from bert_jax.logging.console import Screen
from bert_jax.model import bert
from bert_jax.runtime import run_record
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import Refused
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.bert_jax.small_checkpoints import PIECES, SIZES, tensors, write
from tests.data_pipeline.encoded import train_model
from tests.data_pipeline.vocab.test_byte_level import make_file

TANH = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A BERT with both heads that every layout can hold."""
    return load.load(str(write(tmp_path_factory.mktemp("whole"), tensors(), **TANH)))


def export(held, address, drawn=()):
    to = conversion.parse_target(address)
    conversion.check_exportable(held, to)
    return conversion.write(held, to, drawn)


@pytest.fixture(scope="module")
def hugging_face(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "hf"
    largest = export(whole, f"hf:{folder}")
    assert list(largest) == ["hidden", "pooled", "MLM logits", "NSP logits"]
    assert max(largest.values()) == 0.0
    return folder


@pytest.mark.slow
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


@pytest.mark.slow
def test_hugging_face_gets_the_tokenizer(hugging_face):
    tokenizer = tokenizers.Tokenizer.from_file(str(hugging_face / "tokenizer.json"))
    assert tokenizer.encode("A cat sees dogs.").ids == [2, 5, 6, 8, 7, 9, 10, 3]
    assert (hugging_face / "vocab.txt").read_text().split() == PIECES
    settings = json.loads((hugging_face / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"  # it runs tokenizer.json
    assert settings["do_lower_case"] is True
    assert settings["model_max_length"] == SIZES["max_position_embeddings"]
    assert settings["mask_token"] == "[MASK]"
    pooling = json.loads((hugging_face / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == SIZES["hidden_size"]
    card = (hugging_face / "README.md").read_text()
    assert "# hf\n" in card and "BertForPreTraining.from_pretrained('hf')" in card
    assert "| width, heads | 14, 2 |" in card and "/tmp" not in card


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_an_export_may_have_a_name_that_is_not_utf8(whole, tmp_path):
    export(whole, f"hf:{tmp_path}/caf\udce9")
    (card,) = tmp_path.glob("*/README.md")
    assert "# caf\\udce9\n" in card.read_text()


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_a_causal_model_generates_ends_with_sep(whole, is_causal):
    config = dataclasses.replace(whole.config, is_causal=is_causal)
    settings = huggingface._make_config(dataclasses.replace(whole, config=config))
    assert settings.get("eos_token_id") == (PIECES.index("[SEP]") if is_causal else None)


@pytest.mark.long
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

    google = load.load(str(tmp_path / "google"))
    assert google.config == whole.config
    export(google, f"orbax:{tmp_path / 'run'}")
    back = load.load(str(tmp_path / "run"))
    expected = name_leaves(whole.params)
    for path, leaf in name_leaves(back.params).items():
        np.testing.assert_array_equal(leaf, expected[path])
    model = pretrained.place_masked_lm(back, jax.devices()[:1])
    question = fill_mask.read_question(model, "a [MASK] sees .")
    assert len(fill_mask.guess_tokens(model, [question], 3)[0][0]) == 3
    assert run_record.read(tmp_path / "run").converted_from.startswith("/")


@pytest.fixture
def fine_tuned(tmp_path):
    """A function from a task to a model with its layer: a random kernel, a bias of 0, 1, ..."""

    def make(task, classes):
        read = load.load(str(write(tmp_path / "given", tensors(has_heads=False), **TANH)))
        kernel_DC = np.random.default_rng(1).normal(size=(14, classes)).astype(np.float32)
        layer = {"kernel": kernel_DC, "bias": np.arange(classes, dtype=np.float32)}
        params = read.params | {"classifier": layer}
        return dataclasses.replace(read, params=params, task=task)

    return make


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
    fine_tuned, kind, classes, architecture, name, tmp_path
):
    labels = ("no", "yes", "perhaps") if classes == 3 else ()
    held = fine_tuned(TaskLayer("Mine", kind, labels), classes)
    to = conversion.parse_target(f"hf:{tmp_path / 'out'}")
    assert conversion.find_missing(held, to) == ()
    kept = conversion.keep_supported(held, to)
    assert kept.params is held.params and (kept.config, kept.task) == (held.config, held.task)
    to.folder.mkdir()
    huggingface.write(held, to.folder)
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    layer = held.params["classifier"]
    np.testing.assert_array_equal(found[f"{name}.weight"], layer["kernel"].T)
    np.testing.assert_array_equal(found[f"{name}.bias"], layer["bias"])
    assert "bert.pooler.dense.weight" in found
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [architecture]
    if labels:
        assert config["id2label"] == {"0": "no", "1": "yes", "2": "perhaps"}
    google = conversion.parse_target(f"google:{tmp_path / 'google'}/")
    expected = held.params.keys() - {"classifier"}
    assert conversion.keep_supported(held, google).params.keys() == expected


def test_numbers_leave_in_the_units_of_their_table(fine_tuned, tmp_path):
    """Learned as deviations from a mean, which transformers would give in place of the numbers."""
    held = fine_tuned(TaskLayer("Prices", "regress", (), mean=300.0, deviation=40.0), 1)
    held.params["classifier"]["bias"] += np.float32(0.25)
    to = conversion.parse_target(f"hf:{tmp_path / 'out'}")
    fitted = conversion.keep_supported(held, to)
    (tmp_path / "new").mkdir()
    huggingface.write(fitted, tmp_path / "new")
    found = safetensors.numpy.load_file(tmp_path / "new" / "model.safetensors")
    kernel_D1 = held.params["classifier"]["kernel"]
    np.testing.assert_allclose(found["classifier.weight"], kernel_D1.T * 40.0, rtol=1e-6)
    np.testing.assert_allclose(found["classifier.bias"], [310.0], rtol=1e-6)
    # CrossEncoder of sentence-transformers would give the sigmoid, 1.0 for any price.
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    assert config["sentence_transformers"] == identity
    again = conversion.keep_supported(fitted, to)
    assert again.params is fitted.params  # what gives numbers is not scaled again


@pytest.mark.long
def test_an_encoder_alone_stays_one_unless_heads_are_asked_for(tmp_path):
    some = {n: a for n, a in tensors("", has_heads=False).items() if "pooler" not in n}
    held = load.load(str(write(tmp_path / "given", some)))
    to = conversion.parse_target(f"hf:{tmp_path / 'full'}")
    assert conversion.find_missing(held, to) == ("pooler", "mlm", "nsp")
    assert list(export(held, f"hf:{tmp_path / 'alone'}")) == ["hidden"]
    names = safetensors.numpy.load_file(tmp_path / "alone" / "model.safetensors").keys()
    assert names == some.keys()
    export(held, f"orbax:{tmp_path / 'run'}")
    assert load.load(str(tmp_path / "run")).params.keys() == {"embeddings", "layers"}
    with pytest.raises(ValueError, match="has no masked language model's head"):
        pretrained.place_masked_lm(load.load(str(tmp_path / "run")))

    full = conversion.initialize_missing(held, ("pooler", "mlm", "nsp"), seed=3)
    assert conversion.find_missing(full, to) == ()
    export(full, f"hf:{tmp_path / 'full'}", ("pooler", "mlm", "nsp"))
    card = (tmp_path / "full" / "README.md").read_text()
    assert "Not trained, but initialized at random for this export: pooler, mlm, nsp." in card
    kernel = full.params["pooler"]["kernel"]
    assert 0.01 < kernel.std() < 0.03
    assert not np.array_equal(
        kernel, conversion.initialize_missing(held, ("pooler",), seed=4).params["pooler"]["kernel"]
    )


@pytest.mark.parametrize(
    ("changes", "is_nan", "words"),
    [
        ({"hidden_act": "gelu"}, False, "--hidden_act=gelu_tanh"),
        ({"layer_norm_eps": 1e-5}, False, "layer_norm_eps 1e-05, and .* takes none but 1e-12"),
        ({}, True, "holds numbers that are not finite in pooler/bias"),
    ],
)
def test_nothing_is_exported_that_would_be_computed_otherwise(changes, is_nan, words, tmp_path):
    arrays = tensors()
    if is_nan:
        arrays["bert.pooler.dense.bias"][3] = np.nan
    held = load.load(str(write(tmp_path / "given", arrays, **(TANH | changes))))
    with pytest.raises(ValueError, match=words):
        export(held, f"google:{tmp_path / 'google'}/")
    assert not (tmp_path / "google").exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("exports/mine", "must name the format: hf:DIR"),
        ("hf:", "must name the format"),
        ("hf:gs://bucket/mine", "written to a local folder"),
        ("orbax:{}/caf\udce9", "is not UTF-8, which JAX cannot open"),
        ("hf:{}", "--to is .*, a folder with other files; give a new folder, or empty it first"),
        ("google:{}/bert_model.ckpt", "a folder with other files"),
    ],
)
def test_a_place_that_is_taken_is_refused(address, words, tmp_path):
    (tmp_path / "a.txt").write_text("somebody's")
    with pytest.raises(ValueError, match=words):
        conversion.parse_target(address.format(tmp_path))


@pytest.mark.long
def test_a_copy_that_differs_or_cannot_be_read_is_not_kept(whole, tmp_path, monkeypatch):
    honest = load.load

    def with_a_flipped_bit(address):
        read = honest(address)
        params = {**read.params, "nsp": {**read.params["nsp"], "bias": np.ones(2, np.float32)}}
        return dataclasses.replace(read, params=params)

    def with_a_lost_tensor(address):
        path = pathlib.Path(address.removeprefix("hf:")) / "model.safetensors"
        arrays = safetensors.numpy.load_file(path)
        del arrays["bert.embeddings.LayerNorm.weight"]
        safetensors.numpy.save_file(arrays, path)
        return honest(address)

    for damage, words in (
        (with_a_flipped_bit, r"NSP logits of what was written differ .* nothing was kept"),
        (with_a_lost_tensor, r"cannot be read back, and nothing was kept: .*disk"),
    ):
        monkeypatch.setattr(load, "load", damage)
        with pytest.raises(Refused, match=words):
            export(whole, f"hf:{tmp_path / 'out'}")
        assert not (tmp_path / "out").exists()


def test_a_bare_model_with_robertas_padding_is_read_back_as_a_roberta(whole, tmp_path):
    """The tokenizers of XLM-RoBERTa would shift its ids, and no tokenizer.json has its rules."""
    names = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": "[MASK]"}
    across = {"split_by_whitespace": False, "vocab_size": 40}
    path = tmp_path / "own.model"
    path.write_bytes(
        train_model(["a cat sees dogs", "dogs see a cat"] * 9, **names, **ids, **across)
    )
    words = load_vocabulary(path)
    settings = SIZES | {"vocab_size": words.size, "type_vocab_size": 1, "pad_token_id": 1}
    config = FAMILIES["roberta"].parse(path, settings)
    model = bert.build(config, "cpu", heads=Heads(mlm=False, nsp=False, pooler=False))
    params = jax.tree.map(lambda leaf: np.ones(leaf.logical_dims, np.float32), model.declared)
    folder = tmp_path / "hf"
    folder.mkdir()
    huggingface.write(Pretrained("own", config, params, words), folder)
    assert not (folder / "tokenizer.json").exists()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "roberta"
    read = load.load(f"hf:{folder}")
    assert read.config == config and read.vocabulary.digest == words.digest
    other = dataclasses.replace(words, special_ids=words.special_ids | {"pad": 0, "unk": 1})
    with pytest.raises(Refused, match="pads with id 0, and roberta counts positions by padding of"):
        huggingface.check_padding(huggingface.read_config(folder).family, other)


def test_a_roberta_with_other_padding_is_exported_as_the_bert_that_it_is(tmp_path):
    arrays = tensors("roberta.", has_heads=False)
    folder = write(tmp_path / "theirs", arrays, model_type="roberta", pad_token_id=0)
    held, ours = load.load(f"hf:{folder}"), tmp_path / "ours"
    ours.mkdir()
    huggingface.write(held, ours)
    again = load.load(f"hf:{ours}")
    assert again.config == held.config
    jax.tree.map(np.testing.assert_array_equal, again.params, held.params)
    settings = json.loads((ours / "config.json").read_text())
    assert (settings["model_type"], settings["pad_token_id"]) == ("bert", 0)
    assert settings["max_position_embeddings"] == SIZES["max_position_embeddings"] - 1


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_space_before_texts_is_written_for_transformers_4(whole, tmp_path, adds_space):
    data = make_file("roberta")
    data["pre_tokenizer"]["add_prefix_space"] = adds_space
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    words = load_vocabulary(tmp_path / "tokenizer.json")
    folder = tmp_path / "hf"
    folder.mkdir()
    huggingface.write(dataclasses.replace(whole, vocabulary=words), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["add_prefix_space"] is adds_space


@pytest.mark.parametrize(
    ("pooling", "scheme", "said"),
    [
        ({"pooling_mode": "mean"}, "hf", ""),
        ({"pooling_mode": "cls"}, "google", ""),
        ({"pooling_mode": "cls"}, "hf", "skipped, .* mean .*: its modules.json takes --pool=cls"),
    ],
)
def test_what_sentence_transformers_was_asked_for_is_not_dropped_silently(
    whole, pooling, scheme, said, tmp_path, capsys
):
    folder = tmp_path / "theirs"
    folder.mkdir()
    huggingface.write(whole, folder)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    target = conversion.parse_target(f"{scheme}:{tmp_path / 'new'}/")
    held = dataclasses.replace(whole, address=f"hf:{folder}")
    convert._name_unkept(held, target, Screen(is_writer=True))
    assert re.fullmatch(said, " ".join(capsys.readouterr().out.split()))


def test_the_next_commands_can_be_pasted_where_a_folder_has_a_space(tmp_path, capsys):
    checkpoint = types.SimpleNamespace(heads=Heads(mlm=True, nsp=False))
    target = conversion.parse_target(f"orbax:{tmp_path}/a name")
    convert._show_next_steps(checkpoint, target, Screen(is_writer=True))
    _, init, command = capsys.readouterr().out.splitlines()
    assert shlex.split(init)[-1] == f"--config.init=orbax:{tmp_path}/a name"
    assert f"--checkpoint={tmp_path}/a name" in shlex.split(command)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    ("rules", "splitter", "is_alike"),
    [
        ({}, "BertPreTokenizer", True),
        ({"strip_accents": False}, "BertPreTokenizer", False),
        ({"strip_accents": True}, "BertPreTokenizer", True),
        ({"handle_chinese_chars": False}, "BertPreTokenizer", False),
        ({}, "WhitespaceSplit", False),
    ],
)
def test_rules_that_googles_code_does_not_have_are_told(
    tmp_path, capsys, lowercase, rules, splitter, is_alike
):
    tokenizer = make_wordpiece_tokenizer(PIECES, "[UNK]", lowercase)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase, **rules)
    tokenizer.pre_tokenizer = getattr(tokenizers.pre_tokenizers, splitter)()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = load_vocabulary(tmp_path / "tokenizer.json")
    checkpoint = types.SimpleNamespace(vocabulary=words)
    target = conversion.parse_target(f"google:{tmp_path}/new/")
    convert._show_next_steps(checkpoint, target, Screen(is_writer=True))
    # Google's code strips accents exactly where it lowercases.
    differs = not is_alike if lowercase or "strip_accents" not in rules else is_alike
    assert ("has other rules than tokenizer.json" in capsys.readouterr().out) == differs


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [(KeyboardInterrupt(), 130, "interrupted"), (OSError("507"), 1, "507")],
)
def test_an_upload_that_ends_early_leaves_the_export_and_says_so(
    tmp_path, monkeypatch, error, code, why
):
    def stop(*_):
        raise error

    monkeypatch.setattr(convert.hub, "upload", stop)
    said, out = [], tmp_path / "out"
    target = conversion.parse_target(f"hf:{out}")
    assert convert._upload(target, "me/mine", False, Screen(is_writer=False), said.append) == code
    (line,) = said
    assert f"not uploaded: {why}; the export is complete in {out}, " in line
    assert f"hf upload me/mine {out} --private" in line and "\n" not in line
