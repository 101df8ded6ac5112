"""A store's numbers in words: what stands in the lines, and what is left out of them."""

import contextlib
import dataclasses

import pytest

from data_pipeline import health_words
from data_pipeline.health import measure
from data_pipeline.repeats import Repeats
from data_pipeline.store import open_store
from tests.data_pipeline.stores import healthy_store


@pytest.fixture(scope="module")
def health(tmp_path_factory):
    def step(label, total):
        return contextlib.nullcontext(lambda done: None)

    store = healthy_store(tmp_path_factory.mktemp("words") / "store")
    return measure(open_store(store), 32, 0, step)


def lines(health, **manifest_changes) -> list[str]:
    changed = dataclasses.replace(health, manifest=health.manifest | manifest_changes)
    return [f"{name}: {value}" for name, value in health_words.facts(changed)]


def test_what_the_build_dropped_is_named_by_its_reasons_without_zeros(health):
    dropped = {"documents_without_sentences": 3732, "short_documents": 0, "any_new_reason": 2}
    found = lines(health, dropped=dropped)
    assert "dropped: 3,732 documents without sentences; 2 any new reason" in found
    assert "dropped: nothing" in lines(health)


def test_near_copies_and_changes_are_told_where_a_build_counted_them(health):
    found = lines(
        health,
        changed={"normalized_documents": 12},
        near_duplicates={"clusters": 1000, "documents": 2345},
    )
    assert "changed: 12 normalized documents" in found
    assert "near copies: 2,345 documents in 1,000 clusters" in found
    none = lines(health, changed={"normalized_documents": 0}, near_duplicates={"clusters": 0})
    assert none == lines(health)


def test_a_sample_is_said_to_be_one(health):
    whole = [value for name, value in health_words.facts(health) if name == "rows"]
    assert whole == [f"all {health.rows.epoch_rows:,} of an epoch at 32 tokens"]
    rows = dataclasses.replace(health.rows, epoch_rows=10**6, sampled=1000)
    assert "rows: a sample: 1,000 of the 1,000,000 of an epoch at 32 tokens" in lines(
        dataclasses.replace(health, rows=rows)
    )
    copies = dataclasses.replace(health.copies, leaked_sentences=Repeats(500, 4000, 50))
    counts = dict(health_words.counts(dataclasses.replace(health, copies=copies)))
    assert counts["sentences in training, too"] == ["", "10.0% of 500 sampled"]


def test_without_rows_it_is_said_why(health):
    (why,) = (
        line for line in lines(dataclasses.replace(health, rows=None)) if line.startswith("rows")
    )
    assert why == (
        "rows: none: a split has one document, and a random next sentence comes from another"
    )
