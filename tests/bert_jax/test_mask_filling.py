"""Guesses of a trained model: the parameters are the run's, the words are the vocabulary's."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import masked_lm, mesh, preparation, receipt
from bert_jax.attention import Visible
from bert_jax.mask_filling import guess, heldout_questions, question
from bert_jax.objectives import MLM_NSP
from data_pipeline import build
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab_training import train_vocabulary


@pytest.fixture(scope="module")
def config(learned):
    """That of the run; its store is that of the process that trained it."""
    return receipt.read(learned).config


@pytest.fixture
def model(learned):
    return masked_lm.load(str(learned))


def test_a_guess_is_the_softmax_of_the_models_logits(model):
    asked = question(model, "a dog [MASK] the cat near the [MASK] .")
    guesses = guess(model, [asked], top=7)[0]
    bert = model.model.bind(model.params)
    arrays = {"ids": np.array([asked.token_ids]), "at": np.array([asked.hidden_at])}
    placed = mesh.place(arrays, model.mesh)
    seen = Visible(jnp.ones((1, 1, 1, len(asked.token_ids)), bool))
    hidden_BSD = bert.encode(placed["ids"], jnp.zeros_like(placed["ids"]), seen)
    logits_BPV = bert.mlm_logits(hidden_BSD, placed["at"])
    expected_PV = np.asarray(jax.nn.softmax(logits_BPV[0], axis=-1))
    pieces = model.vocabulary.pieces()
    for place, found in enumerate(guesses):
        assert len(found) == 7
        for one in found:
            likely = expected_PV[place, pieces.index(one.piece)]
            assert one.probability == pytest.approx(likely, rel=1e-4)
        chances = [one.probability for one in found]
        assert chances == sorted(chances, reverse=True)
        assert not {one.piece for one in found} & {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


def test_a_sentence_is_guessed_alike_alone_and_among_longer_ones(model):
    short = question(model, "the cat [MASK] .")
    long = question(model, "the old king [MASK] a green bird near the [MASK] by the old mill .")
    alone, together = guess(model, [short], 5)[0], guess(model, [short, long], 5)[0]
    assert [g.piece for g in alone[0]] == [g.piece for g in together[0]]
    assert alone[0][0].probability == pytest.approx(together[0][0].probability, rel=1e-4)


def test_it_has_learned_the_grammar_of_its_corpus(model):
    verbs = {"sees", "likes", "follows", "hears"}
    found = guess(model, [question(model, "a dog [MASK] the cat near the river .")], 4)[0][0]
    assert found[0].piece in verbs


def test_a_sentence_is_framed_and_its_hidden_places_are_counted(model):
    asked = question(model, "The [MASK] sees [MASK]")
    special = model.vocabulary.special_ids
    assert asked.token_ids[0] == special["cls"] and asked.token_ids[-1] == special["sep"]
    assert [asked.token_ids[at] for at in asked.hidden_at] == [special["mask"]] * 2
    assert asked.answers == ["", ""]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("a dog sees the cat", r"'a dog sees the cat' has no \[MASK\]; write it"),
        ("a dog [mask] the cat", "in capitals"),
        ("[MASK] " + "the cat " * 20, r"is 43 tokens with \[CLS\] and \[SEP\], the model reads 24"),
    ],
)
def test_what_cannot_be_asked_is_refused(model, sentence, words):
    with pytest.raises(ValueError, match=words):
        question(model, sentence)


def test_heldout_questions_hide_a_word_and_remember_it(model, config):
    store = open_store(config.data.store)
    asked = heldout_questions(model.vocabulary, store.heldout, 4)
    assert asked == heldout_questions(model.vocabulary, store.heldout, 4)
    sentences = set()
    for number in range(store.heldout.sentences):
        start, end = store.heldout.sentence_offsets[number : number + 2]
        sentences.add(model.vocabulary.decode(store.heldout.token_ids[start:end].astype(int)))
    for one in asked:
        assert one.text.replace("[MASK]", one.answers[0]) in sentences
        assert one.token_ids[one.hidden_at[0]] == model.vocabulary.special_ids["mask"]
    with pytest.raises(ValueError, match="--heldout is 100000; only"):
        heldout_questions(model.vocabulary, store.heldout, 100_000)


def test_heldout_questions_of_a_sentencepiece_vocabulary_show_the_hidden_place(
    tiny_store, tmp_path
):
    arguments = {
        "input": tiny_store.parent / "text.txt",
        "output": tmp_path / "store",
        "train_vocab": "unigram",
        "vocab_size": 92,
        "holdout": 0.2,
        "sentences": "lines",
        "workers": 1,
    }
    assert build.main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    store = open_store(tmp_path / "store")
    vocabulary = load_vocabulary(store.vocab_path)
    lines = set((tiny_store.parent / "text.txt").read_text().splitlines())
    for one in heldout_questions(vocabulary, store.heldout, 5):
        assert one.answers[0].startswith("\u2581")
        assert one.text.replace("[MASK]", one.answers[0][1:]).replace(" .", ".") in {
            line.replace(" .", ".") for line in lines
        }


def test_reading_leaves_a_save_under_way_alone(learned, tmp_path):
    workdir = shutil.copytree(learned, tmp_path / "run")
    under_way = workdir / "checkpoints" / "401.orbax-checkpoint-tmp"
    under_way.mkdir()
    masked_lm.load(str(workdir))
    assert under_way.is_dir()


def test_what_follows_a_mask_is_read_as_in_the_midst_of_a_text(model, tiny_store, tmp_path):
    text = tiny_store.parent / "text.txt"
    path = tmp_path / "vocab.model"
    trained = train_vocabulary("unigram", lambda: text.read_text().split("\n"), 92, True)
    path.write_bytes(trained.file_bytes)
    vocabulary = load_vocabulary(path)
    other = dataclasses.replace(model.checkpoint, vocabulary=vocabulary)
    asked = question(dataclasses.replace(model, checkpoint=other), "the cat[MASK]. a [MASK] dog")
    pieces = [vocabulary.pieces()[i] for i in asked.token_ids]
    first, second = asked.hidden_at
    assert pieces[first + 1] == "."
    assert pieces[second + 1].startswith("\u2581")


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(config, tmp_path):
    with pytest.raises(ValueError, match=r"holds no run of bert_jax \(config.json is missing\)"):
        masked_lm.load(f"orbax:{tmp_path}")
    preparation.prepare(config, MLM_NSP, tmp_path / "fresh", jax.devices()[:1])
    with pytest.raises(ValueError, match="has not saved a checkpoint yet"):
        masked_lm.load(f"orbax:{tmp_path}/fresh")


def test_a_receipt_of_another_version_is_refused(config, tmp_path):
    preparation.prepare(config, MLM_NSP, tmp_path, jax.devices()[:1])
    written = json.loads((tmp_path / "config.json").read_text())
    del written["vocabulary"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"config\.json has no key 'vocabulary'"):
        masked_lm.load(f"orbax:{tmp_path}")
