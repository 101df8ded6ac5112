"""Rows are a pure function of their position; epochs use each pair once and join without a gap."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from data_pipeline.sampling.stream import PretrainSource, VocabInfo, open_source
from data_pipeline.sampling.walk import Walk, make_rules, walk_corpus
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split
from tests.data_pipeline.batch_check import check_pretrain_batch
from tests.data_pipeline.corpora import FIRST_ID, SPECIAL_IDS, numbered, split_of, varied
from tests.data_pipeline.sampling import sources
from tests.data_pipeline.sampling.sources import assert_same, epoch_rows, unmasked

pytestmark = pytest.mark.usefixtures("few_trial_walks")
SPLIT = split_of(varied(29, seed=9))
OPTIONS = PretrainOptions(dupe_factor=3)
SEQ_LEN, SLOTS = 37, 7


def source_of(
    split: Split = SPLIT, seq_len: int = SEQ_LEN, slots: int = SLOTS, **changed: object
) -> PretrainSource:
    return sources.source_of(split, seq_len, slots, OPTIONS, **changed)


def walk_of(source: PretrainSource, number: int) -> Walk:
    rules = make_rules(source.options, source.shape.seq_len, number, source.facts.random_share)
    return walk_corpus(source.split, rules)


def first_sentences(rows: dict[str, np.ndarray]) -> list[int]:
    """The sentence that A starts in, of each row."""
    first = unmasked(rows)[:, 1]
    return (np.searchsorted(SPLIT.sentence_offsets, first - FIRST_ID, "right") - 1).tolist()


@pytest.mark.parametrize("seq_len", [5, 37, 128, 512, 2048])
def test_rows_follow_the_schema_and_the_layout(seq_len):
    source = source_of(seq_len=seq_len, slots=min(SLOTS, seq_len))
    rows = source.rows(np.arange(50))
    check_pretrain_batch(rows, source.shape)
    for row, ids in enumerate(unmasked(rows)):
        length = int(rows["input_mask"][row].sum())
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


def test_every_setting_of_masks_reaches_the_rules_of_the_rows():
    """Each has a value that is not its default; the counts weigh as 1 / sqrt, special ids not."""
    changed = {"masked_lm_prob": 0.2, "mask_token_share": 0.7, "random_token_share": 0.2}
    changed |= {"masking": "ngram", "longest_ngram": 5}
    options = PretrainOptions(dupe_factor=1, masked_lm_smoothing=0.0, **changed)
    continues_V = np.arange(500) % 2 == 0
    pieces = VocabInfo(500, SPECIAL_IDS, np.arange(500), continues_V)
    rules = open_source(SPLIT, pieces, options, SEQ_LEN, 6).mask_rules
    given = {field.name: getattr(rules, field.name) for field in fields(rules)}
    assert given.pop("is_continuation_V") is continues_V
    sizes = {"max_predictions_per_seq": 6, "vocab_size": 500, "mask_id": SPECIAL_IDS["mask"]}
    assert given == changed | sizes | {"exact": False, "weights_V": None}
    smoothed = PretrainOptions(dupe_factor=1, masked_lm_smoothing=0.5)
    weights_V = open_source(SPLIT, pieces, smoothed, SEQ_LEN, 6).mask_rules.weights_V
    assert weights_V[[400, 225]].tolist() == [1 / 20, 1 / 15]
    assert not weights_V[list(SPECIAL_IDS.values())].any()
    exact = PretrainOptions(dupe_factor=1, masking="whole_word", exact=True)
    assert open_source(SPLIT, pieces, exact, SEQ_LEN, 6).mask_rules.exact


@pytest.mark.parametrize(("packed_examples", "smoothing"), [(1, 0.0), (4, 0.0), (4, 0.7)])
def test_a_row_is_the_same_alone_and_among_others_in_any_order(packed_examples, smoothing):
    changed = {"packed_examples": packed_examples, "masked_lm_smoothing": smoothing}
    source = source_of(**changed)
    total = sum(source.facts.rows)
    positions = np.random.default_rng(0).permutation(2 * total + 17)
    again = source_of(**changed).rows(np.arange(len(positions)))
    assert_same(source.rows(positions), {name: again[name][positions] for name in again})
    for position in (0, total - 1, total, 2 * total + 16):
        alone = source.rows(np.asarray([position]))
        assert_same(alone, {name: again[name][[position]] for name in again})
    assert len(source.rows(np.arange(0))["input_ids"]) == 0


def test_counts_of_tokens_change_masks_alone_and_none_without_smoothing():
    repeated = replace(SPLIT, token_ids=FIRST_ID + SPLIT.token_ids % 19)
    counts = 10 ** (np.arange(FIRST_ID + 19) % 5)
    plain = VocabInfo(len(counts), SPECIAL_IDS, np.ones_like(counts))
    counted = replace(plain, token_counts_V=counts)
    positions = np.arange(40)

    def rows_of(pieces, smoothing):
        options = replace(OPTIONS, masked_lm_smoothing=smoothing)
        return open_source(repeated, pieces, options, SEQ_LEN, SLOTS).rows(positions)

    assert_same(rows_of(plain, 0.0), rows_of(counted, 0.0))
    uniform, weighed = rows_of(plain, 0.0), rows_of(counted, 0.7)
    np.testing.assert_array_equal(unmasked(uniform), unmasked(weighed))
    np.testing.assert_array_equal(uniform["masked_lm_weights"], weighed["masked_lm_weights"])
    is_used = uniform["masked_lm_weights"] > 0
    means = [counts[rows["masked_lm_ids"]][is_used].mean() for rows in (uniform, weighed)]
    assert means[1] < 0.8 * means[0]


@pytest.mark.parametrize("exact", [False, True])
def test_positions_run_through_epochs_of_every_pair_once_without_a_gap(exact):
    # At 2048 tokens nothing is cut off, so that A's first token names the pair.
    source = source_of(seq_len=2048, exact=exact, short_seq_prob=0.5)
    ends = np.cumsum([source.rows_in_epoch(epoch) for epoch in range(7)])
    all_at_once = first_sentences(source.rows(np.arange(ends[-1])))
    for epoch, end in enumerate(ends):
        part = all_at_once[end - source.rows_in_epoch(epoch) : end]
        assert sorted(part) == walk_of(source, epoch % 3).first_sentence_N.tolist() != part
    round_size = sum(source.facts.rows)
    # Epoch 3 * 10**12 is of walk 0 again, and begins where so many rounds end.
    far = source.rows(np.arange(10**12 * round_size, 10**12 * round_size + source.rows_in_epoch(0)))
    assert sorted(first_sentences(far)) == walk_of(source, 0).first_sentence_N.tolist()


def test_an_epoch_with_the_same_walk_has_the_same_pairs_and_other_masks_and_order():
    source = source_of(seq_len=2048, slots=5)
    epochs = [epoch_rows(source, epoch) for epoch in (0, 1, 3)]
    first, second, again = ([tuple(line) for line in unmasked(rows).tolist()] for rows in epochs)
    assert first != again and sorted(first) == sorted(again) != sorted(second)
    masks = [
        dict(zip(texts, map(tuple, rows["masked_lm_positions"]), strict=True))
        for texts, rows in ((first, epochs[0]), (again, epochs[2]))
    ]
    same = sum(masks[0][text] == masks[1][text] for text in masks[0])
    assert same < 0.2 * len(masks[0])
    other = source_of(seq_len=2048, slots=5, random_seed=1).rows(np.arange(20))["input_ids"]
    assert not (other == epochs[0]["input_ids"][:20]).all(axis=1).any()


def test_a_corpus_of_single_sentences_is_all_random_and_long_ones_fill_the_row():
    rows = source_of(split_of(numbered([[3], [200], [1]]))).rows(np.arange(30))
    assert (rows["next_sentence_labels"] == 1).all()
    assert rows["input_mask"].sum(axis=1).max() == SEQ_LEN


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"split": split_of(numbered([[9, 9, 9]]))}, "build the store from 4 or more documents"),
        (
            {"split": replace(SPLIT, name="heldout", document_offsets=np.zeros(1, np.int64))},
            "split heldout has too little text (documents: 0, tokens: ",
        ),
        (
            {
                "split": replace(
                    SPLIT, token_ids=SPLIT.token_ids[:0], document_offsets=np.zeros(3, int)
                )
            },
            "(documents: 2, tokens: 0); it needs a document",
        ),
        ({"seq_len": 4}, "seq_len is 4; [CLS] A [SEP] B [SEP] needs 5 or more"),
        ({"slots": SEQ_LEN + 1}, "max_predictions_per_seq is 38; it must be from 1"),
        ({"slots": 0}, "max_predictions_per_seq is 0; it must be from 1 to seq_len"),
    ],
)
def test_bad_input_gets_one_sentence(changed, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        source_of(**changed)


def test_damaged_ids_and_negative_positions_are_refused():
    ids = np.full_like(SPLIT.token_ids, 2**32 - 5)
    source = replace(source_of(), split=replace(SPLIT, token_ids=ids))
    with pytest.raises(ValueError, match="token id 4294967291 of the store is beyond its voc"):
        source.rows(np.arange(3))
    with pytest.raises(ValueError, match="row position -1 is negative"):
        source.rows(np.asarray([5, -1]))
