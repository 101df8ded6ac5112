"""The health of a store in numbers: what python -m data_pipeline.inspect shows.

Counts, lengths and pieces are of the whole store. Copies are too, up to the bounds that
repeats.py names; rows are a sample. Memory stays under 2 GB beside the store's mapped pages.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from data_pipeline import small_files
from data_pipeline.holdout import MIN_SPLIT_DOCUMENTS
from data_pipeline.lengths import Lengths, differences, document_tokens, lengths_of
from data_pipeline.repeats import HashSample, Repeats, find_sentences, hash_split
from data_pipeline.row_health import SPECIAL_PIECES, Example, RowHealth, measure_rows
from data_pipeline.store import HELDOUT, MANIFEST, TRAIN, Split, Store
from data_pipeline.vocab import Vocabulary, load_vocabulary

# What takes time says so: step("label", total) gives a function that is told what was done of it.
Step = Callable[[str, int | None], contextlib.AbstractContextManager[Callable[[int], None]]]

_MOST_PIECES, _MOST_NEVER, _MOST_REPEATED = 40, 40, 5
_SHOWN_TOKENS = 40  # of a sentence that repeats
_RANKS_A_DECADE = 12


@dataclasses.dataclass(frozen=True)
class SplitHealth:
    """One split, counted in full."""

    documents: int
    sentences: int
    tokens: int
    unknown_tokens: int
    document_sentences: Lengths
    document_tokens: Lengths
    sentence_tokens: Lengths
    long_sentences: int  # of more tokens than the text of a sequence


@dataclasses.dataclass(frozen=True)
class PieceHealth:
    """How the vocabulary fits the text of both splits."""

    size: int
    used: int
    never_used: int  # special pieces and BERT's [unused...] left out, which need not occur
    words: int  # pieces that do not go on with the one before
    tokens: int
    most_frequent: tuple[tuple[str, int], ...]
    examples_of_never: tuple[str, ...]  # from the first to the last id
    rank_counts: tuple[tuple[int, int], ...]  # rank by frequency from 1, and how often it occurs

    @property
    def pieces_per_word(self) -> float:
        return self.tokens / max(1, self.words)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A sentence that occurs again and again in the training split."""

    text: str
    count: int


@dataclasses.dataclass(frozen=True)
class Copies:
    """Exact copies within the splits and across them."""

    documents: dict[str, Repeats]  # by split: have an equal before them in it
    sentences: dict[str, Repeats]
    leaked_documents: Repeats  # held-out ones that also stand in the training split
    leaked_sentences: Repeats
    repeated: tuple[Repeated, ...]  # most often first


@dataclasses.dataclass(frozen=True)
class Health:
    """All that the report shows."""

    store: str
    manifest: dict[str, Any]
    seq_len: int
    splits: dict[str, SplitHealth]
    pieces: PieceHealth
    copies: Copies
    rows: RowHealth | None  # None where a split is too small to draw pairs from
    examples: tuple[Example, ...]

    @property
    def text_tokens(self) -> int:
        """Most tokens of text in a sequence."""
        return self.seq_len - SPECIAL_PIECES


def measure(store: Store, seq_len: int, examples: int, step: Step) -> Health:
    """Read a store from end to end and count.

    Raises:
      ValueError: an empty split, a damaged store, or a sequence length that no pair fits into.
    """
    _check_manifest(store)
    of_build = store.manifest["vocabulary"]
    vocabulary = load_vocabulary(store.vocab_path, of_build["lowercase"], checks_case=False)
    both = (store.train, store.heldout)
    rows: RowHealth | None = None
    written: tuple[Example, ...] = ()
    if min(split.documents for split in both) >= MIN_SPLIT_DOCUMENTS:
        with step(f"drawing rows of {seq_len} tokens", None):
            rows, written = measure_rows(store, vocabulary, seq_len, examples)
    return Health(
        store=str(store.directory),
        manifest=store.manifest,
        seq_len=seq_len,
        splits={
            split.name: _measure_split(split, store.special_ids["unk"], seq_len) for split in both
        },
        pieces=_measure_pieces(vocabulary, store.train.token_counts + store.heldout.token_counts),
        copies=_measure_copies(store, vocabulary, step),
        rows=rows,
        examples=written,
    )


def _check_manifest(store: Store) -> None:
    """Raise if the manifest lacks what the report says.

    Raises:
      ValueError: names the key.
    """
    name, manifest = f"{store.directory / MANIFEST}", store.manifest
    small_files.field(manifest, "sources", list, name)
    small_files.field(manifest, "unknown_token_share", float, name)
    dropped = small_files.field(manifest, "dropped", dict, name)
    small_files.field(dropped, "documents_without_sentences", int, f"{name}: 'dropped'")
    for split in store.manifest["splits"].values():
        for key in ("one_sentence_documents", "longest_sentence_tokens", "unknown_tokens"):
            small_files.field(split, key, int, f"{name}: 'splits'")
    share = small_files.field(manifest, "holdout", float, name)
    if not 0 < share < 1:
        raise ValueError(f"{name}: 'holdout' is {share}, not a share; copy the store again")


def _measure_split(split: Split, unknown_id: int, seq_len: int) -> SplitHealth:
    return SplitHealth(
        documents=split.documents,
        sentences=split.sentences,
        tokens=split.tokens,
        unknown_tokens=int(split.token_counts[unknown_id]),
        document_sentences=lengths_of(differences(split.document_offsets)),
        document_tokens=lengths_of(document_tokens(split.document_offsets, split.sentence_offsets)),
        sentence_tokens=lengths_of(differences(split.sentence_offsets)),
        long_sentences=sum(
            int(np.count_nonzero(chunk > seq_len - SPECIAL_PIECES))
            for chunk in differences(split.sentence_offsets)
        ),
    )


def _measure_pieces(vocabulary: Vocabulary, counts_V: np.ndarray) -> PieceHealth:
    pieces = vocabulary.pieces()
    is_placeholder_V = np.array([piece.startswith("[unused") for piece in pieces])
    is_placeholder_V[list(vocabulary.special_ids.values())] = True
    by_count = np.argsort(-counts_V, kind="stable")
    used = int(np.count_nonzero(counts_V))
    decades = np.log10(max(used, 1))
    ranks = np.unique(np.geomspace(1, max(used, 1), 1 + int(_RANKS_A_DECADE * decades)).astype(int))
    never = np.flatnonzero((counts_V == 0) & ~is_placeholder_V)
    return PieceHealth(
        size=len(pieces),
        used=used,
        never_used=len(never),
        words=int(counts_V[~vocabulary.is_continuation].sum()),
        tokens=int(counts_V.sum()),
        most_frequent=tuple((pieces[i], int(counts_V[i])) for i in by_count[:_MOST_PIECES]),
        examples_of_never=tuple(pieces[i] for i in _spread(never, _MOST_NEVER)),
        rank_counts=tuple((int(rank), int(counts_V[by_count[rank - 1]])) for rank in ranks),
    )


def _spread(values: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the values, from the first to the last."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(int)]


def _measure_copies(store: Store, vocabulary: Vocabulary, step: Step) -> Copies:
    documents, sentences = {}, {}
    for split in (store.train, store.heldout):
        with step(f"hashing {split.sentences:,} sentences", split.tokens) as advance:
            sentences[split.name], documents[split.name] = hash_split(split, advance)
    with step("looking for copies", None):
        return Copies(
            documents={name: hashes.repeats() for name, hashes in documents.items()},
            sentences={name: hashes.repeats() for name, hashes in sentences.items()},
            leaked_documents=documents[HELDOUT].repeats_in(documents[TRAIN]),
            leaked_sentences=sentences[HELDOUT].repeats_in(sentences[TRAIN]),
            repeated=_most_repeated(store.train, sentences[TRAIN], vocabulary),
        )


def _most_repeated(
    split: Split, sentences: HashSample, vocabulary: Vocabulary
) -> tuple[Repeated, ...]:
    counts = sentences.most_repeated(_MOST_REPEATED)
    places = find_sentences(split, {one for one, _ in counts})
    repeated = []
    for one, count in counts:
        start, stop = split.sentence_offsets[places[one] : places[one] + 2].tolist()
        ids = split.token_ids[start : min(stop, start + _SHOWN_TOKENS)].tolist()
        text = vocabulary.decode(ids) + (" ..." if stop - start > _SHOWN_TOKENS else "")
        repeated.append(Repeated(text, count))
    return tuple(repeated)
