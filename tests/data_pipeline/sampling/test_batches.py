"""tf.data gives each process its rows of each step, from any step on, and ends cleanly."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.sampling import batches as pretrain
from data_pipeline.sampling import walks
from data_pipeline.sampling.stream import PretrainSource
from data_pipeline.sampling.walk import walk_corpus
from data_pipeline.spec.options import PretrainOptions
from tests.data_pipeline.batch_check import check_pretrain_batch
from tests.data_pipeline.corpora import SPECIAL_IDS, split_of, varied
from tests.data_pipeline.sampling import sources
from tests.data_pipeline.sampling.sources import Rows, assert_same

pytestmark = pytest.mark.usefixtures("few_trial_walks")
SPLIT = split_of(varied(17, seed=13))
SEQ_LEN, SLOTS = 37, 7
ONE_EACH = PretrainOptions(dupe_factor=2)
# Groups of several steps that do not divide the number of steps.
PACKED = PretrainOptions(dupe_factor=2, group_sequences=100, packed_examples=3)


def source_of(options: PretrainOptions, **changed: object) -> PretrainSource:
    return sources.source_of(SPLIT, SEQ_LEN, SLOTS, options, **changed)


@pytest.fixture(scope="module")
def source() -> PretrainSource:
    return source_of(ONE_EACH, group_sequences=100)


def read(source: PretrainSource, batch_size: int, rows: np.ndarray | None = None, **steps: int):
    """The batches of steps from first_step=0 and first_row=0 on: all rows unless some are named."""
    steps = {"first_row": 0, "first_step": 0} | steps
    rows = np.arange(batch_size) if rows is None else rows
    return pretrain.train_batches(source, batch_size=batch_size, rows=rows, **steps)


def test_each_step_holds_its_positions_of_the_stream_across_epochs(source):
    batches = list(read(source, 24, first_row=5, last_step=11))
    assert len(batches) == 11 and 2 * source.rows_in_epoch(0) < 24 * 11
    for step, batch in enumerate(batches):
        check_pretrain_batch(batch, source.shape)
        assert_same(batch, source.rows(np.arange(5 + step * 24, 5 + (step + 1) * 24)))


@pytest.mark.fault(14, "2, 3, 4, 8 and 16 processes read what one reads")
@pytest.mark.parametrize(
    ("process_count", "options"),
    [
        *((2, ONE_EACH), (3, PACKED)),
        pytest.param(4, ONE_EACH, marks=pytest.mark.slow),
        pytest.param(8, PACKED, marks=pytest.mark.slow),
        pytest.param(16, ONE_EACH, marks=pytest.mark.slow),
    ],
)
def test_the_shares_of_all_processes_make_the_batch_of_one(process_count, options):
    source = source_of(options)
    steps = dict(batch_size=48, first_row=3, first_step=2, last_step=4)
    # A mesh may assign the rows of a batch to processes in any order.
    order = np.random.default_rng(process_count).permutation(48)
    shares = [
        list(read(source, rows=rows, **steps)) for rows in np.array_split(order, process_count)
    ]
    for step, batch in enumerate(read(source, **steps)):
        joined = {name: np.concatenate([share[step][name] for share in shares]) for name in batch}
        assert_same(joined, {name: array[order] for name, array in batch.items()})


@pytest.mark.fault(14, "a run goes on after a million steps")
def test_a_step_a_million_steps_on_is_made_from_its_number_alone(monkeypatch):
    source = source_of(PACKED)
    walked = []

    def noted(*arguments):
        walked.append(arguments)
        return walk_corpus(*arguments)

    monkeypatch.setattr(walks, "walk_corpus", noted)
    far = 10**6
    first, second = read(source, 8, first_row=5, first_step=far, last_step=far + 2)
    # The walk of the first batch, and the next epoch's ahead of need.
    assert 1 <= len(walked) <= 2
    assert_same(first, source.rows(5 + 8 * far + np.arange(8)))
    assert_same(second, source_of(PACKED).rows(5 + 8 * (far + 1) + np.arange(8)))


@pytest.mark.slow
@pytest.mark.parametrize("group_sequences", [7, 5000])
def test_the_size_of_a_group_changes_nothing(source, group_sequences):
    other = source_of(source.options, group_sequences=group_sequences)
    steps = dict(batch_size=8, first_step=1, last_step=21)
    for left, right in zip(read(other, **steps), read(source, **steps), strict=True):
        assert_same(left, right)


def test_an_error_in_making_rows_surfaces_as_itself(source, capfd):
    ids = SPLIT.token_ids.copy()
    ids[len(ids) // 2] = 10**6
    damaged = replace(source, split=replace(SPLIT, token_ids=ids))
    with pytest.raises(ValueError, match="token id 1000000 of the store is beyond its vocab"):
        for _ in read(damaged, 8, last_step=10**9):
            pass
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed and "INVALID_ARGUMENT" not in printed


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc to count threads")
def test_closing_ends_the_work_and_the_threads(source):
    def count_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def open_and_close() -> None:
        batches = read(source, 8, last_step=10**9)
        next(batches)
        batches.close()

    open_and_close()
    time.sleep(0.3)
    before = count_threads()  # TensorFlow's own pools stay; a pipeline must add none
    for _ in range(3):
        open_and_close()
        deadline = time.monotonic() + 5
        while count_threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count_threads() <= before


@pytest.mark.parametrize("examples", [1, 10, 16, 10**6])
def test_heldout_batches_are_fixed_and_the_last_is_filled_with_zero_weights(source, examples):
    batches = pretrain.make_heldout_batches(source, batch_size=16, examples=examples)
    again = pretrain.make_heldout_batches(source, batch_size=16, examples=examples)
    for left, right in zip(batches, again, strict=True):
        assert_same(left, right)
        check_pretrain_batch(left, source.shape)
    count = min(examples, source.rows_in_epoch(0))
    assert len(batches) == -(-count // 16)
    rows: Rows = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    assert_same(
        {name: array[:count] for name, array in rows.items()}, source.rows(np.arange(count))
    )
    filled = {name: array[count:] for name, array in rows.items()}
    assert len(filled["input_ids"]) == len(batches) * 16 - count
    assert not filled["masked_lm_weights"].any() and not filled["next_sentence_weights"].any()
    assert (filled["input_mask"] == [1] + [0] * (SEQ_LEN - 1)).all()
    assert (filled["input_ids"] == [SPECIAL_IDS["cls"]] + [0] * (SEQ_LEN - 1)).all()
