"""Counts of neighbors against a slow oracle in plain Python, and what is kept of them."""

import collections
import math
import tracemalloc

import numpy as np
import pytest

from data_pipeline.store import Split, ngrams
from data_pipeline.store.ngrams import BOTH_SIDES, LEFT_SIDE, Predictions

VOCAB = 13
HIDDEN = VOCAB


def make_split(documents=450, seed=3):
    """Text in which a token depends on the two before it."""
    rng = np.random.default_rng(seed)
    follows = rng.dirichlet(np.full(VOCAB - 2, 0.2), (VOCAB, VOCAB))
    ids, offsets = [], [0]
    for _ in range(documents):
        text = [2, 3]
        for _ in range(rng.integers(1, 12)):
            text.append(2 + rng.choice(VOCAB - 2, p=follows[text[-2], text[-1]]))
        ids += text
        offsets.append(len(ids))
    ids = np.array(ids, np.uint16)
    sentences = np.array(offsets, np.int64)
    counts = np.bincount(ids, minlength=VOCAB)
    return Split("train", ids, sentences, np.arange(documents + 1), counts)


def unigram(split):
    counts = split.token_counts + 1.0
    counts[:2] = 0.0
    return counts / counts.sum()


def pairs_and_tokens():
    """Each token behind each pair of neighbors, one or both of them hidden as well."""
    first, second, tokens = (a.ravel() for a in np.mgrid[2 : VOCAB + 1, 2 : VOCAB + 1, 2:VOCAB])
    return Predictions(tokens, first, second)


def bucket(count, width, most):
    """0 for 0, then one more for each factor of 2**width."""
    number = 0
    while count and number < most:
        count, number = count >> width, number + 1
    return number


def oracle(split, places, predictions):
    """The same model with dictionaries and loops, from the description in the module."""
    documents = [
        split.token_ids[split.sentence_offsets[i] : split.sentence_offsets[i + 1]].tolist()
        for i in range(split.documents)
    ]

    def neighbors(text, position):
        for place in places:
            other = position + place
            yield text[other] if 0 <= other < len(text) else HIDDEN

    counted, fitted = [], []
    for number, text in enumerate(documents):
        chosen = fitted if number % 20 == 10 else counted
        chosen += [(text[i], *neighbors(text, i)) for i in range(len(text))]
    contexts, with_token = collections.Counter(), collections.Counter()
    for token, a, b in counted:
        for context in ((a, b), (a, "first"), ("second", b)):
            if HIDDEN not in context:
                contexts[context] += 1
                with_token[(*context, token)] += 1
    chances = unigram(split)

    def estimate(token, a, b):
        each, cell = [], []
        for context, width, most in (((a, b), 1, 5), ((a, "first"), 4, 4), (("second", b), 4, 4)):
            count = contexts[context]
            each.append(with_token[(*context, token)] / count if count else 0.0)
            cell.append(bucket(count, width, most))
        return [*each, chances[token]], tuple(cell)

    samples = collections.defaultdict(list)
    for token, a, b in fitted:
        for first, second in ((a, b), (HIDDEN, b), (a, HIDDEN)):
            each, cell = estimate(token, first, second)
            samples[cell].append(each)

    def fit(cell):
        has = [float(part > 0) for part in cell] + [1.0]
        weights = [part / sum(has) for part in has]
        for _ in range(20):
            sums = list(has)
            for each in samples[cell]:
                parts = [weight * chance for weight, chance in zip(weights, each, strict=True)]
                sums = [s + part / sum(parts) for s, part in zip(sums, parts, strict=True)]
            weights = [s / sum(sums) for s in sums]
        return weights

    cells, result = {}, []
    columns = (predictions.tokens_N, predictions.first_N, predictions.second_N)
    for token, a, b in zip(*(column.tolist() for column in columns), strict=True):
        each, cell = estimate(token, a, b)
        if cell not in cells:
            cells[cell] = fit(cell)
        result.append(sum(w * c for w, c in zip(cells[cell], each, strict=True)))
    return np.array(result)


@pytest.mark.parametrize("places", [BOTH_SIDES, LEFT_SIDE])
def test_the_chances_are_those_of_an_oracle_and_add_up_to_one(places, monkeypatch):
    split, predictions = make_split(), pairs_and_tokens()
    chances = ngrams.estimate_probs(split, predictions, places, unigram(split))
    np.testing.assert_allclose(chances, oracle(split, places, predictions), rtol=1e-10)
    np.testing.assert_allclose(chances.reshape(-1, VOCAB - 2).sum(axis=1), 1.0, rtol=1e-12)
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", 97)  # neighbors across the ends of blocks
    shares = []
    again = ngrams.estimate_probs(split, predictions, places, unigram(split), shares.append)
    np.testing.assert_array_equal(again, chances)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 20


def test_a_large_split_is_counted_in_part(monkeypatch):
    split, predictions = make_split(), pairs_and_tokens()
    whole = ngrams.estimate_probs(split, predictions, BOTH_SIDES, unigram(split))
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", 50)
    monkeypatch.setattr(ngrams, "_MAX_TOKENS", -(-split.tokens // 2))
    shares = []
    part = ngrams.estimate_probs(split, predictions, BOTH_SIDES, unigram(split), shares.append)
    assert len(shares) == pytest.approx(split.tokens / 100, abs=2)
    assert not np.array_equal(part, whole)
    assert np.abs(part - whole).mean() < 0.1
    np.testing.assert_allclose(part.reshape(-1, VOCAB - 2).sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.slow
def test_memory_is_at_most_26_bytes_for_a_document(monkeypatch):
    monkeypatch.setattr(ngrams, "_FITTED_TOKENS", 100)
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", 1 << 14)
    offsets, ids = np.arange(1_000_001), np.full(1_000_000, 3, np.uint16)
    split = Split("train", ids, offsets, offsets, np.bincount(ids, minlength=VOCAB))
    predictions = Predictions(*(column[:9] for column in pairs_and_tokens()))
    tracemalloc.start()
    ngrams.estimate_probs(split, predictions, BOTH_SIDES, unigram(split))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 26 * split.documents


def test_few_long_documents_are_cut_for_the_weights():
    many = make_split()
    ends = np.array([0, many.tokens // 3, many.tokens])
    long = Split("train", many.token_ids, ends, np.arange(3), many.token_counts)
    predictions = pairs_and_tokens()
    chances = ngrams.estimate_probs(long, predictions, BOTH_SIDES, unigram(long))
    np.testing.assert_allclose(chances.reshape(-1, VOCAB - 2).sum(axis=1), 1.0, rtol=1e-12)
    taken = np.random.default_rng(1).integers(1, long.tokens - 1, 500)
    own = Predictions(*(long.token_ids[taken + shift] for shift in (0, -1, 1)))
    nats = -np.log(ngrams.estimate_probs(long, own, BOTH_SIDES, unigram(long))).mean()
    assert nats < -np.log(unigram(long)[own.tokens_N]).mean() - 0.3


def test_a_loss_is_kept_for_its_store_and_predictions_and_damage_is_computed_again(tmp_path):
    split, predictions = make_split(), pairs_and_tokens()
    folder = tmp_path / "references"
    counts = []

    def compute(digest="a", predictions=predictions, folder=folder):
        return ngrams.compute_loss(
            split, digest, predictions, BOTH_SIDES, unigram(split), folder, counts.append
        )

    loss = compute()
    chances = ngrams.estimate_probs(split, predictions, BOTH_SIDES, unigram(split))
    assert loss == pytest.approx(-np.log(chances).mean(), rel=1e-12)
    assert (compute(), len(counts)) == (loss, 1)
    (path,) = folder.iterdir()
    for damage in ("", "{", '{"loss": -1.0}', '{"loss": "1"}', '{"loss": NaN}'):
        path.write_text(damage)
        assert compute() == loss
    assert len(counts) == 6
    compute("b")
    compute("a", Predictions(predictions.tokens_N, predictions.second_N, predictions.first_N))
    assert len(counts) == 8 and len(list(folder.iterdir())) == 3
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert compute(folder=tmp_path / "link") == compute(folder=in_the_way) == loss
    assert not list(elsewhere.iterdir()) and math.isfinite(loss)
