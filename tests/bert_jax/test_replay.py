"""The text of a step: of the batch that the run was fed, decoded by hand."""

import dataclasses

import numpy as np
import pytest

from bert_jax import replay
from bert_jax.config import Config, Phase
from data_pipeline.report.rows import show_row
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.tiny_models import open_feed

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


def test_a_row_by_hand(tmp_path):
    row = {
        "input_ids": np.array([2, 5, 4, 7, 8, 3, 9, 9, 8, 3, 0, 0]),
        "input_mask": np.array([1] * 10 + [0] * 2),
        "segment_ids": np.array([0] * 6 + [1] * 4 + [0] * 2),
        "masked_lm_positions": np.array([2, 7, 8, 0]),
        "masked_lm_ids": np.array([6, 7, 8, 0]),
        "masked_lm_weights": np.array([1.0, 1.0, 1.0, 0.0]),
        "next_sentence_labels": np.array(1),
    }
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    vocabulary = load_vocabulary(tmp_path / "vocab.txt", checks_case=False)
    (example,) = show_row(row, vocabulary, PIECES)
    assert replay.segment_texts(example) == [
        "[CLS] the [MASK->cat] sees [SEP]",
        "dog [dog->see][##s->##s] [SEP]",
    ]
    assert example.is_random


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"packed_examples": 3, "short_seq_prob": 0.5}, {"segments": "doc_sentences"}]
)
def test_every_token_of_a_step_is_shown_and_each_hidden_one_with_its_answer(
    config, options, tiny_store
):
    data = dataclasses.replace(config.data, **options)
    objective = "mlm_nsp" if data.has_next_sentences else "mlm"
    feed = open_feed(dataclasses.replace(config, data=data, objective=objective))
    vocabulary = load_vocabulary(feed.stores[0].vocab_path, checks_case=False)
    batch = feed.open_source(1).rows(feed.locate_step(11).positions_B)
    rows = list(replay.replay_rows(feed, vocabulary, 11, None))
    assert [row.position for row in rows] == feed.locate_step(11).positions_B.tolist()
    examples = [example for row in rows for example in row.examples]
    text = " ".join(part for example in examples for part in replay.segment_texts(example))
    assert text.count("->") == int(batch["masked_lm_weights"].sum())
    causal = dataclasses.replace(config, data=data, objective="causal")
    restored = replay.replay_rows(open_feed(causal), vocabulary, 11, None)
    for row, masked in zip(restored, rows, strict=True):
        tokens = [token for example in row.examples for token in example.tokens]
        hidden = [token for example in masked.examples for token in example.tokens]
        assert [token.piece for token in tokens] == [t.original or t.piece for t in hidden]
        assert all(token.original is None for token in tokens)
    many = int(batch["example_ids"].max(axis=1).sum()) if "example_ids" in batch else 8
    assert text.count("[CLS]") == len(examples) == many
    if not options:
        labels = batch["next_sentence_labels"].tolist()
        assert [int(row.examples[0].is_random) for row in rows] == labels
