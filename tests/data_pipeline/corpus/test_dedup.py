"""What occurs more than once, against a dictionary.

Folding against Python's own words for it; copies of a document share a hash.
"""

import re
import unicodedata

import numpy as np

from data_pipeline.corpus import dedup
from data_pipeline.corpus.dedup import HashBuckets, fold_text, hash_document, hash_texts


def test_groups_are_those_of_a_dictionary(tmp_path, monkeypatch):
    monkeypatch.setattr(dedup, "_ROWS_IN_MEMORY", 100)  # several writes to each bucket
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
    hashes = [tuple(row) for row in hash_texts(texts).tolist()]
    assert hashes[0] == hashes[4]
    assert len(set(hashes)) == 5
    assert hash_texts(texts, wanted=False).shape == (6, 0)


def plain(paragraphs: list[str]) -> bytes:
    return re.sub(r"\d", "0", " ".join(" ".join(paragraphs).casefold().split())).encode()


EVERY_CHARACTER = [
    chr(code) for code in range(0x3100) if unicodedata.category(chr(code)) not in ("Cs", "Cn")
]


def test_folding_any_character_alone_or_beside_others():
    for character in EVERY_CHARACTER:
        text = f"A{character}  {character}9"
        assert fold_text([text, "", text]) == plain([text, "", text]), hex(ord(character))


def test_the_hash_is_blind_to_case_space_and_digits_only():
    def hash_of(*paragraphs: str) -> int:
        return hash_document(fold_text(paragraphs))

    original = hash_of("Visit no. 17", "on  Straße 4")
    assert original == hash_of("VISIT NO. 99 ON\tstrasse 5")
    assert original != hash_of("visit no. 1 on strasse 5")
    assert original != hash_of("visit no. 17 on strasse 4.")
    assert 0 <= original < 2**64
