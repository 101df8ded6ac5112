"""Select the documents and lines of an encoded corpus to keep, and the split of each document.

Drops equal documents, then near duplicates, then equal lines, keeping the first of each; counts the
documents and lines that each rule drops; and divides the rest into two splits.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from data_pipeline.corpus.dedup import HashBuckets
from data_pipeline.corpus.encode import sum_runs
from data_pipeline.corpus.near_duplicates import SIGNATURE_SIZE, find_clusters
from data_pipeline.corpus.spool import Spool
from data_pipeline.io import Refused
from data_pipeline.read.cleaning import DROP, CleaningOptions, Dropped
from data_pipeline.store.writer import SplitWriter

_FILLED_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Selection:
    """Hold the documents and lines of a spool to keep, and the hashes that decide their split.

    The arrays are memory maps: they take disk space in proportion to the corpus, but no memory.
    """

    keeps_document: np.ndarray  # bool [D]
    keeps_line: np.ndarray  # bool [L]
    side_hashes: np.ndarray  # uint64 [D]; near duplicates that are kept share the hash of the first
    near_duplicates: dict[str, int]  # clusters of two and more, documents in them, given up


def select(spool: Spool, cleaning: CleaningOptions) -> Selection:
    """Choose the documents and lines to keep; count in the spool what is dropped."""
    work = spool.directory / "selection"
    work.mkdir()
    selection = Selection(
        keeps_document=_make_array(work / "keeps_document", bool, spool.documents, True),
        keeps_line=_make_array(work / "keeps_line", bool, spool.lines, True),
        side_hashes=_make_array(work / "side_hashes", np.uint64, spool.documents, 0),
        near_duplicates={"clusters": 0, "documents": 0, "documents_given_up": 0},
    )
    for documents, _, facts in spool.facts():
        selection.side_hashes[documents] = facts.document_hashes
    if cleaning.drop_duplicate_documents:
        hashes = (
            (facts.text_hashes, np.arange(documents.start, documents.stop))
            for documents, _, facts in spool.facts()
        )
        spool.counts[Dropped.DUPLICATE_DOCUMENTS] += _drop_repeated(
            hashes, selection.keeps_document, work / "documents"
        )
    if cleaning.finds_near_duplicates:
        spool.counts[Dropped.NEAR_DUPLICATE_DOCUMENTS] += _apply_near_duplicates(
            spool, cleaning, selection, work
        )
    if cleaning.drop_duplicate_lines:
        spool.counts[Dropped.DUPLICATE_LINES] += _drop_repeated(
            _hash_kept_lines(spool, selection), selection.keeps_line, work / "lines"
        )
        spool.counts[Dropped.DOCUMENTS_OF_DUPLICATE_LINES] += drop_emptied_documents(
            spool, selection
        )
    return selection


def _make_array(path: pathlib.Path, dtype: type, size: int, value: int) -> np.ndarray:
    """Create a file filled with a value, and map it as an array.

    The file is written before it is mapped: writing to a mapped page on a full disk would kill the
    process.
    """
    if size == 0:
        return np.zeros(0, dtype)
    with open(path, "wb") as file:
        for start in range(0, size, _FILLED_AT_ONCE):
            file.write(np.full(min(_FILLED_AT_ONCE, size - start), value, dtype).data)
    return np.memmap(path, dtype, mode="r+")


def _drop_repeated(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], keeps: np.ndarray, directory: pathlib.Path
) -> int:
    """Set `keeps` to False for all but the first of each hash; return the number of changes."""
    buckets = HashBuckets(directory)
    for hashes, positions in blocks:
        buckets.append(hashes, positions)
    dropped = 0
    for positions, is_first in buckets.groups():
        keeps[positions[~is_first]] = False
        dropped += int(np.count_nonzero(~is_first))
    return dropped


def _apply_near_duplicates(
    spool: Spool, cleaning: CleaningOptions, selection: Selection, work: pathlib.Path
) -> int:
    """Drop all but the first document of each cluster, or put the cluster into one split."""
    with open(work / "signatures", "wb") as file:
        for _, _, facts in spool.facts():
            file.write(facts.signatures.data)
    if spool.documents == 0:
        return 0
    signatures_DP = np.memmap(
        work / "signatures", np.uint32, mode="r", shape=(spool.documents, SIGNATURE_SIZE)
    )
    first_D, given_up = find_clusters(
        signatures_DP, selection.keeps_document, cleaning.near_duplicate_threshold, work / "bands"
    )
    later = np.flatnonzero(first_D != np.arange(len(first_D)))
    clusters = len(np.unique(first_D[later]))
    selection.near_duplicates.update(
        clusters=clusters, documents=clusters + len(later), documents_given_up=given_up
    )
    if cleaning.near_duplicates == DROP:
        selection.keeps_document[later] = False
        return len(later)
    selection.side_hashes[later] = selection.side_hashes[first_D[later]]
    return 0


def _hash_kept_lines(spool: Spool, selection: Selection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield hashes and positions of lines of kept documents; mark all other lines as dropped."""
    for documents, lines, facts in spool.facts():
        is_kept = np.repeat(selection.keeps_document[documents], facts.document_lengths)
        selection.keeps_line[lines] = is_kept
        yield facts.line_hashes[is_kept], lines.start + np.flatnonzero(is_kept)


def drop_emptied_documents(spool: Spool, selection: Selection) -> int:
    """Drop the documents that have no line left; return their number."""
    dropped = 0
    for documents, lines, facts in spool.facts():
        has_lines = sum_runs(selection.keeps_line[lines], facts.document_lengths) > 0
        dropped += int(np.count_nonzero(selection.keeps_document[documents] & ~has_lines))
        selection.keeps_document[documents] &= has_lines
    return dropped


# Map the uint64 hashes of documents to whether each is held out.
IsHeldout = Callable[[np.ndarray], np.ndarray]

# Documents that a split needs: a random second half of a pair comes from another one.
MIN_SPLIT_DOCUMENTS = 2


def choose_heldout(hashes: np.ndarray, share: float, documents: str = "") -> IsHeldout:
    """Choose the documents to hold out by their hashes alone.

    Copies stay together, and a document's split does not depend on the rest of the corpus: it is
    held out if its hash is in the lowest `share` of all 64-bit numbers. If that takes more than
    half of the documents, or fewer than MIN_SPLIT_DOCUMENTS, the lowest hashes that fit are taken
    instead: MIN_SPLIT_DOCUMENTS if copies and a corpus of 4 or more allow it, else one. These may
    change when the corpus grows. Near duplicates have the hash of their cluster's first document,
    which changes if a new document joins two clusters. `documents` is the rule that separated
    them (--documents), for the error.

    Memory: 9 bytes per document with the hashes.

    Raises:
      Refused: no choice leaves at least one and at most half of the documents.
    """
    bound = np.uint64(min(int(share * 2**64), 2**64 - 1))
    most = len(hashes) // 2
    least = min(MIN_SPLIT_DOCUMENTS, max(most, 1))
    if least <= int(np.count_nonzero(hashes < bound)) <= most:
        return lambda document_hashes: document_hashes < bound
    groups, copies = np.unique(hashes, return_counts=True)
    if len(groups) < 2:
        raise Refused(describe_too_few(len(hashes), documents))
    fits = np.flatnonzero(copies <= most)  # never empty: only one group can be larger
    wanted = fits[groups[fits] < bound]
    taken = wanted[np.cumsum(copies[wanted]) <= most]
    if copies[taken].sum() < least:
        taken = _take_lowest(least, fits, copies)
    chosen = groups[taken]
    return lambda document_hashes: np.isin(document_hashes, chosen)


def _take_lowest(least: int, fits: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """Return the lowest hash groups of `fits` with `least` (1 or 2) documents, or one group."""
    single = fits[copies[fits] == 1]
    if copies[fits[0]] < least <= len(single):
        return single[:least]
    enough = fits[copies[fits] >= least]
    return enough[:1] if len(enough) else fits[:1]


def describe_too_few(count: int, documents: str) -> str:
    """Describe too few different documents; `documents` is the rule that separated them."""
    if count == 0:
        return (
            "the input has no document with a token, or cleaning left none; give files with text, "
            "or clean less, as without --min_document_chars"
        )
    state = "a single document"
    if count > 1:
        state = f"{count} documents, equal or nearly so but for case, white space and digits"
    fix = "add text or clean less"
    if documents == "blank_line":
        fix += (
            ", or, in plain text, put a blank line between documents or say what a document is: "
            "--documents=line makes one of each line, --documents=file one of each file"
        )
    elif documents not in ("", "line"):
        fix += ", or cut it finer: --documents=blank_line makes a document of each block of lines"
    return f"the input, as cleaned, has {state}: too few to hold one out; {fix}"


def write_splits(
    spool: Spool,
    selection: Selection,
    is_heldout: IsHeldout,
    train: SplitWriter,
    heldout: SplitWriter,
    advance: Callable[[int], None],
) -> None:
    """Write the kept lines of each kept document to its split, in the order of the input."""
    for (documents, lines, facts), (token_ids, sentence_lengths) in zip(
        spool.facts(), spool.tokens(advance), strict=True
    ):
        is_in_heldout = is_heldout(selection.side_hashes[documents])
        for writer, side in ((train, False), (heldout, True)):
            is_here_D = selection.keeps_document[documents] & (is_in_heldout == side)
            is_here_L = selection.keeps_line[lines] & np.repeat(is_here_D, facts.document_lengths)
            is_here_S = np.repeat(is_here_L, facts.line_lengths)
            document_sentences = sum_runs(facts.line_lengths * is_here_L, facts.document_lengths)
            writer.append(
                token_ids[np.repeat(is_here_S, sentence_lengths)],
                sentence_lengths[is_here_S],
                document_sentences[is_here_D],
            )
