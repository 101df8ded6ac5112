"""Sampled rows and examples against the rows that the sampler gives."""

import numpy as np
import pytest

from data_pipeline.report import rows as row_health
from data_pipeline.report.rows import measure_rows, open_sampler, show_first_examples
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary
from tests.data_pipeline.stores import random_documents, write_store

pytestmark = pytest.mark.usefixtures("few_trial_walks")
PIECES = [*(f"w{i}" for i in range(50)), *(f"##c{i}" for i in range(40))]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    documents = random_documents(90, seed=1, vocab_size=95, sentences=9)
    folder = tmp_path_factory.mktemp("rows") / "store"
    return open_store(write_store(folder, documents[:60], documents[60:], PIECES))


@pytest.mark.parametrize("most", [7, 400])
def test_rows_are_summed_up_over_the_sample(store, most, monkeypatch):
    monkeypatch.setattr(row_health, "SAMPLED_ROWS", most)
    monkeypatch.setattr(row_health, "_ROWS_A_CALL", 150 if most > 7 else 5)
    vocabulary = load_vocabulary(store.vocab_path)
    health, examples = measure_rows(store, vocabulary, 32, 3)
    source = open_sampler(store, store.train, 32)
    assert health.sampled == min(most, health.epoch_rows) and len(examples) == 3
    rows = source.rows(np.arange(health.sampled))
    assert health.random_share == pytest.approx(rows["next_sentence_labels"].mean())
    assert health.tokens.mean == pytest.approx(rows["input_mask"].sum() / health.sampled)
    assert health.padding_share == pytest.approx(1 - rows["input_mask"].mean())
    assert health.masks.mean == pytest.approx(rows["masked_lm_weights"].sum() / health.sampled)
    assert 0 < health.heldout_rows < health.epoch_rows
    packed = open_sampler(store, store.train, 32, packed_examples=8)
    rows = packed.rows(np.arange(min(most, packed.rows_in_epoch(0))))
    assert health.packed_padding_share == pytest.approx(1 - rows["input_mask"].mean())
    assert health.packed_padding_share < health.padding_share


@pytest.mark.parametrize(("seq_len", "packed_examples"), [(5, 1), (16, 5), (24, 8)])
def test_a_short_row_packs_what_it_has_room_for(store, seq_len, packed_examples):
    health, _ = measure_rows(store, load_vocabulary(store.vocab_path), seq_len, 0)
    assert health.packed_examples == packed_examples


def test_an_example_is_the_row_with_the_answers_beside_it(store):
    vocabulary = load_vocabulary(store.vocab_path)
    pieces = vocabulary.pieces()
    source = open_sampler(store, store.train, 32)
    rows = source.rows(np.arange(40))
    fates = set()
    for row, example in enumerate(show_first_examples(source, vocabulary, 40)):
        assert example.is_random == bool(rows["next_sentence_labels"][row])
        shown = [pieces[one] for one in rows["input_ids"][row][: len(example.tokens)]]
        assert [token.text for token in example.tokens] == [one.lstrip("#") for one in shown]
        assert [token.starts_word for token in example.tokens] == [
            not one.startswith("##") for one in shown
        ]
        answers = {
            int(place): pieces[label]
            for place, label, weight in zip(
                rows["masked_lm_positions"][row],
                rows["masked_lm_ids"][row],
                rows["masked_lm_weights"][row],
                strict=True,
            )
            if weight
        }
        assert {
            place: token.original
            for place, token in enumerate(example.tokens)
            if token.original is not None
        } == answers
        for place, answer in answers.items():
            expected = {"[MASK]": "hidden", answer: "kept"}.get(shown[place], "replaced")
            assert example.tokens[place].fate == expected
            fates.add(expected)
    assert fates == {"hidden", "kept", "replaced"}
