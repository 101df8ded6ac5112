"""Examples side by side in rows: each whole and once, in rows of one shape, the same anywhere."""

import dataclasses

import numpy as np

from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.packing import (
    PackedSteps,
    Packing,
    choose_packing,
    pack_examples,
    place_examples,
)
from data_pipeline.labeled.rows import ExampleStream, build_rows
from data_pipeline.vocab.template import make_bert_template

BERT = make_bert_template({"cls": 2, "sep": 3})


def rows_of(examples, seed=0, longest=20):
    """Pairs of texts, with a class each and a label at every token."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(5, 99, rng.integers(1, longest)) for _ in range(examples)]
    rows = [frame(text, rng.integers(5, 99, 2), BERT, longest + 9) for text in texts]
    tokens = sum(len(row.token_ids) for row in rows)
    labels = {"label_ids": rng.integers(0, 3, examples).astype(np.int32)}
    tags = {"tags": rng.integers(1, 7, tokens).astype(np.int32)}
    return dataclasses.replace(build_rows(rows, labels), token_labels=tags)


def test_every_example_lies_whole_in_one_row_beside_none_of_its_tokens():
    rng = np.random.default_rng(4)
    lengths_KB = rng.integers(3, 41, (50, 12))
    places = place_examples(lengths_KB, 48)
    for lengths, rows, slots, starts in zip(
        lengths_KB, places.row_KB, places.slot_KB, places.start_KB, strict=True
    ):
        taken = np.zeros((12, 48), int)
        for length, row, start in zip(lengths, rows, starts, strict=True):
            assert start + length <= 48
            taken[row, start : start + length] += 1
        assert taken.max() == 1
        for row in np.unique(rows):
            in_row = np.flatnonzero(rows == row)
            assert sorted(slots[in_row]) == list(range(len(in_row)))
            np.testing.assert_array_equal(np.argsort(starts[in_row]), np.argsort(slots[in_row]))


def test_the_first_row_with_room_is_taken_the_longest_example_first():
    places = place_examples(np.array([[10, 30, 22, 6]]), 32)
    np.testing.assert_array_equal(places.row_KB, [[1, 0, 1, 2]])
    np.testing.assert_array_equal(places.start_KB, [[22, 0, 0, 0]])
    np.testing.assert_array_equal(places.slot_KB, [[1, 0, 0, 0]])


def test_rows_are_as_many_as_the_fullest_step_needs():
    few, many = [17] + [16] * 7, [40] * 8
    assert choose_packing(np.array([few, few])) == Packing(seq_len=48, rows=3, examples=3)
    assert choose_packing(np.array([few, many])) == Packing(seq_len=48, rows=8, examples=3)
    assert choose_packing(np.full((3, 8), 500)) == Packing(seq_len=512, rows=8, examples=1)
    assert choose_packing(np.full((3, 2), 600)) == Packing(seq_len=640, rows=2, examples=1)


def test_a_batch_gives_back_its_examples():
    rows, index_B = rows_of(30), np.array([3, 17, 4, 29, 0, 11])
    packing = choose_packing(rows.lengths_N[index_B][None])
    batch = pack_examples(rows, index_B, Packing(packing.seq_len, packing.rows + 1, 9), pad_id=7)
    alone = rows.batch(index_B, 64, pad_id=7)
    found = set()
    for row, slot in np.argwhere(batch["example_weights"] > 0):
        (at,) = np.nonzero(batch["example_ids"][row] == slot + 1)
        assert at[0] == batch["cls_positions"][row, slot]
        np.testing.assert_array_equal(at, at[0] + np.arange(len(at)))
        np.testing.assert_array_equal(batch["position_ids"][row, at], np.arange(len(at)))
        same = [
            b
            for b in range(6)
            if (alone["input_ids"][b, : len(at)] == batch["input_ids"][row, at]).all()
        ]
        (example,) = same
        assert alone["input_mask"][example].sum() == len(at)
        for name in ("segment_ids", "tags"):
            np.testing.assert_array_equal(batch[name][row, at], alone[name][example, : len(at)])
        assert batch["label_ids"][row, slot] == alone["label_ids"][example]
        found.add(example)
    assert found == set(range(6))
    empty = batch["example_ids"] == 0
    assert (batch["input_ids"][empty] == 7).all() and (batch["tags"][empty] == 0).all()
    assert batch["input_mask"].sum() == alone["input_mask"].sum() == (~empty).sum()
    assert {array.dtype for array in batch.values()} == {np.dtype("int32"), np.dtype("float32")}


def test_every_step_has_one_shape_and_rows_that_fill_up_change_nothing_else():
    stream = ExampleStream(rows_of(40), order_seed=1, batch_size=8, pad_id=0)
    one, of_many = PackedSteps(stream, 15, unit=1), PackedSteps(stream, 15, unit=8)
    assert of_many.packing.rows % 8 == 0 and of_many.packing.rows >= one.packing.rows
    every, more = np.arange(one.packing.rows), np.arange(of_many.packing.rows)
    steps = list(one.batches(0, 15, every))
    assert len({tuple((k, v.shape) for k, v in batch.items()) for batch in steps}) == 1
    assert all(batch["example_weights"].sum() == 8 for batch in steps)
    for batch, other in zip(steps, of_many.batches(0, 15, more), strict=True):
        for name, array in batch.items():
            np.testing.assert_array_equal(other[name][: len(every)], array)
            assert not other[name][len(every) :].any()
    (again,) = one.batches(11, 12, every[1:])
    for name, array in again.items():
        np.testing.assert_array_equal(array, steps[11][name][1:])
