"""What is told of a phase before it begins, against counting over its held-out examples."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax import mesh
from bert_jax.config import Config, EvalConfig, Phase
from bert_jax.corpus_rows import corpus_rows
from bert_jax.feed import Feed, open_store
from bert_jax.models import bert
from bert_jax.objectives import MLM, MLM_NSP, Objective
from bert_jax.opening import opening_rows
from bert_jax.phase_facts import facts_of
from data_pipeline import build, chunks, label_balance
from data_pipeline.examples import open_examples
from data_pipeline.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL


@pytest.fixture
def config(tiny_store):
    return Config(
        model=dataclasses.replace(MODEL, vocab_size=200),
        phases=(
            Phase(seq_len=24, steps=60, batch_size=10, max_predictions_per_seq=4, micro_batches=2),
        ),
        data=PretrainOptions(store=str(tiny_store)),
        eval=EvalConfig(examples=23),  # the last batch of 5 is filled up with two rows
    )


@pytest.fixture
def feed(config):
    return Feed(open_store(config.data), config)


def test_counts_are_those_of_the_heldout_examples(config, feed):
    facts = facts_of(feed, 0, MLM_NSP)
    phase = config.phases[0]
    source = open_examples(
        feed.store, feed.store.heldout, config.data, phase.seq_len, phase.max_predictions_per_seq
    )
    rows = source.rows(np.arange(23))
    assert facts.heldout_examples == 23
    assert facts.tokens_per_example == pytest.approx(rows["input_mask"].sum() / 23)
    assert facts.predictions_per_example == pytest.approx(rows["masked_lm_weights"].sum() / 23)
    assert set(facts.baseline) == {"unigram_mlm_loss", "majority_nsp_accuracy"}


def test_epochs_are_examples_over_those_of_a_pass(config, feed):
    """A pass has been counted by walking over the sentences one by one."""
    options, split = config.data, feed.store.train
    share = label_balance.balanced_random_share(split, chunks.walk_rules(options, 24, 0))
    passes = [
        len(chunks.walk_corpus(split, chunks.walk_rules(options, 24, walk, share)))
        for walk in range(options.dupe_factor)
    ]
    assert facts_of(feed, 0, MLM_NSP).epochs == pytest.approx(600 / np.mean(passes))


def test_an_objective_gets_the_baselines_of_its_own_terms_only(config, feed):
    mlm_alone = Objective(
        weights=lambda batch: {"mlm": MLM_NSP.weights(batch)["mlm"]}, terms=MLM_NSP.terms
    )
    other = Objective(weights=lambda batch: {"x": batch["input_mask"].sum()}, terms=MLM_NSP.terms)
    assert set(facts_of(feed, 0, mlm_alone).baseline) == {"unigram_mlm_loss"}
    assert facts_of(feed, 0, other).baseline == {}
    of = mesh.make(config.mesh, jax.devices()[:1])
    model = bert.build(config.model, "cpu")
    rows = opening_rows(
        config, of, model, corpus_rows(config, feed.store, [facts_of(feed, 0, other)]), None, None
    )
    assert ("", "held out: 23 examples") in rows


@pytest.mark.parametrize(
    ("done", "words"),
    [(None, "60, from the first"), (7, "60, resuming at step 7 of 60"), (60, "finished before")],
)
def test_the_opening_says_what_a_run_is_made_of(config, feed, done, words):
    model = bert.build(config.model, "cpu")
    of = mesh.make(config.mesh, jax.devices()[:4])
    rows = opening_rows(
        config, of, model, corpus_rows(config, feed.store, [facts_of(feed, 0, MLM_NSP)]), done, None
    )
    assert dict(rows)["attention"].startswith("plain: the attention kernel is for TPU v4")
    said = dict(rows)
    assert said["devices"] == "4 x cpu, mesh data 4 x fsdp 1 x model 1"
    assert said["model"].startswith(f"{model.parameter_count:,} parameters: 2 layers of 32")
    assert said["phase 0"].startswith("60 steps of 10 sequences in 2 parts of 24, ")
    assert words in said["steps"]
    block = "\n".join(text for _, text in rows)
    assert f"{feed.store.train.tokens:,} tokens" in block
    assert "unigram" in block and "majority" in block and "23 examples" in block


def of_data(config, **settings):
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **settings))


@pytest.fixture
def packing(config):
    """Rows with room for the shorter half of the examples beside others."""
    config = of_data(config, packed_examples=4, short_seq_prob=0.5, dupe_factor=2)
    phase = dataclasses.replace(config.phases[0], seq_len=64, max_predictions_per_seq=9)
    return dataclasses.replace(config, phases=(phase,))


def test_examples_in_a_row_are_those_of_a_round_of_epochs(packing):
    store = open_store(packing.data)
    facts = facts_of(Feed(store, packing), 0, MLM_NSP)
    source = open_examples(store, store.train, packing.data, 64, 9)
    rows = source.rows_in_epoch(0) + source.rows_in_epoch(1)
    examples = source.rows(np.arange(rows))["example_ids"].max(axis=1).sum()
    assert facts.examples_per_row == pytest.approx(examples / rows)
    assert examples > 1.2 * rows
    assert facts.epochs == pytest.approx(60 * 10 / (rows / 2))
    of = mesh.make(packing.mesh, jax.devices()[:1])
    block = opening_rows(
        packing,
        of,
        bert.build(packing.model, "cpu"),
        corpus_rows(packing, store, [facts]),
        None,
        None,
    )
    said = dict(block)["phase 0"]
    assert said.startswith("60 steps of 10 rows in 2 parts of 64, up to 4 examples in a row, ")
    in_step = 10 * examples / rows
    share = in_step * facts.tokens_per_example / 640
    assert 0.5 < share <= 1.0
    step = next(text for _, text in block if "a step sees" in text)
    assert step.startswith(f"a step sees about {in_step:,.0f} examples, ")
    assert f"({share:.0%} of its positions)" in step
    assert step.endswith(f"masks {in_step * facts.predictions_per_example:,.0f} of them")


def test_a_step_never_sees_more_tokens_than_positions(config, feed):
    facts = facts_of(feed, 0, MLM_NSP)
    longer = dataclasses.replace(facts, examples_per_row=24.0)
    assert longer.tokens_per_step == 240 > facts.tokens_per_step > 120


def test_heldout_examples_are_the_same_whatever_training_packs(config, feed):
    other = Feed(feed.store, of_data(config, packed_examples=4))
    for alone, beside in zip(feed.heldout_batches(0), other.heldout_batches(0), strict=True):
        assert alone.keys() == beside.keys()
        for name in alone:
            np.testing.assert_array_equal(alone[name], beside[name])


def test_examples_without_a_next_sentence_are_counted_too(config):
    config = of_data(config, segments="doc_sentences")
    facts = facts_of(Feed(open_store(config.data), config), 0, MLM)
    assert facts.heldout_examples == 23
    assert 2 < facts.tokens_per_example <= 24
    assert set(facts.baseline) == {"unigram_mlm_loss"}


def test_batches_of_packed_rows_can_be_made_again_from_any_step(packing):
    feed, rows = Feed(open_store(packing.data), packing), np.arange(10)
    whole = feed.train_batches(0, 0, rows)
    for _ in range(57):
        next(whole)
    again = feed.train_batches(0, 57, rows)
    for expected, got in zip(whole, again, strict=True):
        assert got["example_ids"].max() > 1
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name])


@pytest.mark.parametrize(
    ("segments", "state"), [("nsp", "all have the label 1"), ("sop", "none has a label")]
)
def test_next_sentences_that_nobody_could_learn_are_refused(tmp_path, segments, state):
    """Documents of one sentence each: no B follows an A."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"word {number} and more" for number in range(200)))
    flags = ["--train_vocab=wordpiece", "--vocab_size=150", "--holdout=0.2", "--workers=1"]
    assert build.main([f"--input={text}", f"--output={tmp_path / 'store'}", *flags]) == 0
    config = Config(
        phases=(Phase(seq_len=24, steps=60, batch_size=10, max_predictions_per_seq=4),),
        data=PretrainOptions(store=str(tmp_path / "store"), segments=segments),
    )
    feed = Feed(open_store(config.data), config)
    with pytest.raises(ValueError, match=f"rows of the training split {state}: .*objective=mlm"):
        facts_of(feed, 0, MLM_NSP)
    assert facts_of(feed, 0, MLM).heldout_examples > 10


def test_heldout_examples_are_the_same_whatever_training_packs_or_repeats(config, feed):
    changed = dataclasses.replace(
        config.data, packed_examples=3, new_masks_each_epoch=False, dupe_factor=4
    )
    other = Feed(feed.store, dataclasses.replace(config, data=changed))
    for left, right in zip(feed.heldout_batches(0), other.heldout_batches(0), strict=True):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
