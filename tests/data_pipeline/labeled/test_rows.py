"""Batches of labeled examples: what stands in them, in which order, and that steps repeat."""

import dataclasses

import numpy as np
import pytest

from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import ExampleStream, batch_by_length, build_rows, choose_seq_len
from data_pipeline.vocab.template import make_bert_template

BERT = make_bert_template({"cls": 2, "sep": 3})


def rows_of(examples, rows_per_example=1):
    """Example n has the tokens 100 + n, n + 1 times, and a second text of one token."""
    rows = [
        frame([100 + n] * (n + 1), [50 + choice], BERT, 64)
        for n in range(examples)
        for choice in range(rows_per_example)
    ]
    labels = {"label_ids": np.arange(examples, dtype=np.int32)}
    return dataclasses.replace(build_rows(rows, labels), rows_per_example=rows_per_example)


def test_a_batch_holds_its_rows_and_fills_up_with_nothing():
    batch = rows_of(3).batch(np.array([1, -1]), 7, pad_id=9)
    assert batch["input_ids"].tolist() == [[2, 101, 101, 3, 50, 3, 9], [9] * 7]
    assert batch["input_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0], [0] * 7]
    assert batch["example_weights"].tolist() == [1.0, 0.0]
    assert batch["label_ids"][0] == 1
    assert {array.dtype for array in batch.values()} == {np.dtype("int32"), np.dtype("float32")}


def test_choices_of_an_example_stay_together():
    batch = rows_of(3, rows_per_example=2).batch(np.array([2, 0]), 8, pad_id=0)
    assert batch["input_ids"].shape == (2, 2, 8)
    np.testing.assert_array_equal(batch["input_ids"][0, :, 5], [50, 51])
    np.testing.assert_array_equal(batch["label_ids"], [2, 0])


def test_token_labels_lie_under_their_tokens():
    rows = [frame([11, 12], None, BERT, 8), frame([13], None, BERT, 8)]
    token_labels = {"label_ids": np.array([0, 5, 6, 0, 0, 7, 0])}
    labeled = dataclasses.replace(build_rows(rows), token_labels=token_labels)
    batch = labeled.batch(np.array([1, 0, -1]), 5, pad_id=0)
    assert batch["label_ids"].tolist() == [[0, 7, 0, 0, 0], [0, 5, 6, 0, 0], [0] * 5]


def test_an_epoch_has_every_example_once_and_the_next_another_order():
    stream = ExampleStream(rows_of(29), order_seed=3, batch_size=4, pad_id=0)
    epochs, index = stream.locate(np.arange(58))
    np.testing.assert_array_equal(epochs, np.repeat([0, 1], 29))
    np.testing.assert_array_equal(np.sort(index[:29]), np.arange(29))
    np.testing.assert_array_equal(np.sort(index[29:]), np.arange(29))
    assert (index[:29] != index[29:]).any() and (index[:29] != np.arange(29)).any()
    other = ExampleStream(rows_of(29), order_seed=4, batch_size=4, pad_id=0)
    assert (other.locate(np.arange(29))[1] != index[:29]).any()


def test_any_step_can_be_made_again_and_processes_share_a_batch():
    stream = ExampleStream(rows_of(29), order_seed=3, batch_size=4, pad_id=0)
    all_steps = list(stream.batches(0, 20, np.arange(4)))
    again = ExampleStream(rows_of(29), order_seed=3, batch_size=4, pad_id=0)
    for part in (np.array([0, 1]), np.array([2, 3])):
        (step,) = again.batches(17, 18, part)
        for name, array in step.items():
            np.testing.assert_array_equal(array, all_steps[17][name][part])
    assert all(
        batch["input_ids"].shape[1] == stream.seq_len(step) for step, batch in enumerate(all_steps)
    )


def test_a_batch_is_cut_to_its_longest_row():
    stream = ExampleStream(rows_of(29), order_seed=3, batch_size=4, pad_id=0)
    for batch in stream.batches(0, 20, np.arange(4)):
        longest = int(batch["input_mask"].sum(axis=1).max())
        assert batch["input_ids"].shape[1] == choose_seq_len(longest)
    assert [choose_seq_len(n) for n in (1, 16, 17, 512, 513)] == [16, 16, 24, 512, 640]
    assert [choose_seq_len(n, 19) for n in (16, 17, 19)] == [16, 19, 19]


@pytest.mark.parametrize("rows_per_example", [1, 3])
def test_evaluation_has_every_example_once_longest_first(rows_per_example):
    rows = rows_of(29, rows_per_example)
    batches = list(batch_by_length(rows, 8, pad_id=0))
    index = np.concatenate([batch.index_B for batch in batches])
    assert sorted(index[index >= 0]) == list(range(29))
    lengths = [batch.fields["input_ids"].shape[-1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    for batch in batches:
        real = batch.index_B >= 0
        np.testing.assert_array_equal(batch.fields["label_ids"][real], batch.index_B[real])
        np.testing.assert_array_equal(batch.fields["example_weights"], real)


def test_the_first_examples_alone():
    """Lengths are measured once: evaluation asks for them with every batch."""
    whole = rows_of(3)
    assert whole.lengths_N is whole.lengths_N
    np.testing.assert_array_equal(whole.first(2).lengths_N, whole.lengths_N[:2])
    rows = rows_of(5, 2).first(2)
    assert rows.examples == 2 and len(rows.offsets) == 5 and len(rows.labels["label_ids"]) == 2
    assert rows_of(5).first(99).examples == 5
