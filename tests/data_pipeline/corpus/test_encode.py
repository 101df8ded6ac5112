"""Chunks: where they end, and what is left of one that cleaning empties.

Chunks go through processes in order, a bounded number at a time.
"""

import errno
import json
import multiprocessing
import pathlib

import pytest

from data_pipeline.cli import worker_pool
from data_pipeline.corpus import encode
from data_pipeline.corpus.encode import ChunkEncoder, TextChunk, encode_corpus, read_chunks
from data_pipeline.read.cleaning import CleaningOptions
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources
from data_pipeline.vocab import Vocabulary, load_vocabulary
from tests.data_pipeline.encoded import write_list


@pytest.fixture
def vocabulary(tmp_path: pathlib.Path) -> Vocabulary:
    return load_vocabulary(write_list(tmp_path / "pieces.txt", ["word", ".", *"0123456789"]))


def test_a_chunk_ends_at_a_number_of_documents_too(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_DOCUMENTS", 5)
    path = tmp_path / "empty.jsonl"
    path.write_text((json.dumps({"text": ""}) + "\n") * 13)
    sources = list(enumerate(find_sources(f"{path},{path}", TextOptions())))
    chunks = list(read_chunks(sources, TextOptions()))
    documents = 13 * len(sources)
    assert [len(chunk.documents) for chunk in chunks] == [5] * (documents // 5) + [documents % 5]
    assert sum(chunk.source_documents[0] for chunk in chunks if chunk.source_documents.get(0)) == 13


@pytest.mark.parametrize("documents", [[], [[]], [["word."], []], [["word."], ["Word. " * 100]]])
def test_a_chunk_that_cleaning_empties_has_nothing_in_it(vocabulary, documents):
    drops = {"drop_duplicate_documents": True, "drop_duplicate_lines": True}
    cleaning = CleaningOptions(min_document_chars=100_000, near_duplicates="drop", **drops)
    chunk = TextChunk(documents, {0: len(documents)})
    encoded = ChunkEncoder(vocabulary, TextOptions(), cleaning).encode(chunk)
    assert encoded.counts["short_documents"] == len(documents)
    assert encoded.token_ids.shape == encoded.sentence_lengths.shape == (0,)
    facts = encoded.facts
    assert facts.line_lengths.shape == facts.document_lengths.shape == (0,)
    assert facts.line_hashes.shape == facts.text_hashes.shape == (0, 2)
    assert facts.signatures.shape == (0, 128)


@pytest.mark.slow
def test_the_reader_stays_a_bounded_distance_ahead(vocabulary):
    read = 0

    def chunks():
        nonlocal read
        while read < 10:
            yield TextChunk([[str(read)]], {0: 1})
            read += 1

    encoded = encode_corpus(chunks(), vocabulary, TextOptions(), CleaningOptions(), workers=2)
    ahead, ids = [], []
    for done, chunk in enumerate(encoded, 1):
        ahead.append(read - done)
        ids += chunk.token_ids.tolist()
    assert ids == list(range(7, 17))
    assert max(ahead) < 2 * 3


@pytest.mark.slow
def test_a_process_that_cannot_start_says_why(vocabulary):
    vocabulary.path.unlink()
    chunks = (TextChunk([["0"]], {0: 1}) for _ in range(10))
    encoded = encode_corpus(chunks, vocabulary, TextOptions(), CleaningOptions(), workers=2)
    with pytest.raises(ValueError, match=r"could not start: .*pieces\.txt, which is not a file"):
        list(encoded)


@pytest.mark.parametrize("error", [KeyError("a bug"), OSError(errno.EIO, "lost for a moment")])
def test_only_a_refusal_of_a_worker_becomes_one(error, monkeypatch):
    monkeypatch.setattr(worker_pool, "_start_errors", [error])
    with pytest.raises(type(error)) as raised:
        worker_pool.run_task(encode.ChunkEncoder.encode, TextChunk([["0"]], {0: 1}))
    assert raised.value is error


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_sentence(vocabulary):
    chunks = (TextChunk([["0"]], {0: 1}) for _ in range(10_000))
    encoded = encode_corpus(chunks, vocabulary, TextOptions(), CleaningOptions(), workers=2)
    next(encoded)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(ValueError, match="one of the 2 processes was killed, most likely for"):
        list(encoded)
    assert multiprocessing.active_children() == []
