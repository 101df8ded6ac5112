"""How often a second segment must come from elsewhere, for half of all pairs to be random."""

import dataclasses

import numpy as np

from data_pipeline import hashing
from data_pipeline.chunks import WalkRules, walk_block
from data_pipeline.store import Split

_TRIAL = 12  # what a key is for, as in chunks.py and pairs.py

# The share is found on this many sentences, in so many places and rounds; of a small corpus on up
# to so many walks.
_SENTENCES, _PLACES, _ROUNDS, _WALKS = 1 << 20, 16, 6, 8


def balanced_random_share(split: Split, rules: WalkRules) -> float:
    """How often a chunk that could keep its B must lose it, for half of all pairs to be random.

    A chunk of one sentence is always random, so the others must be so less often than one time in
    two. Found by walking over samples of the corpus, again and again with the share found before;
    0 where more than half of the chunks have one sentence.
    """
    share = 0.5
    documents_D = _sample_of_documents(split)
    walks = min(_WALKS, max(1, _SENTENCES // split.sentences))
    keys = [hashing.subkey(rules.key, _TRIAL, number) for number in range(walks)]
    for _ in range(_ROUNDS):
        parts = [
            walk_block(
                split,
                dataclasses.replace(rules, random_share=share, key=key),
                np.asarray(split.document_offsets[start : stop + 1]),
            )
            for start, stop in documents_D
            for key in keys
        ]
        sentences_N = np.concatenate([sentences for _, _, sentences in parts])
        chunks, single = len(sentences_N), int(np.count_nonzero(sentences_N == 1))
        share = max(0.0, (0.5 * chunks - single) / max(chunks - single, 1))
    return share


def _sample_of_documents(split: Split) -> list[tuple[int, int]]:
    """Ranges of documents, all of a small split, that together hold about _SENTENCES."""
    offsets_D = split.document_offsets
    if split.sentences <= _SENTENCES:
        return [(0, split.documents)]
    size = _SENTENCES // _PLACES
    starts = np.linspace(0, split.sentences - size, _PLACES).astype(np.int64)
    ranges = []
    for first_sentence in starts:
        start = int(np.searchsorted(offsets_D, first_sentence, side="right")) - 1
        stop = int(np.searchsorted(offsets_D, first_sentence + size, side="right")) - 1
        ranges.append((start, max(stop, start + 1)))
    return ranges
