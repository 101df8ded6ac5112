"""The layers of tasks of each family against Hugging Face's classes: read, computed, written."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.config.resolve import merge_sizes
from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.interop import export, huggingface, transformers_class
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.interop.pretrained import Heads, Pretrained, place_params
from bert_jax.interop.tensor_names import rename
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.vocab.template import make_bert_template, make_xlnet_template
from tests.bert_jax.interop.golden_models import make_mesh, read_golden, write_folder
from tests.bert_jax.small_checkpoints import read
from tests.golden import encoders, task_layers

TOLERANCE = 1e-5
# All compile for seconds: of each kind of task one is slow.
SLOW = (
    "BertForMultipleChoice",
    "BertForQuestionAnswering",
    "ModernBertForSequenceClassification of the mean",
    "ModernBertForTokenClassification",
)
KINDS = task_layers.models()
COMPILED = [
    pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else pytest.mark.long)
    for kind in KINDS
]

BERT = make_bert_template({"cls": 2, "sep": 3})
XLNET_ROWS = make_xlnet_template({"cls": 2, "sep": 3})


@pytest.fixture(scope="module")
def golden():
    return read_golden(task_layers)


@pytest.fixture
def folder(golden, tmp_path):
    """A function that writes the folder of a class; it returns the folder and the arrays."""
    return lambda kind, **changes: (tmp_path, write_folder(tmp_path, golden, kind, **changes))


def batch_of(kind):
    given = encoders.batch()
    batch = {
        "input_ids": given["input_ids"].astype(np.int32),
        "input_mask": given["attention_mask"].astype(np.int32),
        "segment_ids": task_layers.segment_ids().astype(np.int32),
    }
    return {name: array[None] for name, array in batch.items()} if kind == CHOOSE else batch


@pytest.mark.parametrize("kind", KINDS)
def test_names_come_back_as_they_went(kind, golden, folder):
    path, arrays = folder(kind)
    config, params, unread = read(path)
    assert unread == ()
    family = FAMILIES[json.loads(str(golden[f"{kind}/config"]))["model_type"]]
    classes = len(params["classifier"]["bias"])
    task = huggingface.read_task_layer(huggingface.read_config(path), classes, BERT).kind
    assert family.name_task_class(task) == kind.split()[0]
    assert family.reads_alike(config, task)
    names = family.choose_names(task)
    again = rename(params, lambda path: names.name_tensor(path, family.prefix))
    assert sorted(again) == sorted(arrays)
    for name, array in again.items():
        # The rows of positions that RoBERTa never reads are not kept.
        skipped = 2 if name == "roberta.embeddings.position_embeddings.weight" else 0
        np.testing.assert_array_equal(array[skipped:], arrays[name][skipped:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
def test_logits_are_those_of_transformers(kind, golden, folder):
    path, _ = folder(kind)
    config, params, _ = read(path)
    classes = len(params["classifier"]["bias"])
    layer = huggingface.read_task_layer(huggingface.read_config(path), classes, BERT)
    outputs = OBJECTIVES[layer.kind].outputs
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        heads = Heads(mlm=False, nsp=False, classes=classes)
        compute = ComputeConfig(compute_dtype="float32")
        model = bert.build(config, "cpu", compute=compute, heads=heads)
        checkpoint = Pretrained("golden", config, params, vocabulary=None)
        placed, initialized = place_params(checkpoint, model, mesh, seed=0)
        # No layer reads them: the decoder's bias, or a pooler under a layer on tokens.
        assert {name.split("/")[0] for name in initialized} <= {"mlm", "pooler"}
        batch = mesh_lib.place_batch(batch_of(layer.kind), mesh)
        ours = jax.jit(lambda params: outputs(model.bind(params), batch))(placed)
    theirs = golden[f"{kind}/logits"]
    if layer.kind in (SPAN, TAG):  # those of padding are nobody's
        is_text = encoders.batch()["attention_mask"] == 1
        ours, theirs = np.asarray(ours)[is_text], theirs[is_text]
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("ElectraForMultipleChoice", "summary_type", "mean"),
        ("ModernBertForSequenceClassification", "classifier_pooling", "max"),
        ("XLNetForMultipleChoice", "summary_activation", None),
    ],
)
def test_pooling_of_another_kind_is_refused(kind, key, value, folder):
    path, _ = folder(kind, **{key: value})
    way_out = "XLNetForMultipleChoice: .* fine-tuned from" if "XLNet" in kind else ""
    with pytest.raises(ValueError, match=f"{key} = {value!r}.*{way_out}"):
        read(path)


def test_a_deberta_may_hold_what_microsofts_files_do(folder):
    """A table of positions that nothing reads, the detector's head, and no class."""
    path, arrays = folder("DebertaV2ForTokenClassification", architectures=None)
    more = ("deberta.embeddings.position_embeddings.weight", "mask_predictions.dense.weight")
    arrays |= dict.fromkeys(more, np.ones((24, 12), np.float32))
    save_file(arrays, path / huggingface.WEIGHTS)
    assert read(path)[2] == more[1:]


def test_a_roberta_may_hold_the_pooler_that_its_classifier_does_not_read(folder):
    """As files saved by transformers before version 4 do; it is none of the classifier's."""
    path, arrays = folder("RobertaForSequenceClassification")
    expected = read(path)[1]
    more = {"weight": np.ones((12, 12), np.float32), "bias": np.ones(12, np.float32)}
    arrays |= {f"roberta.pooler.dense.{name}": array for name, array in more.items()}
    save_file(arrays, path / huggingface.WEIGHTS)
    _, params, unread = read(path)
    assert unread == ()
    np.testing.assert_array_equal(params["pooler"]["kernel"], expected["pooler"]["kernel"])


@pytest.mark.parametrize("kind", ["XLNetForSequenceClassification", "XLNetForMultipleChoice"])
def test_a_summary_of_another_token_than_cls_is_refused(kind, folder):
    """transformers reads the last token where a file does not say."""
    for given, template in (({"summary_type": "first"}, XLNET_ROWS), ({}, BERT)):
        path, _ = folder(kind)
        settings = json.loads((path / huggingface.CONFIG).read_text())
        del settings["summary_type"]
        (path / huggingface.CONFIG).write_text(json.dumps(settings | given))
        config_json = huggingface.read_config(path)
        with pytest.raises(ValueError, match=r"summary_type"):
            huggingface.read_task_layer(config_json, 5, template)
        other = BERT if template is XLNET_ROWS else XLNET_ROWS
        assert huggingface.read_task_layer(config_json, 5, other).kind in (CLASSIFY, CHOOSE)


def test_roberta_is_chosen_by_its_padding_alone():
    """Hugging Face counts RoBERTa's positions from the padding's id; a BERT has any.

    With SentencePiece's pieces it is an XLM-RoBERTa.
    """
    config = ModelConfig(vocab_size=9, type_vocab_size=1)
    assert find_family(config, pad_id=0).model_type == "bert"
    assert find_family(config, pad_id=1).model_type == "roberta"
    assert find_family(config, 1, "byte_level").model_type == "roberta"
    assert find_family(config, 1, "sentencepiece").model_type == "xlm-roberta"
    two_segments = dataclasses.replace(config, type_vocab_size=2)  # RobertaConfig's default
    assert find_family(two_segments, 1).model_type == "bert"
    # A head that BERT's classes lack.
    two_segments = dataclasses.replace(two_segments, head_act="gelu_erf")
    assert find_family(two_segments, 1).model_type == "roberta"


@pytest.mark.parametrize("address", ["hf", "orbax"])
def test_a_transform_goes_with_the_layer_that_reads_it(address, folder, tmp_path):
    """Without the layer it would be half of a masked language model's head."""
    path, _ = folder("ModernBertForTokenClassification")
    config, params, _ = read(path)
    words = types.SimpleNamespace(file_name="vocab.txt", special_ids={"pad": 0})
    checkpoint = Pretrained("hf:tagger", config, params, words)
    assert "mlm" in params and not checkpoint.heads.mlm
    kept = export.keep_supported(checkpoint, export.parse_target(f"{address}:{tmp_path / 'new'}"))
    assert kept.params.keys() == {"embeddings", "layers", "layer_norm"}


XLNET = {"position_embedding_type": "relative", "embedding_norm": False}
XLNET |= {"type_vocab_size": 0, "mlm_transform": False}


def fine_tuned(kind, **model):
    config = ModelConfig(vocab_size=9, **model)
    words = types.SimpleNamespace(file_name="vocab.txt", special_ids={"pad": 0})
    return Pretrained("orbax:run", config, {}, words, task=TaskLayer("Mine", kind, ()))


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [
        (CLASSIFY, {"type_vocab_size": 0}, "pooler_type = tanh .*DistilBert.* computes relu"),
        (
            REGRESS,
            {"classifier_pooling": "mean"},
            "= mean.* computes tanh and cls.* the run itself",
        ),
        (CHOOSE, {"embedding_size": 8}, "ElectraForMultipleChoice computes gelu_erf and cls"),
        (CHOOSE, {"is_causal": True}, "the last token of a causal model .* from the run itself"),
        (TAG, {"pooler_type": "mlm_transform"}, "BertForTokenClassification computes tanh"),
        (CLASSIFY, XLNET | {"pooler_type": "relu"}, "XLNetForSequence.* computes tanh and cls"),
    ],
)
def test_a_layer_that_its_class_would_compute_otherwise_is_refused(kind, model, words):
    with pytest.raises(ValueError, match=words):
        transformers_class.check_supported(fine_tuned(kind, **model))


def test_a_layer_on_tokens_reads_no_pooler():
    transformers_class.check_supported(fine_tuned(TAG, type_vocab_size=0))
    transformers_class.check_supported(fine_tuned(TAG, is_causal=True))
    transformers_class.check_supported(
        fine_tuned(SPAN, pooler_type="relu", classifier_pooling="mean")
    )


def test_a_fine_tuning_may_choose_what_its_classifier_reads():
    saved = ModelConfig(vocab_size=9, pooler_type="gelu_erf")
    kept = merge_sizes(ModelConfig(), saved, "hf:electra")
    assert kept.pooler_type == "gelu_erf"
    given = ModelConfig(pooler_type="relu", classifier_pooling="mean")
    chosen = merge_sizes(given, saved, "hf:electra")
    assert (chosen.pooler_type, chosen.classifier_pooling) == ("relu", "mean")
