"""What occurs more than once, against a dictionary."""

import numpy as np

from data_pipeline import duplicates
from data_pipeline.duplicates import HashBuckets, hashes128


def test_groups_are_those_of_a_dictionary(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_ROWS_IN_MEMORY", 100)  # several writes to each bucket
    rng = np.random.default_rng(5)
    hashes = rng.integers(0, 2**64, (300, 2), np.uint64)[rng.integers(0, 300, 2000)]
    hashes[::7, 1] = 3  # hashes that differ in one half only
    expected: dict[tuple[int, int], list[int]] = {}
    for position, (high, low) in enumerate(hashes.tolist()):
        expected.setdefault((high, low), []).append(position)
    buckets = HashBuckets(tmp_path / "buckets")
    for positions in np.array_split(np.arange(2000), 13):
        buckets.append(hashes[positions], positions)
    found = []
    for positions, is_first in buckets.groups():
        found += [part.tolist() for part in np.split(positions, np.flatnonzero(is_first)[1:])]
    assert sorted(found) == sorted(expected.values())
    assert list((tmp_path / "buckets").iterdir()) == []


def test_hashes_tell_texts_apart_by_their_lines():
    texts = [["a", "b"], ["a b"], ["ab"], ["b", "a"], ["a", "b"], []]
    hashes = [tuple(row) for row in hashes128(texts).tolist()]
    assert hashes[0] == hashes[4]
    assert len(set(hashes)) == 5
    assert hashes128(texts, wanted=False).shape == (6, 0)
