"""The held-out split: by content, copies together, two documents where it can be, at most half."""

import hashlib
import itertools
import pathlib

import numpy as np
import pytest

from data_pipeline.cleaning import CleaningOptions
from data_pipeline.encoded_chunk import ChunkFacts, EncodedChunk
from data_pipeline.holdout import choose_heldout, write_splits
from data_pipeline.selection import drop_emptied_documents, select
from data_pipeline.spool import Spool
from data_pipeline.store_writing import SplitWriter


def hashes_of(names: list[str]) -> np.ndarray:
    digests = [hashlib.sha256(name.encode()).digest()[:8] for name in names]
    return np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)


def test_a_document_keeps_its_side_whatever_else_is_in_the_corpus():
    hashes = hashes_of([f"document {i}" for i in range(4000)])
    whole = choose_heldout(hashes, 0.05)(hashes)
    assert 0.04 < whole.mean() < 0.06
    for part in (hashes[:1000], hashes[::3], np.concatenate([hashes, hashes])):
        np.testing.assert_array_equal(
            choose_heldout(part, 0.05)(hashes),
            whole,
        )


def test_a_larger_share_holds_out_all_that_a_smaller_one_does():
    hashes = hashes_of([f"document {i}" for i in range(4000)])
    small, large = (choose_heldout(hashes, share)(hashes) for share in (0.01, 0.1))
    assert (large[small]).all()


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.3, 0.5])
@pytest.mark.parametrize(
    "copies",
    [
        *([1, 1], [1, 1, 1], [2, 1], [5, 1], [3, 3], [7, 2, 1], [1, 9, 1, 1], [1] * 50),
        *([1] * 4, [2, 2], [3, 1], [2, 1, 1], [2, 2, 1], [1, 3, 3], [4, 2, 2], [1, 1, 8]),
    ],
)
@pytest.mark.parametrize("salt", range(6))
def test_two_documents_if_they_can_be_and_at_most_half_with_copies_together(copies, share, salt):
    names = [f"{salt} {i}" for i, count in enumerate(copies) for _ in range(count)]
    hashes = hashes_of(names)
    held = choose_heldout(hashes, share)(hashes)
    sums = {
        sum(part)
        for size in range(len(copies))
        for part in itertools.combinations(copies[:5], size)
    }
    possible = {held for held in sums if 1 <= held <= len(hashes) // 2}
    assert min(2, max(possible)) <= held.sum() <= len(hashes) // 2
    assert all(len(set(held[hashes == value])) == 1 for value in hashes)


def test_one_document_below_the_threshold_gets_company_and_stays():
    hashes = np.sort(hashes_of([f"document {i}" for i in range(30)]))
    share = float(hashes[0] + hashes[1]) / 2 / 2**64  # between the two lowest
    np.testing.assert_array_equal(choose_heldout(hashes, share)(hashes), np.arange(30) < 2)


@pytest.mark.parametrize(
    "names, sentence",
    [
        ([], "the input has no document with a token"),
        (["a"], "the input has a single document, so none can be held out"),
        (["a"] * 7, "the input has 7 documents that all say the same"),
    ],
)
def test_a_corpus_that_cannot_be_parted_is_refused(names, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_heldout(hashes_of(names), 0.01)


def random_chunks(rng: np.random.Generator) -> list[EncodedChunk]:
    chunks = []
    for documents in (5, 0, 1, 30):
        lines = rng.integers(1, 4, documents)
        sentences = rng.integers(1, 6, lines.sum())
        tokens = rng.integers(1, 9, sentences.sum())
        facts = ChunkFacts(
            line_lengths=sentences,
            line_hashes=np.zeros((len(sentences), 0), np.uint64),
            document_lengths=lines,
            document_hashes=rng.integers(0, 2**63, documents).astype(np.uint64) * np.uint64(2),
            text_hashes=np.zeros((documents, 0), np.uint64),
            signatures=np.zeros((documents, 0), np.uint32),
        )
        ids = rng.integers(0, 50, tokens.sum()).astype(np.uint16)
        chunks.append(EncodedChunk(ids, tokens, facts, {}, {}, {}))
    return chunks


def plain_documents(chunk: EncodedChunk) -> list[list[list[list[int]]]]:
    """Documents of lines of sentences of ids."""
    tokens, lengths = iter(chunk.token_ids.tolist()), iter(chunk.sentence_lengths.tolist())
    sentences = iter(chunk.facts.line_lengths.tolist())
    return [
        [
            [[next(tokens) for _ in range(next(lengths))] for _ in range(next(sentences))]
            for _ in range(lines)
        ]
        for lines in chunk.facts.document_lengths
    ]


def read_documents(directory: pathlib.Path) -> list[list[list[int]]]:
    ids, sentences, documents = (
        np.load(directory / f"{name}.npy").tolist()
        for name in ("token_ids", "sentence_offsets", "document_offsets")
    )
    return [
        [ids[sentences[s] : sentences[s + 1]] for s in range(documents[d], documents[d + 1])]
        for d in range(len(documents) - 1)
    ]


@pytest.mark.parametrize("share_left_out", [0.0, 0.4])
def test_what_stays_goes_to_its_split_in_the_order_of_the_input(share_left_out, tmp_path):
    rng = np.random.default_rng(7)
    chunks = random_chunks(rng)
    spool = Spool(tmp_path / "spool")
    for chunk in chunks:
        spool.append(chunk)
    selection = select(spool, CleaningOptions(), {})
    selection.keeps_document[:] = rng.random(spool.documents) >= share_left_out
    selection.keeps_line[:] = rng.random(spool.lines) >= share_left_out
    keeps_document, keeps_line = map(iter, (selection.keeps_document, selection.keeps_line))
    expected: dict[bool, list[list[list[int]]]] = {False: [], True: []}
    for chunk in chunks:
        for value, lines in zip(chunk.facts.document_hashes, plain_documents(chunk), strict=True):
            sentences = [s for line in lines if next(keeps_line) for s in line]
            if next(keeps_document) and sentences:
                expected[int(value) < 0.3 * 2**64].append(sentences)
    drop_emptied_documents(spool, selection)
    writers = [SplitWriter(tmp_path / n, np.dtype(np.uint16), 50, 1) for n in ("train", "heldout")]
    done: list[int] = []
    is_heldout = choose_heldout(selection.side_hashes[selection.keeps_document], 0.3)
    write_splits(spool, selection, is_heldout, *writers, done.append)
    for writer in writers:
        writer.close()
    assert read_documents(tmp_path / "train") == expected[False]
    assert read_documents(tmp_path / "heldout") == expected[True]
    assert sum(done) == spool.tokens_bytes
