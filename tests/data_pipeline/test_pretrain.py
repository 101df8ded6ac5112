"""tf.data gives each process its rows of each step, from any step on, and ends cleanly."""

import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline import pretrain, walks
from data_pipeline.chunks import walk_corpus
from data_pipeline.examples import Pieces, PretrainSource, open_source
from data_pipeline.options import PretrainOptions
from data_pipeline.schema import check_pretrain_batch
from tests.data_pipeline.corpora import SPECIAL_IDS, split_of, varied, vocab_size_of

SPLIT = split_of(varied(17, seed=13))
SEQ_LEN, SLOTS = 37, 7


@pytest.fixture(scope="module")
def source() -> PretrainSource:
    # Groups of several steps that do not divide the number of steps.
    return source_of(PretrainOptions(dupe_factor=2, group_sequences=100))


def source_of(options: PretrainOptions) -> PretrainSource:
    return open_source(SPLIT, Pieces(vocab_size_of(SPLIT), SPECIAL_IDS), options, SEQ_LEN, SLOTS)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name])
        for name in left
    )


def test_each_step_holds_its_positions_of_the_stream_across_epochs(source):
    batches = list(
        pretrain.train_batches(source, batch_size=24, first_row=5, first_step=0, last_step=11)
    )
    assert len(batches) == 11
    assert 2 * source.rows_in_epoch(0) < 24 * 11
    for step, batch in enumerate(batches):
        check_pretrain_batch(batch, source.shape)
        assert same(batch, source.rows(np.arange(5 + step * 24, 5 + (step + 1) * 24)))


PACKED = PretrainOptions(dupe_factor=2, group_sequences=100, packed_examples=3)


@pytest.mark.fault(14, "2, 3, 4, 8 and 16 processes read what one reads")
@pytest.mark.parametrize("options", [PretrainOptions(dupe_factor=2), PACKED])
@pytest.mark.parametrize("process_count", [2, 3, 4, 8, 16])
def test_the_shares_of_all_processes_make_the_batch_of_one(options, process_count):
    source = source_of(options)
    steps = dict(batch_size=48, first_row=3, first_step=2, last_step=6)
    alone = list(pretrain.train_batches(source, **steps))
    shares = [
        list(
            pretrain.train_batches(
                source, **steps, process_index=index, process_count=process_count
            )
        )
        for index in range(process_count)
    ]
    for step, batch in enumerate(alone):
        joined = {name: np.concatenate([share[step][name] for share in shares]) for name in batch}
        assert same(joined, batch)


@pytest.mark.fault(14, "a run goes on after a million steps")
@pytest.mark.parametrize("options", [PretrainOptions(dupe_factor=2), PACKED])
def test_a_step_a_million_steps_on_is_made_from_its_number_alone(monkeypatch, options):
    source = source_of(options)
    walked = []

    def noted(*arguments):
        walked.append(arguments)
        return walk_corpus(*arguments)

    monkeypatch.setattr(walks, "walk_corpus", noted)
    far = 10**6
    first, second = pretrain.train_batches(
        source, batch_size=8, first_row=5, first_step=far, last_step=far + 2
    )
    # The walk of the first batch, and that of the next epoch ahead of need.
    assert 1 <= len(walked) <= 2
    assert same(first, source.rows(5 + 8 * far + np.arange(8)))
    assert same(second, source_of(options).rows(5 + 8 * (far + 1) + np.arange(8)))


@pytest.mark.fault(14, "a stream begins at steps 0, 1, 6, 19 and 20 of 20")
def test_a_stream_from_a_later_step_is_the_rest_of_the_stream(source):
    steps = dict(batch_size=16, first_row=0, last_step=20)
    whole = list(pretrain.train_batches(source, **steps, first_step=0))
    for start in (1, 6, 19, 20):
        rest = list(pretrain.train_batches(source, **steps, first_step=start))
        assert len(rest) == 20 - start
        assert all(same(*both) for both in zip(rest, whole[start:], strict=True))


@pytest.mark.parametrize("group_sequences", [1, 7, 64, 5000])
def test_the_size_of_a_group_changes_nothing(source, group_sequences):
    steps = dict(batch_size=8, first_row=0, first_step=1, last_step=31)
    other = source_of(replace(source.options, group_sequences=group_sequences))
    pairs = zip(
        pretrain.train_batches(other, **steps),
        pretrain.train_batches(source, **steps),
        strict=True,
    )
    assert all(same(*both) for both in pairs)


def test_an_error_in_making_rows_surfaces_as_itself(source, capfd):
    ids = SPLIT.token_ids.copy()
    ids[len(ids) // 2] = 10**6
    damaged = replace(source, split=replace(SPLIT, token_ids=ids))
    batches = pretrain.train_batches(
        damaged, batch_size=8, first_row=0, first_step=0, last_step=10**9
    )
    with pytest.raises(ValueError, match="token id 1000000 of the store is beyond its vocab"):
        for _ in batches:
            pass
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed and "INVALID_ARGUMENT" not in printed


def test_closing_ends_the_work_and_the_threads(source):
    def open_one() -> int:
        batches = pretrain.train_batches(
            source, batch_size=8, first_row=0, first_step=0, last_step=10**9
        )
        next(batches)
        batches.close()
        deadline = time.monotonic() + 5
        while (threads := len(os.listdir("/proc/self/task"))) > before and before:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return threads

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("needs /proc to count threads")
    before = 0
    open_one()
    time.sleep(0.3)
    # TensorFlow's own pools stay; a pipeline must add none.
    before = len(os.listdir("/proc/self/task"))
    assert all(open_one() <= before for _ in range(5))


def test_heldout_batches_are_fixed_and_the_last_is_filled_with_zero_weights(source):
    total = source.rows_in_epoch(0)
    for examples in (1, 10, 16, 10**6):
        batches = pretrain.heldout_batches(source, batch_size=16, examples=examples)
        again = pretrain.heldout_batches(source, batch_size=16, examples=examples)
        assert all(same(*both) for both in zip(batches, again, strict=True))
        count = min(examples, total)
        assert len(batches) == -(-count // 16)
        rows = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        made = source.rows(np.arange(count))
        assert same({name: array[:count] for name, array in rows.items()}, made)
        filled = {name: array[count:] for name, array in rows.items()}
        assert len(filled["input_ids"]) == len(batches) * 16 - count
        assert not filled["masked_lm_weights"].any() and not filled["next_sentence_weights"].any()
        assert (filled["input_mask"] == [1] + [0] * (SEQ_LEN - 1)).all()
        assert (filled["input_ids"] == [SPECIAL_IDS["cls"]] + [0] * (SEQ_LEN - 1)).all()
        for batch in batches:
            check_pretrain_batch(batch, source.shape)


def test_any_rows_of_the_global_batch_can_be_asked_for(source):
    steps = {"batch_size": 16, "first_row": 5, "first_step": 2, "last_step": 7}
    rows = np.array([1, 2, 7, 11, 12])
    whole = list(pretrain.train_batches(source, **steps))
    some = list(pretrain.train_batches(source, **steps, rows=rows))
    for all_rows, few in zip(whole, some, strict=True):
        for name, array in few.items():
            np.testing.assert_array_equal(array, all_rows[name][rows])


def test_bad_arguments_are_refused_before_the_first_batch(source):
    good = dict(batch_size=16, first_row=0, first_step=0, last_step=5)
    for changed, sentence in (
        (dict(batch_size=15, process_count=4), "batch_size is 15; it must be a multiple of the 4"),
        (dict(batch_size=2, process_count=4), "e.g. 4"),
        (dict(batch_size=0), "batch_size is 0"),
        (dict(process_index=4, process_count=4), "process 4 of 4 does not exist"),
        (dict(first_step=6), "steps 6 to 5 from row 0 are no range"),
        (dict(first_row=-1), "from row -1 are no range"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            pretrain.train_batches(source, **{**good, **changed})
    with pytest.raises(ValueError, match="examples to evaluate is 0"):
        pretrain.heldout_batches(source, batch_size=16, examples=0)
