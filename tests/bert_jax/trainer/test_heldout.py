"""What is told of a phase before it begins, against counting over its examples, and by hand."""

import dataclasses
import math
import re
import shlex
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.config import Config, EvalConfig, OptimConfig, Phase, validate
from bert_jax.model import bert
from bert_jax.runtime.profiler import Window
from bert_jax.train_step.objectives import CAUSAL, MLM, MLM_NSP, Objective
from bert_jax.trainer import baselines, heldout
from bert_jax.trainer.compile import build_parts
from bert_jax.trainer.feed import StoreFeed
from bert_jax.trainer.heldout import count_phase, describe_corpus, estimate_step, warn_of_repetition
from bert_jax.trainer.summary import list_opening_rows
from data_pipeline import store as store_lib
from data_pipeline.sampling import walk as chunks
from data_pipeline.sampling import walks
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import MODEL, build_store, open_feed, with_setting


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


LINES = ("uniform_mlm_loss", "unigram_mlm_loss", "ngram_mlm_loss")
COUNTED = ("input_mask", "masked_lm_weights")


@pytest.fixture
def feed(config):
    return open_feed(config)


def opening(feed, phases, done=None, devices=1, profiled=None):
    """The first block of a run that is otherwise not built."""
    config = feed.config
    parts = build_parts(config, [MLM_NSP], devices=jax.devices()[:devices])
    rows = describe_corpus(feed, phases)
    given = {"config": config, "parts": parts, "data_rows": rows}
    setup = SimpleNamespace(**given, profiled=profiled, changes=(), trunk=None)
    return list_opening_rows(setup, done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("done", "label", "words"),
    [
        (None, "profile", "steps 7 to 9 will be traced"),
        (6, "profile", "steps 7 to 9 will be traced"),
        (7, "! profile", "steps 7 to 9 are not traced: this start begins after step 7"),
    ],
)
def test_a_resumed_run_says_that_it_passes_over_the_steps_to_trace(feed, done, label, words):
    phases = [count_phase(feed, 0, MLM_NSP)]
    assert (label, words) in opening(feed, phases, done, profiled=Window(7, 9))


@pytest.mark.slow
def test_counts_are_those_of_the_heldout_examples(config, feed):
    """And epochs are examples over those of a pass, counted by walking over the sentences."""
    facts = count_phase(feed, 0, MLM_NSP)
    source = open_examples(feed.stores[0], feed.stores[0].heldout, config.data, 24, 4)
    rows = source.rows(np.arange(23))
    assert facts.heldout_examples == 23
    tokens, words = rows["input_mask"].sum() / 23, rows["masked_lm_weights"].sum() / 23
    assert facts.per_step["tokens_per_step"] == pytest.approx(10 * tokens)
    assert facts.per_step["predictions_per_step"] == pytest.approx(10 * words)
    assert set(facts.baseline) == {*LINES, "majority_nsp_accuracy"}
    assert facts.baseline["uniform_mlm_loss"] == pytest.approx(math.log(feed.stores[0].vocab_size))
    losses = [facts.baseline[name] for name in LINES]
    assert losses == sorted(losses, reverse=True) and losses[2] < losses[1] - 1.0
    options, split = config.data, feed.stores[0].train
    share = walks.balance_random_share(split, chunks.make_rules(options, 24, 0, 0.5))
    passes = [
        len(chunks.walk_corpus(split, chunks.make_rules(options, 24, walk, share)))
        for walk in range(options.dupe_factor)
    ]
    assert facts.per_step["epochs"] == pytest.approx(600 / np.mean(passes))


def test_targets_of_other_places_are_reported_before_the_first_step(feed, monkeypatch):
    assert heldout.find_in_data(feed, [count_phase(feed, 0, MLM)]) == []
    plain = feed.make_heldout_batches

    def shuffle_targets(*numbers):
        batches, random = plain(*numbers), np.random.default_rng(0)
        ids = np.concatenate([batch["masked_lm_ids"] for batch in batches])
        is_used = np.concatenate([batch["masked_lm_weights"] for batch in batches]) > 0
        ids[is_used] = random.permutation(ids[is_used])
        parts = np.split(ids, len(batches))
        return [b | {"masked_lm_ids": part} for b, part in zip(batches, parts, strict=True)]

    monkeypatch.setattr(feed, "make_heldout_batches", shuffle_targets)
    (finding,) = heldout.find_in_data(feed, [count_phase(feed, 0, MLM)])
    assert (finding.rule, finding.step) == ("targets_misplaced", 0)


def test_the_next_tokens_of_a_model_without_context_are_counted_by_hand(config, feed):
    """Of rows that were never masked; [SEP] by its share of these rows."""
    plain = dataclasses.replace(config.data, mask_token_share=0.0, random_token_share=0.0)
    source = open_examples(feed.stores[0], feed.stores[0].heldout, plain, 24, 4)
    rows = source.rows(np.arange(23))
    targets = [
        token
        for ids, length in zip(rows["input_ids"], rows["input_mask"].sum(axis=1), strict=True)
        for token in ids[1:length]
    ]
    separator = feed.stores[0].special_ids["sep"]
    share = targets.count(separator) / len(targets)
    assert 0.05 < share < 0.2
    counts = np.asarray(feed.stores[0].train.token_counts, np.float64) + 1.0
    counts[[feed.stores[0].special_ids[name] for name in ("pad", "cls", "sep", "mask")]] = 0.0
    chances = (1.0 - share) * counts / counts.sum()
    chances[separator] = share
    facts = count_phase(feed, 0, CAUSAL)
    expected = -np.mean([np.log(chances[token]) for token in targets])
    assert facts.baseline["unigram_causal_loss"] == pytest.approx(expected, rel=1e-12)
    assert facts.baseline["ngram_causal_loss"] < expected - 1.0
    assert set(facts.baseline) == {name.replace("mlm", "causal") for name in LINES}
    assert facts.per_step["predictions_per_step"] == pytest.approx(10 * len(targets) / 23)
    block = opening(feed, [facts])
    assert any("predicts" in text and "masks" not in text for _, text in block)


def test_a_guess_is_right_half_the_time_where_no_pair_has_a_label():
    labels = {"next_sentence_labels": np.array([1, 1, 0]), "next_sentence_weights": np.zeros(3)}
    assert baselines.compute_majority_nsp_accuracy([labels]) == 0.5
    labels["next_sentence_weights"] += 1.0
    assert baselines.compute_majority_nsp_accuracy([labels]) == pytest.approx(2 / 3)


def test_an_objective_gets_the_baselines_of_its_own_terms_only(config, feed):
    mlm_alone = Objective(
        weights=lambda batch: {"mlm": MLM_NSP.weights(batch)["mlm"]}, terms=MLM_NSP.terms
    )
    other = Objective(weights=lambda batch: {"x": batch["input_mask"].sum()}, terms=MLM_NSP.terms)
    assert set(count_phase(feed, 0, mlm_alone).baseline) == set(LINES)
    assert count_phase(feed, 0, other).baseline == {}
    rows = opening(feed, [count_phase(feed, 0, other)])
    assert ("", "held out: 23 examples") in rows


@pytest.mark.parametrize(
    ("done", "words"),
    [(None, "60, from the first"), (7, "60, resuming at step 7 of 60"), (60, "finished before")],
)
def test_the_opening_says_what_a_run_is_made_of(config, feed, done, words):
    rows = opening(feed, [count_phase(feed, 0, MLM_NSP)], done, devices=5)
    assert dict(rows)["attention"].startswith("plain: the attention kernel is for TPU v4")
    said = dict(rows)
    assert said["devices"] == "5 x cpu, mesh data 5"
    assert said["model"].startswith(
        f"{bert.build(config.model, 'cpu').parameter_count:,} parameters: 2 layers of 32"
    )
    assert said["phase 0"].startswith("60 steps of 10 sequences in 2 parts of 24, ")
    assert words in said["steps"]
    block = "\n".join(text for _, text in rows)
    assert f"{feed.stores[0].train.tokens:,} tokens" in block
    assert "unigram" in block and "majority" in block and "23 examples" in block


def of_data(config, **settings):
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **settings))


@pytest.fixture
def packing(config):
    """Rows with room for the shorter half of the examples beside others."""
    config = of_data(config, packed_examples=4, short_seq_prob=0.5, dupe_factor=2)
    phase = dataclasses.replace(config.phases[0], seq_len=64, max_predictions_per_seq=9)
    model = dataclasses.replace(config.model, max_position_embeddings=64)
    return dataclasses.replace(config, phases=(phase,), model=model)


def test_examples_in_a_row_are_those_of_a_round_of_epochs(packing):
    feed = open_feed(packing)
    facts, store = count_phase(feed, 0, MLM_NSP), feed.stores[0]
    source = open_examples(store, store.train, packing.data, 64, 9)
    rows = source.rows_in_epoch(0) + source.rows_in_epoch(1)
    examples = source.rows(np.arange(rows))["example_ids"].max(axis=1).sum()
    assert facts.examples_per_row == pytest.approx(examples / rows)
    assert examples > 1.2 * rows
    assert facts.per_step["epochs"] == pytest.approx(60 * 10 / (rows / 2))
    block = opening(feed, [facts])
    said = dict(block)["phase 0"]
    assert said.startswith("60 steps of 10 rows in 2 parts of 64, up to 4 examples in a row, ")
    in_step = 10 * examples / rows
    batches = feed.make_heldout_batches(0)
    seen = [np.concatenate([batch[name].sum(axis=1) for batch in batches])[:23] for name in COUNTED]
    tokens, words = (counts.mean() for counts in seen)
    share = in_step * tokens / 640
    assert 0.5 < share <= 1.0
    step = next(text for _, text in block if "a step sees" in text)
    assert step.startswith(f"a step sees about {in_step:,.0f} examples, ")
    assert f"({share:.0%} of its positions)" in step
    assert step.endswith(f"masks {in_step * words:,.0f} of them")


def test_a_step_never_sees_more_than_its_rows_hold(config):
    phase = config.phases[0]
    longer = estimate_step(phase, 4, 24.0, 17.0, 3.0)
    assert (longer["tokens_per_step"], longer["predictions_per_step"]) == (240, 40)
    assert estimate_step(phase, 4, 1.0, 17.0, 3.0)["tokens_per_step"] == 170


def test_examples_without_a_next_sentence_are_counted_too(config):
    config = dataclasses.replace(of_data(config, segments="doc_sentences"), objective="mlm")
    facts = count_phase(open_feed(config), 0, MLM)
    assert facts.heldout_examples == 23
    assert 20 < facts.per_step["tokens_per_step"] <= 240
    assert set(facts.baseline) == set(LINES)


@pytest.mark.parametrize(
    ("segments", "state"), [("nsp", "all have the label 1"), ("sop", "none has a label")]
)
def test_next_sentences_that_nobody_could_learn_are_refused(tmp_path, segments, state):
    """Documents of one sentence each: no B follows an A."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"word {number} and more" for number in range(200)))
    flags = ["--train_vocab=wordpiece", "--vocab_size=150", "--holdout=0.2"]
    store = build_store(text, tmp_path / "store", *flags)
    config = Config(
        phases=(Phase(seq_len=24, steps=60, batch_size=10, max_predictions_per_seq=4),),
        data=PretrainOptions(store=str(store), segments=segments),
    )
    feed = open_feed(config)
    with pytest.raises(ValueError, match=f"rows of the training split {state}: .*objective=mlm"):
        count_phase(feed, 0, MLM_NSP)
    assert count_phase(feed, 0, MLM).heldout_examples > 10


def test_heldout_examples_are_the_same_whatever_training_packs_or_repeats(config, feed):
    changed = dataclasses.replace(
        config.data, packed_examples=3, new_masks_each_epoch=False, dupe_factor=4
    )
    other = StoreFeed(feed.stores, dataclasses.replace(feed.config, data=changed))
    for left, right in zip(
        feed.make_heldout_batches(0), other.make_heldout_batches(0), strict=True
    ):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def held_out(ids, weights, labels, label_weights):
    return {
        "masked_lm_ids": np.array(ids, np.int32),
        "masked_lm_weights": np.array(weights, np.float32),
        "next_sentence_labels": np.array(labels, np.int32),
        "next_sentence_weights": np.array(label_weights, np.float32),
    }


def test_baselines_are_those_counted_by_hand(tiny_store):
    batches = [
        held_out([[5, 6, 0], [6, 0, 0]], [[1, 1, 0], [1, 0, 0]], [1, 1], [1, 1]),
        held_out([[7, 5, 0], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]], [0, 0], [1, 0]),
    ]
    store = store_lib.open_store(tiny_store)
    tokens = np.asarray(store.train.token_ids)
    pieces = set(range(store.vocab_size)) - {0, 101, 102, 103}  # [PAD] [CLS] [SEP] [MASK]
    total = len(tokens) + len(pieces)
    share = {piece: ((tokens == piece).sum() + 1) / total for piece in (5, 6, 7)}
    expected = -sum(math.log(share[piece]) for piece in (5, 6, 6, 7, 5)) / 5
    assert baselines.compute_unigram_mlm_loss(store, batches) == pytest.approx(expected, rel=1e-9)
    assert baselines.compute_majority_nsp_accuracy(batches) == pytest.approx(2 / 3)
    assert baselines.compute_majority_nsp_accuracy(batches[:1]) == 1.0


@pytest.fixture
def asked(monkeypatch):
    """The predictions and places whose chances were asked for, each given 1 / e."""
    given = []

    def compute_loss(split, digest, predictions, places, *others):
        given.append((np.stack(predictions, axis=1).tolist(), places))
        return 1.0

    monkeypatch.setattr(baselines.ngrams, "compute_loss", compute_loss)
    return given


def test_neighbors_are_those_of_the_masked_row_and_special_ones_are_hidden(tiny_store, asked):
    store = store_lib.open_store(tiny_store)
    hidden = store.vocab_size
    ids = [[101, 7, 103, 9, 103, 11, 102, 0]]
    batch = held_out([[8, 10, 11, 0]], [[1, 1, 1, 0]], [0], [1]) | {
        "input_ids": np.array(ids, np.int32),
        "masked_lm_positions": np.array([[2, 4, 5, 0]]),
        "input_mask": np.array([[1, 1, 1, 1, 1, 1, 1, 0]]),
    }
    baselines.compute_ngram_mlm_loss(store, [batch], print)
    assert asked.pop() == ([[8, 7, 9], [10, 9, 11], [11, hidden, hidden]], (-1, 1))
    baselines.compute_ngram_mlm_loss(store, [batch], print, hides_targets=True)
    assert asked.pop() == ([[8, 7, 9], [10, 9, hidden], [11, hidden, hidden]], (-1, 1))
    loss = baselines.compute_ngram_causal_loss(store, [batch], print)
    before = [[7, hidden, hidden], [8, hidden, 7], [9, 7, 8], [10, 8, 9], [11, 9, 10]]
    assert asked.pop() == (before, (-2, -1))  # and [SEP], one of six
    assert loss == pytest.approx((5 * (1 + math.log(6 / 5)) + math.log(6)) / 6)
    packs = np.array([[101, 7, 102, 9, 10, 102, 0, 0]], np.int32)
    two = batch | {"input_ids": packs, "masked_lm_weights": np.zeros((1, 4), np.float32)}
    two["input_mask"] = (packs > 0).astype(np.int32)
    baselines.compute_ngram_causal_loss(store, [two], print)
    assert asked.pop()[0] == [[7, hidden, hidden], [9, hidden, hidden], [10, hidden, 9]]


def test_training_text_and_ready_made_examples_have_no_counts_of_neighbors(config, feed):
    batches = feed.make_heldout_batches(0)
    lines = baselines.compute_baselines(feed.stores[0], MLM, batches, counts_neighbors=False)
    assert set(lines) == set(LINES[:2])
    ready_made = dataclasses.replace(feed.stores[0], manifest={**feed.stores[0].manifest})
    ready_made.manifest["kind"] = store_lib.EXAMPLES
    assert set(baselines.compute_baselines(ready_made, MLM, batches)) == set(LINES[:2])


# BERT's own two phases.
BASE = Config(
    phases=(
        Phase(128, 900_000, batch_size=256, max_predictions_per_seq=20),
        Phase(
            512,
            100_000,
            batch_size=256,
            max_predictions_per_seq=77,
            restart_learning_rate=1e-4,
            restart_warmup_steps=5_000,
        ),
    ),
    optim=OptimConfig(warmup_steps=10_000),
)


def test_absurd_passes_are_warned_of_once_with_flags_that_mend_them():
    for few in ([], [40.0, 0.4], [200.0, 56.0]):
        assert warn_of_repetition(BASE, few) == []
    epochs = [14_000.0, 3_562.0]  # BERT-Base on 8 MB
    (label, text), (_, flags) = warn_of_repetition(BASE, epochs)
    assert label.startswith("!")
    assert "17,562 passes" in text and "439 times as much text, let configs/auto.py" in text
    given = dict(re.findall(r"--config\.(\S+)=(\d+)", flags))
    assert shlex.split(flags) == [f"--config.{name}={value}" for name, value in given.items()]
    steps = [int(given[f"phases[{index}].steps"]) for index in (0, 1)]
    passes = sum(e * s / p.steps for e, s, p in zip(epochs, steps, BASE.phases, strict=True))
    assert passes == pytest.approx(40, rel=0.01)
    mended = with_setting(BASE, "data.store", "s")
    for name, value in given.items():
        mended = with_setting(mended, name, int(value))
    assert config_lib.total_steps(mended) == sum(steps)
    validate.check(mended)
