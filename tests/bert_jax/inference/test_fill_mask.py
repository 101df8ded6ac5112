"""Guesses of a trained model: the parameters are the run's, the words are the vocabulary's."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference import fill_mask
from bert_jax.inference.fill_mask import (
    Guess,
    format_guesses,
    guess_tokens,
    hide_heldout_words,
    read_question,
)
from bert_jax.interop import load, pretrained
from bert_jax.model.attention import Visible
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh
from bert_jax.runtime import run_record
from data_pipeline import build
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.byte_level import train_byte_level
from data_pipeline.vocab.train import train_vocabulary
from tests.data_pipeline.corpora import split_of
from tests.data_pipeline.encoded import SPECIALS


@pytest.fixture(scope="module")
def config(learned):
    """That of the run; its store is that of the process that trained it."""
    return run_record.read(learned).config


@pytest.fixture
def model(learned):
    return pretrained.place_masked_lm(load.load(str(learned)), jax.devices()[:1])


def test_a_guess_is_the_softmax_of_the_models_logits(model):
    asked = read_question(model, "a dog [MASK] the cat near the [MASK] .")
    guesses = guess_tokens(model, [asked], top=7)[0]
    bert = model.model.bind(model.params)
    arrays = {"ids": np.array([asked.row.token_ids]), "at": np.array([asked.mask_positions])}
    placed = mesh.place_batch(arrays, model.mesh)
    seen = Visible(jnp.ones((1, 1, 1, len(asked.row.token_ids)), bool))
    with jax.set_mesh(model.mesh):
        hidden_BSD = bert.encode(EncoderRows(placed["ids"], jnp.zeros_like(placed["ids"]), seen))
        logits_BPV = bert.compute_mlm_logits(hidden_BSD, placed["at"])
        expected_PV = np.asarray(jax.nn.softmax(logits_BPV[0], axis=-1))
    pieces = model.vocabulary.pieces()
    for place, found in enumerate(guesses):
        tokens, chances = [guess.token for guess in found], [guess.probability for guess in found]
        likely = [expected_PV[place, pieces.index(token)] for token in tokens]
        assert chances == pytest.approx(likely, rel=1e-4) and len(chances) == 7
        assert chances == sorted(chances, reverse=True)
        assert not {*tokens} & {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


def test_all_tokens_but_the_special_ones_are_guessed_at_most(model):
    question = read_question(model, "a dog [MASK] the cat .")
    found = [guess.token for guess in guess_tokens(model, [question], 100_000)[0][0]]
    special = [model.vocabulary.pieces()[i] for i in model.vocabulary.special_ids.values()]
    assert sorted([*found, *special]) == sorted(model.vocabulary.pieces())


def test_a_guess_that_is_a_space_alone_is_seen():
    guesses = [Guess("\u2581a", 0.5), Guess("\u2581", 0.25)]
    assert format_guesses(guesses, "").plain == "  a 50%   \u2581 25%"


def test_no_questions_have_no_guesses(model):
    assert guess_tokens(model, [], 3) == []


def test_it_has_learned_the_grammar_of_its_corpus(model):
    question = read_question(model, "a dog [MASK] the cat near the river .")
    best = guess_tokens(model, [question], 4)[0][0][0]
    assert best.token in {"sees", "likes", "follows", "hears"}


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("a dog sees the cat", r"'a dog sees the cat' has no \[MASK\]; write it"),
        ("a dog [mask] the cat", "in capitals"),
        ("a d\udcf6g [MASK]", r"'a d\\udcf6g \[MASK\]' has bytes that are not UTF-8; write it in "),
        ("[MASK] " + "the cat " * 20, r"is 43 tokens with \[CLS\] and \[SEP\], the model reads 24"),
    ],
)
def test_what_cannot_be_asked_is_refused(model, sentence, words):
    with pytest.raises(ValueError, match=words):
        read_question(model, sentence)


def test_heldout_questions_hide_a_word_and_remember_it(model, config):
    store = open_store(config.data.store)
    asked = hide_heldout_words(model.vocabulary, store.heldout, 4, 24)
    assert asked == hide_heldout_words(model.vocabulary, store.heldout, 4, 24)
    ids, offsets = store.heldout.token_ids.astype(int), store.heldout.sentence_offsets
    each = np.split(ids, offsets[1:-1])
    sentences = {model.vocabulary.decode(ids) for ids in each}
    for one in asked:
        assert one.text.replace("[MASK]", one.answers[0]) in sentences
        assert one.row.token_ids[one.mask_positions[0]] == model.vocabulary.special_ids["mask"]
    with pytest.raises(ValueError, match=r"no 100,000 held-out sentences .* ask for fewer"):
        hide_heldout_words(model.vocabulary, store.heldout, 100_000, 24)


def test_heldout_questions_fit_into_the_positions_of_the_model(tiny_store):
    """Sentences have 9 to 15 tokens, and a row [CLS] and [SEP]."""
    store = open_store(tiny_store)
    vocabulary = store.load_vocabulary()
    lengths = []
    for positions in (512, 12):
        asked = hide_heldout_words(vocabulary, store.heldout, 20, positions)
        lengths.append({len(one.row.token_ids) for one in asked})
    assert max(lengths[0]) > 12 and lengths[1] <= {11, 12}
    with pytest.raises(ValueError, match=r"only 0 of 8 to 5 tokens have one"):
        hide_heldout_words(vocabulary, store.heldout, 1, 7)


def test_heldout_questions_of_a_sentencepiece_vocabulary_show_the_hidden_place(
    tiny_store, tmp_path
):
    text = tiny_store.parent / "text.txt"
    flags = [f"--input={text}", f"--output={tmp_path / 'store'}", "--train_vocab=unigram"]
    flags += ["--vocab_size=92", "--holdout=0.2", "--sentences=lines", "--workers=1"]
    assert build.main(flags) == 0
    store = open_store(tmp_path / "store")
    vocabulary = load_vocabulary(store.vocab_path)
    lines = set(text.read_text().replace(" .", ".").splitlines())
    for asked in hide_heldout_words(vocabulary, store.heldout, 5, 512):
        assert asked.answers[0].startswith("\u2581")
        assert asked.text.replace("[MASK]", asked.answers[0][1:]).replace(" .", ".") in lines


def test_a_word_with_vowel_signs_is_hidden_like_any_other(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "\u0915\u093f", "12"]) + "\n", encoding="utf-8")
    vocabulary = load_vocabulary(path, lowercase=False)
    (asked,) = hide_heldout_words(vocabulary, split_of([[[5, 6] * 4]]), 1, 64)
    assert asked.answers == ["\u0915\u093f"]


def test_reading_leaves_a_save_under_way_alone(learned, tmp_path):
    workdir = shutil.copytree(learned, tmp_path / "run")
    under_way = workdir / "checkpoints" / "401.orbax-checkpoint-tmp"
    under_way.mkdir()
    pretrained.place_masked_lm(load.load(str(workdir)))
    assert under_way.is_dir()


def test_what_follows_a_mask_is_read_as_in_the_midst_of_a_text(model, tiny_store, tmp_path):
    text = tiny_store.parent / "text.txt"
    path = tmp_path / "vocab.model"
    trained = train_vocabulary("unigram", lambda: text.read_text().split("\n"), 92, True)
    path.write_bytes(trained.file_bytes)
    vocabulary = load_vocabulary(path)
    other = dataclasses.replace(model.checkpoint, vocabulary=vocabulary)
    asked = read_question(
        dataclasses.replace(model, checkpoint=other), "the cat[MASK]. a [MASK] dog"
    )
    pieces = [vocabulary.pieces()[i] for i in asked.row.token_ids]
    first, second = asked.mask_positions
    assert pieces[first + 1] == "."
    assert pieces[second + 1].startswith("\u2581")


def test_no_space_follows_a_mask_where_a_piece_ends_within_a_character(tmp_path):
    path = tmp_path / "tokenizer.json"
    words = "\u4e2d \u4e80 \u4ed6 \u4f55"  # UTF-8 with the same first byte
    path.write_bytes(train_byte_level([words] * 9, 262, 0))
    vocabulary = load_vocabulary(path)
    ids = vocabulary.encode(["\u4e2d"])[0].tolist()
    assert vocabulary.pieces()[ids[0]] == "\u0120\u00e4"
    before = vocabulary.encode(["x"])[0].tolist()
    assert vocabulary.decode([*before, *fill_mask._drop_space(vocabulary, ids)]) == "x\u4e2d"


def test_a_mask_may_be_spelled_as_in_the_vocabulary(model, tmp_path):
    path = tmp_path / "tokenizer.json"
    data = train_byte_level(["a cat sees the dog"] * 3, 270, 0)
    path.write_bytes(data.replace(b"[MASK]", b"<mask>"))
    vocabulary = load_vocabulary(path, reads_special_tokens=True)
    checkpoint = dataclasses.replace(model.checkpoint, vocabulary=vocabulary)
    other = dataclasses.replace(model, checkpoint=checkpoint)
    given, own, both = (
        read_question(other, sentence)
        for sentence in ("a [MASK] a[MASK].", "a <mask> a<mask>.", "a <mask> a[MASK].")
    )
    assert given.row == own.row == both.row
    assert len(given.mask_positions) == 2
    assert given.mask_positions == own.mask_positions == both.mask_positions


def test_a_record_of_another_version_is_refused(learned, tmp_path):
    written = json.loads((learned / "run.json").read_text())
    del written["vocabulary"]
    (tmp_path / "run.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"run\.json has no key 'vocabulary'"):
        load.load(f"orbax:{tmp_path}")
