"""The work that a build parts among processes: some documents, cleaned, cut and encoded."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from data_pipeline.cleaning import (
    DOCUMENTS_WITHOUT_SENTENCES,
    SENTENCES_WITHOUT_TOKENS,
    CleaningOptions,
    Document,
    clean_documents,
)
from data_pipeline.duplicates import hashes128
from data_pipeline.folding import document_hash, folded
from data_pipeline.lost_characters import LostCharacters
from data_pipeline.near_duplicates import Signer, no_signatures
from data_pipeline.sentences import sentences_of
from data_pipeline.sources import Source
from data_pipeline.text import read_documents
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import Vocabulary

CHUNK_CHARS = 1 << 20  # text that is encoded in one piece; a larger document is one chunk
CHUNK_DOCUMENTS = 1 << 15  # the most in a chunk: millions of empty ones have hardly a character


@dataclasses.dataclass(frozen=True)
class TextChunk:
    """Documents that follow each other in the input."""

    documents: list[Document]
    source_documents: dict[int, int]  # number of a source -> how many of the documents are its


@dataclasses.dataclass(frozen=True)
class ChunkFacts:
    """What is known of D documents of L lines beside their tokens; none of them is empty.

    Lines are told apart only where duplicate ones are to be dropped; otherwise all of a document
    is one line. What CleaningOptions do not ask for has no columns.
    """

    line_lengths: np.ndarray  # int64 [L], sentences
    line_hashes: np.ndarray  # uint64 [L,2] or [L,0], of the text
    document_lengths: np.ndarray  # int64 [D], lines
    document_hashes: np.ndarray  # uint64 [D], blind to case, white space and digits
    text_hashes: np.ndarray  # uint64 [D,2] or [D,0], of the text as it is
    signatures: np.ndarray  # uint32 [D,SIGNATURE_SIZE] or [D,0]


@dataclasses.dataclass(frozen=True)
class EncodedChunk:
    """A chunk as T tokens in S sentences."""

    token_ids: np.ndarray  # uint16 or uint32 [T]
    sentence_lengths: np.ndarray  # int64 [S], tokens
    facts: ChunkFacts
    counts: dict[str, int]  # why something was left out or changed -> how many
    source_documents: dict[int, int]  # as in TextChunk
    lost_characters: dict[int, int]  # code point that the vocabulary lacks -> how often it occurs


def read_chunks(
    sources: Sequence[tuple[int, Source]],
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[TextChunk]:
    """Read numbered sources one after another, grouped into chunks.

    A chunk ends when it holds CHUNK_CHARS or CHUNK_DOCUMENTS; where it does, does not matter to
    the store. `advance` is told the bytes as they are read.

    Raises:
      ValueError: what data_pipeline.text.read_documents finds wrong.
    """
    documents: list[Document] = []
    source_documents: collections.Counter[int] = collections.Counter()
    chars = 0
    for number, source in sources:
        for document in read_documents(source, options, advance):
            documents.append(document)
            source_documents[number] += 1
            chars += sum(map(len, document))
            if chars >= CHUNK_CHARS or len(documents) >= CHUNK_DOCUMENTS:
                yield TextChunk(documents, dict(source_documents))
                documents, chars = [], 0
                source_documents.clear()
    if documents:
        yield TextChunk(documents, dict(source_documents))


class ChunkEncoder:
    """Encodes chunks: what comes out depends on the chunk and the settings alone."""

    def __init__(
        self, vocabulary: Vocabulary, text: TextOptions, cleaning: CleaningOptions
    ) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._cleaning = cleaning
        self._lost = LostCharacters(vocabulary)
        self._signer = Signer() if cleaning.finds_near_duplicates else None

    def encode(self, chunk: TextChunk) -> EncodedChunk:
        counts: collections.Counter[str] = collections.Counter()
        documents = clean_documents(chunk.documents, self._cleaning, counts)
        lines, lines_read = documents, [1] * len(documents)
        if self._cleaning.drop_duplicate_lines:
            lines = [[line] for document in documents for line in document]
            lines_read = list(map(len, documents))
        sentences: list[str] = []
        sentences_read = []
        for line in lines:
            found = sentences_of(line, self._text)
            sentences += found
            sentences_read.append(len(found))
        token_ids, sentence_lengths = self._vocabulary.encode(sentences)
        has_tokens = sentence_lengths > 0
        line_lengths = sums_of_runs(has_tokens, sentences_read)
        document_lengths = sums_of_runs(line_lengths > 0, lines_read)
        kept_documents = [documents[i] for i in np.flatnonzero(document_lengths)]
        kept_lines = [lines[i] for i in np.flatnonzero(line_lengths)]
        counts[SENTENCES_WITHOUT_TOKENS] += int(np.count_nonzero(~has_tokens))
        counts[DOCUMENTS_WITHOUT_SENTENCES] += len(documents) - len(kept_documents)
        return EncodedChunk(
            token_ids=token_ids,
            sentence_lengths=sentence_lengths[has_tokens],
            facts=self._facts(
                kept_documents,
                kept_lines,
                document_lengths[document_lengths > 0],
                line_lengths[line_lengths > 0],
            ),
            counts=dict(counts),
            source_documents=chunk.source_documents,
            lost_characters=self._lost_characters(sentences, token_ids, sentence_lengths),
        )

    def _lost_characters(
        self, sentences: list[str], token_ids: np.ndarray, sentence_lengths: np.ndarray
    ) -> dict[int, int]:
        is_unknown = token_ids == self._vocabulary.special_ids["unk"]
        has_unknown = sums_of_runs(is_unknown, sentence_lengths) > 0
        return self._lost.count([sentences[i] for i in np.flatnonzero(has_unknown)])

    def _facts(
        self,
        documents: list[Document],
        lines: list[Document],
        document_lengths: np.ndarray,
        line_lengths: np.ndarray,
    ) -> ChunkFacts:
        texts = list(map(folded, documents))
        cleaning = self._cleaning
        return ChunkFacts(
            line_lengths=line_lengths,
            line_hashes=hashes128(lines, wanted=cleaning.drop_duplicate_lines),
            document_lengths=document_lengths,
            document_hashes=np.fromiter(map(document_hash, texts), np.uint64, len(texts)),
            text_hashes=hashes128(documents, wanted=cleaning.drop_duplicate_documents),
            signatures=self._signer.sign(texts) if self._signer else no_signatures(len(texts)),
        )


def sums_of_runs(counts_N: np.ndarray, lengths_R: np.ndarray | list[int]) -> np.ndarray:
    """int64[R]: the sums of runs of the given lengths, one after another; an empty one is 0."""
    lengths_R = np.asarray(lengths_R, np.int64)  # an empty list would be floats
    ends_R = np.cumsum(lengths_R)
    totals = np.concatenate([[0], np.cumsum(counts_N, dtype=np.int64)])
    return totals[ends_R] - totals[ends_R - lengths_R]
