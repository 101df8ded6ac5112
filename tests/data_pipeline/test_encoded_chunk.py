"""Chunks: where they end, and what is left of one that cleaning empties."""

import json
import pathlib

import numpy as np
import pytest

from data_pipeline import encoded_chunk
from data_pipeline.cleaning import CleaningOptions
from data_pipeline.encoded_chunk import ChunkEncoder, TextChunk, read_chunks, sums_of_runs
from data_pipeline.sources import find_sources
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import Vocabulary, load_vocabulary


@pytest.fixture
def vocabulary(tmp_path: pathlib.Path) -> Vocabulary:
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "."]))
    return load_vocabulary(pieces)


def test_a_chunk_ends_at_a_number_of_documents_too(tmp_path, monkeypatch):
    monkeypatch.setattr(encoded_chunk, "CHUNK_DOCUMENTS", 5)
    path = tmp_path / "empty.jsonl"
    path.write_text((json.dumps({"text": ""}) + "\n") * 13)
    sources = list(enumerate(find_sources(f"{path},{path}", TextOptions())))
    chunks = list(read_chunks(sources, TextOptions()))
    documents = 13 * len(sources)
    assert [len(chunk.documents) for chunk in chunks] == [5] * (documents // 5) + [documents % 5]
    assert sum(chunk.source_documents[0] for chunk in chunks if chunk.source_documents.get(0)) == 13


@pytest.mark.parametrize("documents", [[], [[]], [["word."], []], [["word."], ["Word. " * 100]]])
def test_a_chunk_that_cleaning_empties_has_nothing_in_it(vocabulary, documents):
    cleaning = CleaningOptions(
        min_document_chars=100_000,
        drop_duplicate_documents=True,
        drop_duplicate_lines=True,
        near_duplicates="drop",
    )
    chunk = TextChunk(documents, {0: len(documents)})
    encoded = ChunkEncoder(vocabulary, TextOptions(), cleaning).encode(chunk)
    assert encoded.counts["short_documents"] == len(documents)
    facts = encoded.facts
    for array, shape in (
        (encoded.token_ids, (0,)),
        (encoded.sentence_lengths, (0,)),
        (facts.line_lengths, (0,)),
        (facts.line_hashes, (0, 2)),
        (facts.document_lengths, (0,)),
        (facts.text_hashes, (0, 2)),
        (facts.signatures, (0, 128)),
    ):
        assert array.shape == shape


def test_sums_of_runs_are_those_of_a_loop():
    counts = np.array([3, 1, 4, 1, 5])
    assert sums_of_runs(counts, [2, 0, 3]).tolist() == [4, 0, 10]
    assert sums_of_runs(np.zeros(0, bool), []).tolist() == []
    assert sums_of_runs(np.zeros(0, bool), [0, 0]).tolist() == [0, 0]
