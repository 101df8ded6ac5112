"""Near duplicates against the share of word runs that documents really have in common."""

import itertools
import random

import numpy as np
import pytest

from data_pipeline.corpus import near_duplicates
from data_pipeline.corpus.dedup import fold_text
from data_pipeline.corpus.near_duplicates import Signer, find_clusters

WORDS = [a + b + c for a, b, c in itertools.product("bdfgklmnprst", "aeiou", "nrstl")]


def runs(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def jaccard(one: list[str], other: list[str]) -> float:
    return len(runs(one) & runs(other)) / len(runs(one) | runs(other))


def changed(rng: random.Random, words: list[str], share: float) -> list[str]:
    return [rng.choice(WORDS) if rng.random() < share else word for word in words]


def signatures_of(documents: list[list[str]]) -> np.ndarray:
    return Signer().sign([fold_text([" ".join(words)]) for words in documents])


@pytest.mark.parametrize("share", [0.0, 0.03, 1.0])
def test_signatures_agree_in_the_share_of_runs_in_common(share):
    rng = random.Random(3)
    errors = []
    for _ in range(30):
        one = rng.choices(WORDS, k=rng.randint(100, 400))
        other = changed(rng, one, share)
        left, right = signatures_of([one, other])
        errors.append((left == right).mean() - jaccard(one, other))
    assert max(map(abs, errors)) < 5 * 0.5 / np.sqrt(128)
    assert abs(np.mean(errors)) < 5 * 0.5 / np.sqrt(128 * 30)


def test_a_signature_does_not_depend_on_how_many_runs_are_hashed_at_once(monkeypatch):
    documents = [random.Random(3).choices(WORDS, k=100)]
    whole = signatures_of(documents)
    monkeypatch.setattr(near_duplicates, "_RUNS_AT_ONCE", 7)
    np.testing.assert_array_equal(signatures_of(documents), whole)


def test_case_space_and_digits_do_not_count_and_texts_without_spaces_have_runs():
    signer = Signer()
    texts = ["Page 1 of it\nall and  more", "page 2 OF it all and more"]
    one, other = signer.sign([fold_text([text]) for text in texts])
    np.testing.assert_array_equal(one, other)
    chinese = "".join(chr(0x4E00 + i * 37 % 3000) for i in range(300))
    similar, different = chinese[:150] + "一" + chinese[150:], chinese[::-1]
    a, b, c = signer.sign([fold_text([text]) for text in (chinese, similar, different)])
    assert (a == b).mean() > 0.9 and (a == c).mean() < 0.1
    short = signer.sign([b"", b"a", b"a b", b"b a"])
    assert not (short[1] == short[2]).any() and not (short[2] == short[3]).any()


@pytest.mark.slow
def test_clusters_are_those_of_comparing_all_with_all(tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "_PAIRS_AT_ONCE", 11)
    rng = random.Random(4)
    documents = []
    for _ in range(20):
        one = rng.choices(WORDS, k=250)
        documents += [one, *(changed(rng, one, 0.002) for _ in range(rng.randint(0, 4)))]
    chain = [rng.choices(WORDS, k=300)]
    for _ in range(12):  # each near to the next one, the ends are not near
        chain.append(rng.choices(WORDS, k=12) + chain[-1][:-12])
    documents += chain
    rng.shuffle(documents)
    assert jaccard(chain[0], chain[-1]) < 0.4 < 0.9 < jaccard(chain[0], chain[1])
    expected = list(range(len(documents)))
    for i, j in itertools.combinations(range(len(documents)), 2):
        if jaccard(documents[i], documents[j]) > 0.7:  # nothing planted is near the threshold
            old, new = sorted((expected[j], expected[i]), reverse=True)
            expected = [new if first == old else first for first in expected]
    first_D, _ = find_clusters(
        signatures_of(documents), np.ones(len(documents), bool), 0.7, tmp_path / "bands"
    )
    assert first_D.tolist() == expected
    assert len(set(expected)) == 21


def random_signatures(rng: np.random.Generator, documents: int) -> np.ndarray:
    return rng.integers(0, 2**32, (documents, 128), np.uint32)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95, 1.0])
def test_pairs_just_above_the_threshold_are_found_and_those_below_are_not(threshold, tmp_path):
    rng = np.random.default_rng(6)
    pairs = 400
    least = int(np.ceil(threshold * 128))
    common = rng.integers(least - 3, min(least + 6, 128) + 1, pairs)
    signatures = random_signatures(rng, 2 * pairs)
    for pair, count in enumerate(common):
        columns = rng.choice(128, count, replace=False)
        signatures[pairs + pair, columns] = signatures[pair, columns]
    first_D, given_up = find_clusters(
        signatures, np.ones(2 * pairs, bool), threshold, tmp_path / "bands"
    )
    is_joined = first_D[pairs:] == np.arange(pairs)
    assert not is_joined[common < least].any()
    assert is_joined[common >= least].mean() > 0.9
    assert given_up == 0


@pytest.mark.parametrize("rounds", [3, 50])
def test_documents_that_agree_in_a_band_alone_take_bounded_work(rounds, tmp_path, monkeypatch):
    compared = []
    agreement = near_duplicates._compare_signatures

    def counted(signatures_DP, left, right):
        compared.append(len(left))
        return agreement(signatures_DP, left, right)

    monkeypatch.setattr(near_duplicates, "_compare_signatures", counted)
    monkeypatch.setattr(near_duplicates, "_MAX_ROUNDS", rounds)
    signatures = random_signatures(np.random.default_rng(7), 40)
    signatures[:31, :8] = signatures[0, :8]  # the first band, of 8 at a threshold of 0.8
    signatures[5] = signatures[1]  # found in the second round
    signatures[30] = signatures[29]  # found by other bands, however few the rounds are
    first_D, given_up = find_clusters(signatures, np.ones(40, bool), 0.8, tmp_path / "bands")
    expected = list(range(40))
    expected[5], expected[30] = 1, 29
    assert first_D.tolist() == expected
    assert given_up == (27 if rounds == 3 else 0)
    assert sum(compared) <= (31 + 2 * 2 * 16) * rounds
