"""The held-out split: which documents are in it, and the pass that parts them from the rest."""

from collections.abc import Callable

import numpy as np

from data_pipeline.encoded_chunk import sums_of_runs
from data_pipeline.selection import Selection, numbered
from data_pipeline.spool import Spool
from data_pipeline.store_writing import SplitWriter

# How to have more documents, by the rule that cut them.
_CUT_FINER = {
    "blank_line": "add text, or put blank lines between the documents of plain text",
    **dict.fromkeys(
        ("file", "gutenberg", "chapters"),
        "add text, or cut it finer: --documents=blank_line makes a document of each block of lines",
    ),
}

# Maps uint64 hashes of documents to bool: is it held out?
IsHeldout = Callable[[np.ndarray], np.ndarray]

# Documents that a split needs: a random second half of a pair comes from another one.
MIN_SPLIT_DOCUMENTS = 2


def choose_heldout(hashes: np.ndarray, share: float, documents: str = "") -> IsHeldout:
    """Decide which documents are held out, by their hashes alone.

    Copies stay together, and a document's side does not depend on what else is in the corpus: it is
    held out if its hash lies in the lowest `share` of all 64-bit numbers. Only where that takes
    more than half of the documents, or fewer than MIN_SPLIT_DOCUMENTS, the lowest hashes that fit
    are taken: MIN_SPLIT_DOCUMENTS where copies and a corpus of 4 or more allow it, else one. Those
    may be others when the corpus grows. Near duplicates come with the hash of their cluster's first
    document, which changes where a new document joins two clusters. `documents` is the rule that
    cut them, for the error.

    Memory: 9 bytes a document with the hashes.

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
        raise ValueError(impossible(len(hashes), documents))
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


def impossible(count: int, documents: str) -> str:
    """The sentence on too few different documents; `documents` is the rule that cut them."""
    if count == 0:
        return (
            "the input has no document with a token, or cleaning left none; give files with text, "
            "or clean less, as without --min_document_chars"
        )
    state = (
        "a single document"
        if count == 1
        else f"{count} documents that all say the same but for case, white space and digits"
    )
    return (
        f"the input has {state}, so none can be held out while another is trained on; "
        f"{_CUT_FINER.get(documents, 'add text')}"
    )


def write_splits(
    spool: Spool,
    selection: Selection,
    is_heldout: IsHeldout,
    train: SplitWriter,
    heldout: SplitWriter,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> None:
    """Send what stays of each document of the spool to its split, in the order of the input."""
    for (documents, lines, facts), (token_ids, sentence_lengths) in zip(
        numbered(spool), spool.tokens(advance), strict=True
    ):
        is_held = is_heldout(selection.side_hashes[documents])
        for writer, side in ((train, False), (heldout, True)):
            goes_here = selection.keeps_document[documents] & (is_held == side)
            line_goes = selection.keeps_line[lines] & np.repeat(goes_here, facts.document_lengths)
            sentence_goes = np.repeat(line_goes, facts.line_lengths)
            document_sentences = sums_of_runs(
                facts.line_lengths * line_goes, facts.document_lengths
            )
            writer.append(
                token_ids[np.repeat(sentence_goes, sentence_lengths)],
                sentence_lengths[sentence_goes],
                document_sentences[goes_here],
            )
