"""Copies found by hashes against copies found by comparing lists."""

import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from data_pipeline.report.repeats import HashSample, Repeats, find_sentences, hash_split
from data_pipeline.store import Split
from data_pipeline.store.findings import estimate_copies
from tests.data_pipeline.corpora import Document, split_of


def corpus(documents: int, seed: int) -> list[Document]:
    """Few words in short sentences, so that sentences and whole documents repeat."""
    rng = random.Random(seed)
    return [
        [
            [rng.randint(200, 203) for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(1, 3))
        ]
        for _ in range(documents)
    ]


def frozen(documents: list[Document]) -> tuple[list[tuple], list[tuple]]:
    sentences = [tuple(sentence) for document in documents for sentence in document]
    return sentences, [tuple(map(tuple, document)) for document in documents]


@pytest.mark.parametrize("chunk_tokens", [1, 5, 64, 1 << 17])
def test_copies_and_leaks_are_those_of_the_lists(chunk_tokens):
    train, heldout = corpus(211, seed=1), corpus(47, seed=2)
    told = []
    ours = hash_split(split_of(train), told.append, chunk_tokens=chunk_tokens)
    others = hash_split(split_of(heldout), told.append, chunk_tokens=chunk_tokens)
    of_lists = zip(ours, others, frozen(train), frozen(heldout), strict=True)
    for sample, other, texts, other_texts in of_lists:
        copies = len(texts) - len(set(texts))
        assert copies > 0
        assert sample.repeats() == Repeats(len(texts), len(texts), copies)
        leaked = sum(text in set(texts) for text in other_texts)
        assert 0 < leaked < len(other_texts)
        assert other.count_repeats_in(sample) == Repeats(len(other_texts), len(other_texts), leaked)
    assert sum(told) == sum(len(s) for d in train + heldout for s in d)


def test_the_same_ids_in_another_order_or_cut_otherwise_are_no_copies():
    documents = [[[7, 8], [9]], [[8, 7], [9]], [[9], [7, 8]], [[7, 8, 9]], [[7], [8, 9]]]
    sentences, whole = hash_split(split_of(documents), lambda tokens: None)
    assert whole.repeats().copies == 0
    texts, _ = frozen(documents)
    assert sentences.repeats().copies == len(texts) - len(set(texts)) == 3


def test_the_most_repeated_are_counted_and_found():
    documents = corpus(211, seed=1)
    split = split_of(documents)
    sample, _ = hash_split(split, lambda tokens: None)
    texts, _ = frozen(documents)
    expected = Counter(texts)
    most = sample.find_most_repeated(4)
    assert [count for _, count in most] == [count for _, count in expected.most_common(4)]
    places = find_sentences(split, {one for one, _ in most})
    for one, count in most:
        assert expected[texts[places[one]]] == count
        assert texts.index(texts[places[one]]) == places[one]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_store_of_one_text_and_its_copies(copies):
    sample = HashSample(copies, most=9)
    sample.add(np.full(copies, 7, np.uint64))
    assert sample.find_most_repeated(4) == [(7, copies)] * (copies > 1)


def test_a_bounded_sample_keeps_all_copies_of_a_text_or_none():
    rng = np.random.default_rng(3)
    texts = rng.integers(0, 2**64, 4000, np.uint64, endpoint=False)
    hashes = rng.permutation(np.repeat(texts, rng.integers(1, 4, len(texts))))
    expected = Counter(hashes.tolist())
    sample = HashSample(len(hashes), most=1500)
    for part in np.array_split(hashes, 13):
        sample.add(part)
    found = sample.repeats()
    assert 375 < found.looked_at <= 1500 and found.total == len(hashes)
    assert found.share == pytest.approx(1 - len(texts) / len(hashes), abs=0.05)
    for one, count in sample.find_most_repeated(20):
        assert expected[one] == count == 3
    # A smaller split, kept whole, is compared with what the sample would have kept of it.
    other = HashSample(200, most=1500)
    other.add(np.concatenate([texts[:100], rng.integers(0, 2**64, 100, np.uint64, endpoint=False)]))
    leaks = other.count_repeats_in(sample)
    assert leaks.looked_at < 200 and leaks.copies == sum(
        one in set(sample._sorted().tolist()) for one in texts[:100].tolist()
    )
    assert 0 < leaks.copies < leaks.looked_at


def test_a_sample_of_one_text_alone_does_not_overflow():
    sample = HashSample(100, most=10)
    sample.add(np.full(100, 12345, np.uint64))
    assert sample.repeats().looked_at == 0


def test_copies_of_documents_are_counted_or_estimated_from_a_part():
    documents = corpus(300, seed=3)
    texts = frozen(documents)[1]
    exact = 1 - len(set(texts)) / len(texts)
    assert estimate_copies(split_of(documents)) == pytest.approx(exact)
    distinct = [[[200 + n, 300 + n]] for n in range(1000)]
    four_times = [document for document in distinct for _ in range(4)]
    assert estimate_copies(split_of(four_times)) == pytest.approx(0.75)
    assert estimate_copies(split_of(four_times), most=800) == pytest.approx(0.75, abs=0.05)
    assert estimate_copies(split_of(distinct), most=200) == 0


def test_an_estimate_of_copies_takes_no_memory_per_document():
    offsets = np.arange(1_000_001)
    split = Split("train", np.zeros(1_000_000, np.uint16), offsets, offsets, np.ones(1, np.int64))
    tracemalloc.start()
    assert estimate_copies(split, most=100) > 0.9
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < split.documents
