"""Rows of other segments than pairs, and rows of several examples, hold the text they should."""

import itertools
import zlib
from collections import Counter

import numpy as np
import pytest

from data_pipeline.sampling.stream import PretrainSource, VocabInfo, open_source
from data_pipeline.spec.options import SEGMENTS, PretrainOptions
from tests.data_pipeline.batch_check import check_pretrain_batch
from tests.data_pipeline.corpora import (
    FIRST_ID,
    SPECIAL_IDS,
    numbered,
    split_of,
    varied,
    vocab_size_of,
)
from tests.data_pipeline.sampling import sources
from tests.data_pipeline.sampling.sources import epoch_rows, unmasked

pytestmark = pytest.mark.usefixtures("few_trial_walks")
_LENGTHS = [[len(s) for s in d] for d in varied(40, seed=4, most_sentences=7)]
SPLIT = split_of(numbered([*_LENGTHS, [70], [1], [1], [1], [2]]))
SEQ_LEN = 41
CLS, SEP, PAD = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"], SPECIAL_IDS["pad"]


def source_of(**changed: object) -> PretrainSource:
    return sources.source_of(SPLIT, SEQ_LEN, 7, **changed)


Example = tuple[object, ...]


def examples_one_by_one(rows: dict[str, np.ndarray]) -> list[Example]:
    """Each example of unpacked rows, by itself, without padding."""
    found = []
    for row in range(len(rows["input_ids"])):
        length = int(rows["input_mask"][row].sum())
        used = rows["masked_lm_weights"][row] > 0
        found.append(
            (
                tuple(rows["input_ids"][row, :length]),
                tuple(rows["segment_ids"][row, :length]),
                tuple(rows["masked_lm_positions"][row][used]),
                tuple(rows["masked_lm_ids"][row][used]),
                int(rows["next_sentence_labels"][row]),
                float(rows["next_sentence_weights"][row]),
            )
        )
    return found


def examples_unpacked(rows: dict[str, np.ndarray]) -> list[Example]:
    """Each example of packed rows, cut out by example_ids alone."""
    found = []
    for row in range(len(rows["input_ids"])):
        used = rows["masked_lm_weights"][row] > 0
        positions, labels = rows["masked_lm_positions"][row][used], rows["masked_lm_ids"][row][used]
        for number in range(1, int(rows["example_ids"][row].max()) + 1):
            (places,) = np.nonzero(rows["example_ids"][row] == number)
            start = int(places[0])
            assert places.tolist() == list(range(start, start + len(places)))
            assert rows["position_ids"][row, places].tolist() == list(range(len(places)))
            assert rows["cls_positions"][row, number - 1] == start
            own = np.isin(positions, places)
            found.append(
                (
                    tuple(rows["input_ids"][row, places]),
                    tuple(rows["segment_ids"][row, places]),
                    tuple(positions[own] - start),
                    tuple(labels[own]),
                    int(rows["next_sentence_labels"][row, number - 1]),
                    float(rows["next_sentence_weights"][row, number - 1]),
                )
            )
        assert len(positions) == sum(len(example[2]) for example in found[-number:])
    return found


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("packed_examples", [2, 8])
def test_packed_rows_hold_the_examples_of_unpacked_ones(segments, packed_examples):
    alone = source_of(segments=segments)
    packed = source_of(segments=segments, packed_examples=packed_examples)
    for epoch in (0, 3):
        rows = epoch_rows(packed, epoch)
        check_pretrain_batch(rows, packed.shape)
        assert Counter(examples_unpacked(rows)) == Counter(
            examples_one_by_one(epoch_rows(alone, epoch))
        )
        np.testing.assert_array_equal(rows["input_mask"], rows["example_ids"] > 0)
        assert (rows["input_ids"][rows["input_mask"] == 0] == PAD).all()
        assert rows["example_ids"].max() <= packed_examples
        unused = np.arange(packed_examples) >= rows["example_ids"].max(axis=1)[:, None]
        for name in ("cls_positions", "next_sentence_labels", "next_sentence_weights"):
            assert not rows[name][unused].any()
    assert packed.rows_in_epoch(0) < alone.rows_in_epoch(0)
    assert packed.mean_examples_in_row == pytest.approx(
        sum(alone.facts.rows) / sum(packed.facts.rows)
    )


@pytest.mark.parametrize("segments", ["nsp", "doc_sentences"])
@pytest.mark.parametrize("prob", [0.02, 0.15, 0.4, 0.9])
def test_a_packed_row_has_a_slot_for_every_mask(prob, segments):
    short = split_of(numbered([[1]] * 400))
    options = {"masked_lm_prob": prob, "segments": segments}
    packed, alone = (
        epoch_rows(sources.source_of(short, SEQ_LEN, SEQ_LEN, packed_examples=count, **options))
        for count in (8, 1)
    )
    assert packed["masked_lm_weights"].sum() == alone["masked_lm_weights"].sum() > 0


def test_masks_that_rounding_adds_have_slots_too():
    # Six tokens at 0.25 make 2 masks each, where their share is 1.5.
    short = split_of(numbered([[4]] * 400))
    options = PretrainOptions(
        packed_examples=8, masked_lm_prob=0.25, segments="doc_sentences", short_seq_prob=0
    )
    source = sources.source_of(short, 48, 12, options)
    assert (epoch_rows(source)["masked_lm_weights"].sum(axis=1) == 16).all()
    assert source.shape.predictions == 16


# CRC-32 of the first 40 rows of epochs 0 and 2. Where one changes, a run that was stopped would go
# on with other examples: raise HASH_VERSION in spec/hashing.py or WALKS_VERSION in
# sampling/walks.py with it.
FROZEN = {
    "nsp": ({}, 0xC8B525A0),
    "exact": ({"exact": True}, 0x00012195),
    "sop": ({"segments": "sop"}, 0x2A510578),
    "full_sentences": ({"segments": "full_sentences"}, 0xD594CC3C),
    "doc_sentences": ({"segments": "doc_sentences"}, 0xCD7C7E35),
    "whole_word": ({"masking": "whole_word"}, 0x4FD8982E),
    "ngram": ({"masking": "ngram"}, 0x6F250436),
    "packed": ({"packed_examples": 4}, 0x3F2967E0),
    "static masks": ({"new_masks_each_epoch": False}, 0xF723562A),
}


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "crc"), FROZEN.values(), ids=FROZEN)
def test_rows_are_what_they_were(all_trial_walks, changed, crc):
    vocab_size = vocab_size_of(SPLIT)
    counts_V, is_continuation_V = np.ones(vocab_size), np.arange(vocab_size) % 3 == 0
    pieces = VocabInfo(vocab_size, SPECIAL_IDS, counts_V, is_continuation_V)
    options = PretrainOptions(dupe_factor=2, **changed)
    source = open_source(SPLIT, pieces, options, SEQ_LEN, 7)
    made = 0
    for epoch in (0, 2):
        rows = epoch_rows(source, epoch)
        for name in sorted(rows):
            made = zlib.crc32(np.ascontiguousarray(rows[name][:40]).tobytes(), made)
    assert made == crc


@pytest.mark.parametrize("segments", ["doc_sentences", "full_sentences"])
def test_sentences_stand_as_in_the_corpus_with_a_separator_between_documents(segments):
    source = source_of(segments=segments)
    rows = epoch_rows(source)
    check_pretrain_batch(rows, source.shape)
    sentence_starts = set((SPLIT.sentence_offsets + FIRST_ID).tolist())
    longest = FIRST_ID + SPLIT.sentence_offsets[np.diff(SPLIT.sentence_offsets).argmax()]
    document_starts = set((SPLIT.sentence_offsets[SPLIT.document_offsets] + FIRST_ID).tolist())
    seen: list[int] = []
    inner = 0
    ids = unmasked(rows)
    for row in range(len(ids)):
        length = int(rows["input_mask"][row].sum())
        line = ids[row, :length].tolist()
        assert line[0] == CLS and line[-1] == SEP
        if not longest <= line[1] < longest + 70:  # only a sentence longer than a row is cut
            assert line[1] in sentence_starts and line[-2] + 1 in sentence_starts
        parts = itertools.groupby(line[1:-1], lambda token: token == SEP)
        pieces = [list(part) for is_separator, part in parts if not is_separator]
        inner += len(pieces) - 1
        for number, piece in enumerate(pieces):
            assert piece == list(range(piece[0], piece[0] + len(piece)))
            # A separator stands where a document begins, and nowhere else.
            assert number == 0 or piece[0] in document_starts
            assert not document_starts & set(piece[1:])
        seen += itertools.chain.from_iterable(pieces)
        positions = rows["masked_lm_positions"][row][rows["masked_lm_weights"][row] > 0]
        assert not np.isin(ids[row, positions], [CLS, SEP, PAD]).any()
    assert (inner > 10) if segments == "full_sentences" else (inner == 0)
    assert not rows["segment_ids"].any() and not rows["next_sentence_weights"].any()
    # All text once, but for what is cut from the one sentence that is longer than a row.
    assert len(seen) == len(set(seen)) == SPLIT.tokens - (70 - (SEQ_LEN - 2))


def test_masks_come_back_with_their_walk_unless_they_are_new_each_epoch():
    for is_new, expected in ((True, False), (False, True)):
        source = source_of(new_masks_each_epoch=is_new)
        first, again = (Counter(examples_one_by_one(epoch_rows(source, e))) for e in (0, 2))
        other = Counter(examples_one_by_one(epoch_rows(source, 1)))
        assert (first == again) == expected and first != other
        texts = [
            [tuple(line) for line in unmasked(epoch_rows(source, epoch)).tolist()]
            for epoch in (0, 2)
        ]
        assert texts[0] != texts[1]  # the order is new in either case
