"""Rows are a pure function of their position; epochs use each pair once and join without a gap."""

import re
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.chunks import Walk, walk_corpus, walk_rules
from data_pipeline.examples import Pieces, PretrainSource, open_source
from data_pipeline.options import PretrainOptions
from data_pipeline.schema import check_pretrain_batch
from data_pipeline.store import Split
from tests.data_pipeline.corpora import (
    FIRST_ID,
    SPECIAL_IDS,
    numbered,
    split_of,
    varied,
    vocab_size_of,
)

SPLIT = split_of(varied(29, seed=9))
OPTIONS = PretrainOptions(dupe_factor=3)
SEQ_LEN, SLOTS = 37, 7


def source_of(
    split: Split = SPLIT,
    options: PretrainOptions = OPTIONS,
    seq_len: int = SEQ_LEN,
    slots: int = SLOTS,
    special_ids: dict[str, int] = SPECIAL_IDS,
) -> PretrainSource:
    pieces = Pieces(vocab_size_of(split), special_ids)
    return open_source(split, pieces, options, seq_len, slots)


def walk_of(source: PretrainSource, number: int) -> Walk:
    rules = walk_rules(source.options, source.shape.seq_len, number, source.facts.random_share)
    return walk_corpus(source.split, rules)


def epoch_rows(source: PretrainSource, epoch: int) -> dict[str, np.ndarray]:
    first = sum(source.rows_in_epoch(before) for before in range(epoch))
    return source.rows(np.arange(first, first + source.rows_in_epoch(epoch)))


def first_sentences(rows: dict[str, np.ndarray]) -> list[int]:
    """The sentence that A starts in, of each row."""
    is_masked = rows["masked_lm_positions"][:, 0] == 1
    first = np.where(is_masked, rows["masked_lm_ids"][:, 0], rows["input_ids"][:, 1])
    return (np.searchsorted(SPLIT.sentence_offsets, first - FIRST_ID, "right") - 1).tolist()


@pytest.mark.parametrize("seq_len", [5, 37, 128, 512, 2048])
def test_rows_follow_the_schema_and_the_layout(seq_len):
    source = source_of(seq_len=seq_len, slots=min(SLOTS, seq_len))
    rows = source.rows(np.arange(50))
    check_pretrain_batch(rows, source.shape)
    for row in range(50):
        length = int(rows["input_mask"][row].sum())
        ids = rows["input_ids"][row].copy()
        used = rows["masked_lm_weights"][row] > 0
        ids[rows["masked_lm_positions"][row][used]] = rows["masked_lm_ids"][row][used]
        (middle, last) = np.flatnonzero(ids == SPECIAL_IDS["sep"])
        assert ids[0] == SPECIAL_IDS["cls"] and last == length - 1 <= seq_len - 1
        assert (ids[length:] == SPECIAL_IDS["pad"]).all()
        assert rows["input_mask"][row].tolist() == [1] * length + [0] * (seq_len - length)
        assert rows["segment_ids"][row].tolist() == (
            [0] * (middle + 1) + [1] * (last - middle) + [0] * (seq_len - length)
        )
        # All ids are different and numbered in order: each segment is a piece of the text.
        for segment in (ids[1:middle], ids[middle + 1 : last]):
            assert len(segment) and (np.diff(segment) == 1).all()
    assert (rows["next_sentence_weights"] == 1).all()


def test_special_ids_come_from_the_caller():
    special_ids = {"pad": 3, "unk": 4, "cls": 5, "sep": 6, "mask": 7}
    rows = source_of(special_ids=special_ids).rows(np.arange(80))
    ids, visible = rows["input_ids"], rows["input_mask"] == 1
    assert (ids[:, 0] == 5).all() and (ids[~visible] == 3).all() and (~visible).any()
    assert ((ids == 6).sum(axis=1) >= 2).all() and (ids == 7).sum() > 100
    assert not (ids == SPECIAL_IDS["mask"]).any() and not (ids == SPECIAL_IDS["sep"]).any()


def test_a_row_is_the_same_alone_and_among_others_in_any_order():
    source = source_of()
    total = sum(source.facts.rows_K)
    positions = np.random.default_rng(0).permutation(2 * total + 17)
    shuffled = source.rows(positions)
    again = source_of().rows(np.arange(len(positions)))
    for name, array in again.items():
        np.testing.assert_array_equal(shuffled[name], array[positions], err_msg=name)
    for position in (0, total - 1, total, 2 * total + 16):
        for name, array in source.rows(np.asarray([position])).items():
            np.testing.assert_array_equal(array[0], again[name][position])
    assert len(source.rows(np.arange(0))["input_ids"]) == 0


def test_positions_run_through_epochs_without_a_gap():
    source = source_of(seq_len=2048)
    ends = np.cumsum([source.rows_in_epoch(epoch) for epoch in range(7)])
    all_at_once = first_sentences(source.rows(np.arange(ends[-1])))
    for epoch, end in enumerate(ends):
        part = all_at_once[end - source.rows_in_epoch(epoch) : end]
        walk = walk_of(source, epoch % 3)
        assert sorted(part) == walk.first_sentence_N.tolist()
    round_size = sum(source.facts.rows_K)
    # Epoch 3 * 10**12 is of walk 0 again, and begins where so many rounds end.
    far = source.rows(np.arange(10**12 * round_size, 10**12 * round_size + source.rows_in_epoch(0)))
    assert sorted(first_sentences(far)) == walk_of(source, 0).first_sentence_N.tolist()


@pytest.mark.parametrize("exact", [False, True])
def test_every_pair_of_the_walk_is_there_exactly_once_in_each_epoch(exact):
    # At 2048 tokens nothing is cut off, so that A's first token names the pair.
    options = replace(OPTIONS, exact=exact, short_seq_prob=0.5)
    source = source_of(options=options, seq_len=2048)
    for epoch in range(5):
        walk = walk_of(source, epoch % 3)
        found = first_sentences(epoch_rows(source, epoch))
        assert sorted(found) == walk.first_sentence_N.tolist() != found


def test_an_epoch_with_the_same_walk_has_the_same_pairs_and_other_masks_and_order():
    source = source_of(seq_len=2048, slots=5)
    first, second, again = (epoch_rows(source, epoch) for epoch in (0, 1, 3))

    def texts(rows: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
        ids = rows["input_ids"].copy()
        used = rows["masked_lm_weights"] > 0
        row, slot = np.nonzero(used)
        ids[row, rows["masked_lm_positions"][row, slot]] = rows["masked_lm_ids"][row, slot]
        return [tuple(line) for line in ids.tolist()]

    assert texts(first) != texts(again)
    assert sorted(texts(first)) == sorted(texts(again))
    assert sorted(texts(first)) != sorted(texts(second))
    masks = [
        dict(zip(texts(rows), map(tuple, rows["masked_lm_positions"]), strict=True))
        for rows in (first, again)
    ]
    same = sum(masks[0][text] == masks[1][text] for text in masks[0])
    assert same < 0.2 * len(masks[0])


def test_seeds_and_sequence_lengths_draw_differently():
    base = source_of().rows(np.arange(20))["input_ids"]
    assert not np.array_equal(base, source_of().rows(np.arange(1, 21))["input_ids"])
    other = source_of(options=replace(OPTIONS, random_seed=1)).rows(np.arange(20))["input_ids"]
    assert (base == other).all(axis=1).sum() == 0


def test_memory_maps_give_the_rows_of_plain_arrays(tmp_path):
    arrays = {}
    for name in ("token_ids", "sentence_offsets", "document_offsets", "token_counts"):
        array = getattr(SPLIT, name)
        if name == "token_ids":
            array = array.astype(np.uint16)
        np.save(tmp_path / name, array)
        arrays[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    mapped = source_of(Split("train", **arrays)).rows(np.arange(99))
    for name, array in source_of().rows(np.arange(99)).items():
        np.testing.assert_array_equal(mapped[name], array)
        assert type(mapped[name]) is np.ndarray


def test_a_corpus_of_single_sentences_is_all_random_and_long_ones_fill_the_row():
    split = split_of(numbered([[3], [200], [1]]))
    rows = source_of(split).rows(np.arange(30))
    assert (rows["next_sentence_labels"] == 1).all()
    assert rows["input_mask"].sum(axis=1).max() == SEQ_LEN


def test_bad_input_gets_one_sentence():
    empty = replace(SPLIT, name="heldout", document_offsets=np.zeros(1, np.int64))
    cases = [
        (lambda: source_of(split_of(numbered([[9, 9, 9]]))), "split train has 1 document; next-"),
        (lambda: source_of(empty), "split heldout is empty"),
        (lambda: source_of(seq_len=4), "seq_len is 4; [CLS] A [SEP] B [SEP] needs 5 or more"),
        (lambda: source_of(slots=SEQ_LEN + 1), "max_predictions_per_seq is 38; it must be from 1"),
        (lambda: source_of(slots=0), "max_predictions_per_seq is 0; it must be from 1 to seq_len"),
        (lambda: source_of(special_ids={"pad": 0}), "special piece 'unk' is None; it must lie"),
        (
            lambda: open_source(SPLIT, Pieces(500, SPECIAL_IDS), OPTIONS, SEQ_LEN, SLOTS),
            f"split train holds token id {SPLIT.token_ids.max()}, the vocabulary has 500 ids",
        ),
        (
            lambda: source_of(replace(SPLIT, document_offsets=SPLIT.document_offsets[:-1])),
            "split train is damaged: its offsets end at",
        ),
        (
            lambda: source_of(options=replace(OPTIONS, dupe_factor=0)),
            "config.data.dupe_factor is 0",
        ),
        (lambda: source_of().rows(np.asarray([5, -1])), "row position -1 is negative"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            call()


def test_an_id_beyond_the_vocabulary_that_was_not_counted_is_caught_in_its_row():
    ids = SPLIT.token_ids.copy()
    ids[:] = 2**32 - 5
    source = replace(source_of(), split=replace(SPLIT, token_ids=ids))
    with pytest.raises(ValueError, match="token id 4294967291 of the store is beyond its voc"):
        source.rows(np.arange(3))
