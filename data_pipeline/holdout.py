"""The held-out split: which documents are in it, and the pass that parts them from the rest.

Documents wait in a spool on disk until all hashes are known, then go to their split in order.
"""

import pathlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from data_pipeline.encode_corpus import EncodedChunk
from data_pipeline.store_writing import SplitWriter

# Maps uint64 hashes of documents to bool: is it held out?
IsHeldout = Callable[[np.ndarray], np.ndarray]

# Documents that a split needs: a random second half of a pair comes from another one.
MIN_SPLIT_DOCUMENTS = 2

# Token ids, tokens a sentence, sentences a document and hashes of documents, as in EncodedChunk.
SpooledChunk = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Spool:
    """Encoded chunks on disk: `append` them all, then read `hashes` and `chunks`, in that order."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True)
        self._hash_path = directory / "document_hashes"
        self._chunk_path = directory / "chunks"
        self._hash_path.touch()
        self._chunk_path.touch()
        self._chunk_count = 0

    def append(self, chunk: EncodedChunk) -> None:
        with open(self._hash_path, "ab") as file:
            file.write(chunk.document_hashes.data)
        with open(self._chunk_path, "ab") as file:
            for array in (chunk.token_ids, chunk.sentence_lengths, chunk.document_lengths):
                np.save(file, array)
        self._chunk_count += 1

    def hashes(self) -> np.ndarray:
        """uint64[D], mapped from the disk."""
        if self._hash_path.stat().st_size == 0:
            return np.zeros(0, np.uint64)
        return np.memmap(self._hash_path, np.uint64, mode="r")

    @property
    def stored_bytes(self) -> int:
        return self._chunk_path.stat().st_size

    def chunks(
        self, advance: Callable[[int], None] = lambda stored_bytes: None
    ) -> Iterator[SpooledChunk]:
        """Yield what was appended; `advance` is told the bytes as they are read."""
        with open(self._hash_path, "rb") as hashes, open(self._chunk_path, "rb") as arrays:
            for _ in range(self._chunk_count):
                start = arrays.tell()
                token_ids, sentences, documents = (np.load(arrays) for _ in range(3))
                yield (
                    token_ids,
                    sentences,
                    documents,
                    np.fromfile(hashes, np.uint64, len(documents)),
                )
                advance(arrays.tell() - start)


def choose_heldout(hashes: np.ndarray, share: float) -> IsHeldout:
    """Decide which documents are held out, by their hashes alone.

    Copies stay together, and a document's side does not depend on what else is in the corpus: it is
    held out if its hash lies in the lowest `share` of all 64-bit numbers. Only where that takes
    more than half of the documents, or fewer than MIN_SPLIT_DOCUMENTS, the lowest hashes that fit
    are taken: MIN_SPLIT_DOCUMENTS where copies and a corpus of 4 or more allow it, else one.

    Raises:
      ValueError: no choice leaves at least one and at most half of the documents.
    """
    bound = np.uint64(min(int(share * 2**64), 2**64 - 1))
    most = len(hashes) // 2
    least = min(MIN_SPLIT_DOCUMENTS, max(most, 1))
    if least <= int(np.count_nonzero(hashes < bound)) <= most:
        return lambda document_hashes: document_hashes < bound
    groups, copies = np.unique(hashes, return_counts=True)
    if len(groups) < 2:
        raise ValueError(_impossible(len(hashes)))
    fits = np.flatnonzero(copies <= most)  # never empty: only one group can be larger
    wanted = fits[groups[fits] < bound]
    taken = wanted[np.cumsum(copies[wanted]) <= most]
    if copies[taken].sum() < least:
        taken = _lowest_with(least, fits, copies)
    chosen = groups[taken]
    return lambda document_hashes: np.isin(document_hashes, chosen)


def _lowest_with(least: int, fits: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """The lowest of the groups `fits` that together have `least` documents, 1 or 2; else one."""
    single = fits[copies[fits] == 1]
    if copies[fits[0]] < least <= len(single):
        return single[:least]
    enough = fits[copies[fits] >= least]
    return enough[:1] if len(enough) else fits[:1]


def _impossible(documents: int) -> str:
    if documents == 0:
        return "the input has no document with a token; give files with text"
    state = (
        "a single document" if documents == 1 else f"{documents} documents that all say the same"
    )
    return (
        f"the input has {state}, so none can be held out while another is trained on; "
        "add text, or cut it finer: --documents=blank_line makes a document of each block of lines"
    )


def write_splits(
    chunks: Iterable[SpooledChunk],
    is_heldout: IsHeldout,
    train: SplitWriter,
    heldout: SplitWriter,
) -> None:
    """Send each document of the spool to its split; the order within a split is the input's."""
    for token_ids, sentence_lengths, document_lengths, hashes in chunks:
        held_document = is_heldout(hashes)
        held_sentence = np.repeat(held_document, document_lengths)
        held_token = np.repeat(held_sentence, sentence_lengths)
        for writer, side in ((train, False), (heldout, True)):
            writer.append(
                token_ids[held_token == side],
                sentence_lengths[held_sentence == side],
                document_lengths[held_document == side],
            )
