"""Google's fields as Hugging Face's models take them."""

import numpy as np

from benchmarks.step.cases import hf_batch


def test_used_slots_become_labels_and_nothing_else_does():
    fields = {
        "input_ids": np.array([[7, 8, 9, 3, 0], [7, 5, 6, 4, 2]]),
        "input_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        "segment_ids": np.array([[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]),
        "masked_lm_positions": np.array([[1, 3], [2, 0]]),
        "masked_lm_ids": np.array([[21, 22], [23, 0]]),
        "masked_lm_weights": np.array([[1.0, 1.0], [1.0, 0.0]]),
        "next_sentence_labels": np.array([0, 1]),
    }
    theirs = hf_batch(fields)
    assert theirs["labels"].tolist() == [[-100, 21, -100, 22, -100], [-100, -100, 23, -100, -100]]
    assert theirs["attention_mask"] is fields["input_mask"]
    assert theirs["token_type_ids"] is fields["segment_ids"]
