"""The records' score against NumPy over the model's logits, one hidden token at a time."""

import numpy as np
import pytest

from benchmarks.records import __main__ as records
from benchmarks.records import masked_tokens
from bert_jax.interop import load, pretrained
from bert_jax.logging.console import Screen
from data_pipeline.io import Refused
from data_pipeline.store import Split
from tests.bert_jax import small_checkpoints

ROW = 13  # 11 tokens of text between [CLS] and [SEP]
DOCUMENTS = [31, 1, 11]  # tokens: rows of 11, 11, 9; 1; 11


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    held = small_checkpoints.tensors()
    return load.load(f"hf:{small_checkpoints.write(tmp_path_factory.mktemp('hf'), held)}")


@pytest.fixture
def split(monkeypatch):
    monkeypatch.setattr(masked_tokens, "ROW_TOKENS", ROW)
    ids = np.random.default_rng(0).integers(5, 23, sum(DOCUMENTS)).astype(np.uint16)
    sentences = np.array([0, 20, 31, 32, 43])  # the first document has two
    return Split("heldout", ids, sentences, np.array([0, 2, 3, 4]), np.bincount(ids, minlength=23))


def hash_by_hand(place):
    """Finalize as SplitMix64 does (Steele, Lea and Flood 2014), and scale the upper 32 bits."""
    bits = place * 0x9E3779B97F4A7C15 % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return ((bits ^ bits >> 31) >> 32) * 7 >> 32


@pytest.mark.slow
def test_the_score_is_the_mean_over_tokens_hidden_by_the_hash(checkpoint, split):
    score = masked_tokens.score_split(
        pretrained.place_masked_lm(checkpoint), split, Screen(is_writer=False)
    )
    compute_logits = small_checkpoints.compute_logits_alone(checkpoint, ROW)
    total = 0.0
    for start, stop in ((0, 11), (11, 22), (22, 31), (31, 32), (32, 43)):
        for place in range(start, stop):
            hidden = [hash_by_hand(other) == hash_by_hand(place) for other in range(start, stop)]
            text = np.where(hidden, 4, split.token_ids[start:stop])
            logits = compute_logits(text, place - start)
            total += np.log(np.exp(logits).sum()) - logits[split.token_ids[place]]
    assert score == pytest.approx(total / 43, rel=1e-5)


def test_every_mask_hides_a_seventh():
    shares = np.bincount(masked_tokens.choose_masks(37_776), minlength=7) / 37_776
    assert shares == pytest.approx(np.full(7, 1 / 7), abs=6e-3)


def test_a_model_of_shorter_rows_is_refused(checkpoint, split, monkeypatch):
    monkeypatch.setattr(masked_tokens, "ROW_TOKENS", 64)
    with pytest.raises(Refused, match="and the score has rows of 64"):
        model = pretrained.place_masked_lm(checkpoint)
        masked_tokens.score_split(model, split, Screen(is_writer=False))


def test_seeds_are_trained_once_and_another_recipe_is_refused(tmp_path, monkeypatch):
    trained = []

    def train(config, seed, store, workdir, flags):
        trained.append(seed)
        workdir.mkdir()
        (workdir / "summary.json").write_text('{"train_secs": 2.5}')
        (workdir / "run.json").write_text('{"code": {"source_digest": "f00"}}')

    monkeypatch.setattr(records, "train", train)
    monkeypatch.setattr(records, "score", lambda workdir, store, screen: float(workdir[-1]))
    recipe = {"config": "a.py", "flags": [], "store": "store", "source_digest": "f00"}
    screen = Screen(is_writer=False)
    records.run_seeds(recipe, [1], tmp_path / "out", screen)
    results = records.run_seeds(recipe, [1, 3], tmp_path / "out", screen)
    assert trained == [1, 3]
    found = {seed: (each["loss"], each["train_secs"]) for seed, each in results["seeds"].items()}
    assert found == {"1": (1.0, 2.5), "3": (3.0, 2.5)}
    other = recipe | {"flags": ["--config.x=1"]}
    with pytest.raises(Refused, match="flags differs"):
        records.run_seeds(other, [1], tmp_path / "out", screen)
    changed = recipe | {"source_digest": "ba5"}
    with pytest.raises(Refused, match="the code changed before"):
        records.run_seeds(changed, [1], tmp_path / "new", screen)
