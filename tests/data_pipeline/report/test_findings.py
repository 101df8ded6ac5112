"""What is found in a store: nothing in a healthy one, and each finding in one made for it."""

import dataclasses
import itertools
from unittest import mock

import pytest

from data_pipeline.report import rows
from data_pipeline.report.findings import find_in_store
from data_pipeline.report.health import Health, measure
from data_pipeline.store import open_store
from data_pipeline.store.findings import StoreFinding
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


def findings_of(folder, train, heldout, **more) -> list[StoreFinding]:
    return find_in_store(measure_store(write_store(folder, train, heldout, **more)))


def test_a_healthy_store_has_no_findings(healthy):
    assert find_in_store(healthy) == []


@pytest.mark.parametrize(
    ("name", "value", "train", "heldout", "more"),
    [
        (
            "unknown_tokens",
            0.1,
            [[[UNK, *sentence[1:]] for sentence in document] for document in TRAIN],
            HELDOUT,
            {},
        ),
        ("few_documents", 9, random_documents(9, seed=3, sentences=400), HELDOUT, {}),
        ("document_copies", 10 / 260, TRAIN + TRAIN[:10], HELDOUT, {}),
        (
            "sentence_copies",
            8 / 48,
            [[*document, *TRAIN[i - 1][:8]] for i, document in enumerate(TRAIN)],
            HELDOUT,
            {},
        ),
        ("leaked_documents", 3, TRAIN, [*HELDOUT, *TRAIN[7:10]], {}),
        (
            "leaked_sentences",
            18 / 50,
            TRAIN,
            [[*document[:32], *TRAIN[i][:18]] for i, document in enumerate(HELDOUT)],
            {},
        ),
        ("boilerplate", 250, [[*document, [11, 12, 13, 14]] for document in TRAIN], HELDOUT, {}),
        ("unused_vocabulary", 200, TRAIN, HELDOUT, {"pieces": words(600)}),
        (
            "pieces_per_word",
            2.5,
            TRAIN,
            HELDOUT,
            {"pieces": words(80) + [f"##{word}" for word in words(120)]},
        ),
        (
            "marks_stripped",
            0.1,
            TRAIN,
            HELDOUT,
            {"pieces": words(180) + [f"\u0e01{word}" for word in words(20)]},
        ),
    ],
)
def test_a_store_made_for_a_finding_has_it_alone(tmp_path, name, value, train, heldout, more):
    (finding,) = findings_of(tmp_path / "store", train, heldout, **more)
    assert finding.name == name and finding.value == pytest.approx(value, abs=0.02)


LONG = [[*document[:36], *([document[0] * 6] * 4)] for document in TRAIN]
PARAGRAPHS = [
    [[*itertools.chain(*half)] for half in (document, document[::-1])] for document in TRAIN
]


def test_documents_of_one_sentence_and_long_sentences_have_other_findings_too(tmp_path):
    findings = findings_of(tmp_path / "one", [*TRAIN[:5], *SINGLE], HELDOUT)
    assert [finding.name for finding in findings] == ["one_sentence_documents", "label_balance"]
    # One in ten of a document has thirty tokens, one more than a sequence of 32 holds.
    first, *_ = findings_of(tmp_path / "long", LONG, HELDOUT)
    assert (first.name, first.value) == ("long_sentences", 0.1)
    heldout = PARAGRAPHS[:1] + HELDOUT[1:4]
    findings = findings_of(tmp_path / "paragraphs", PARAGRAPHS, heldout, holdout=0.01)
    names = [finding.name for finding in findings]
    assert names.count("paragraphs") == 1 and "long_sentences" not in names


def test_rows_that_are_mostly_padding(tmp_path):
    (finding,) = findings_of(tmp_path / "store", PAIRS[:4000], PAIRS[4000:])
    assert finding.name == "padding" and "packed_examples=8 leaves" in finding.text


# More may be held out than --holdout asked for: two documents at least.
@pytest.mark.parametrize("asked", [40 / 290, 0.01, 1e-320])
def test_a_small_held_out_split_names_the_share_that_is_enough(tmp_path, asked):
    *_, finding = findings_of(tmp_path / "store", TRAIN, HELDOUT[:40], holdout=asked)
    assert finding.name == "few_heldout_rows" and 0 < finding.value < 1000
    share = float(finding.text.rstrip(".").split("--holdout=")[1])
    assert 1000 <= finding.value * share / (40 / 290) < 2000


def test_what_the_build_found_stands_first(healthy):
    dropped = healthy.manifest["dropped"] | {"documents_without_sentences": 500}
    few = dataclasses.replace(healthy.rows, heldout_rows=3)
    ill = dataclasses.replace(healthy, manifest=healthy.manifest | {"dropped": dropped}, rows=few)
    first, second = find_in_store(ill)
    assert (first.name, first.value) == ("documents_without_sentences", 0.5)
    assert second.text.endswith("Build the store again from more text.")


def test_a_few_rows_that_lean_to_one_side_by_chance_are_no_finding(healthy):
    few = dataclasses.replace(healthy.rows, sampled=100, random_share=0.65)
    assert find_in_store(dataclasses.replace(healthy, rows=few)) == []
