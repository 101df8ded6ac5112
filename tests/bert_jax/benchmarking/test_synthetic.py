"""Synthetic batches: fields and shapes are those of the pipeline, and rows are what they say."""

import numpy as np
import pytest

from bert_jax.benchmarking.measure import make_synthetic_batch
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import row_shape
from tests.data_pipeline.batch_check import check_pretrain_batch

VOCAB = 97


@pytest.mark.parametrize("token_share", [1.0, 0.6])
@pytest.mark.parametrize("packed_examples", [1, 2, 8])
def test_a_batch_has_the_pipelines_fields_and_rows_filled_as_asked(packed_examples, token_share):
    shape = row_shape(PretrainOptions(packed_examples=packed_examples), 53, 8)
    batch = make_synthetic_batch(shape, 31, VOCAB, token_share, seed=3)
    check_pretrain_batch(batch, shape)
    tokens = round(token_share * 53)
    np.testing.assert_array_equal(batch["input_mask"], np.tile(np.arange(53) < tokens, (31, 1)))
    assert batch["input_ids"].max() < VOCAB
    np.testing.assert_array_equal(batch["input_ids"] > 0, batch["input_mask"] > 0)
    np.testing.assert_array_equal(batch["masked_lm_ids"] > 0, batch["masked_lm_weights"] > 0)
    masks = zip(batch["masked_lm_positions"], batch["masked_lm_weights"], strict=True)
    for positions_P, weights_P in masks:
        used = positions_P[weights_P > 0]
        assert (np.diff(used) > 0).all() and used.min() >= 1 and used.max() < tokens
        assert abs(len(used) - 0.15 * tokens) <= 2


def test_examples_of_a_packed_row_stand_one_after_another():
    shape = row_shape(PretrainOptions(packed_examples=3), 53, 8)
    batch = make_synthetic_batch(shape, 64, VOCAB, 0.9, seed=5)
    counts = set()
    for row in range(64):
        ids = batch["example_ids"][row, :48]
        count = ids[-1]
        counts.add(int(count))
        np.testing.assert_array_equal(np.unique(ids), np.arange(1, count + 1))
        starts = np.flatnonzero(np.diff(ids, prepend=0))
        np.testing.assert_array_equal(batch["cls_positions"][row, :count], starts)
        positions = np.arange(48) - starts[ids - 1]
        np.testing.assert_array_equal(batch["position_ids"][row, :48], positions)
        np.testing.assert_array_equal(batch["next_sentence_weights"][row], np.arange(3) < count)
    assert counts == {1, 2, 3}


def test_a_row_without_a_prediction_is_refused():
    """A phase that was not resolved has 0 of them, and its step would compile without the head."""
    with pytest.raises(ValueError, match="max_predictions_per_seq is 0"):
        row_shape(PretrainOptions(), 128, 0)
