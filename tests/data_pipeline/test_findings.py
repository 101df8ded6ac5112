"""What is said of a store: nothing of a healthy one, and each finding of one made for it."""

import contextlib
import dataclasses
import itertools
import re

import pytest

from data_pipeline.findings import findings
from data_pipeline.health import Health, measure
from data_pipeline.store import open_store
from tests.data_pipeline.corpora import Document
from tests.data_pipeline.stores import UNK, healthy_store, random_documents, words, write_store

TRAIN, HELDOUT = random_documents(250, seed=1), random_documents(250, seed=2)


def measured(store) -> Health:
    def step(label, total):
        return contextlib.nullcontext(lambda done: None)

    return measure(open_store(store), 32, 0, step)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Health:
    return measured(healthy_store(tmp_path_factory.mktemp("findings") / "store"))


def said(tmp_path, train: list[Document], heldout: list[Document], **more) -> list[str]:
    return findings(measured(write_store(tmp_path / "store", train, heldout, **more)))


def test_nothing_is_said_of_a_healthy_store(healthy):
    assert findings(healthy) == []


def test_documents_of_one_sentence_unbalance_the_labels(tmp_path):
    single = [[document[0] + document[1] + document[2]] for document in TRAIN]
    shares, balance = said(tmp_path, [*TRAIN[:5], *single], HELDOUT)
    assert "of the documents have one sentence" in shares
    assert "of the next sentences are random where half should be" in balance


def test_unknown_tokens(tmp_path):
    train = [[[UNK, *sentence[1:]] for sentence in document] for document in TRAIN]
    (finding,) = said(tmp_path, train, HELDOUT)
    assert finding.startswith("10.0% of the tokens are unknown to the vocabulary")


def test_sentences_longer_than_a_sequence(tmp_path):
    # One in ten of a document has thirty tokens, one more than a sequence of 32 holds.
    train = [[*document[:36], *([document[0] * 6] * 4)] for document in TRAIN]
    first, *_ = said(tmp_path, train, HELDOUT)
    assert first.startswith("10% of the sentences are longer than the 29 tokens of text")


def test_paragraphs_for_sentences_are_said_once(tmp_path):
    train = [
        [[*itertools.chain(*half)] for half in (document, document[::-1])] for document in TRAIN
    ]
    found = said(tmp_path, train, train[:1] + HELDOUT[1:4], holdout=0.01)
    assert sum("tokens on average, more than a sequence" in finding for finding in found) == 1
    assert not any("are longer than the" in finding for finding in found)


def test_rows_that_are_mostly_padding(tmp_path):
    pairs = [document[i : i + 2] for document in TRAIN for i in range(0, 40, 2)]
    (finding,) = said(tmp_path, pairs[:4000], pairs[4000:])
    assert re.match(r"\d\d% of a row of 32 is padding", finding)
    assert "packed_examples=8 of training leaves" in finding


def test_few_documents(tmp_path):
    (finding,) = said(tmp_path, random_documents(9, seed=3, sentences=400), HELDOUT)
    assert finding.startswith("the training split has 9 documents")


def test_a_small_held_out_split_names_the_share_that_is_enough(tmp_path):
    (finding,) = said(tmp_path, TRAIN, HELDOUT[:40])
    pairs = int(finding.split(" gives ")[1].split(" ")[0])
    assert 0 < pairs < 1000
    share = float(finding.rstrip(".").split("--holdout=")[1])
    assert 1000 <= pairs * share / (40 / 290) < 2000


def test_copies_of_documents(tmp_path):
    (finding,) = said(tmp_path, TRAIN + TRAIN[:10], HELDOUT)
    assert finding.startswith("3.8% of the training documents are exact copies")


def test_copies_of_sentences(tmp_path):
    train = [[*document, *TRAIN[i - 1][:8]] for i, document in enumerate(TRAIN)]
    (finding,) = said(tmp_path, train, HELDOUT)
    assert finding.startswith("17% of the training sentences are exact copies")


def test_leaked_documents(tmp_path):
    (finding,) = said(tmp_path, TRAIN, [*HELDOUT, *TRAIN[7:10]])
    assert finding.startswith("3 of 253 held-out documents also stand in the training split")


def test_leaked_sentences(tmp_path):
    heldout = [[*document[:32], *TRAIN[i][:18]] for i, document in enumerate(HELDOUT)]
    (finding,) = said(tmp_path, TRAIN, heldout)
    assert finding.startswith("36% of the held-out sentences also stand in the training split")


def test_boilerplate(tmp_path):
    licence = [11, 12, 13, 14]
    train = [[*document, licence] for document in TRAIN]
    (finding,) = said(tmp_path, train, HELDOUT)
    assert finding.startswith("one sentence occurs 250 times, 2.4% of the training sentences: 'w")


def test_a_vocabulary_far_larger_than_what_is_used(tmp_path):
    (finding,) = said(tmp_path, TRAIN, HELDOUT, pieces=words(600))
    assert finding.startswith("200 of the 605 pieces of the vocabulary occur")


def test_words_cut_into_many_pieces(tmp_path):
    pieces = words(80) + [f"##{word}" for word in words(120)]
    (finding,) = said(tmp_path, TRAIN, HELDOUT, pieces=pieces)
    assert finding.startswith("a word is cut into 2.5 pieces on average")


def test_what_the_build_found_stands_first(healthy):
    dropped = healthy.manifest["dropped"] | {"documents_without_sentences": 500}
    few = dataclasses.replace(healthy.rows, heldout_rows=3)
    ill = dataclasses.replace(healthy, manifest=healthy.manifest | {"dropped": dropped}, rows=few)
    first, second = findings(ill)
    assert first.startswith("50% of the documents had no sentence")
    assert second.endswith("Build the store again from more text.")


def test_a_few_rows_that_lean_to_one_side_by_chance_are_no_finding(healthy):
    few = dataclasses.replace(healthy.rows, sampled=100, random_share=0.65)
    assert findings(dataclasses.replace(healthy, rows=few)) == []
