"""The text of a step: of the batch that the run was fed, decoded by hand."""

import dataclasses

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax import replayed
from bert_jax.config import Config, Phase
from bert_jax.feed import Feed, open_store
from data_pipeline.options import PretrainOptions
from data_pipeline.vocab import load_vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "see", "##s", "dog", "a"]


@pytest.fixture
def config(tiny_store):
    return Config(
        phases=(
            Phase(seq_len=16, steps=9, batch_size=16, max_predictions_per_seq=3),
            Phase(seq_len=24, steps=4, batch_size=8, max_predictions_per_seq=4),
            Phase(seq_len=16, steps=5, batch_size=4, max_predictions_per_seq=3),
        ),
        data=PretrainOptions(store=str(tiny_store)),
    )


def feed_of(config):
    return Feed(open_store(config.data), config)


def test_a_row_by_hand():
    row = {
        "input_ids": np.array([2, 5, 4, 7, 8, 3, 9, 9, 8, 3, 0, 0]),
        "input_mask": np.array([1] * 10 + [0] * 2),
        "segment_ids": np.array([0] * 6 + [1] * 4 + [0] * 2),
        "masked_lm_positions": np.array([2, 7, 8, 0]),
        "masked_lm_ids": np.array([6, 7, 8, 0]),
        "masked_lm_weights": np.array([1.0, 1.0, 1.0, 0.0]),
        "next_sentence_labels": np.array(1),
    }
    continues = np.array([piece.startswith("##") for piece in PIECES])
    (example,) = replayed._examples(row, PIECES, continues, has_label=True)
    assert example.parts == (
        "[CLS] the [MASK->cat] sees [SEP]",
        "dog [dog->see][##s->##s] [SEP]",
    )
    assert example.label == 1


@pytest.mark.parametrize("step", [1, 9, 10, 13, 14, 18])
def test_the_rows_are_those_that_the_run_is_fed(config, step):
    feed = feed_of(config)
    index = [1, 9, 10, 13, 14, 18].index(step) // 2
    phase = config.phases[index]
    first_step = step - 1 - [0, 9, 13][index]
    fed = next(feed.train_batches(index, first_step, np.arange(phase.batch_size)))
    made = feed.rows(index, feed.positions(step))
    for name, array in fed.items():
        np.testing.assert_array_equal(array, made[name], name)
    assert config_lib.phase_of_step(config, step) == index


def test_a_phase_of_a_length_that_came_before_goes_on_in_its_stream(config):
    feed = feed_of(config)
    assert feed.positions(14)[0] == 9 * 16
    assert feed.positions(10)[0] == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"packed_examples": 3, "short_seq_prob": 0.5}, {"segments": "doc_sentences"}],
)
def test_every_token_of_a_step_is_shown_and_each_hidden_one_with_its_answer(
    config, options, tiny_store
):
    data = dataclasses.replace(config.data, **options)
    feed = feed_of(dataclasses.replace(config, data=data))
    vocabulary = load_vocabulary(feed.store.vocab_path, checks_case=False)
    batch = feed.rows(1, feed.positions(11))
    rows = list(replayed.rows_of(feed, vocabulary, 11, None))
    assert [row.position for row in rows] == feed.positions(11).tolist()
    text = " ".join(part for row in rows for one in row.examples for part in one.parts)
    assert text.count("->") == int(batch["masked_lm_weights"].sum())
    examples = int(batch["example_ids"].max(axis=1).sum()) if "example_ids" in batch else 8
    assert text.count("[CLS]") == sum(len(row.examples) for row in rows) == examples
    has_label = "segments" not in options
    assert all((one.label is not None) == has_label for row in rows for one in row.examples)
    if has_label and not options:
        assert [row.examples[0].label for row in rows] == batch["next_sentence_labels"].tolist()


def test_the_first_rows_alone(config):
    feed = feed_of(config)
    vocabulary = load_vocabulary(feed.store.vocab_path, checks_case=False)
    assert len(list(replayed.rows_of(feed, vocabulary, 3, 2))) == 2
