"""Documents to token ids, chunks of about 1M characters, in any number of processes."""

import collections
import dataclasses
import gc
import multiprocessing
import pathlib
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from data_pipeline.folding import document_hash, folded
from data_pipeline.sentences import sentences_of
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import Vocabulary, load_vocabulary

CHUNK_CHARS = 1 << 20  # text that goes to a worker in one piece; a larger document is one chunk
_CHUNKS_IN_FLIGHT = 3  # a worker; bounds what waits in memory when one chunk takes long

Document = list[str]  # paragraphs or lines, as data_pipeline.text yields them


@dataclasses.dataclass(frozen=True)
class EncodedChunk:
    """Some documents as ids, T tokens in S sentences in D documents, none of them empty."""

    token_ids: np.ndarray  # uint16 or uint32 [T]
    sentence_lengths: np.ndarray  # int64 [S], tokens
    document_lengths: np.ndarray  # int64 [D], sentences
    document_hashes: np.ndarray  # uint64 [D]
    empty_sentences: int  # dropped: no token is left of them
    empty_documents: int  # dropped: no sentence is left of them


def encode_documents(
    documents: list[Document], vocabulary: Vocabulary, options: TextOptions
) -> EncodedChunk:
    """Split documents into sentences and encode them; a pure function of its arguments."""
    sentences: list[str] = []
    sentences_read = []
    for paragraphs in documents:
        found = sentences_of(paragraphs, options)
        sentences += found
        sentences_read.append(len(found))
    token_ids, lengths = vocabulary.encode(sentences)
    document_of_sentence = np.repeat(np.arange(len(documents)), sentences_read)
    document_lengths = np.bincount(document_of_sentence[lengths > 0], minlength=len(documents))
    kept = np.flatnonzero(document_lengths)
    return EncodedChunk(
        token_ids=token_ids,
        sentence_lengths=lengths[lengths > 0],
        document_lengths=document_lengths[kept],
        document_hashes=np.array([document_hash(folded(documents[i])) for i in kept], np.uint64),
        empty_sentences=int(np.count_nonzero(lengths == 0)),
        empty_documents=len(documents) - len(kept),
    )


def encode_corpus(
    documents: Iterable[Document],
    vocabulary: Vocabulary,
    options: TextOptions,
    workers: int,
) -> Iterator[EncodedChunk]:
    """Yield the corpus encoded, in the order of the input whatever the number of processes is.

    Raises:
      ValueError: whatever the stream of documents raises; a process that was killed.
    """
    chunks = chunked(documents)
    if workers == 1:
        for chunk in chunks:
            yield encode_documents(chunk, vocabulary, options)
        return
    with ProcessPoolExecutor(
        workers,
        # A fork would copy the threads' locks of the tokeniser and the progress bar half-way.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(vocabulary.path, vocabulary.lowercase, options),
    ) as pool:
        try:
            yield from _in_order(pool.submit, chunks, workers * _CHUNKS_IN_FLIGHT)
        except BrokenProcessPool as error:
            raise ValueError(
                f"one of the {workers} processes was killed, most likely for want of memory; use "
                "fewer with --workers=N, or cut very large documents with --documents=blank_line"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def chunked(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents until they hold CHUNK_CHARS; the cut depends on nothing but the text."""
    chunk: list[Document] = []
    chars = 0
    for document in documents:
        chunk.append(document)
        chars += sum(map(len, document))
        if chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


def _in_order(
    submit: Callable[..., Future[EncodedChunk]], chunks: Iterable[list[Document]], in_flight: int
) -> Iterator[EncodedChunk]:
    waiting: collections.deque[Future[EncodedChunk]] = collections.deque()
    for chunk in chunks:
        waiting.append(submit(_encode_in_worker, chunk))
        if len(waiting) == in_flight:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


# What a worker process keeps between chunks: a vocabulary is loaded once a process, and its cache
# of encoded words is worth keeping.
_worker: dict[str, tuple[Vocabulary, TextOptions]] = {}


def _start_worker(vocab_path: pathlib.Path, lowercase: bool, options: TextOptions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # Nothing here makes cycles, and each collection would walk the lists of ids of a whole chunk.
    gc.disable()
    _worker["task"] = (load_vocabulary(vocab_path, lowercase), options)


def _encode_in_worker(documents: list[Document]) -> EncodedChunk:
    vocabulary, options = _worker["task"]
    return encode_documents(documents, vocabulary, options)
