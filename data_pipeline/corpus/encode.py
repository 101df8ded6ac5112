"""Encode a corpus in any number of local processes: read, clean, cut and tokenize chunks of it."""

import collections
import dataclasses
import gc
import pathlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from data_pipeline.cli.worker_pool import open_workers, run_task
from data_pipeline.corpus.dedup import fold_text, hash_document, hash_texts
from data_pipeline.corpus.lost_characters import LostCharacters
from data_pipeline.corpus.near_duplicates import Signer
from data_pipeline.read.cleaning import (
    CleaningOptions,
    Counted,
    Document,
    Dropped,
    clean_documents,
)
from data_pipeline.read.documents import Source, read_sources
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sentences import split_sentences
from data_pipeline.vocab import Vocabulary, load_recorded

CHUNK_CHARS = 1 << 20  # text of a chunk; a larger document is a chunk of its own
CHUNK_DOCUMENTS = 1 << 15  # millions of empty documents would not fill CHUNK_CHARS
_HTML_ESCAPES = ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&nbsp;", "&#39;", "&#039;"]
_HTML_MARKS = (*_HTML_ESCAPES, "<br>", "<br/>", "<br />", "</p>", "</a>", "</div>", "</span>")


@dataclasses.dataclass(frozen=True)
class TextChunk:
    """Hold consecutive documents of the input."""

    documents: list[Document]
    source_documents: dict[int, int]  # number of a source -> its documents
    counts: dict[str, int] = dataclasses.field(default_factory=dict)  # keys: COUNTED


@dataclasses.dataclass(frozen=True)
class ChunkFacts:
    """Hold lengths, hashes and signatures of D documents with L lines; no document is empty.

    Lines are separate only if duplicate lines are to be dropped; otherwise a document is one line.
    Arrays that CleaningOptions do not require have no columns.
    """

    line_lengths: np.ndarray  # int64 [L], sentences
    line_hashes: np.ndarray  # uint64 [L,2] or [L,0], of the text
    document_lengths: np.ndarray  # int64 [D], lines
    document_hashes: np.ndarray  # uint64 [D], of the text without case, white space and digits
    text_hashes: np.ndarray  # uint64 [D,2] or [D,0], of the unchanged text
    signatures: np.ndarray  # uint32 [D,SIGNATURE_SIZE] or [D,0]


@dataclasses.dataclass(frozen=True)
class EncodedChunk:
    """Hold a chunk as T tokens in S sentences."""

    token_ids: np.ndarray  # uint16 or uint32 [T]
    sentence_lengths: np.ndarray  # int64 [S], tokens
    facts: ChunkFacts
    counts: dict[str, int]  # keys: COUNTED
    source_documents: dict[int, int]  # TextChunk.source_documents
    lost_characters: dict[int, int]  # code point that the vocabulary lacks -> occurrences


def read_chunks(
    sources: Sequence[tuple[int, Source]],
    options: TextOptions,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[TextChunk]:
    """Read the documents of numbered sources, by read_documents, and group them into chunks.

    A chunk ends at CHUNK_CHARS or CHUNK_DOCUMENTS; the store does not depend on where chunks end.
    """
    documents: list[Document] = []
    source_documents: collections.Counter[int] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    chars = 0
    for number, document in read_sources(sources, options, advance, counts):
        documents.append(document)
        source_documents[number] += 1
        chars += sum(map(len, document))
        if chars >= CHUNK_CHARS or len(documents) >= CHUNK_DOCUMENTS:
            yield TextChunk(documents, dict(source_documents), dict(counts))
            documents, chars = [], 0
            source_documents.clear()
            counts.clear()
    if documents or counts:
        yield TextChunk(documents, dict(source_documents), dict(counts))


class ChunkEncoder:
    """Encode chunks; the result depends only on the chunk and the settings."""

    def __init__(
        self, vocabulary: Vocabulary, text: TextOptions, cleaning: CleaningOptions
    ) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._cleaning = cleaning
        self._lost = LostCharacters(vocabulary)
        self._signer = Signer() if cleaning.finds_near_duplicates else None

    def encode(self, chunk: TextChunk) -> EncodedChunk:
        counts = collections.Counter(chunk.counts)
        documents = clean_documents(chunk.documents, self._cleaning, counts)
        lines, lines_read = documents, [1] * len(documents)
        if self._cleaning.drop_duplicate_lines:
            lines = [[line] for document in documents for line in document]
            lines_read = list(map(len, documents))
        sentences: list[str] = []
        sentences_read = []
        for line in lines:
            line_sentences = split_sentences(line, self._text)
            sentences += line_sentences
            sentences_read.append(len(line_sentences))
        token_ids, sentence_lengths = self._vocabulary.encode_documents(
            sentences, sum_runs(np.array(sentences_read, np.int64), lines_read).tolist()
        )
        has_tokens = sentence_lengths > 0
        line_lengths = sum_runs(has_tokens, sentences_read)
        document_lengths = sum_runs(line_lengths > 0, lines_read)
        kept_documents = [documents[i] for i in np.flatnonzero(document_lengths)]
        kept_lines = [lines[i] for i in np.flatnonzero(line_lengths)]
        counts[Dropped.SENTENCES_WITHOUT_TOKENS] += int(np.count_nonzero(~has_tokens))
        counts[Dropped.DOCUMENTS_WITHOUT_SENTENCES] += len(documents) - len(kept_documents)
        lost_characters = self._count_lost(sentences, token_ids, sentence_lengths, counts)
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
            lost_characters=lost_characters,
        )

    def _count_lost(
        self,
        sentences: list[str],
        token_ids: np.ndarray,
        sentence_lengths: np.ndarray,
        counts: collections.Counter[str],
    ) -> dict[int, int]:
        """Count the characters that the vocabulary lacks, and add long words to `counts`."""
        is_unknown = token_ids == self._vocabulary.special_ids["unk"]
        has_unknown = sum_runs(is_unknown, sentence_lengths) > 0
        unknown = [sentences[i] for i in np.flatnonzero(has_unknown)]
        joined = "".join(sentences)
        counts[Counted.HTML_MARKS] += sum(map(joined.count, _HTML_MARKS))
        counts[Counted.CHARACTERS] += len(joined) - joined.count(" ")
        counts[Counted.LONG_WORD_CHARACTERS] += self._lost.count_long_words(unknown)
        return self._lost.count(unknown)

    def _facts(
        self,
        documents: list[Document],
        lines: list[Document],
        document_lengths: np.ndarray,
        line_lengths: np.ndarray,
    ) -> ChunkFacts:
        texts = list(map(fold_text, documents))
        cleaning = self._cleaning
        return ChunkFacts(
            line_lengths=line_lengths,
            line_hashes=hash_texts(lines, wanted=cleaning.drop_duplicate_lines),
            document_lengths=document_lengths,
            document_hashes=np.fromiter(map(hash_document, texts), np.uint64, len(texts)),
            text_hashes=hash_texts(documents, wanted=cleaning.drop_duplicate_documents),
            signatures=(
                self._signer.sign(texts) if self._signer else np.zeros((len(texts), 0), np.uint32)
            ),
        )


def sum_runs(counts_N: np.ndarray, lengths_R: np.ndarray | list[int]) -> np.ndarray:
    """Sum consecutive runs of the given lengths; an empty run has sum 0: int64[R]."""
    lengths_R = np.asarray(lengths_R, np.int64)  # an empty list would be floats
    ends_R = np.cumsum(lengths_R)
    totals = np.concatenate([[0], np.cumsum(counts_N, dtype=np.int64)])
    return totals[ends_R] - totals[ends_R - lengths_R]


_CHUNKS_IN_FLIGHT = 3  # chunks per worker; bounds the memory while one chunk takes long


def encode_corpus(
    chunks: Iterable[TextChunk],
    vocabulary: Vocabulary,
    text: TextOptions,
    cleaning: CleaningOptions,
    workers: int,
) -> Generator[EncodedChunk, None, None]:
    """Yield the chunks encoded, in the order of the input whatever the number of processes is.

    Raises:
      Refused: the stream of chunks raised it, or a process was killed or could not start.
    """
    if workers == 1:
        yield from map(ChunkEncoder(vocabulary, text, cleaning).encode, chunks)
        return
    is_cut = text.documents == "blank_line"
    advice = "" if is_cut else ", or cut very large documents with --documents=blank_line"
    arguments = (vocabulary.path, vocabulary.recorded_rules, text, cleaning)
    with open_workers(workers, _make_encoder, arguments, advice) as pool:
        waiting: collections.deque[Future[EncodedChunk]] = collections.deque()
        for chunk in chunks:
            waiting.append(pool.submit(run_task, ChunkEncoder.encode, chunk))
            if len(waiting) == workers * _CHUNKS_IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _make_encoder(
    vocab_path: pathlib.Path, rules: Mapping[str, Any], text: TextOptions, cleaning: CleaningOptions
) -> ChunkEncoder:
    """Make the encoder of a worker process, whose vocabulary keeps a cache of words."""
    # Nothing in a worker makes cycles, and each collection would visit the lists of a whole chunk.
    gc.disable()
    return ChunkEncoder(load_recorded(vocab_path, rules), text, cleaning)
