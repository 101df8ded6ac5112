"""What a family computes around its layers: the head of masked words, the map of the embeddings."""

import dataclasses
import math
import pathlib

import jax
import numpy as np
import pytest

from bert_jax.interop import export, load
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.interop.pretrained import Pretrained
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh as mesh_lib
from tests.bert_jax.interop.golden_models import make_mesh
from tests.bert_jax.small_checkpoints import SIZES, tensors, write
from tests.bert_jax.train_step.gradients import draw

PATH = pathlib.Path("config.json")
WIDTH = {"embedding_size": 14, "hidden_size": 14}


def parse(kind, **changes):
    return FAMILIES[kind].parse(PATH, SIZES | changes)


def erf_gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def tanh_gelu(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def normalize(x, norm, epsilon):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * norm["scale"] + norm.get("bias", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "hidden_act", "expected"),
    [
        ("roberta", {"hidden_act": "gelu_new"}, "gelu_tanh", erf_gelu),
        ("electra", {"hidden_act": "gelu_new", **WIDTH}, "gelu_tanh", erf_gelu),
        ("electra", {"hidden_act": "gelu", **WIDTH}, "gelu_erf", erf_gelu),
        ("albert", {"hidden_act": "gelu_new", **WIDTH}, "gelu_tanh", tanh_gelu),
        ("bert", {"hidden_act": "gelu_new"}, "gelu_tanh", tanh_gelu),
        ("modernbert", {"classifier_activation": "gelu_new"}, "gelu_erf", tanh_gelu),
        ("modernbert", {"hidden_activation": "gelu_new"}, "gelu_tanh", erf_gelu),
    ],
)
def test_the_head_has_the_activation_of_its_class(kind, changes, hidden_act, expected):
    config = parse(kind, **changes)
    assert config.hidden_act == hidden_act
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        model = bert.build(config, "cpu", heads=bert.Heads(nsp=False, pooler=False))
        params = draw(model, 0.5)
        x_BSD = np.random.default_rng(4).normal(0, 1, (2, 5, 14)).astype(np.float32)
        rows = mesh_lib.place_batch({"x": x_BSD, "at": np.tile(np.arange(5), (2, 1))}, mesh)
        logits = model.bind(params).compute_mlm_logits(rows["x"], rows["at"])
    head = params["mlm"]
    y = x_BSD @ head["transform"]["kernel"] + head["transform"].get("bias", 0)
    y = normalize(expected(y), head["layer_norm"], config.layer_norm_eps)
    theirs = y @ params["embeddings"]["word"]["embedding"].T + head["output_bias"]
    vocab = config.vocab_size
    np.testing.assert_allclose(logits[..., :vocab], theirs[..., :vocab], atol=2e-5)


@pytest.mark.slow
def test_alberts_embeddings_are_mapped_though_they_are_wide_enough():
    config, electra = parse("albert", **WIDTH), parse("electra", **WIDTH)
    assert config.embedding_projection and not electra.maps_embeddings
    assert not parse("albert", embedding_size=6).embedding_projection
    mesh = make_mesh()
    with jax.set_mesh(mesh):
        model = bert.build(config, "cpu", heads=bert.Heads(nsp=False, pooler=False))
        params = draw(model, 0.5)
        ids = np.arange(8, dtype=np.int32).reshape(2, 4)
        rows = mesh_lib.place_batch({"ids": ids, "mask": np.ones_like(ids)}, mesh)
        visible = hide_padding(rows["mask"])
        segments = rows["mask"] * 0
        hidden = model.bind(params).encode_layers(EncoderRows(rows["ids"], segments, visible))
    tables = params["embeddings"]
    x = tables["word"]["embedding"][ids] + tables["position"]["embedding"][:4]
    x = normalize(x + tables["segment"]["embedding"][0], tables["layer_norm"], 1e-12)
    expected = x @ tables["projection"]["kernel"] + tables["projection"]["bias"]
    np.testing.assert_allclose(hidden[0], expected, atol=2e-5)
    assert find_family(config) is FAMILIES["albert"]
    assert FAMILIES["albert"].parse(PATH, FAMILIES["albert"].describe(config)) == config


@pytest.mark.parametrize("types", [None, ["full_attention"] * 2])
def test_a_modernbert_without_windows_comes_back(types):
    every = {"layer_types": types} if types else {"global_attn_every_n_layers": 1}
    config = parse("modernbert", **every)
    assert (config.global_attn_every_n_layers, config.local_attention) == (1, 0)
    described = FAMILIES["modernbert"].describe(config)
    assert FAMILIES["modernbert"].parse(PATH, described) == config
    # Both generations of transformers read it, each from its own settings.
    assert described["layer_types"] == ["full_attention"] * 2
    assert described["global_attn_every_n_layers"] == 1 and described["local_attention"] == 128
    assert described["global_rope_theta"] == 160_000.0


@pytest.mark.parametrize("head_act", ["", "gelu_erf"])
def test_a_head_that_transformers_cannot_compute_is_not_exported(head_act, tmp_path):
    """RoBERTa's is exact gelu, and no setting of its config.json says another."""
    config = dataclasses.replace(parse("roberta", hidden_act="gelu_new"), head_act=head_act)
    held = load.load(str(write(tmp_path / "given", tensors(), hidden_act="gelu_new")))
    ids = dict(held.vocabulary.special_ids) | {"pad": 1}
    words = dataclasses.replace(held.vocabulary, special_ids=ids)
    params = {name: part for name, part in held.params.items() if name in ("mlm", "embeddings")}
    checkpoint = Pretrained(
        "orbax:run", dataclasses.replace(config, type_vocab_size=1), params, words
    )
    target = export.parse_target(f"hf:{tmp_path / 'out'}")
    if head_act:
        export.check_exportable(checkpoint, target)
        return
    words = r"config\.model\.head_act = gelu_tanh .*RobertaForMaskedLM computes gelu_erf"
    with pytest.raises(ValueError, match=words):
        export.check_exportable(checkpoint, target)
    alone = dataclasses.replace(checkpoint, params={"embeddings": params["embeddings"]})
    export.check_exportable(alone, target)


def test_a_bert_with_another_head_goes_to_no_other_format(tmp_path):
    held = load.load(str(write(tmp_path / "given", tensors(), hidden_act="gelu_new")))
    config = dataclasses.replace(held.config, head_act="gelu_erf", layer_norm_eps=1e-12)
    for address in (f"hf:{tmp_path / 'hf'}", f"google:{tmp_path / 'google'}/"):
        target = export.parse_target(address)
        kept = export.keep_supported(dataclasses.replace(held, config=config), target)
        with pytest.raises(ValueError, match=r"config\.model\.head_act = gelu_erf"):
            export.check_exportable(kept, target)
        same = dataclasses.replace(config, head_act="gelu_tanh")
        kept = export.keep_supported(dataclasses.replace(held, config=same), target)
        assert kept.config.head_act == ""
        export.check_exportable(kept, target)
