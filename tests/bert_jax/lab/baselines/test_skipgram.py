"""Skip-gram against its equations in NumPy, its pairs counted by hand, and a resumed training."""

import dataclasses
import io
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit as sigmoid

from bert_jax.lab.baselines import skipgram, training
from bert_jax.lab.baselines.settings import SkipGram
from bert_jax.logging.console import Screen
from data_pipeline.labeled.rows import build_rows
from data_pipeline.store import open_store

VOCAB, WIDTH, NEGATIVES = 11, 7, 3
draw_targets = jax.jit(skipgram.draw_targets, static_argnums=3)


def descend_by_hand(vectors, contexts, pairs, rate):
    """Equation 4 of the paper, its derivatives written out; all from the tables of before."""
    new_vectors, new_contexts = vectors.copy(), contexts.copy()
    loss = 0.0
    for center, target, negatives in pairs:
        for token, label in [(target, 1), *((token, 0) for token in negatives if token != target)]:
            share = sigmoid(vectors[center] @ contexts[token])
            loss -= np.log(share if label else 1 - share)
            new_vectors[center] += rate * (label - share) * contexts[token]
            new_contexts[token] += rate * (label - share) * vectors[center]
    return new_vectors, new_contexts, loss


@pytest.mark.slow
def test_an_update_is_that_of_the_equations():
    rng = np.random.default_rng(5)
    tables = [rng.normal(size=(VOCAB, WIDTH)).astype(np.float32) for _ in range(2)]
    centers, contexts = rng.integers(0, VOCAB, (2, 2, 13)).astype(np.int32)
    weights = np.ones((2, 13), np.float32)
    weights[1, 9:] = 0  # padding
    cumulative = jnp.cumsum(jnp.arange(1.0, VOCAB + 1))
    key, rate = jax.random.key(4), 0.07
    wanted, total = [table.astype(np.float64) for table in tables], 0.0
    for batch in (0, 1):
        targets, _ = draw_targets(
            jax.random.fold_in(key, batch), cumulative, contexts[batch], NEGATIVES
        )
        assert np.array_equal(targets[:, 0], contexts[batch])
        pairs = zip(centers[batch], contexts[batch], np.asarray(targets[:, 1:]), strict=True)
        *wanted, loss = descend_by_hand(*wanted, list(pairs)[: int(weights[batch].sum())], rate)
        total += loss
    assert any(context in row for context, row in zip(contexts[1], targets[:, 1:], strict=True))
    got, loss = skipgram.update(
        *(tuple(map(jnp.asarray, tables)), (centers, contexts, weights), cumulative),
        *((key, jnp.float32(rate)), NEGATIVES),
    )
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-5, atol=1e-6)
    assert float(loss) == pytest.approx(total / 22, rel=1e-6)


@pytest.mark.slow
def test_negatives_are_drawn_by_their_counts():
    counts = np.array([0, 5, 0, 20, 75, 0])
    contexts = np.full(4000, 3, np.int32)
    cumulative = jnp.asarray(np.cumsum(counts), jnp.float32)
    targets, weights = draw_targets(jax.random.key(1), cumulative, contexts, 5)
    drawn = np.bincount(np.asarray(targets[:, 1:]).ravel(), minlength=6) / 20_000
    np.testing.assert_allclose(drawn, counts / 100, atol=0.012)
    assert set(np.flatnonzero(counts == 0)).isdisjoint(np.asarray(targets).ravel())
    assert np.array_equal(weights[:, 1:] == 0, targets[:, 1:] == 3)


def test_pairs_are_neighbors_within_a_row_nearer_ones_more_often():
    rows = build_rows([(list(range(start, start + 9)), 9) for start in (0, 20, 40)])
    keep = np.ones(60)
    keep[22] = 0  # always dropped: its neighbors are then at distance 1
    seen = Counter()
    for seed in range(300):
        pairs = skipgram.make_pairs(rows, np.array([0, 1]), 3, keep, (seed, 0))
        centers, contexts, weights = pairs
        seen.update(zip(centers[weights > 0], contexts[weights > 0], strict=True))
    place = {token: token for token in range(9)}
    place |= {20 + i: 100 + i - (i > 2) for i in range(9) if i != 2}
    every = {(a, b) for a in place for b in place if a != b and abs(place[a] - place[b]) <= 3}
    assert set(seen) == every
    shares = {d: np.mean([seen[3, 3 + d], seen[5, 5 - d]]) / 300 for d in (1, 2, 3)}
    assert shares == pytest.approx({1: 1, 2: 2 / 3, 3: 1 / 3}, abs=0.06)


def test_rows_are_cut_from_documents_and_lose_nothing(tiny_store):
    split = open_store(tiny_store).train
    rows = training.cut_documents(split, 17)
    assert np.array_equal(rows.token_ids, split.token_ids)
    bounds = split.sentence_offsets[split.document_offsets]
    wanted = [np.arange(a, b, 17) for a, b in itertools.pairwise(bounds)]
    assert np.array_equal(rows.offsets, np.append(np.concatenate(wanted), split.tokens))


def test_a_token_of_a_tenth_of_the_text_is_kept_at_the_rate_of_word2vec():
    counts = np.array([100, 900, 0])
    keep = skipgram.compute_keep_shares(counts, 1e-3)
    assert keep[0] == pytest.approx((np.sqrt(0.1 / 1e-3) + 1) * 1e-3 / 0.1)  # word2vec.c
    assert keep[1] < keep[0]


def train_twice(kind, folder, store, settings, monkeypatch):
    """Train a baseline in folder/complete, and in folder/killed in two parts."""
    name, screen, save = kind.__name__.rpartition(".")[2], Screen(is_writer=True), training._save

    def save_and_die(path, state, step, secs):
        save(path, state, step, secs)
        if step == 7:
            raise RuntimeError("killed")

    complete, killed = folder / "complete", folder / "killed"
    for place in (complete, killed):
        training.claim_baseline(place, name, settings, store)
    kind.train(complete, store, settings, screen)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(training, "_SAVE_SECS", 0.0)
        patch.setattr(training, "_save", save_and_die)
        kind.train(killed, store, settings, screen)
    assert training.read_summary(killed) is None
    kind.train(killed, store, settings, screen)


@pytest.mark.long
def test_a_killed_training_resumes_to_the_same_vectors(tiny_store, tmp_path, monkeypatch, capsys):
    store = open_store(tiny_store)
    settings = SkipGram(width=WIDTH, epochs=3.0, negatives=NEGATIVES)
    train_twice(skipgram, tmp_path, store, settings, monkeypatch)
    assert "resumes after step 7 of" in capsys.readouterr().out
    complete, resumed = (np.load(tmp_path / n / skipgram.VECTORS) for n in ("complete", "killed"))
    np.testing.assert_array_equal(complete["vectors"], resumed["vectors"])
    assert complete["vectors"].shape == (store.vocab_size, WIDTH)
    assert list(complete["tokens"][:1]) == store.vocab_path.read_text().split("\n")[:1]
    summary = training.read_summary(tmp_path / "killed")
    assert summary["heldout_loss"] < 0.9 * summary["heldout_loss_untrained"]
    assert summary["heldout_loss"] == training.read_summary(tmp_path / "complete")["heldout_loss"]


@pytest.mark.slow
def test_a_folder_of_another_training_or_with_damage_is_refused(tiny_store, tmp_path):
    store, run = open_store(tiny_store), tmp_path / "run"
    settings = SkipGram(seed=3)
    training.claim_baseline(run, "skipgram", settings, store)
    training.claim_baseline(run, "skipgram", settings, store)
    with pytest.raises(ValueError, match="seed=3, not 4"):
        training.claim_baseline(run, "skipgram", dataclasses.replace(settings, seed=4), store)
    tables = skipgram.init_tables(settings, store.vocab_size)
    training._save(run / training.STATE, tables, 1, 0.0)
    complete = (run / training.STATE).read_bytes()
    packed, single = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, **np.load(io.BytesIO(complete)))
    np.save(single, np.zeros(3))  # an array, and no archive
    flags = complete.index(b"PK\1\2") + 8  # of the first array: a bit says that it is encrypted
    flipped = complete[:flags] + bytes([complete[flags] ^ 1]) + complete[flags + 1 :]
    others = (packed.getvalue(), single.getvalue(), flipped)
    for content in (b"", b"PK no archive", complete[: len(complete) // 2], *others):
        (run / training.STATE).write_bytes(content)
        with pytest.raises(training.DamagedFile, match=r"state.npz is damaged .* delete it"):
            training.read_state(run, tables)
    (run / training.STATE).write_bytes(complete)
    with pytest.raises(training.DamagedFile, match="no array has"):
        training.read_state(run, skipgram.init_tables(SkipGram(width=7), store.vocab_size))
    (run / training.STATE).unlink()
    with pytest.raises(training.DamagedFile, match=r"state.npz is missing; delete summary.json"):
        training.read_state(run, tables)  # not the untrained tables
