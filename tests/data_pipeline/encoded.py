"""Encoded sentences as lists, for tests that compare them one by one."""

from collections.abc import Sequence

import numpy as np

from data_pipeline.vocab import Vocabulary


def id_lists(vocabulary: Vocabulary, sentences: Sequence[str]) -> list[list[int]]:
    """The ids of each sentence; what `encode` returns is cut by its lengths."""
    ids, lengths = vocabulary.encode(sentences)
    assert len(ids) == lengths.sum()
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
