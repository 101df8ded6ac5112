"""Baselines against counting by hand."""

import math

import numpy as np
import pytest

from bert_jax import baselines
from data_pipeline import store as store_lib


def held_out(ids, weights, labels, label_weights):
    return {
        "masked_lm_ids": np.array(ids, np.int32),
        "masked_lm_weights": np.array(weights, np.float32),
        "next_sentence_labels": np.array(labels, np.int32),
        "next_sentence_weights": np.array(label_weights, np.float32),
    }


BATCHES = [
    held_out([[5, 6, 0], [6, 0, 0]], [[1, 1, 0], [1, 0, 0]], [1, 1], [1, 1]),
    held_out([[7, 5, 0], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]], [0, 0], [1, 0]),
]


def test_unigram_loss(tiny_store):
    store = store_lib.open_store(tiny_store)
    tokens = np.asarray(store.train.token_ids)
    pieces = set(range(store.vocab_size)) - {0, 101, 102, 103}  # [PAD] [CLS] [SEP] [MASK]
    total = len(tokens) + len(pieces)
    share = {piece: ((tokens == piece).sum() + 1) / total for piece in (5, 6, 7)}
    expected = -sum(math.log(share[piece]) for piece in (5, 6, 6, 7, 5)) / 5
    assert baselines.unigram_mlm_loss(store, BATCHES) == pytest.approx(expected, rel=1e-9)


def test_majority_label():
    assert baselines.majority_nsp_accuracy(BATCHES) == pytest.approx(2 / 3)
    assert baselines.majority_nsp_accuracy(BATCHES[:1]) == 1.0
