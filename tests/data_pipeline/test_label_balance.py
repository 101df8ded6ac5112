"""Random second segments are half of all, however many chunks have one sentence alone."""

import numpy as np
import pytest

from data_pipeline import label_balance
from data_pipeline.chunks import split_chunks, walk_corpus
from data_pipeline.label_balance import balanced_random_share
from data_pipeline.store import Split
from tests.data_pipeline.corpora import numbered, split_of, varied
from tests.data_pipeline.test_chunks import rules_of


def random_share_of(split: Split, share: float, key: int = 5) -> float:
    walk = walk_corpus(split, rules_of(random_share=share, key=key))
    first_N, sentences_N = walk.first_sentence_N, walk.sentences_N.astype(np.int64)
    return float(split_chunks(walk.rules, first_N, sentences_N)[1].mean())


def test_half_of_the_pairs_are_random_where_the_corpus_allows():
    split = split_of(varied(3_000, seed=8, most_sentences=9))
    share = balanced_random_share(split, rules_of())
    # Chunks of one sentence alone would tip the scales.
    assert random_share_of(split, 0.5) > 0.6 and 0.05 < share < 0.45
    found = np.mean([random_share_of(split, share, key) for key in range(20)])
    assert abs(found - 0.5) < 0.01


def test_the_share_is_found_on_parts_of_a_large_corpus(monkeypatch):
    split = split_of(varied(3_000, seed=8, most_sentences=9))
    whole = balanced_random_share(split, rules_of())
    monkeypatch.setattr(label_balance, "_SENTENCES", 4_000)
    assert whole != balanced_random_share(split, rules_of()) == pytest.approx(whole, abs=0.05)


def test_where_most_chunks_have_one_sentence_no_other_is_random():
    single = split_of(numbered([[5]] * 30 + [[4, 4, 4]]))
    assert balanced_random_share(single, rules_of()) == 0.0
    assert balanced_random_share(split_of(numbered([[5], [6]])), rules_of()) == 0.0
