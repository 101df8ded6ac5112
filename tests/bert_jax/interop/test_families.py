"""Each family of encoders against Hugging Face's class: hidden states, loss and every gradient."""

import dataclasses
import json
import pathlib
import types

import jax
import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import ModelConfig
from bert_jax.config.model_schema import HIDDEN_ACTS
from bert_jax.interop import tf1, transformers_class
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.interop.families.family import ACTS
from bert_jax.interop.pretrained import Heads, Pretrained, place_params
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step import step
from bert_jax.train_step.objectives import CAUSAL, MLM, MLM_NSP, Objective, encode_batch
from bert_jax.train_step.objectives.objective import fill_masked
from bert_jax.train_step.objectives.rtd import sum_detections
from data_pipeline.io import Refused
from tests.bert_jax.interop.golden_models import (
    assert_comes_back,
    make_mesh,
    read_arrays,
    read_golden,
    write_folder,
)
from tests.bert_jax.small_checkpoints import read
from tests.golden import encoders, long_rows

KINDS = sorted(encoders.MODELS)
SLOW = ("BertForMaskedLM", "ModernBertForMaskedLM")  # each compiles for many seconds
COMPILED = [
    pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else pytest.mark.long)
    for kind in KINDS
]
TOLERANCE = 1e-5
ROPE = {"rope_type": "default", "rope_theta": 70.0}


@pytest.fixture
def case(request):
    """One class: its family, our config and parameters, and what Hugging Face computes."""
    golden = read_golden(encoders, f"{request.param}/")
    settings = json.loads(str(golden["config"]))
    family = FAMILIES[settings["model_type"]]
    config = family.parse(pathlib.Path("config.json"), settings)
    gradients = {
        name.removeprefix("gradient/"): array
        for name, array in golden.items()
        if name.startswith("gradient/")
    }
    dims = {name: array.shape for name, array in gradients.items()}
    return family, config, golden, gradients, dims


def rows_of_the_golden(is_causal):
    """Its batch as ours; of a causal model with tokens masked, which the objective puts back."""
    batch = encoders.batch()
    ids, labels = batch["input_ids"].astype(np.int32), batch["labels"]
    slots = np.zeros((encoders.ROWS, 2), np.int32)
    made = {"masked_lm_positions": slots, "masked_lm_ids": slots.copy()}
    made["next_sentence_labels"] = encoders.order_labels().astype(np.int32)
    made["next_sentence_weights"] = np.ones(encoders.ROWS, np.float32)
    made["masked_lm_weights"] = np.zeros(slots.shape, np.float32)
    for row in range(encoders.ROWS):
        columns = np.flatnonzero(labels[row] >= 0)
        made["masked_lm_positions"][row, : len(columns)] = columns
        original = ids if is_causal else labels
        made["masked_lm_ids"][row, : len(columns)] = original[row, columns]
        made["masked_lm_weights"][row, : len(columns)] = 1.0
    shown = np.where((labels >= 0) & is_causal, 2, ids).astype(np.int32)
    mask = batch["attention_mask"].astype(np.int32)
    return made | {"input_ids": shown, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def detect_labels(bound, rows, dropout):
    """The loss of the discriminator where the tokens with a label are the replaced ones."""
    logits = bound.rtd(encode_batch(bound, rows, dropout))
    is_replaced = fill_masked(rows | {"input_ids": -rows["input_ids"]}, rows["masked_lm_ids"]) > 0
    return {"rtd": sum_detections(logits, is_replaced, rows["input_mask"].astype(np.float32), 1.0)}


DETECTION = Objective(lambda rows: {"rtd": rows["input_mask"].sum() * 1.0}, detect_labels)


@pytest.mark.parametrize("case", COMPILED, indirect=True)
def test_hidden_states_loss_and_gradients_are_those_of_transformers(case):
    family, config, golden, gradients, dims = case
    params = read_arrays(family, config, dims, lambda name: encoders.weights(name, dims[name]))
    expected = read_arrays(family, config, dims, gradients.__getitem__)
    heads = Heads(mlm="mlm" in params, nsp="nsp" in params, rtd="rtd" in params)
    batch = encoders.batch()
    objective = CAUSAL if config.is_causal else MLM_NSP if heads.nsp else MLM
    if heads.rtd:
        objective = DETECTION
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        model = bert.build(config, "cpu", heads=heads)
        placed = mesh_lib.place_batch(rows_of_the_golden(config.is_causal), mesh)
        ids = jax.device_put(batch["input_ids"].astype(np.int32), placed["input_ids"].sharding)
        checkpoint = Pretrained("golden", config, params, vocabulary=None)
        params, _ = place_params(checkpoint, model, mesh, seed=0)
        loss = step.StepLoss(model, objective)

        @jax.jit
        def compute(params):
            rows = EncoderRows(ids, placed["segment_ids"], hide_padding(placed["input_mask"]))
            hidden = model.bind(params).encode_layers(rows)
            return step.compute_gradients(loss, params, placed), hidden

        (grads, terms, weights), hidden = compute(params)
    loss = sum(float(term.loss_sum) / float(weights[name]) for name, term in terms.items())
    np.testing.assert_allclose(loss, golden["loss"], atol=TOLERANCE)
    is_text = batch["attention_mask"] == 1
    for layer, (ours, theirs) in enumerate(zip(hidden, golden["hidden"], strict=True)):
        difference = np.abs(np.asarray(ours) - theirs)[is_text].max()
        assert difference < TOLERANCE, f"hidden states of layer {layer} differ by {difference}"
    ours = name_leaves(grads)
    for path, gradient in name_leaves(expected).items():
        rows = tuple(slice(size) for size in gradient.shape)
        difference = np.abs(np.asarray(ours[path])[rows] - gradient).max()
        assert difference < TOLERANCE, f"the gradient of {path} differs by {difference}"


@pytest.mark.long  # blocks and windows of the same model are seen in model/attention
def test_rows_of_4096_are_those_of_transformers():
    """Rotary positions and windows of ModernBERT, in rows that attend by blocks."""
    golden = read_golden(long_rows)
    family = FAMILIES["modernbert"]
    config = family.parse(pathlib.Path("config.json"), json.loads(str(golden["config"])))
    shapes = json.loads(str(golden["shapes"]))
    dims = {family.prefix + name: tuple(shape) for name, shape in shapes.items()}

    def read_tensor(name):
        return long_rows.weights(name.removeprefix(family.prefix), dims[name])

    params = read_arrays(family, config, dims, read_tensor)
    batch = {name: array.astype(np.int32) for name, array in long_rows.batch().items()}
    batch["segment_ids"] = np.zeros_like(batch["input_ids"])
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        model = bert.build(config, "cpu", heads=Heads(mlm=False, nsp=False, pooler=False))
        checkpoint = Pretrained("golden", config, params, vocabulary=None)
        params, _ = place_params(checkpoint, model, mesh, seed=0)
        rows = mesh_lib.place_batch(batch, mesh)
        visible = hide_padding(rows["attention_mask"])

        @jax.jit
        def encode(params):
            bound = model.bind(params)
            return bound.encode_layers(EncoderRows(rows["input_ids"], rows["segment_ids"], visible))

        layers = np.stack(encode(params))
    kept = layers[:, :, long_rows.POSITIONS], layers[:, 0, long_rows.ENDS]
    for ours, theirs in zip(kept, (golden["hidden"], golden["ends"]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_a_config_and_its_arrays_come_back_as_they_went(case):
    """Settings of training alone change no family."""
    family, config, _, gradients, _ = case
    assert_comes_back(family, config, gradients)
    other = dataclasses.replace(
        config, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2, initializer="bert"
    )
    assert family.fits(other) and find_family(other) == find_family(config)


@pytest.mark.parametrize(
    ("kind", "part", "is_read"),
    [
        ("ModernBertForMaskedLM", "model.", True),  # the encoder alone
        ("AlbertForPreTraining", "albert.", True),
        ("ModernBertForMaskedLM", "", False),
        ("AlbertForPreTraining", "", False),
        # Its head multiplies by the word table itself, as its golden gradients say.
        ("DebertaV2ForMaskedLM by v2's", "", True),
    ],
)
def test_an_untied_model_is_refused_only_if_a_matrix_is_missing(kind, part, is_read, tmp_path):
    golden = read_golden(encoders)
    start = f"{kind}/gradient/"
    shapes = {
        name.removeprefix(start): array.shape
        for name, array in golden.items()
        if name.startswith(start + part)
    }
    golden[f"{kind}/shapes"] = json.dumps(shapes)
    write_folder(tmp_path, golden, kind, tie_word_embeddings=False)
    if is_read:
        assert read(tmp_path)[2] == ()
        return
    with pytest.raises(Refused, match=r"has no .*decoder\.weight, .*tie_word_embeddings = False"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "alias"),
    [  # attribute_map of the classes in transformers 4.57 and 5.24
        *(("distilbert", "n_heads", "num_attention_heads"), ("distilbert", "dim", "hidden_size")),
        *(("distilbert", "n_layers", "num_hidden_layers"), ("xlnet", "n_token", "n_token")),
        *(("xlnet", "d_model", "hidden_size"), ("xlnet", "n_head", "num_attention_heads")),
        ("xlnet", "n_layer", "num_hidden_layers"),
    ],
)
def test_a_size_under_its_other_name_counts_first(kind, name, alias):
    family = FAMILIES[kind]
    settings = {} if name == alias else {name: 5}
    config = family.parse(pathlib.Path("config.json"), {**settings, alias: 7})
    assert getattr(config, "vocab_size" if name == alias else alias) == 7


def test_every_activation_function_has_a_name_in_transformers():
    """A family that has none would fail where it is asked whether it fits."""
    assert {*ACTS.values()} == {*HIDDEN_ACTS}


@pytest.mark.parametrize(
    "changes", [{"norm_type": "rms_norm", "norm_position": "pre"}, {"gated_mlp": True}]
)
def test_a_shape_of_no_family_is_said_to_be_one(changes):
    words = types.SimpleNamespace(file_name="vocab.txt", special_ids={"pad": 0})
    checkpoint = Pretrained("orbax:run", ModelConfig(vocab_size=9, **changes), {}, words)
    with pytest.raises(ValueError, match=r"orbax:run has an encoder of its own.*orbax:DIR keeps"):
        transformers_class.check_supported(checkpoint)
    with pytest.raises(ValueError, match="another encoder than BERT's"):
        tf1.check_supported(checkpoint.config, "orbax:run")


WHOLE_HEADS = ROPE | {"partial_rotary_factor": 1.0}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        # Source: modeling_modernbert.py@transformers 4.57; 5 computes no such model.
        (
            "modernbert",
            {"global_rope_theta": 500.0, "local_rope_theta": None},
            {"global_rope_theta": 500.0, "local_rope_theta": 500.0},
        ),
        (
            "modernbert",
            {
                "rope_parameters": dict.fromkeys(
                    ("full_attention", "sliding_attention"), WHOLE_HEADS
                )
            },
            {"global_rope_theta": 70.0, "local_rope_theta": 70.0},
        ),
        # Source: DebertaV2Config@transformers 5.24.
        (
            "deberta-v2",
            {"relative_attention": True, "pos_att_type": "P2C | c2p"},
            {"pos_att_type": "c2p|p2c"},
        ),
        # A file of DistilBERT holds the table of sinusoids, which a reader takes as it is.
        ("distilbert", {"sinusoidal_pos_embds": True}, {"has_position_table": True}),
    ],
)
def test_settings_of_several_spellings_are_read(kind, given, expected):
    config = FAMILIES[kind].parse(pathlib.Path("config.json"), given)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": [160000.0]}, r"rope_parameters = \[160000.0\]; .*'default' alone"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters = {'full_attention': 3}"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters = "),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "rope_param"),
        ({"rope_theta": 5e4}, "rope_theta = 50000"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters = "),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": "x"}}}, "local_rope_theta = 'x'"),
        ({"rope_parameters": None, "global_rope_theta": -1}, "global_rope_theta = -1; it must be"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling = {'factor': 2}.*rope_scaling = None"),
        ({"layer_types": ["sliding_attention"] * 9}, "layer_types = .*in every Nth"),
        ({"layer_types": 3}, "layer_types = 3; bert_jax reads those"),
        ({"hidden_activation": "mish"}, "hidden_activation = 'mish'; bert_jax reads gelu"),
        ({"rope_parameters": None, "global_rope_theta": None}, "global_rope_theta = None; it must"),
        ({"sliding_window": 9}, "sliding_window = 9 and local_attention = "),
        ({"norm_bias": True}, "norm_bias = True; .*only with norm_bias = False"),
    ],
)
def test_a_modernbert_of_another_kind_is_refused(changes, words):
    family = FAMILIES["modernbert"]
    settings = encoders.MODELS["ModernBertForMaskedLM"] | {"hidden_activation": "gelu"}
    config = family.parse(pathlib.Path("config.json"), settings)
    with pytest.raises(ValueError, match=f"^DIR/config.json says {words}"):
        family.parse(pathlib.Path("DIR/config.json"), family.describe(config) | changes)
