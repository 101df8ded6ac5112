"""Duplicates of a whole corpus: the store and its counts against plain Python.

The held-out split: by content, copies together, two documents where it can be, at most half.
"""

import hashlib
import itertools
import json
import pathlib
import random
import re

import numpy as np
import pytest

from data_pipeline.build import main
from data_pipeline.corpus import encode, near_duplicates
from data_pipeline.corpus.selection import choose_heldout
from data_pipeline.store import Split, open_store
from tests.data_pipeline.encoded import write_list

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LINES = [f"{a}{b} {b}{a} {a}." for a in "abcdefgh" for b in "ijklmnop"]


@pytest.fixture
def vocab(tmp_path) -> pathlib.Path:
    pieces = [".", *LETTERS, *("##" + letter for letter in LETTERS)]
    return write_list(tmp_path / "pieces.txt", pieces)


def build(
    folder: pathlib.Path, name: str, documents: list[list[str]], vocab: pathlib.Path, *more: str
) -> pathlib.Path:
    corpus = folder / f"{name}.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": "\n".join(lines)}) for lines in documents))
    argv = [f"--input={corpus}", f"--output={folder / name}", f"--vocab={vocab}"]
    assert main([*argv, "--sentences=lines", "--holdout=0.2", "--workers=1", *more]) == 0
    return folder / name


def lines_of(store: pathlib.Path) -> dict[str, list[list[str]]]:
    """Documents of lines of letters without spaces, by split."""
    opened = open_store(store)
    pieces = opened.vocab_path.read_text().split("\n")

    def lines(split: Split) -> list[str]:
        sentences = np.split(split.token_ids, split.sentence_offsets[1:-1])
        return ["".join(pieces[i].removeprefix("##") for i in ids) for ids in sentences]

    return {
        split.name: [part.tolist() for part in np.split(lines(split), split.document_offsets[1:-1])]
        for split in (opened.train, opened.heldout)
    }


def with_copies(seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    documents: list[list[str]] = []
    for _ in range(80):
        if documents and rng.random() < 0.2:
            documents.append(rng.choice(documents))
        else:
            documents.append(rng.sample(LINES, rng.randint(1, 4)))
    return documents


def plainly_cleaned(
    documents: list[list[str]], drop_documents: bool, drop_lines: bool
) -> tuple[list[list[str]], dict[str, int]]:
    dropped = {"duplicate_documents": 0, "duplicate_lines": 0, "documents_of_duplicate_lines": 0}
    seen_documents, seen_lines, kept = set(), set(), []
    for document in documents:
        if drop_documents and tuple(document) in seen_documents:
            dropped["duplicate_documents"] += 1
            continue
        seen_documents.add(tuple(document))
        lines = document
        if drop_lines:
            lines = [line for line in document if line not in seen_lines]
            dropped["duplicate_lines"] += len(document) - len(lines)
            seen_lines.update(document)
        if lines:
            kept.append(lines)
        else:
            dropped["documents_of_duplicate_lines"] += 1
    return kept, dropped


@pytest.mark.parametrize("drop_documents", [False, True])
@pytest.mark.parametrize("drop_lines", [False, True])
def test_the_first_of_equal_documents_and_lines_stays(
    drop_documents, drop_lines, vocab, tmp_path, monkeypatch
):
    monkeypatch.setattr(encode, "CHUNK_CHARS", 100)
    documents = with_copies(seed=8)
    expected, dropped = plainly_cleaned(documents, drop_documents, drop_lines)
    flags = f"--drop_duplicate_documents={drop_documents} --drop_duplicate_lines={drop_lines}"
    store = build(tmp_path, "store", documents, vocab, *flags.split())
    found = lines_of(store)
    glued = [[line.replace(" ", "") for line in document] for document in expected]
    assert sorted(found["train"] + found["heldout"]) == sorted(glued)
    in_order = [document for document in glued if document in found["train"]]
    assert [d for d in found["train"] if glued.count(d) == 1] == [
        d for d in in_order if glued.count(d) == 1
    ]
    manifest = open_store(store).manifest
    assert manifest["dropped"] == dict.fromkeys(manifest["dropped"], 0) | dropped
    assert not drop_documents or dropped["duplicate_documents"] > 5
    assert not drop_lines or dropped["duplicate_lines"] > 50


def near_copies() -> list[list[str]]:
    """Forty families of a text of 60 words and three copies with one word changed."""
    rng = random.Random(9)
    documents = []
    for _ in range(40):
        words = rng.choices([a + b for a in LETTERS for b in LETTERS], k=60)
        for place in (None, 0, 59, 59):
            copy = list(words)
            if place is not None:
                copy[place] = rng.choice(LETTERS) * 2
            documents.append([" ".join(copy)])
    rng.shuffle(documents)
    return documents


def family(document: list[str]) -> str:
    return document[0].replace(" ", "")[20:80]


def test_what_is_given_up_is_in_the_manifest_and_the_report(vocab, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(near_duplicates, "_MAX_ROUNDS", 0)  # nothing is compared
    store = build(tmp_path, "store", near_copies(), vocab, "--near_duplicates=drop")
    assert open_store(store).manifest["near_duplicates"]["documents_given_up"] == 160
    assert "160 documents resemble too many others to be compared" in capsys.readouterr().out


def test_near_duplicates_go_to_one_side_and_stay_there_when_the_corpus_grows(vocab, tmp_path):
    documents = near_copies()
    sides = []
    for name, count in (("small", 80), ("large", 160)):
        store = build(tmp_path, name, documents[:count], vocab, "--near_duplicates=together")
        found = lines_of(store)
        assert sum(map(len, found.values())) == count
        assert {family(d) for d in found["train"]}.isdisjoint(family(d) for d in found["heldout"])
        sides.append({family(d): split for split in found for d in found[split]})
        assert open_store(store).manifest["dropped"]["near_duplicate_documents"] == 0
    assert {side for side in sides[0].values()} == {"train", "heldout"}
    assert sides[0].items() <= sides[1].items()
    apart = lines_of(build(tmp_path, "apart", documents, vocab))
    assert not {family(d) for d in apart["train"]}.isdisjoint(family(d) for d in apart["heldout"])


def test_lines_of_a_dropped_document_do_not_count_as_seen(vocab, tmp_path):
    (one, *_, other) = near_copies()
    near = [one[0] + " abc"]
    tail = "the only line of its kind"
    documents = [one, [*near, tail], [tail, *other]]
    near_flags = ("--near_duplicates=drop", "--near_duplicate_threshold=0.7")
    flags = (*near_flags, "--drop_duplicate_lines=true")
    store = build(tmp_path, "store", documents, vocab, *flags)
    found = lines_of(store)
    kept = [re.sub(" ", "", line) for line in (one[0], tail, other[0])]
    documents = found["train"] + found["heldout"]
    assert sorted(line for document in documents for line in document) == sorted(kept)


def hashes_of(names: list[str]) -> np.ndarray:
    digests = [hashlib.sha256(name.encode()).digest()[:8] for name in names]
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)


def test_a_document_keeps_its_side_whatever_else_is_in_the_corpus():
    hashes = hashes_of([f"document {i}" for i in range(4000)])
    whole = choose_heldout(hashes, 0.05)(hashes)
    assert 0.04 < whole.mean() < 0.06
    for part in (hashes[:1000], hashes[::3], np.concatenate([hashes, hashes])):
        np.testing.assert_array_equal(choose_heldout(part, 0.05)(hashes), whole)
    assert choose_heldout(hashes, 0.1)(hashes)[whole].all()  # a larger share holds out all of it


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.3, 0.5])
@pytest.mark.parametrize(
    "copies",
    [
        *([1, 1], [1, 1, 1], [2, 1], [5, 1], [3, 3], [7, 2, 1], [1, 9, 1, 1], [1] * 50),
        *([1] * 4, [2, 2], [3, 1], [2, 1, 1], [2, 2, 1], [1, 3, 3], [4, 2, 2], [1, 1, 8]),
    ],
)
def test_two_documents_if_they_can_be_and_at_most_half_with_copies_together(copies, share):
    parts = (itertools.combinations(copies[:5], size) for size in range(len(copies)))
    sums = set(map(sum, itertools.chain(*parts)))
    most = sum(copies) // 2
    least = min(2, max(size for size in sums if 1 <= size <= most))
    for salt in range(6):
        names = [f"{salt} {i}" for i, count in enumerate(copies) for _ in range(count)]
        hashes = hashes_of(names)
        side = choose_heldout(hashes, share)(hashes)
        assert least <= side.sum() <= most
        assert all(len(set(side[hashes == value])) == 1 for value in hashes)


@pytest.mark.parametrize(
    "names, sentence",
    [
        ([], "the input has no document with a token"),
        (["a"], "the input, as cleaned, has a single document: too few"),
        (["a"] * 7, "7 documents, equal or nearly so but for case"),
    ],
)
def test_a_corpus_that_cannot_be_parted_is_refused(names, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_heldout(hashes_of(names), 0.01)
