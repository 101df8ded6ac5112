"""The numbers of a store's health against counting in plain Python."""

import itertools
from collections import Counter

import numpy as np
import pytest

from data_pipeline.report import health as measured
from data_pipeline.report.health import measure
from data_pipeline.store import HELDOUT, TRAIN, open_store
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.byte_level import train_byte_level
from tests.data_pipeline.encoded import SPECIALS
from tests.data_pipeline.stores import FIRST_WORD, UNK, random_documents, write_store
from tests.data_pipeline.vocab.test_documents import make_bpe_of_words

pytestmark = pytest.mark.usefixtures("few_trial_walks")
# Words, pieces that go on with one, placeholders and pieces that no text has.
PIECES = [*(f"w{i}" for i in range(30)), *(f"##c{i}" for i in range(20)), "[unused0]", "no", "##no"]
USED = 50  # so many of the first PIECES are used
PLANTED = [[7, 8, 9], [UNK, 30]]


@pytest.fixture(scope="module")
def documents():
    """Both splits as lists, with a copy in the training split and a leak in the held-out one."""
    train = random_documents(23, seed=1, vocab_size=FIRST_WORD + USED, sentences=5, tokens=11)
    heldout = random_documents(11, seed=2, vocab_size=FIRST_WORD + USED, sentences=5, tokens=11)
    train += [PLANTED, [[200 % USED + FIRST_WORD] * 40], PLANTED]
    return {TRAIN: train, HELDOUT: [*heldout, PLANTED]}


@pytest.fixture(scope="module")
def health(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("health") / "store"
    store = write_store(folder, documents[TRAIN], documents[HELDOUT], PIECES)
    return measure(open_store(store), 32, 4)


def sentences_of(documents):
    return list(itertools.chain.from_iterable(documents))


@pytest.mark.parametrize("name", [TRAIN, HELDOUT])
def test_counts_are_those_of_the_lists(name, documents, health):
    split, expected = health.splits[name], documents[name]
    sentences = sentences_of(expected)
    tokens = sum(map(len, sentences))
    assert (split.documents, split.sentences, split.tokens) == (
        len(expected),
        len(sentences),
        tokens,
    )
    assert split.unknown_tokens == sum(sentence.count(UNK) for sentence in sentences)
    assert split.long_sentences == sum(len(sentence) > 29 for sentence in sentences)
    assert split.cut_tokens == sum(max(0, len(sentence) - 29) for sentence in sentences)
    assert split.document_sentences.mean == pytest.approx(len(sentences) / len(expected))
    lengths = [sum(map(len, document)) for document in expected]
    assert split.document_tokens.longest == max(lengths)
    assert split.document_tokens.mean == pytest.approx(tokens / len(expected))
    assert split.sentence_tokens.shortest == 2


def test_copies_and_leaks_are_the_planted_ones(documents, health):
    copies = health.copies
    assert (copies.documents[TRAIN].copies, copies.documents[HELDOUT].copies) == (1, 0)
    assert (copies.sentences[TRAIN].copies, copies.sentences[HELDOUT].copies) == (2, 0)
    assert (copies.leaked_documents.copies, copies.leaked_documents.looked_at) == (1, 12)
    assert copies.leaked_sentences.copies == 2
    texts = {"w2 w3 w4": 2, "[UNK] w25": 2}
    assert {one.text: one.count for one in copies.repeated} == texts


def test_pieces_are_counted_over_both_splits(documents, health):
    pieces = health.pieces
    vocabulary = SPECIALS + PIECES
    counts = Counter(
        vocabulary[token]
        for split in documents.values()
        for sentence in sentences_of(split)
        for token in sentence
    )
    assert pieces.size == len(vocabulary)
    assert pieces.used == len(counts)
    assert (pieces.never_used, pieces.examples_of_never) == (2, ("no", "##no"))
    words = sum(count for piece, count in counts.items() if not piece.startswith("##"))
    assert pieces.pieces_per_word == pytest.approx(counts.total() / words)
    assert dict(pieces.most_frequent[:10]) == {
        piece: counts[piece] for piece, _ in pieces.most_frequent[:10]
    }
    by_rank = sorted(counts.values(), reverse=True)
    assert [count for _, count in pieces.most_frequent[: len(by_rank)]] == by_rank[:40]
    assert all(by_rank[rank - 1] == count for rank, count in pieces.rank_counts)
    assert [pieces.rank_counts[0][0], pieces.rank_counts[-1][0]] == [1, len(by_rank)]


def test_pieces_of_bytes_are_listed_as_text(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(train_byte_level(["\u0434\u0430 \u0434\u0430"] * 9, 265, 0))
    vocabulary = load_vocabulary(path)
    counts_V = np.bincount(vocabulary.encode(["\u0434\u0430"])[0], minlength=vocabulary.size)
    pieces = measured._measure_pieces(vocabulary, counts_V)
    assert pieces.most_frequent[0] == ("\u2581\u0434\u0430", 1)


@pytest.mark.parametrize(
    ("marks", "words"), [({"suffix": "</w>"}, 3), ({"prefix": "##"}, 3), ({}, 0)]
)
def test_words_are_counted_by_the_mark_of_their_start_or_end(tmp_path, marks, words):
    path = tmp_path / "tokenizer.json"
    make_bpe_of_words(**marks).save(str(path))
    vocabulary = load_vocabulary(path)
    ids = vocabulary.encode(["dem balm bal"])[0]
    pieces = measured._measure_pieces(vocabulary, np.bincount(ids, minlength=vocabulary.size))
    assert (pieces.tokens, pieces.words) == (len(ids), words)
    assert len(ids) > 3
