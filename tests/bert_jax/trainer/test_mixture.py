"""Runs on several stores: shares by phase, a score for each, and what is refused."""

import dataclasses
import math
import shutil

import numpy as np
import pytest

from bert_jax import replay
from bert_jax.config import CheckpointConfig, EvalConfig, Phase
from bert_jax.inference.fill_mask import guess_heldout_words
from bert_jax.interop import load
from bert_jax.train_step.objectives import MLM, Term
from bert_jax.trainer.feed import StoreFeed, open_store, open_stores
from bert_jax.trainer.heldout import count_phase
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.small_runs import (
    LOGGED_OFTEN,
    assert_stops_change_nothing,
    compiled_once,
    score_heldout,
    small_config,
    train,
    whole,
)
from tests.bert_jax.tiny_models import build_store, open_feed
from tests.damages import edit_json

__all__ = ["compiled_once", "whole"]  # fixtures

WORDS = ["rain", "snow", "wind", "cloud", "storm", "sun", "fog", "hail"]


def build_small(folder, vocab, documents):
    text = "\n\n".join(
        "\n".join(f"the {WORDS[(i + j) % 8]} and the {WORDS[i * j % 8]} ." for j in range(6))
        for i in range(documents)
    )
    folder.mkdir()
    (folder / "text.txt").write_text(text)
    flags = ["--sentences=lines", "--holdout=0.2", *vocab]
    return build_store(folder / "text.txt", folder / "store", *flags)


@pytest.fixture(scope="module")
def weather(tiny_store, tmp_path_factory):
    """A store of 60 documents with the vocabulary of the tiny store."""
    folder = tmp_path_factory.mktemp("mixture") / "weather"
    return build_small(folder, [f"--vocab={tiny_store / 'vocab.txt'}"], 60)


@pytest.fixture(scope="module")
def config(tiny_store, weather):
    first = Phase(seq_len=16, steps=7, batch_size=16, max_predictions_per_seq=3)
    last = dataclasses.replace(first, steps=5, store_weights="0.25,0.75")
    return small_config(
        tiny_store,
        objective="mlm",
        data=PretrainOptions(store=f"{tiny_store},{weather}", store_temperature=0.5),
        phases=(first, last),
        eval=EvalConfig(every_steps=6, examples=24),
        checkpoint=CheckpointConfig(keep_every_steps=5),
        **LOGGED_OFTEN,
    )


@pytest.fixture(scope="module")
def feed(config):
    return open_feed(config)


@pytest.mark.slow
def test_shares_follow_tokens_by_temperature_or_the_weights_of_the_phase(feed, config):
    tokens = np.array([store.train.tokens for store in feed.stores], float)
    np.testing.assert_allclose(feed.weights(0), np.sqrt(tokens) / np.sqrt(tokens).sum(), rtol=1e-12)
    assert feed.weights(1) == (0.25, 0.75)
    for step, share in ((3, feed.weights(0)[1]), (9, 0.75)):
        assert abs(feed.locate_step(step).store_B.sum() - 16 * share) < 2
    plain = dataclasses.replace(
        config, data=dataclasses.replace(config.data, store_temperature=1.0), phases=config.phases
    )
    by_size = StoreFeed(feed.stores, plain).weights(0)
    np.testing.assert_allclose(by_size, tokens / tokens.sum(), rtol=1e-12)


@pytest.mark.slow
def test_processes_have_the_rows_of_one(feed):
    whole = [next(feed.train_batches(index, 2, np.arange(16))) for index in (0, 1)]
    for index, batch in enumerate(whole):
        for rows in (np.arange(0, 16, 2), np.arange(1, 16, 2)):
            part = next(feed.train_batches(index, 2, rows))
            for name, array in part.items():
                np.testing.assert_array_equal(array, batch[name][rows], err_msg=name)


def test_the_batch_of_a_step_has_the_rows_that_follow_those_of_the_step_before(feed):
    """Of 7 steps and 5 of 16 rows of one length: the second phase goes on with row 112."""
    for index, first_step, step in ((0, 0, 1), (0, 6, 7), (1, 0, 8), (1, 4, 12)):
        batches = feed.train_batches(index, first_step, np.arange(16))
        positions = np.arange(16) + 16 * (step - 1)
        batch = next(batches)
        for name, array in feed.open_source(index).rows(positions).items():
            np.testing.assert_array_equal(batch[name], array, err_msg=name)
        np.testing.assert_array_equal(feed.locate_step(step).positions_B, positions)
        assert len(list(batches)) == feed.config.phases[index].steps - first_step - 1


def test_replay_names_the_store_of_each_row(feed):
    """The words of the weather stand in its rows alone."""
    vocabulary = load_vocabulary(feed.stores[0].vocab_path, checks_case=False)
    rows = list(replay.replay_rows(feed, vocabulary, 8, None))
    assert {row.store for row in rows} == set(feed.config.data.store_names) and len(rows) == 16
    names = [feed.config.data.store_names[number] for number in feed.locate_step(8).store_B]
    assert [row.store for row in rows] == names
    for number, name in enumerate(feed.config.data.store_names):
        own = [row for row in rows if row.store == name]
        source = feed.open_split(1, number)
        for row in own:
            (position,) = np.flatnonzero(
                [source.locate(np.array([p])) == (row.epoch, row.index) for p in range(400)]
            )
            ids = source.rows(np.array([position]))["input_ids"][0]
            shown = [token.text for token in row.examples[0].tokens]
            assert len(shown) == np.count_nonzero(ids)


def test_short_names_are_the_part_of_the_path_that_differs():
    for store, names in (
        ("runs/en/store, runs/de/store", ("en", "de")),
        ("gs://b/en,data/de", ("en", "de")),
        ("a/x,b/x,b/y", ("a/x", "b/x", "b/y")),
        ("stores/en", ("en",)),
    ):
        assert PretrainOptions(store=store).store_names == names


def test_a_folder_with_a_comma_in_its_name_is_one_store(tiny_store, tmp_path):
    moved = shutil.copytree(tiny_store, tmp_path / "wiki, books")
    assert open_store(PretrainOptions(store=str(moved))).directory == moved


def test_stores_that_do_not_mix_are_refused(tiny_store, weather, tmp_path):
    other = build_small(tmp_path / "other", ["--train_vocab=wordpiece", "--vocab_size=150"], 30)
    copy = tmp_path / "copy"
    shutil.copytree(tiny_store, copy)
    ruled = tmp_path / "ruled"
    shutil.copytree(weather, ruled)
    edit_json(
        ruled / "manifest.json", lambda m: m["vocabulary"].update(sentencepiece_rules="xlnet")
    )
    for second, words in (
        (other, r"different vocabularies \(size 200 and .*, sha256 .*\); build .* with --vocab="),
        (ruled, r"different vocabularies \(sentencepiece_rules None and xlnet\); build"),
        (copy, "copies of each other; name one, with a larger share"),
    ):
        with pytest.raises(ValueError, match=words):
            open_stores(PretrainOptions(store=f"{tiny_store}, {second}"))
    with pytest.raises(ValueError, match="names a twice; name it once"):
        PretrainOptions(store="a,b,a").check()
    with pytest.raises(ValueError, match="names 2 stores, but this command reads one"):
        open_store(PretrainOptions(store=f"{tiny_store},{weather}"))


def test_the_line_of_a_mixture_weighs_stores_as_its_score_does(feed, monkeypatch):
    """A model that scores each store's unigram loss scores the mixture's, whatever is masked."""
    plain = feed.make_heldout_batches

    def mask_few(index, number=0):
        batches = plain(index, number)
        for batch in batches if number else ():
            batch["masked_lm_weights"][:, 1:] = 0.0
        return batches

    monkeypatch.setattr(feed, "make_heldout_batches", mask_few)
    facts, results = count_phase(feed, 1, MLM), []
    for number, name in enumerate(feed.config.data.store_names):
        for batch in mask_few(1, number):
            count = float(batch["masked_lm_weights"].sum())
            term = Term(facts.baseline[f"unigram_mlm_loss/{name}"] * count, 0.0)
            results.append({"terms": {"mlm": term}, "weights": {"mlm": count}})
    assert facts.score(results)["mlm_loss"] == pytest.approx(facts.baseline["unigram_mlm_loss"])
    assert facts.baseline["uniform_mlm_loss"] == pytest.approx(math.log(feed.stores[0].vocab_size))


@pytest.mark.long
def test_a_stopped_run_resumes_bit_for_bit(config, whole, tmp_path):
    assert_stops_change_nothing(config, whole.workdir, tmp_path / "run", (6, 8))


@pytest.mark.slow
def test_a_run_scores_each_store_and_no_other_mixture_goes_on_with_it(config, feed, whole):
    summary, ours = whole.summary, load.load(str(whole.workdir))
    # Another mixture would go on with rows that the run has seen.
    phases = (config.phases[0], dataclasses.replace(config.phases[1], store_weights="0.5,0.5"))
    with pytest.raises(ValueError, match=r"phases\[1\]\.store_weights .*0\.25.*0\.5"):
        train(dataclasses.replace(config, phases=phases), whole.workdir)
    assert len(guess_heldout_words(str(whole.workdir), 2, 1)) == 2 * len(feed.stores)
    # Each store's score is what it has by itself; the mixture's is their mean by the shares.
    own = []
    for name, store in zip(feed.config.data.store_names, feed.stores, strict=True):
        scores = score_heldout(config, ours, store=store, examples=12)
        assert summary[f"heldout_mlm_loss/{name}"] == pytest.approx(scores["mlm_loss"], rel=1e-5)
        unigram = summary[f"unigram_mlm_loss/{name}"]
        assert unigram == pytest.approx(scores["unigram_mlm_loss"])
        own.append((scores["mlm_loss"], unigram))
    for name, values in zip(("heldout", "unigram"), zip(*own, strict=True), strict=True):
        low, high = sorted(values)
        assert low < summary[f"{name}_mlm_loss"] < high
