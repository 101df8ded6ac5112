"""What is found in a store: nothing in a healthy one, and each finding in one made for it."""

import dataclasses
import itertools
import re
from unittest import mock

import pytest

from data_pipeline.report import rows
from data_pipeline.report.findings import find_in_store
from data_pipeline.report.health import Health, measure
from data_pipeline.store import open_store
from tests.data_pipeline.stores import UNK, healthy_store, random_documents, words, write_store

pytestmark = pytest.mark.usefixtures("few_trial_walks")
TRAIN, HELDOUT = random_documents(250, seed=1), random_documents(250, seed=2)
SINGLE = [[document[0] + document[1] + document[2]] for document in TRAIN]
PAIRS = [document[i : i + 2] for document in TRAIN for i in range(0, 40, 2)]


def measure_store(store) -> Health:
    # Fewer rows than a report samples, and enough that chance is no finding.
    with mock.patch.object(rows, "SAMPLED_ROWS", 2048):
        return measure(open_store(store), 32, 0)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Health:
    return measure_store(healthy_store(tmp_path_factory.mktemp("findings") / "store"))


def findings_of(folder, train, heldout, **more) -> list[str]:
    return find_in_store(measure_store(write_store(folder, train, heldout, **more)))


def test_a_healthy_store_has_no_findings(healthy):
    assert find_in_store(healthy) == []


@pytest.mark.parametrize(
    ("words", "train", "heldout", "more"),
    [
        (
            "10.0% of the tokens are unknown",
            [[[UNK, *sentence[1:]] for sentence in document] for document in TRAIN],
            HELDOUT,
            {},
        ),
        (
            "the training split has 9 documents",
            random_documents(9, seed=3, sentences=400),
            HELDOUT,
            {},
        ),
        ("3.8% of the training documents", TRAIN + TRAIN[:10], HELDOUT, {}),
        (
            "17% of the training sentences are exact copies",
            [[*document, *TRAIN[i - 1][:8]] for i, document in enumerate(TRAIN)],
            HELDOUT,
            {},
        ),
        ("3 of 253 held-out documents", TRAIN, [*HELDOUT, *TRAIN[7:10]], {}),
        (
            "36% of the held-out sentences",
            TRAIN,
            [[*document[:32], *TRAIN[i][:18]] for i, document in enumerate(HELDOUT)],
            {},
        ),
        (
            "one sentence occurs 250 times",
            [[*document, [11, 12, 13, 14]] for document in TRAIN],
            HELDOUT,
            {},
        ),
        ("200 of the 605 pieces", TRAIN, HELDOUT, {"pieces": words(600)}),
        (
            "a word is cut into 2.5 pieces",
            TRAIN,
            HELDOUT,
            {"pieces": words(80) + [f"##{word}" for word in words(120)]},
        ),
        (
            "10% of the tokens are of a script",
            TRAIN,
            HELDOUT,
            {"pieces": words(180) + [f"\u0e01{word}" for word in words(20)]},
        ),
    ],
)
def test_a_store_made_for_a_finding_has_it_alone(tmp_path, words, train, heldout, more):
    (finding,) = findings_of(tmp_path / "store", train, heldout, **more)
    assert finding.startswith(words)


LONG = [[*document[:36], *([document[0] * 6] * 4)] for document in TRAIN]
PARAGRAPHS = [
    [[*itertools.chain(*half)] for half in (document, document[::-1])] for document in TRAIN
]


def test_documents_of_one_sentence_and_long_sentences_have_other_findings_too(tmp_path):
    single, balance = findings_of(tmp_path / "one", [*TRAIN[:5], *SINGLE], HELDOUT)
    assert "of the documents have one sentence" in single
    assert "of the next sentences are random where half should be" in balance
    # One in ten of a document has thirty tokens, one more than a sequence of 32 holds.
    first, *_ = findings_of(tmp_path / "long", LONG, HELDOUT)
    assert first.startswith("10.0% of the sentences are longer than the 29 tokens of text")
    # So few are above the limit only as a share of the tokens.
    few = [
        [*document, *([document[0] * 60] if i % 5 == 0 else [])] for i, document in enumerate(TRAIN)
    ]
    assert "0.5% of the sentences" in " ".join(findings_of(tmp_path / "few", few, HELDOUT))
    heldout = PARAGRAPHS[:1] + HELDOUT[1:4]
    findings = findings_of(tmp_path / "paragraphs", PARAGRAPHS, heldout, holdout=0.01)
    text = " ".join(findings)
    assert text.count("Are they paragraphs?") == 1 and "of the sentences are longer" not in text


def test_rows_that_are_mostly_padding(tmp_path):
    (finding,) = findings_of(tmp_path / "store", PAIRS[:4000], PAIRS[4000:])
    assert "is padding" in finding and "packed_examples=8 leaves" in finding


# More may be held out than --holdout asked for: two documents at least.
@pytest.mark.parametrize("asked", [40 / 290, 0.01, 1e-320])
def test_a_small_held_out_split_names_the_share_that_is_enough(tmp_path, asked):
    *_, finding = findings_of(tmp_path / "store", TRAIN, HELDOUT[:40], holdout=asked)
    pairs, share = re.search(r"gives ([\d,]+) pairs of .* with --holdout=(.*)\.$", finding).groups()
    assert 0 < int(pairs) < 1000 <= int(pairs) * float(share) / (40 / 290) < 2000


def test_what_the_build_found_stands_first(healthy):
    dropped = healthy.manifest["dropped"] | {"documents_without_sentences": 500}
    few = dataclasses.replace(healthy.rows, heldout_rows=3)
    ill = dataclasses.replace(healthy, manifest=healthy.manifest | {"dropped": dropped}, rows=few)
    first, second = find_in_store(ill)
    assert first.startswith("50% of the documents had no sentence and were dropped.")
    assert second.endswith("Build the store again from more text.")


def test_a_few_rows_that_lean_to_one_side_by_chance_are_no_finding(healthy):
    few = dataclasses.replace(healthy.rows, sampled=100, random_share=0.65)
    assert find_in_store(dataclasses.replace(healthy, rows=few)) == []
