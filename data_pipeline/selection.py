"""What of an encoded corpus goes into the store: duplicates are left out, each is counted.

First equal documents, then near duplicates among the others, then equal lines of the documents that
are left: the first one of each always stays.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from data_pipeline.cleaning import (
    DOCUMENTS_OF_DUPLICATE_LINES,
    DROP,
    DUPLICATE_DOCUMENTS,
    DUPLICATE_LINES,
    NEAR_DUPLICATE_DOCUMENTS,
    CleaningOptions,
)
from data_pipeline.duplicates import HashBuckets
from data_pipeline.encoded_chunk import ChunkFacts, sums_of_runs
from data_pipeline.near_duplicates import SIGNATURE_SIZE, find_clusters
from data_pipeline.spool import Spool

_FILLED_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which documents and lines of a spool stay, and what decides a document's side.

    The arrays are memory maps: their size on disk grows with the corpus, memory does not.
    """

    keeps_document: np.ndarray  # bool [D]
    keeps_line: np.ndarray  # bool [L]
    side_hashes: np.ndarray  # uint64 [D]; near duplicates that stay have that of the first one
    near_duplicates: dict[str, int]  # clusters of two and more, documents in them, given up


def select(spool: Spool, cleaning: CleaningOptions, dropped: dict[str, int]) -> Selection:
    """Find what is to be left out, and add how much it is to `dropped` under its reason."""
    work = spool.directory / "selection"
    work.mkdir()
    selection = Selection(
        keeps_document=_on_disk(work / "keeps_document", np.dtype(bool), spool.documents, True),
        keeps_line=_on_disk(work / "keeps_line", np.dtype(bool), spool.lines, True),
        side_hashes=_on_disk(work / "side_hashes", np.dtype(np.uint64), spool.documents, 0),
        near_duplicates={"clusters": 0, "documents": 0, "documents_given_up": 0},
    )
    for documents, _, facts in numbered(spool):
        selection.side_hashes[documents] = facts.document_hashes
    if cleaning.drop_duplicate_documents:
        dropped[DUPLICATE_DOCUMENTS] += _drop_repeated(
            _documents(spool), selection.keeps_document, work / "documents"
        )
    if cleaning.finds_near_duplicates:
        dropped[NEAR_DUPLICATE_DOCUMENTS] += _near_duplicates(spool, cleaning, selection, work)
    if cleaning.drop_duplicate_lines:
        dropped[DUPLICATE_LINES] += _drop_repeated(
            _lines_of_kept_documents(spool, selection), selection.keeps_line, work / "lines"
        )
        dropped[DOCUMENTS_OF_DUPLICATE_LINES] += drop_emptied_documents(spool, selection)
    return selection


def numbered(spool: Spool) -> Iterator[tuple[slice, slice, ChunkFacts]]:
    """Yield each chunk's facts with where its documents and its lines are among all."""
    document, line = 0, 0
    for facts in spool.facts():
        next_document = document + len(facts.document_lengths)
        next_line = line + len(facts.line_lengths)
        yield slice(document, next_document), slice(line, next_line), facts
        document, line = next_document, next_line


def _on_disk(path: pathlib.Path, dtype: np.dtype, size: int, value: int) -> np.ndarray:
    """An array in a file, filled with a value.

    It is written before it is mapped: a page of a map for which the disk has no room would end the
    process by a signal.
    """
    if size == 0:
        return np.zeros(0, dtype)
    with open(path, "wb") as file:
        for start in range(0, size, _FILLED_AT_ONCE):
            file.write(np.full(min(_FILLED_AT_ONCE, size - start), value, dtype).data)
    return np.memmap(path, dtype, mode="r+")


def _drop_repeated(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    keeps: np.ndarray,
    directory: pathlib.Path,
) -> int:
    """Clear `keeps` for all but the first of each hash; returns for how many."""
    buckets = HashBuckets(directory)
    for hashes, positions in blocks:
        buckets.append(hashes, positions)
    dropped = 0
    for positions, is_first in buckets.groups():
        keeps[positions[~is_first]] = False
        dropped += int(np.count_nonzero(~is_first))
    return dropped


def _documents(spool: Spool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield hashes and positions of documents."""
    for documents, _, facts in numbered(spool):
        yield facts.text_hashes, np.arange(documents.start, documents.stop)


def _near_duplicates(
    spool: Spool, cleaning: CleaningOptions, selection: Selection, work: pathlib.Path
) -> int:
    """Find clusters, and drop all but the first documents or give them the side of the first."""
    with open(work / "signatures", "wb") as file:
        for facts in spool.facts():
            file.write(facts.signatures.data)
    if spool.documents == 0:
        return 0
    signatures_DP = np.memmap(
        work / "signatures", np.uint32, mode="r", shape=(spool.documents, SIGNATURE_SIZE)
    )
    found = find_clusters(
        signatures_DP,
        selection.keeps_document,
        cleaning.near_duplicate_threshold,
        work / "bands",
    )
    first_D = found.first_D
    later = np.flatnonzero(first_D != np.arange(len(first_D)))
    clusters = len(np.unique(first_D[later]))
    selection.near_duplicates["clusters"] = clusters
    selection.near_duplicates["documents"] = clusters + len(later)
    selection.near_duplicates["documents_given_up"] = found.documents_given_up
    if cleaning.near_duplicates == DROP:
        selection.keeps_document[later] = False
        return len(later)
    selection.side_hashes[later] = selection.side_hashes[first_D[later]]
    return 0


def _lines_of_kept_documents(
    spool: Spool, selection: Selection
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield hashes and positions; the lines of the other documents are marked as left out."""
    for documents, lines, facts in numbered(spool):
        stays = np.repeat(selection.keeps_document[documents], facts.document_lengths)
        selection.keeps_line[lines] = stays
        yield facts.line_hashes[stays], lines.start + np.flatnonzero(stays)


def drop_emptied_documents(spool: Spool, selection: Selection) -> int:
    """Drop the documents of which no line is left; returns how many."""
    dropped = 0
    for documents, lines, facts in numbered(spool):
        has_lines = sums_of_runs(selection.keeps_line[lines], facts.document_lengths) > 0
        dropped += int(np.count_nonzero(selection.keeps_document[documents] & ~has_lines))
        selection.keeps_document[documents] &= has_lines
    return dropped
