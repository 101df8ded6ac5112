"""Encodes a corpus on this machine, in any number of processes."""

import collections
import gc
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from data_pipeline.cleaning import CleaningOptions
from data_pipeline.encoded_chunk import ChunkEncoder, EncodedChunk, TextChunk
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import Vocabulary, load_vocabulary

_CHUNKS_IN_FLIGHT = 3  # a worker; bounds what waits in memory when one chunk takes long


def encode_corpus(
    chunks: Iterable[TextChunk],
    vocabulary: Vocabulary,
    text: TextOptions,
    cleaning: CleaningOptions,
    workers: int,
) -> Generator[EncodedChunk, None, None]:
    """Yield the chunks encoded, in the order of the input whatever the number of processes is.

    Raises:
      ValueError: whatever the stream of chunks raises; a process that was killed, or that
        could not start.
    """
    if workers == 1:
        yield from map(ChunkEncoder(vocabulary, text, cleaning).encode, chunks)
        return
    with ProcessPoolExecutor(
        workers,
        # A fork would copy the threads' locks of the tokeniser and the progress bar half-way.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(vocabulary.path, vocabulary.lowercase, text, cleaning),
    ) as pool:
        try:
            yield from _in_order(pool.submit, chunks, workers * _CHUNKS_IN_FLIGHT)
        except BrokenProcessPool as error:
            smaller = ", or cut very large documents with --documents=blank_line"
            smaller = "" if text.documents == "blank_line" else smaller
            raise ValueError(
                f"one of the {workers} processes was killed, most likely for want of memory; use "
                f"fewer with --workers=N{smaller}"
            ) from error
        finally:
            # Waits for the chunks at work: a pool left alone would write to a pipe that is gone.
            pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    submit: Callable[..., Future[EncodedChunk]], chunks: Iterable[TextChunk], in_flight: int
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
_worker: dict[str, ChunkEncoder] = {}
_start_errors: list[Exception] = []  # why there is none; a process that raised would just be gone


def _start_worker(
    vocab_path: pathlib.Path, lowercase: bool, text: TextOptions, cleaning: CleaningOptions
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Nothing here makes cycles, and each collection would walk the lists of a whole chunk.
    gc.disable()
    try:
        vocabulary = load_vocabulary(vocab_path, lowercase, checks_case=False)
        _worker["encoder"] = ChunkEncoder(vocabulary, text, cleaning)
    except (ValueError, OSError, ImportError) as error:
        _start_errors.append(error)


def _end_with_parent() -> None:
    """End this process when the build is killed: it would wait for a chunk for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _encode_in_worker(chunk: TextChunk) -> EncodedChunk:
    if _start_errors:
        raise ValueError(
            f"a process of the build could not start: {_start_errors[0]}; build again, or without "
            "other processes, with --workers=1"
        ) from _start_errors[0]
    return _worker["encoder"].encode(chunk)
