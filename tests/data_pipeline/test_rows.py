"""Rows of other segments than pairs, and rows of several examples, hold the text they should."""

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.examples import Pieces, PretrainSource, open_source
from data_pipeline.options import SEGMENTS, PretrainOptions
from data_pipeline.schema import check_pretrain_batch
from tests.data_pipeline.corpora import (
    FIRST_ID,
    SPECIAL_IDS,
    numbered,
    split_of,
    varied,
    vocab_size_of,
)

_LENGTHS = [[len(s) for s in d] for d in varied(40, seed=4, most_sentences=7)]
SPLIT = split_of(numbered([*_LENGTHS, [70], [1], [1], [1], [2]]))
OPTIONS = PretrainOptions(dupe_factor=2)
SEQ_LEN = 41
CLS, SEP, PAD = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"], SPECIAL_IDS["pad"]


def source_of(**changed: object) -> PretrainSource:
    pieces = Pieces(vocab_size_of(SPLIT), SPECIAL_IDS)
    return open_source(SPLIT, pieces, replace(OPTIONS, **changed), SEQ_LEN, 7)


def epoch_rows(source: PretrainSource, epoch: int = 0) -> dict[str, np.ndarray]:
    first = sum(source.rows_in_epoch(before) for before in range(epoch))
    return source.rows(np.arange(first, first + source.rows_in_epoch(epoch)))


def unmasked(rows: dict[str, np.ndarray]) -> np.ndarray:
    """input_ids with what was masked put back."""
    ids = rows["input_ids"].copy()
    row, slot = np.nonzero(rows["masked_lm_weights"])
    ids[row, rows["masked_lm_positions"][row, slot]] = rows["masked_lm_ids"][row, slot]
    return ids


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
        sum(alone.facts.rows_K) / sum(packed.facts.rows_K)
    )


def test_packed_rows_are_the_same_alone_and_among_others():
    source = source_of(packed_examples=4)
    total = sum(source.facts.rows_K)
    positions = np.random.default_rng(0).permutation(2 * total)
    shuffled, again = (
        source.rows(positions),
        source_of(packed_examples=4).rows(np.arange(2 * total)),
    )
    for name, array in again.items():
        np.testing.assert_array_equal(shuffled[name], array[positions], err_msg=name)


@pytest.mark.parametrize("prob", [0.02, 0.15, 0.4, 0.9])
def test_a_packed_row_has_a_slot_for_every_mask(prob):
    short = split_of(numbered([[1]] * 400))
    pieces = Pieces(vocab_size_of(short), SPECIAL_IDS)
    for segments in ("nsp", "doc_sentences"):
        options = replace(OPTIONS, packed_examples=8, masked_lm_prob=prob, segments=segments)
        source = open_source(short, pieces, options, SEQ_LEN, SEQ_LEN)
        alone = open_source(short, pieces, replace(options, packed_examples=1), SEQ_LEN, SEQ_LEN)
        packed_masks = epoch_rows(source)["masked_lm_weights"].sum()
        assert packed_masks == epoch_rows(alone)["masked_lm_weights"].sum() > 0


def test_masks_that_rounding_adds_have_slots_too():
    # Six tokens at 0.25 make 2 masks each, where their share is 1.5.
    short = split_of(numbered([[4]] * 400))
    options = replace(
        OPTIONS, packed_examples=8, masked_lm_prob=0.25, segments="doc_sentences", short_seq_prob=0
    )
    source = open_source(short, Pieces(vocab_size_of(short), SPECIAL_IDS), options, 48, 12)
    assert (epoch_rows(source)["masked_lm_weights"].sum(axis=1) == 16).all()
    assert source.shape.predictions == 16


# CRC-32 of the first 40 rows of epochs 0 and 2. Where one changes, a run that was stopped would go
# on with other examples: raise HASH_VERSION in hashing.py or WALKS_VERSION in walks.py with it.
FROZEN = {
    "nsp": {},
    "exact": {"exact": True},
    "sop": {"segments": "sop"},
    "full_sentences": {"segments": "full_sentences"},
    "doc_sentences": {"segments": "doc_sentences"},
    "whole_word": {"masking": "whole_word"},
    "ngram": {"masking": "ngram"},
    "packed": {"packed_examples": 4},
    "static masks": {"new_masks_each_epoch": False},
}

FROZEN_CRC = {
    "nsp": 0xC8B525A0,
    "exact": 0x00012195,
    "sop": 0x2A510578,
    "full_sentences": 0xD594CC3C,
    "doc_sentences": 0xCD7C7E35,
    "whole_word": 0x4FD8982E,
    "ngram": 0x6F250436,
    "packed": 0x3F2967E0,
    "static masks": 0xF723562A,
}


def crc_of(changed: dict[str, object]) -> int:
    vocab_size = vocab_size_of(SPLIT)
    pieces = Pieces(vocab_size, SPECIAL_IDS, np.arange(vocab_size) % 3 == 0)
    source = open_source(SPLIT, pieces, replace(OPTIONS, **changed), SEQ_LEN, 7)
    crc = 0
    for epoch in (0, 2):
        first = sum(source.rows_in_epoch(before) for before in range(epoch))
        rows = source.rows(np.arange(first, first + 40))
        for name in sorted(rows):
            crc = zlib.crc32(np.ascontiguousarray(rows[name]).tobytes(), crc)
    return crc


@pytest.mark.parametrize("name", FROZEN)
def test_rows_are_what_they_were(name):
    assert crc_of(FROZEN[name]) == FROZEN_CRC[name]


def test_full_sentences_stand_as_in_the_corpus_with_a_separator_between_documents():
    rows = epoch_rows(source_of(segments="full_sentences"))
    check_pretrain_batch(rows, source_of(segments="full_sentences").shape)
    ids = unmasked(rows)
    token_starts = set((SPLIT.sentence_offsets[SPLIT.document_offsets] + FIRST_ID).tolist())
    seen: list[int] = []
    inner = 0
    for row in range(len(ids)):
        length = int(rows["input_mask"][row].sum())
        line = ids[row, :length].tolist()
        assert line[0] == CLS and line[-1] == SEP
        text = line[1:-1]
        parts = " ".join("|" if token == SEP else str(token) for token in text).split(" | ")
        pieces = [[int(token) for token in part.split()] for part in parts]
        inner += len(pieces) - 1
        for number, piece in enumerate(pieces):
            assert piece == list(range(piece[0], piece[0] + len(piece)))
            # A separator stands where a document begins, and nowhere else.
            assert number == 0 or piece[0] in token_starts
            assert not token_starts & set(piece[1:])
        seen += [token for piece in pieces for token in piece]
        positions = rows["masked_lm_positions"][row][rows["masked_lm_weights"][row] > 0]
        assert not np.isin(ids[row, positions], [CLS, SEP, PAD]).any()
    assert inner > 10
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
