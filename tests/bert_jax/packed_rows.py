"""Make packed rows by copying unpacked rows one after another."""

import numpy as np

from data_pipeline.spec.schema import PACKED_FIELDS, RowShape


def side_by_side(batch, seq_len, predictions, most_examples):
    """Pack a batch into half as many rows, with one, three, two and two examples in turn."""
    count = len(batch["input_ids"])
    of_row = np.split(np.arange(count), np.cumsum([1, 3, 2, 2] * (count // 8))[:-1])
    return packed(batch, of_row, seq_len, predictions, most_examples)


def packed(batch, of_row, seq_len, predictions, most_examples):
    """Return a packed batch whose row r holds the examples of_row[r] of an unpacked batch."""
    shape = RowShape(seq_len, predictions, most_examples)
    made = {
        name: np.zeros(dims, dtype) for name, (dims, dtype) in shape.arrays(len(of_row)).items()
    }
    assert made.keys() == PACKED_FIELDS.keys()
    for row, examples in enumerate(of_row):
        start, slot = 0, 0
        for number, example in enumerate(examples):
            length = int(batch["input_mask"][example].sum())
            here = np.s_[row, start : start + length]
            for name in ("input_ids", "input_mask", "segment_ids"):
                made[name][here] = batch[name][example, :length]
            made["example_ids"][here] = number + 1
            made["position_ids"][here] = np.arange(length)
            made["cls_positions"][row, number] = start
            for name in ("next_sentence_labels", "next_sentence_weights"):
                made[name][row, number] = batch[name][example]
            used = np.flatnonzero(batch["masked_lm_weights"][example])
            slots = np.s_[row, slot : slot + len(used)]
            made["masked_lm_positions"][slots] = batch["masked_lm_positions"][example, used] + start
            for name in ("masked_lm_ids", "masked_lm_weights"):
                made[name][slots] = batch[name][example, used]
            start, slot = start + length, slot + len(used)
    return made
