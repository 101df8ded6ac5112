"""Scores of sentences against NumPy over the model's logits, one mask and one row at a time."""

import json

import jax
import numpy as np
import pytest

from bert_jax.inference import pseudo_likelihood
from bert_jax.inference.pseudo_likelihood import Score
from bert_jax.interop import load, pretrained
from bert_jax.logging.console import Screen
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax import small_checkpoints
from tests.data_pipeline.vocab.test_byte_level import make_file

SENTENCES = ["a cat sees dogs .", "dog", "A whale sees a CAT.", "a a a a a a a a a"]
IDS = [[5, 6, 8, 7, 9, 10], [7], [5, 1, 8, 5, 6, 10], [5] * 9]  # of small_checkpoints.PIECES


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    held = small_checkpoints.tensors()
    return load.load(f"hf:{small_checkpoints.write(tmp_path_factory.mktemp('hf'), held)}")


@pytest.fixture(scope="module")
def scores(checkpoint):
    """On the eight devices of the tests; three rows at once become eight."""
    ids = pseudo_likelihood.encode_sentences(checkpoint.vocabulary, SENTENCES, "FILE", 19)
    assert [of_one.tolist() for of_one in ids] == IDS
    return pseudo_likelihood.score_sentences(
        pretrained.place_masked_lm(checkpoint), ids, 3, Screen(False)
    )


@pytest.mark.slow
def test_each_token_is_masked_in_turn(checkpoint, scores):
    compute_logits = small_checkpoints.compute_logits_alone(checkpoint, 11)
    for ids, score in zip(IDS, scores, strict=True):
        total = 0.0
        for place, token in enumerate(ids):
            logits = compute_logits([*ids[:place], 4, *ids[place + 1 :]], place)
            total += logits[token] - np.log(np.exp(logits).sum())
        assert score.log_likelihood == pytest.approx(total, rel=1e-5)
        assert score.perplexity == pytest.approx(np.exp(-total / len(ids)), rel=1e-4)
    assert [one.tokens for one in scores] == [6, 1, 6, 9]
    assert [one.unknown for one in scores] == [0, 0, 1, 0]


@pytest.mark.long
def test_sentences_that_do_not_fit_into_memory_together_score_the_same(
    checkpoint, scores, monkeypatch
):
    monkeypatch.setattr(pseudo_likelihood, "_TOKENS_AT_ONCE", 60)
    ids = [np.array(of_one, np.int32) for of_one in IDS]
    groups = [group.tolist() for group in pseudo_likelihood._group_by_memory(ids)]
    assert sorted(i for group in groups for i in group) == [0, 1, 2, 3] and len(groups) > 1
    one = pretrained.place_masked_lm(checkpoint, jax.devices()[:1])
    again = pseudo_likelihood.score_sentences(one, ids, 3, Screen(False))
    for score, before in zip(again, scores, strict=True):
        assert score.log_likelihood == pytest.approx(before.log_likelihood, rel=1e-6)


def test_the_perplexity_of_all_is_over_their_tokens():
    every = pseudo_likelihood.add_scores([Score(3, 0, -6.0), Score(1, 1, -1.0)])
    assert (every.tokens, every.unknown, every.log_likelihood) == (4, 1, -7.0)
    assert every.perplexity == pytest.approx(np.exp(7 / 4))
    assert Score(1, 0, -1e4).perplexity > 1e300  # and no overflow


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("  ", "line 2 of FILE, '  ', is empty or makes no piece"),
        ("\u200b\ufeff", r"line 2 of FILE, .*, is empty or makes no piece of the vocabulary"),
        ("a " * 18, r"line 2 of FILE, 'a a .*'\.\.\., is 18 pieces, the model reads 17 plus"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(checkpoint, sentence, words):
    with pytest.raises(ValueError, match=words):
        pseudo_likelihood.encode_sentences(checkpoint.vocabulary, ["a cat", sentence], "FILE", 19)


def test_a_line_of_spaces_is_refused_where_spaces_are_pieces(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(make_file("trained")))
    vocabulary = load_vocabulary(str(tmp_path / "tokenizer.json"))
    assert vocabulary.encode(["  "])[1].tolist() != [0]
    with pytest.raises(ValueError, match="line 1 of FILE, '  ', is empty"):
        pseudo_likelihood.encode_sentences(vocabulary, ["  "], "FILE", 19)
