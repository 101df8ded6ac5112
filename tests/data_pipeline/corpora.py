"""Make small corpora as plain arrays, in which an id names its place."""

import random

import numpy as np

from data_pipeline.store import Split

SPECIAL_IDS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
# The first token of a corpus has this id, the next the next one: an id names a token's place.
FIRST_ID = 200

Document = list[list[int]]


def numbered(lengths: list[list[int]]) -> list[Document]:
    """Return documents whose sentences have these numbers of tokens, all ids different."""
    documents, at = [], FIRST_ID
    for document_lengths in lengths:
        document = []
        for tokens in document_lengths:
            document.append(list(range(at, at + tokens)))
            at += tokens
        documents.append(document)
    return documents


def varied(documents: int, seed: int, most_sentences: int = 20) -> list[Document]:
    """Draw numbered documents of 1 to most_sentences sentences of 1 to 16 tokens."""
    rng = random.Random(seed)
    return numbered(
        [
            [rng.randint(1, 16) for _ in range(rng.randint(1, most_sentences))]
            for _ in range(documents)
        ]
    )


def split_of(documents: list[Document], name: str = "train") -> Split:
    """Return the split that a store would hold for these documents."""
    sentences = [sentence for document in documents for sentence in document]
    token_ids = np.asarray([token for sentence in sentences for token in sentence], np.uint32)
    return Split(
        name=name,
        token_ids=token_ids,
        sentence_offsets=np.cumsum([0, *map(len, sentences)], dtype=np.int64),
        document_offsets=np.cumsum([0, *map(len, documents)], dtype=np.int64),
        token_counts=np.bincount(token_ids),
    )


def vocab_size_of(split: Split) -> int:
    """Return a vocabulary size a little above the ids of a numbered corpus."""
    return int(split.token_ids.max(initial=0)) + 59
