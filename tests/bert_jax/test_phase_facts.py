"""What is told of a phase before it begins, against counting over its held-out examples."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax import mesh
from bert_jax.config import Config, EvalConfig, Phase
from bert_jax.feed import Feed, open_store
from bert_jax.models import bert
from bert_jax.objectives import MLM_NSP, Objective
from bert_jax.opening import opening_rows
from bert_jax.phase_facts import facts_of
from data_pipeline import chunks, label_balance
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
    return Feed(open_store(config), config)


def test_counts_are_those_of_the_heldout_examples(config, feed):
    facts = facts_of(feed, 0, MLM_NSP)
    phase = config.phases[0]
    source = open_examples(
        feed.store, feed.store.heldout, config.data, phase.seq_len, phase.max_predictions_per_seq
    )
    rows = source.rows(np.arange(23))
    assert facts.heldout_examples == 23
    assert facts.tokens_per_sequence == pytest.approx(rows["input_mask"].sum() / 23)
    assert facts.predictions_per_sequence == pytest.approx(rows["masked_lm_weights"].sum() / 23)
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
    rows = opening_rows(config, of, model, feed.store, [facts_of(feed, 0, other)], None)
    assert ("", "held out: 23 examples") in rows


@pytest.mark.parametrize(
    ("done", "words"),
    [(None, "60, from scratch"), (7, "60, resuming at step 7 of 60"), (60, "finished before")],
)
def test_the_opening_says_what_a_run_is_made_of(config, feed, done, words):
    model = bert.build(config.model, "cpu")
    of = mesh.make(config.mesh, jax.devices()[:4])
    rows = opening_rows(config, of, model, feed.store, [facts_of(feed, 0, MLM_NSP)], done)
    said = dict(rows)
    assert said["devices"] == "4 x cpu, mesh data 4 x fsdp 1 x model 1"
    assert said["model"].startswith(f"{model.parameter_count:,} parameters: 2 layers of 32")
    assert said["phase 0"].startswith("60 steps of 10 sequences in 2 parts of 24, ")
    assert words in said["steps"]
    block = "\n".join(text for _, text in rows)
    assert f"{feed.store.train.tokens:,} tokens" in block
    assert "unigram" in block and "majority" in block and "23 examples" in block
