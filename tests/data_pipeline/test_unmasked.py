import numpy as np

from data_pipeline.unmasked import first_segment_hashes, unmasked_ids


def batch(ids, positions=(0,), labels=(0,), weights=(0,), second=4, visible=6):
    """One example of six positions, B from position `second` on."""
    place = np.arange(6)
    return {
        "input_ids": np.array([ids], np.uint16),
        "input_mask": (place < visible)[None].astype(np.uint8),
        "segment_ids": (place >= second)[None].astype(np.uint8),
        "masked_lm_positions": np.array([positions], np.uint8),
        "masked_lm_ids": np.array([labels], np.uint16),
        "masked_lm_weights": np.array([weights], np.uint8),
    }


def test_labels_go_back_and_unused_slots_leave_cls_alone():
    masked = batch([2, 9, 4, 3, 4, 3], (2, 4, 0), (7, 8, 0), (1, 1, 0))
    assert unmasked_ids(masked).tolist() == [[2, 9, 7, 3, 8, 3]]
    assert masked["input_ids"].tolist() == [[2, 9, 4, 3, 4, 3]]


def test_the_hash_is_that_of_the_first_segments_text():
    plain = first_segment_hashes(batch([2, 9, 7, 3, 8, 3]))
    same = [
        batch([2, 9, 4, 3, 8, 3], (2,), (7,), (1,)),  # masked
        batch([2, 9, 7, 3, 5, 3]),  # another second segment
        batch([2, 9, 7, 3, 0, 0], visible=4),  # none
    ]
    other = [
        batch([2, 7, 9, 3, 8, 3]),  # another order
        batch([2, 9, 6, 3, 8, 3]),
        batch([2, 9, 7, 3, 8, 3], second=3),
    ]
    assert all(first_segment_hashes(one) == plain for one in same)
    assert not any(first_segment_hashes(one) == plain for one in other)
