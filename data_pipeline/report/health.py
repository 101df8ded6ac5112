"""Measure the health of a store: the numbers that python -m data_pipeline.inspect reports.

Counts, lengths and use of the vocabulary cover the whole store; so do copies, up to the limits in
report/repeats.py. Rows are a sample. Memory stays under 2 GB without the store's mapped pages.
"""

import dataclasses
from typing import Any

import numpy as np

from data_pipeline.corpus.selection import MIN_SPLIT_DOCUMENTS
from data_pipeline.report.lengths import Lengths, compute_differences, measure_lengths
from data_pipeline.report.progress import show_progress
from data_pipeline.report.repeats import HashSample, Repeats, find_sentences, hash_split
from data_pipeline.report.rows import SPECIAL_PIECES, RowHealth, ShownExample, measure_rows
from data_pipeline.store import HELDOUT, TRAIN, Split, Store
from data_pipeline.store.findings import count_stripped
from data_pipeline.vocab import Vocabulary

_MAX_PIECES, _MAX_NEVER, _MAX_REPEATED = 40, 40, 5
_SHOWN_TOKENS = 40  # printed tokens of a repeated sentence
_RANKS_PER_DECADE = 12


@dataclasses.dataclass(frozen=True)
class SplitHealth:
    """Hold the counts and lengths of a whole split."""

    documents: int
    sentences: int
    tokens: int
    unknown_tokens: int
    document_sentences: Lengths
    document_tokens: Lengths
    sentence_tokens: Lengths
    long_sentences: int  # sentences with more tokens than a sequence has for text
    cut_tokens: int  # what these have more


@dataclasses.dataclass(frozen=True)
class PieceHealth:
    """Hold how the vocabulary fits the text of both splits."""

    size: int
    used: int  # pieces that occur
    never_used: int  # not counting special pieces and BERT's [unused...], which need not occur
    words: int  # 0 if no piece shows where a word begins or ends
    tokens: int
    stripped: int  # tokens of scripts whose vowels the vocabulary strips as accents
    most_frequent: tuple[tuple[str, int], ...]
    examples_of_never: tuple[str, ...]  # spread from the first to the last id
    rank_counts: tuple[tuple[int, int], ...]  # (rank by frequency from 1, occurrences)

    @property
    def pieces_per_word(self) -> float:
        return self.tokens / max(1, self.words)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Hold a sentence that occurs more than once in the training split."""

    text: str
    count: int


@dataclasses.dataclass(frozen=True)
class Copies:
    """Hold the exact copies within each split and across the splits."""

    documents: dict[str, Repeats]  # keys: splits; documents with an equal one before them
    sentences: dict[str, Repeats]
    leaked_documents: Repeats  # held-out documents that are in the training split, too
    leaked_sentences: Repeats
    repeated: tuple[Repeated, ...]  # most frequent first


@dataclasses.dataclass(frozen=True)
class Health:
    """Hold everything that the report shows."""

    store: str
    manifest: dict[str, Any]
    seq_len: int
    splits: dict[str, SplitHealth]
    pieces: PieceHealth
    copies: Copies
    rows: RowHealth | None  # None where a split is too small to draw pairs from
    examples: tuple[ShownExample, ...]

    @property
    def text_tokens(self) -> int:
        """Return how many tokens of a sequence are left for text."""
        return self.seq_len - SPECIAL_PIECES


def measure(store: Store, seq_len: int, examples: int) -> Health:
    """Read a store of documents from end to end and measure it.

    Rows have seq_len tokens; `examples` of them are shown as text.

    Raises:
      Refused: an empty split, a damaged store, or a sequence length that no pair fits into.
    """
    vocabulary = store.load_vocabulary()
    both = (store.train, store.heldout)
    rows: RowHealth | None = None
    shown_examples: tuple[ShownExample, ...] = ()
    if min(split.documents for split in both) >= MIN_SPLIT_DOCUMENTS:
        with show_progress(f"drawing rows of {seq_len} tokens"):
            rows, shown_examples = measure_rows(store, vocabulary, seq_len, examples)
    return Health(
        store=str(store.directory),
        manifest=store.manifest,
        seq_len=seq_len,
        splits={
            split.name: _measure_split(split, store.special_ids["unk"], seq_len) for split in both
        },
        pieces=_measure_pieces(vocabulary, store.train.token_counts + store.heldout.token_counts),
        copies=_measure_copies(store, vocabulary),
        rows=rows,
        examples=shown_examples,
    )


def _measure_split(split: Split, unknown_id: int, seq_len: int) -> SplitHealth:
    tokens = compute_differences(split.document_offsets, split.sentence_offsets)
    room = seq_len - SPECIAL_PIECES
    long_sentences = cut_tokens = 0
    for chunk in compute_differences(split.sentence_offsets):
        long_sentences += int(np.count_nonzero(chunk > room))
        cut_tokens += int(np.maximum(chunk - room, 0).sum())
    return SplitHealth(
        documents=split.documents,
        sentences=split.sentences,
        tokens=split.tokens,
        unknown_tokens=int(split.token_counts[unknown_id]),
        document_sentences=measure_lengths(compute_differences(split.document_offsets)),
        document_tokens=measure_lengths(tokens),
        sentence_tokens=measure_lengths(compute_differences(split.sentence_offsets)),
        long_sentences=long_sentences,
        cut_tokens=cut_tokens,
    )


def _measure_pieces(vocabulary: Vocabulary, counts_V: np.ndarray) -> PieceHealth:
    pieces = vocabulary.readable_pieces()
    is_placeholder_V = np.array([piece.startswith("[unused") for piece in pieces])
    is_placeholder_V[list(vocabulary.special_ids.values())] = True
    by_count = np.argsort(-counts_V, kind="stable")
    used = int(np.count_nonzero(counts_V))
    count = 1 + int(_RANKS_PER_DECADE * np.log10(max(used, 1)))
    ranks = np.unique(np.geomspace(1, max(used, 1), count).astype(int))
    never = np.flatnonzero((counts_V == 0) & ~is_placeholder_V)
    # Evenly from the first to the last.
    spread = np.linspace(0, len(never) - 1, min(len(never), _MAX_NEVER)).astype(int)
    return PieceHealth(
        size=len(pieces),
        used=used,
        never_used=len(never),
        words=vocabulary.count_words(counts_V),
        tokens=int(counts_V.sum()),
        stripped=count_stripped(vocabulary, counts_V),
        most_frequent=tuple((pieces[i], int(counts_V[i])) for i in by_count[:_MAX_PIECES]),
        examples_of_never=tuple(pieces[i] for i in never[spread]),
        rank_counts=tuple((int(rank), int(counts_V[by_count[rank - 1]])) for rank in ranks),
    )


def _measure_copies(store: Store, vocabulary: Vocabulary) -> Copies:
    documents, sentences = {}, {}
    for split in (store.train, store.heldout):
        with show_progress(f"hashing {split.sentences:,} sentences", split.tokens) as advance:
            sentences[split.name], documents[split.name] = hash_split(split, advance)
    with show_progress("looking for copies"):
        return Copies(
            documents={name: hashes.repeats() for name, hashes in documents.items()},
            sentences={name: hashes.repeats() for name, hashes in sentences.items()},
            leaked_documents=documents[HELDOUT].count_repeats_in(documents[TRAIN]),
            leaked_sentences=sentences[HELDOUT].count_repeats_in(sentences[TRAIN]),
            repeated=_most_repeated(store.train, sentences[TRAIN], vocabulary),
        )


def _most_repeated(
    split: Split, sentences: HashSample, vocabulary: Vocabulary
) -> tuple[Repeated, ...]:
    counts = sentences.find_most_repeated(_MAX_REPEATED)
    numbers = find_sentences(split, {sentence_hash for sentence_hash, _ in counts})
    repeated = []
    for sentence_hash, count in counts:
        number = numbers[sentence_hash]
        start, stop = split.sentence_offsets[number : number + 2].tolist()
        ids = split.token_ids[start : min(stop, start + _SHOWN_TOKENS)].tolist()
        text = vocabulary.decode(ids) + (" ..." if stop - start > _SHOWN_TOKENS else "")
        repeated.append(Repeated(text, count))
    return tuple(repeated)
