"""Keep encoded chunks on disk until each document is dropped or assigned to a split."""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from data_pipeline.corpus.encode import ChunkFacts, EncodedChunk
from data_pipeline.read.cleaning import COUNTED

_FACTS = tuple(field.name for field in dataclasses.fields(ChunkFacts))


class Spool:
    """Store chunks in the order of the input, and add up their counts.

    First `append` all chunks, then read `facts` and `tokens`.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._facts_path = directory / "facts"
        self._tokens_path = directory / "tokens"
        self._facts_path.touch()
        self._tokens_path.touch()
        self._chunks = 0
        self.documents = 0
        self.lines = 0
        self.counts: Counter[str] = Counter()  # keys: COUNTED
        self.source_documents: Counter[int] = Counter()  # TextChunk.source_documents
        self.lost_characters: Counter[int] = Counter()  # EncodedChunk.lost_characters

    def append(self, chunk: EncodedChunk) -> None:
        with open(self._facts_path, "ab") as file:
            write_facts(file, chunk.facts)
        with open(self._tokens_path, "ab") as file:
            _save(file, chunk.token_ids)
            _save(file, chunk.sentence_lengths)
        self._chunks += 1
        self.documents += len(chunk.facts.document_lengths)
        self.lines += len(chunk.facts.line_lengths)
        self.counts.update(chunk.counts)
        self.source_documents.update(chunk.source_documents)
        self.lost_characters.update(chunk.lost_characters)

    def facts(self) -> Iterator[tuple[slice, slice, ChunkFacts]]:
        """Yield the ranges of each chunk's documents and lines, and its facts."""
        document, line = 0, 0
        with open(self._facts_path, "rb") as file:
            for _ in range(self._chunks):
                facts = read_facts(file)
                documents = slice(document, document + len(facts.document_lengths))
                lines = slice(line, line + len(facts.line_lengths))
                yield documents, lines, facts
                document, line = documents.stop, lines.stop

    @property
    def tokens_bytes(self) -> int:
        return self._tokens_path.stat().st_size

    def tokens(self, advance: Callable[[int], None]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield token ids and sentence lengths of each chunk; pass `advance` the bytes read."""
        with open(self._tokens_path, "rb") as file:
            for _ in range(self._chunks):
                start = file.tell()
                yield np.load(file), np.load(file)
                advance(file.tell() - start)


def write_chunk(file: BinaryIO, chunk: EncodedChunk) -> None:
    """Write all arrays of a chunk to a file."""
    write_facts(file, chunk.facts)
    sources = np.array(list(chunk.source_documents.items()), np.int64)
    counts = np.array([chunk.counts.get(name, 0) for name in COUNTED], np.int64)
    lost = np.array(list(chunk.lost_characters.items()), np.int64).reshape(-1, 2)
    for array in (chunk.token_ids, chunk.sentence_lengths, sources, counts, lost):
        _save(file, array)


def read_chunk(file: BinaryIO) -> EncodedChunk:
    """Read a chunk written by write_chunk."""
    facts = read_facts(file)
    token_ids, sentence_lengths, sources, counts, lost = (np.load(file) for _ in range(5))
    return EncodedChunk(
        token_ids=token_ids,
        sentence_lengths=sentence_lengths,
        facts=facts,
        counts=dict(zip(COUNTED, counts.tolist(), strict=True)),
        source_documents=dict(sources.tolist()),
        lost_characters=dict(lost.tolist()),
    )


def _save(file: BinaryIO, array: np.ndarray) -> None:
    """Write an array for np.load; np.save hides whether the disk, a quota or a limit is reached."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(np.ascontiguousarray(array).data)


def write_facts(file: BinaryIO, facts: ChunkFacts) -> None:
    """Write the arrays of a chunk's facts one after another."""
    for name in _FACTS:
        _save(file, getattr(facts, name))


def read_facts(file: BinaryIO) -> ChunkFacts:
    """Read facts written by write_facts."""
    return ChunkFacts(*(np.load(file) for _ in _FACTS))
