"""The rules of ALBERT's and XLNet's authors against their tokenizers of transformers."""

import base64
import json
import pathlib

import numpy as np
import pytest

from data_pipeline import build
from data_pipeline.io import Refused
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.offsets import PieceAligner
from tests.golden import sentencepiece_rules as golden

CONTENT = json.loads(pathlib.Path(golden.__file__).with_suffix(".json").read_text())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(base64.b64decode(CONTENT["model"]))
    return path


@pytest.mark.parametrize("rules", CONTENT["ids"])
def test_ids_are_those_of_the_authors_tokenizers(path, rules):
    vocabulary = load_vocabulary(path, rules=rules)
    expected = CONTENT["ids"][rules]
    ids, lengths = vocabulary.encode(golden.TEXTS)
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    assert [part.tolist() for part in parts] == expected
    assert vocabulary.lowercase == rules.startswith("albert")
    assert any(piece[-2:] == "9," for piece in vocabulary.pieces())
    plain, _ = load_vocabulary(path).encode(golden.TEXTS)
    assert plain.tolist() != ids.tolist()
    # A document has the ids of its text.
    sentences = [" ".join(text.split()) for text in golden.TEXTS if text]
    whole, _ = vocabulary.encode([" ".join(sentences)])
    assert vocabulary.encode_documents(sentences, [len(sentences)])[0].tolist() == whole.tolist()


def test_pieces_lie_in_the_text_as_it_was_given(path):
    vocabulary = load_vocabulary(path, rules="albert")
    text = "The ``Price'' 2019, Caf\u00e9"
    aligned = PieceAligner(vocabulary).encode(text)
    assert aligned.ids_T.tolist() == vocabulary.encode([text])[0].tolist()
    covered = {text[start:end] for start, end in zip(aligned.starts_T, aligned.ends_T, strict=True)}
    assert "," in covered and any("\u00e9" in part for part in covered)
    assert all(aligned.starts_T <= aligned.ends_T) and all(np.diff(aligned.starts_T) >= 0)
    assert aligned.ends_T[-1] == len(text)


def test_a_store_keeps_the_rules(path, tmp_path):
    (tmp_path / "a.txt").write_text(
        "\n\n".join(f"Caf\u00e9 is 9,\nThe price {word}" for word in "abcdefghi")
    )
    flags = [f"--input={tmp_path}/a.txt", f"--vocab={path}", "--holdout=0.2", "--workers=1"]
    stores = {}
    for rules in ("none", "albert"):
        given = [] if rules == "none" else [f"--sentencepiece_rules={rules}"]
        assert build.main([*flags, f"--output={tmp_path / rules}", *given]) in (0, None)
        stores[rules] = open_store(tmp_path / rules)
    assert "sentencepiece_rules" not in stores["none"].manifest["vocabulary"]
    store = stores["albert"]
    vocabulary = store.load_vocabulary()
    assert vocabulary.sentencepiece_rules == "albert"
    words = vocabulary.encode(["Caf\u00e9 is 9,"])[0].tolist()
    assert store.train.token_ids[: len(words)].tolist() == words


def test_rules_must_be_known_and_of_a_model(path, tmp_path):
    with pytest.raises(Refused, match=r"sentencepiece_rules.*'t5'.*albert"):
        load_vocabulary(path, rules="t5")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(Refused, match="--sentencepiece_rules is albert"):
        load_vocabulary(tmp_path / "vocab.txt", rules="albert")
