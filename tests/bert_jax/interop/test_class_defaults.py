"""Settings that a config.json lacks, against what each class of transformers takes for them."""

import json
import pathlib

import pytest

from bert_jax.interop.families import FAMILIES
from tests.golden import class_defaults

GOLDEN = json.loads(class_defaults.FILE.read_text())
CASES = [(version, kind) for version in GOLDEN for kind in class_defaults.KINDS]
PATH = pathlib.Path("config.json")


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_an_empty_file_is_a_class_with_its_defaults(version, kind):
    theirs, family = GOLDEN[version][kind], FAMILIES[kind]
    assert family.parse(PATH, {}) == family.parse(PATH, theirs)


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_each_setting_may_be_missing(version, kind):
    theirs, family = GOLDEN[version][kind], FAMILIES[kind]
    for name in theirs:
        rest = {other: value for other, value in theirs.items() if other != name}
        assert family.parse(PATH, rest) == family.parse(PATH, theirs), name


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("modernbert", {"layer_norm_eps": 1e-5, "local_attention": 128, "intermediate_size": 1152}),
        ("modernbert", {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0}),
        ("albert", {"embedding_size": 128, "hidden_size": 4096, "hidden_act": "gelu_tanh"}),
        ("albert", {"hidden_dropout_prob": 0.0, "num_attention_heads": 64}),
        ("electra", {"embedding_size": 128, "hidden_size": 256, "hidden_act": "gelu_erf"}),
        ("roberta", {"layer_norm_eps": 1e-12, "max_position_embeddings": 510}),
        ("distilbert", {"num_hidden_layers": 6, "layer_norm_eps": 1e-12}),
        ("xlnet", {"num_hidden_layers": 24, "layer_norm_eps": 1e-12}),
    ],
)
def test_the_defaults_are_those_of_the_class_not_of_ours(kind, expected):
    config = FAMILIES[kind].parse(PATH, {})
    assert {name: getattr(config, name) for name in expected} == expected
