"""What is found in the data before the first step: labels of pairs that are inverted."""

import numpy as np
import pytest

from bert_jax.trainer import heldout

TOPICS, WORDS, SEQ_LEN = 50, 20, 32
COUNTS_V = np.full(1300, 10)
COUNTS_V[:200] = 1000  # words that occur everywhere


def make_rows(rows, examples=1, seed=0):
    """Pairs of words of one topic, or of two where the label is 1; the last words are frequent."""
    rng = np.random.default_rng(seed)
    labels_BN = rng.integers(2, size=(rows, examples))
    made = {
        name: np.zeros((rows, SEQ_LEN * examples), np.int32)
        for name in ("input_ids", "input_mask", "segment_ids", "example_ids")
    }
    for row, slot in np.ndindex(rows, examples):
        topic, start = rng.integers(TOPICS), slot * SEQ_LEN
        second = (topic + rng.integers(1, TOPICS)) % TOPICS if labels_BN[row, slot] else topic
        for segment, at in ((topic, start), (second, start + 12)):
            ids = 200 + WORDS * segment + rng.integers(WORDS, size=12)
            ids[:4] = rng.integers(200, size=4)
            made["input_ids"][row, at : at + 12] = ids
        made["segment_ids"][row, start + 12 : start + 24] = 1
        made["input_mask"][row, start : start + 24] = 1
        made["example_ids"][row, start : start + 24] = slot + 1
    if examples == 1:
        del made["example_ids"]
    no_masks = {
        "masked_lm_positions": np.zeros((rows, 1), np.int32),
        "masked_lm_ids": np.zeros((rows, 1), np.int32),
        "masked_lm_weights": np.zeros((rows, 1), np.float32),
    }
    shape = (rows, examples) if examples > 1 else (rows,)
    return {
        **made,
        **no_masks,
        "next_sentence_labels": labels_BN.reshape(shape).astype(np.int32),
        "next_sentence_weights": np.ones(shape, np.float32),
    }


@pytest.mark.parametrize("examples", [1, 3])
def test_shared_words_are_those_of_sets(examples):
    rows = make_rows(20, examples)
    example_BS = rows.get("example_ids", rows["input_mask"])
    examples_M, share_M = heldout.share_words(
        rows["input_ids"], rows["segment_ids"], example_BS, COUNTS_V
    )
    for where, share in zip(examples_M, share_M, strict=True):
        row, slot = divmod(int(where), example_BS.shape[1])
        at = example_BS[row] == slot + 1
        ids, segment = rows["input_ids"][row][at], rows["segment_ids"][row][at]
        first, second = ({*ids[segment == n]} - set(range(200)) for n in (0, 1))
        assert share == pytest.approx(len(first & second) / len(second))
    assert len(examples_M) == 20 * examples


@pytest.mark.parametrize("examples", [1, 3])
def test_inverted_labels_are_found_and_right_ones_are_not(examples):
    rows = make_rows(300, examples)
    assert heldout.find_in_pairs(rows, COUNTS_V) == []
    inverted = rows | {"next_sentence_labels": 1 - rows["next_sentence_labels"]}
    (found,) = heldout.find_in_pairs(inverted, COUNTS_V)
    assert (found.rule, found.step) == ("next_sentence_inverted", 0)
    few = {name: array[:20] for name, array in inverted.items()}
    assert heldout.find_in_pairs(few, COUNTS_V) == []
    unlabeled = inverted | {"next_sentence_weights": 0 * rows["next_sentence_weights"]}
    assert heldout.find_in_pairs(unlabeled, COUNTS_V) == []


def test_labels_by_chance_are_not_inverted():
    rows = make_rows(300)
    labels = np.random.default_rng(1).integers(2, size=300)
    assert heldout.find_in_pairs(rows | {"next_sentence_labels": labels}, COUNTS_V) == []
