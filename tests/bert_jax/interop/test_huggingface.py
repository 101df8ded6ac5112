"""Hugging Face's folders: every spelling of the names that there is, and what is refused."""

import json
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.interop import huggingface, load
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.tasks import task_layer
from bert_jax.tasks.task import REGRESS
from data_pipeline.io import Refused
from tests.bert_jax.small_checkpoints import PIECES, read, tensors, write

KERNEL = "encoder.layer.1.attention.self.key.weight"


@pytest.fixture(scope="module")
def held():
    return tensors()


def flat(folder):
    return name_leaves(read(folder)[1])


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf)


@pytest.fixture(scope="module")
def expected(held, tmp_path_factory):
    return flat(write(tmp_path_factory.mktemp("plain"), held))


@pytest.mark.parametrize(
    "renamings",
    [
        {"bert.": ""},
        {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
        {"cls.predictions.bias": "cls.predictions.decoder.bias"},
    ],
)
def test_older_names_are_read(held, expected, renamings, tmp_path):
    renamed = dict(held)
    for current, older in renamings.items():
        renamed = {name.replace(current, older): array for name, array in renamed.items()}
    assert_same(flat(write(tmp_path, renamed)), expected)


def test_buffers_and_the_tied_decoder_are_no_arrays_of_ours(held, expected, tmp_path):
    table = held["bert.embeddings.word_embeddings.weight"]
    more = {
        "bert.embeddings.position_ids": np.arange(19)[None],
        "cls.predictions.decoder.weight": table.copy(),
        "classifier.weight": np.ones((5, 14), np.float32),
    }
    assert_same(flat(write(tmp_path / "tied", held | more)), expected)
    folder = write(tmp_path / "untied", held | {"cls.predictions.decoder.weight": table + 1})
    with pytest.raises(ValueError, match=r"another cls\.predictions\.decoder\.weight than its"):
        read(folder)


def test_a_tied_table_may_have_the_decoders_name_alone(held, expected, tmp_path):
    """save_model of safetensors keeps lm_head.decoder.weight, not roberta.embeddings."""
    words, decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    renamed = {decoder if name == words else name: leaf for name, leaf in held.items()}
    assert_same(flat(write(tmp_path / "tied", renamed)), expected)
    with pytest.raises(Refused, match=rf"lacks 1 of .*{re.escape(words)}"):
        read(write(tmp_path / "untied", renamed, tie_word_embeddings=False))


@pytest.mark.parametrize(
    ("more", "unread"),
    [
        ({"classifier.weight": (5, 14), "classifier.bias": (5,)}, ()),
        ({"classifier.out_proj.weight": (5, 14)}, ("classifier.out_proj.weight",)),
        ({"linear.weight": (7, 14), "crf": (3, 3)}, ("crf", "linear.weight")),
        ({"bert.embeddings.position_ids": (1, 19)}, ()),
    ],
)
def test_heads_of_somebodys_own_are_named(held, more, unread, tmp_path):
    added = {name: np.ones(dims, np.float32) for name, dims in more.items()}
    assert read(write(tmp_path, held | added))[2] == unread


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("BertForPreTraining", "extra"),
        ("BertForPreTraining", "\x1b[2Jextra"),
        ("BertForPreTraining", "classifier.weight"),
        ("BertForMaskedLM", "cls.predictions.transform.gate.weight"),
        ("BertModel", "linear.weight"),
        ("HF_ColBERT", "bert.encoder.rel_pos.weight"),
        ("HF_ColBERT", "bert.projection.weight"),
    ],
)
def test_an_array_more_than_the_class_has_is_refused(held, architecture, name, tmp_path):
    folder = write(tmp_path, held, architectures=[architecture])
    assert read(folder)[2] == ()
    more = held | {name: np.ones((3, 14), np.float32)}
    folder = write(tmp_path, more, architectures=[architecture])
    written = re.escape(name if name.isprintable() else repr(name))
    with pytest.raises(ValueError, match=rf"holds {written}, which .* has no use for"):
        read(folder)


@pytest.mark.parametrize("architectures", [["BertForPreTraining"], None])
def test_names_with_what_a_wrapper_put_before_them_are_refused(held, architectures, tmp_path):
    wrapped = {f"_orig_mod.{name}": array for name, array in held.items()}
    with pytest.raises(ValueError, match=r"remove what a wrapper put before the names"):
        read(write(tmp_path, wrapped, architectures=architectures))


@pytest.mark.parametrize("name", ["cls.predictions.decoder.bias", "bert.embeddings.LayerNorm.beta"])
def test_two_arrays_under_names_of_one_are_refused_if_they_differ(held, name, tmp_path):
    current = {"cls.predictions.decoder.bias": "cls.predictions.bias"}.get(
        name, "bert.embeddings.LayerNorm.bias"
    )
    read(write(tmp_path, held | {name: held[current].copy()}))
    with pytest.raises(ValueError, match=f"holds {current} and another {name}"):
        read(write(tmp_path, held | {name: held[current] + 1}))


def test_parts_of_an_index_are_read(held, expected, tmp_path):
    folder = write(tmp_path, held)
    (folder / "model.safetensors").unlink()
    names = sorted(held)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: held[name] for name in part}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, p in parts.items() for n in p}}))
    assert_same(flat(folder), expected)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json names b\.safetensors, which is not in"):
        read(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_short_floats_are_widened(held, dtype, tmp_path):
    short = {name: array.astype(dtype) for name, array in held.items()}
    found = flat(write(tmp_path, short))["layers/01/attention/key/kernel"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, short["bert." + KERNEL].astype(np.float32).T)


@pytest.mark.parametrize(
    ("act", "ours"),
    [
        *(("gelu", "gelu_erf"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")),
        *(("silu", "silu"), ("swish", "silu"), ("gelu_fast", "gelu_tanh")),
        *(("gelu_python", "gelu_erf"), ("relu", "relu"), ("quick_gelu", "quick_gelu")),
    ],
)
def test_activation_functions(held, act, ours, tmp_path):
    config = huggingface.read_config(write(tmp_path, held, hidden_act=act)).model
    assert (config.hidden_act, config.type_vocab_size, config.layer_norm_eps) == (ours, 3, 1e-6)


@pytest.mark.parametrize(
    ("value", "is_read"),
    [(1.0, True), (3, True), (0, False), (-0.1, False), (10**400, False), ("1", False)],
)
def test_weights_may_begin_with_any_deviation(held, value, is_read, tmp_path):
    folder = write(tmp_path, held, initializer_range=value)
    if is_read:
        config = huggingface.read_config(folder).model
        assert config.initializer_range == value and find_family(config).model_type == "bert"
    else:
        with pytest.raises(Refused, match=r"initializer_range = .*it must be a number above 0:"):
            huggingface.read_config(folder)


@pytest.mark.parametrize(
    ("architectures", "kind"), [(["RobertaModel"], "roberta"), (["Mine"], "bert"), (None, "bert")]
)
def test_without_a_model_type_the_class_names_the_family(held, architectures, kind, tmp_path):
    """The encoders of BERT and RoBERTa have the same names, but other positions."""
    path = write(tmp_path, held, architectures=architectures) / "config.json"
    settings = json.loads(path.read_text())
    del settings["model_type"]
    path.write_text(json.dumps(settings))
    assert huggingface.read_config(tmp_path).family.model_type == kind


@pytest.mark.parametrize("pad_id", [0, 3])
def test_positions_of_a_roberta_begin_after_the_id_of_its_padding(pad_id, tmp_path):
    """Source: RobertaEmbeddings.create_position_ids_from_input_ids@transformers 5.23."""
    arrays = tensors("roberta.", has_heads=False)
    folder = write(tmp_path, arrays, model_type="roberta", pad_token_id=pad_id)
    config, params, unread = read(folder)
    rows = arrays["roberta.embeddings.position_embeddings.weight"][pad_id + 1 :]
    assert (config.max_position_embeddings, unread) == (len(rows), ())
    np.testing.assert_array_equal(params["embeddings"]["position"]["embedding"], rows)
    if pad_id != PIECES.index("[PAD]"):
        with pytest.raises(Refused, match=r"pads with id 0, and roberta counts .* of id 3"):
            load.load(f"hf:{folder}")


@pytest.mark.parametrize("pad_id", [-1, 18, None, "1"])
def test_a_padding_that_leaves_a_roberta_no_position_is_refused(held, pad_id, tmp_path):
    folder = write(tmp_path, held, model_type="roberta", pad_token_id=pad_id)
    with pytest.raises(Refused, match="pad_token_id"):
        huggingface.read_config(folder)


def test_a_kind_of_task_that_is_no_text_is_refused(held, tmp_path):
    folder = write(tmp_path, held, **{task_layer.KEY: {"kind": ["classify"]}})
    assert huggingface.read_config(folder).kind is None
    with pytest.raises(Refused, match="is not a fine-tuned model"):
        load.load_fine_tuned(f"hf:{folder}")


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_decoder_reads_from_left_to_right(held, is_decoder, tmp_path):
    folder = write(tmp_path, held, is_decoder=is_decoder)
    assert huggingface.read_config(folder).model.is_causal == is_decoder


def test_a_decoder_of_its_own_that_is_not_there_is_refused(held, tmp_path):
    """Where transformers would initialize one; equal ones are read."""
    with pytest.raises(Refused, match=r"no cls\.predictions\.decoder\.weight, .*tie_word_embedd"):
        read(write(tmp_path / "without", held, tie_word_embeddings=False))
    decoder = {"cls.predictions.decoder.weight": held["bert.embeddings.word_embeddings.weight"]}
    assert flat(write(tmp_path / "with", held | decoder, tie_word_embeddings=False))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": None}, "says architectures = None, which names no layer"),
        ({"is_decoder": True}, r"is_decoder = True, and BertForSequence.* reads \[CLS\]"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "two labels of one name.*id2label of its"),
        ({"id2label": None}, None),
        ({"architectures": ["MyBertForSequenceClassification"]}, None),
    ],
)
def test_labels_that_are_null_have_the_names_of_transformers(held, changes, words, tmp_path):
    rng = np.random.default_rng(3)
    layer = {"classifier.weight": (3, 14), "classifier.bias": (3,)}
    layer = {name: rng.normal(size=size).astype(np.float32) for name, size in layer.items()}
    encoder = {name: leaf for name, leaf in held.items() if not name.startswith("cls.")}
    settings = {"architectures": ["BertForSequenceClassification"], **changes}
    folder = write(tmp_path, encoder | layer, **settings)
    if words is None:
        assert load.load_fine_tuned(f"hf:{folder}")[1].labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    else:
        with pytest.raises(Refused, match=words):
            load.load_fine_tuned(f"hf:{folder}")


@pytest.mark.parametrize("name", ["lstm.weight_ih_l0", "crf.transitions"])
def test_a_layer_with_arrays_of_a_class_of_its_own_predicts_nothing(held, name, tmp_path):
    more = {"classifier.weight": (3, 14), "classifier.bias": (3,), name: (3, 14)}
    arrays = held | {key: np.ones(dims, np.float32) for key, dims in more.items()}
    folder = write(tmp_path, arrays, architectures=["BertOwnForTokenClassification"])
    with pytest.raises(Refused, match=rf"holds .*{re.escape(name)}, which none of transformers'"):
        load.load_fine_tuned(f"hf:{folder}")


def test_a_regression_of_a_third_party_has_no_labels(held, tmp_path):
    """transformers names its one output LABEL_0, as it would name a class."""
    layer = {"classifier.weight": np.ones((1, 14), np.float32)}
    layer["classifier.bias"] = np.ones(1, np.float32)
    encoder = {name: leaf for name, leaf in held.items() if not name.startswith("cls.")}
    folder = write(tmp_path, encoder | layer, architectures=["BertForSequenceClassification"])
    task = load.load_fine_tuned(f"hf:{folder}")[1]
    assert (task.kind, task.labels, task.options.max_seq_length) == (REGRESS, (), 19)
    for limit, longest in ((7, 7), (10**30, 19)):
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        task = load.load_fine_tuned(f"hf:{folder}")[1]
        assert task.options.max_seq_length == longest


DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "mish"}, "hidden_act = 'mish'; bert_jax reads gelu, gelu_python"),
        ({"model_type": "deberta"}, "model_type = 'deberta'; bert_jax reads .*deberta-v2"),
        *(
            (DEBERTA | {name: value}, f"{name} = {value!r}")
            for name, value in {
                **{"conv_kernel_size": 3, "relative_attention": False, "attention_head_size": 9},
                **{"norm_rel_ebd": "batch_norm", "position_buckets": 1},
                **{"pos_att_type": "p2p", "pooler_hidden_act": "mish"},
            }.items()
        ),
        (DEBERTA | {"embedding_size": 9}, "= 9; .* = 14, which follows from its other sizes"),
        ({"model_type": "gpt2"}, "model_type = 'gpt2'; bert_jax reads bert, modernbert, roberta"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention = True"),
        ({"hidden_size": "14"}, "hidden_size = '14'; it must be a whole number"),
        ({"num_attention_heads": 3}, "hidden_size = 14; .* of num_attention_heads = 3"),
        ({"num_hidden_layers": 1}, r"holds bert\.encoder\.layer\.1\..* has no use for"),
        ({"num_hidden_layers": 3}, r"num_hidden_layers = 3, and it has arrays of 2; give"),
        ({"hidden_size": 40}, r"^.{,800}in place of \[40\], and 3\d more; .{,150}$"),
        ({"vocab_size": 29}, r"word_embeddings.weight as \[23, 14\] in place of \[29, 14\]"),
    ],
)
def test_a_config_of_something_else_is_refused(held, changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read(write(tmp_path, held, **changes))


def test_a_deberta_may_name_its_choices_in_any_case():
    path, family = pathlib.Path("config.json"), FAMILIES["deberta-v2"]
    choices = {"pos_att_type": "c2p|p2c", "norm_rel_ebd": "layer_norm", "pooler_hidden_act": "tanh"}
    upper = {name: choice.upper() for name, choice in choices.items()}
    assert family.parse(path, DEBERTA | upper) == family.parse(path, DEBERTA | choices)


def test_a_part_that_is_not_whole_is_refused_with_what_it_lacks(held, tmp_path):
    some = {n: a for n, a in held.items() if "query" not in n and n != "cls.predictions.bias"}
    words = r"lacks 5 of the 46 arrays .*layer\.0\.attention\.self\.query\.bias, .*cls\.pred"
    with pytest.raises(ValueError, match=words):
        read(write(tmp_path, some))


def test_files_that_are_no_weights_are_refused(held, tmp_path):
    folder = write(tmp_path, held)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut off"):
        read(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"a pickle, which may run code .* safe_serialization"):
        read(folder)
    (folder / "pytorch_model.bin").rename(folder / "flax_model.msgpack")
    with pytest.raises(ValueError, match=r"Flax's format, .* transformers 4 .*, from_flax=True\)"):
        read(folder)
    (folder / "flax_model.msgpack").rename(folder / "tf_model.h5")
    with pytest.raises(ValueError, match=r"TensorFlow's format, .*\(DIR, from_tf=True\)"):
        read(folder)
    (folder / "tf_model.h5").rename(folder / "training_args.bin")
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        read(folder)
    (folder / "model.fp16.safetensors").touch()
    with pytest.raises(ValueError, match=r"has model\.fp16\.safetensors, .* rename the one file"):
        read(folder)
    (folder / "adapter_config.json").touch()
    with pytest.raises(ValueError, match=r"has an adapter of PEFT .*merge_and_unload"):
        read(folder)
    (folder / "adapter_config.json").unlink()
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json holds a list, not a JSON object"):
        read(folder)


def test_an_adapter_next_to_the_weights_is_not_left_out(held, tmp_path):
    """transformers 5.24 adds it to the model of the same folder."""
    folder = write(tmp_path, held)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(Refused, match=r"an adapter of PEFT .*, or remove the adapter's files if"):
        read(folder)


def test_whole_numbers_are_refused(held, tmp_path):
    short = dict(held)
    short["bert." + KERNEL] = (short["bert." + KERNEL] * 100).astype(np.int8)
    with pytest.raises(ValueError, match=r"key\.weight as int8; .* not quantized"):
        read(write(tmp_path, short))
    layer = {"classifier.weight": np.ones((3, 14), np.int8), "classifier.bias": np.ones(3)}
    encoder = {name: leaf for name, leaf in held.items() if not name.startswith("cls.")}
    named = {"architectures": ["BertForSequenceClassification"]}
    with pytest.raises(ValueError, match=r"classifier\.weight as int8; .* not quantized"):
        read(write(tmp_path, encoder | layer, **named))
