"""Settings that a config.json lacks, against what each class of transformers takes for them."""

import json
import pathlib

import pytest

from bert_jax.interop.families import FAMILIES
from tests.golden import class_defaults

GOLDEN = json.loads(class_defaults.FILE.read_text())
CASES = [(version, kind) for version in GOLDEN for kind in class_defaults.KINDS]
PATH = pathlib.Path("config.json")
# DeBERTa-v2 has no positions in the scores unless a file says so, and such a model is not read.
GIVEN = {"deberta-v2": {"relative_attention": True, "pos_att_type": "c2p"}}


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_an_empty_file_is_a_class_with_its_defaults(version, kind):
    theirs, family, given = GOLDEN[version][kind], FAMILIES[kind], GIVEN.get(kind, {})
    assert family.parse(PATH, given) == family.parse(PATH, theirs | given)


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_each_setting_may_be_missing(version, kind):
    given, family = GIVEN.get(kind, {}), FAMILIES[kind]
    theirs = GOLDEN[version][kind] | given
    for name in theirs.keys() - given:
        rest = {other: value for other, value in theirs.items() if other != name}
        assert family.parse(PATH, rest) == family.parse(PATH, theirs), name
