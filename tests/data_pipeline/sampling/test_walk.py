"""Walks cut documents into the chunks that Google's rules, and the other segments' rules, give."""

import math
import tracemalloc

import numpy as np
import pytest

from data_pipeline.sampling import walk as chunks
from data_pipeline.sampling.walk import WalkRules, draw_targets, split_chunks, walk_corpus
from data_pipeline.spec import hashing
from data_pipeline.store import Split
from tests.data_pipeline.corpora import numbered, split_of, varied
from tests.data_pipeline.spec.test_hashing import chi_square_z

_lengths = [[len(sentence) for sentence in document] for document in varied(23, seed=3)]
_long_document = [1 + number % 13 for number in range(211)]
MIXED = split_of(numbered([*_lengths[:9], _long_document, [5], [90], [1] * 30, *_lengths[9:]]))


def rules_of(
    seq_len: int = 37,
    exact: bool = False,
    short: float = 0.1,
    key: int = 5,
    segments: str = "nsp",
    random_share: float = 0.5,
) -> WalkRules:
    return WalkRules(hashing.derive_key(key), seq_len, short, exact, segments, random_share)


def one_by_one(split: Split, rules: WalkRules) -> list[tuple[int, int, int]]:
    """First sentence, document and sentences of each chunk, walking one sentence at a time."""
    lengths = np.diff(split.sentence_offsets).tolist()
    document_of = np.repeat(np.arange(split.documents), np.diff(split.document_offsets)).tolist()
    least = 2 if rules.segments in ("nsp", "sop") and not rules.exact else 1
    found = []
    for document in range(split.documents):
        at, end = (int(offset) for offset in split.document_offsets[document : document + 2])
        while at < end:
            target = int(draw_targets(rules, np.asarray([document]), np.asarray([at]))[0])
            if rules.segments == "doc_sentences":
                sentences = whole_sentences(lengths, document_of, at, end, target)
            else:
                sentences = tokens = 0
                while at + sentences < end and (tokens < target or sentences < least):
                    tokens += lengths[at + sentences]
                    sentences += 1
            found.append((at, document, sentences))
            a, is_random = split_chunks(rules, np.asarray([at]), np.asarray([sentences]))
            at += int(a[0]) if is_random[0] else sentences
    return found


def whole_sentences(
    lengths: list[int], document_of: list[int], at: int, end: int, target: int
) -> int:
    """How many sentences from `at` on fit, a separator between documents counted; 1 at least."""
    sentences, tokens = 1, lengths[at]
    while at + sentences < end:
        last, following = document_of[at + sentences - 1], document_of[at + sentences]
        tokens += lengths[at + sentences] + (following - last)
        if tokens > target:
            break
        sentences += 1
    return sentences


@pytest.mark.parametrize("segments", ["nsp", "exact", "sop", "doc_sentences"])
@pytest.mark.parametrize(("block_sentences", "few_documents"), [(1, 3), (40, 0), (10**6, 10**6)])
def test_a_walk_finds_the_chunks_found_one_by_one(
    monkeypatch, segments, block_sentences, few_documents
):
    monkeypatch.setattr(chunks, "_FEW_DOCUMENTS", few_documents)
    # Shorter than the longest document: a document that is longer than what is looked up at once.
    monkeypatch.setattr(chunks, "_ALONE_SENTENCES", 17)
    exact = segments == "exact"
    rules = rules_of(
        exact=exact, short=0.3, segments="nsp" if exact else segments, random_share=0.4
    )
    walk = walk_corpus(MIXED, rules, block_sentences)
    made = list(zip(walk.first_sentence_N, walk.document_N, walk.sentences_N, strict=True))
    assert made == one_by_one(MIXED, rules)


@pytest.mark.parametrize("stretch_sentences", [1, 50, 10**6])
@pytest.mark.parametrize("block_sentences", [1, 70])
def test_full_sentences_read_on_over_the_ends_of_documents(
    monkeypatch, stretch_sentences, block_sentences
):
    monkeypatch.setattr(chunks, "_STRETCH_SENTENCES", stretch_sentences)
    monkeypatch.setattr(chunks, "_FEW_DOCUMENTS", 2)
    rules = rules_of(short=0.3, segments="full_sentences")
    walk = walk_corpus(MIXED, rules, block_sentences)
    lengths = np.diff(MIXED.sentence_offsets).tolist()
    document_of = np.repeat(np.arange(MIXED.documents), np.diff(MIXED.document_offsets)).tolist()
    at = crossings = stops = 0
    for first, document, sentences in zip(
        walk.first_sentence_N, walk.document_N, walk.sentences_N, strict=True
    ):
        assert (first, document) == (at, document_of[at])
        target = int(draw_targets(rules, np.zeros(1, np.int64), np.asarray([at]))[0])
        fitting = whole_sentences(lengths, document_of, at, MIXED.sentences, target)
        at += int(sentences)
        if sentences != fitting:  # only a stretch's end, which is a document's, stops it short
            stops += 1
            assert sentences < fitting and document_of[at] != document_of[at - 1]
        crossings += document_of[at - 1] != document
    assert at == MIXED.sentences
    assert (stops == 0) == (stretch_sentences == 10**6)
    assert (crossings > 0) == (stretch_sentences > 1)


def test_memory_of_full_sentences_follows_the_chunks_and_not_the_documents():
    many = 300_000
    offsets = np.arange(many + 1)
    split = Split("train", np.zeros(many, np.uint16), offsets, offsets, np.ones(1, np.int64))
    tracemalloc.start()
    walk = walk_corpus(split, rules_of(seq_len=512, segments="full_sentences"), 1 << 13)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert many / 512 < len(walk) < many / 100
    assert peak_bytes < 8 * many


def test_targets_are_drawn_per_document_when_exact_and_per_chunk_else():
    first = np.arange(20_000)
    document = first // 10
    for exact in (False, True):
        targets = draw_targets(rules_of(37, exact), document, first)
        assert targets.min() == 2 and targets.max() == 34
        within = targets.reshape(-1, 10)
        assert (within == within[:, :1]).all() == exact
        draws = targets[::10] if exact else targets
        is_short = draws < 34
        # A short target is one of 2 to 34, so one in 33 is not short after all.
        share = 0.1 * 32 / 33
        assert abs(is_short.mean() - share) < 4.5 * math.sqrt(share * (1 - share) / len(draws))
        counts = np.bincount(draws[is_short], minlength=34)[2:34]
        assert chi_square_z(counts, is_short.sum() / 32) < 4.5


def test_split_points_are_uniform_and_single_sentences_always_random():
    first = np.arange(60_000)
    for sentences in (1, 2, 3, 9):
        a, is_random = split_chunks(rules_of(), first, np.full(len(first), sentences))
        if sentences == 1:
            assert (a == 1).all() and is_random.all()
            continue
        counts = np.bincount(a, minlength=sentences)[1:]
        assert a.min() >= 1 and len(counts) == sentences - 1
        for label in (False, True):
            assert abs(is_random.mean() - 0.5) < 4.5 * 0.5 / math.sqrt(len(first))
            part = np.bincount(a[is_random == label], minlength=sentences)[1:]
            assert sentences == 2 or chi_square_z(part, part.mean()) < 4.5


def test_a_gap_in_the_corpus_is_named():
    good = split_of(numbered([[3, 4], [2], [6]]))
    offsets = good.sentence_offsets.copy()
    offsets[2] = offsets[1]
    bad = Split("train", good.token_ids, offsets, good.document_offsets, good.token_counts)
    with pytest.raises(ValueError, match="sentence 1 of split train has no tokens"):
        walk_corpus(bad, rules_of())
    empty = Split(
        "train", good.token_ids, good.sentence_offsets, np.asarray([0, 2, 2, 4]), good.token_counts
    )
    with pytest.raises(ValueError, match="document 1 of split train has no sentences"):
        walk_corpus(empty, rules_of())
