"""A BiLSTM on vectors of several layers learns to tag, from the right layers and rows."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.inference.hidden_states import choose_layers
from bert_jax.lab.baselines import frozen_ner
from bert_jax.lab.baselines.frozen_ner import FEATURES, Training
from bert_jax.lab.baselines.vectors import Encoder
from bert_jax.logging.console import Screen
from bert_jax.tasks.task import TAG, Task
from data_pipeline.labeled.rows import build_rows

LAYERS, WIDTH = 4, 3


def toy_split(rows, seed):
    """A token's tag is whether the token before it was above the middle: 5 of the 10 ids."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, 10, n) for n in rng.integers(2, 17, rows)]
    tags = np.concatenate([np.r_[0, text[:-1] >= 5] for text in texts]).astype(np.int32)
    labels = {"label_ids": tags, "label_weights": np.ones(len(tags), np.float32)}
    split = build_rows([(text.tolist(), len(text)) for text in texts])
    split = dataclasses.replace(split, token_labels=labels)
    vectors_TKD = rng.normal(size=(len(tags), LAYERS + 1, WIDTH)).astype(np.float32)
    vectors_TKD[:, -2, 0] = np.where(split.token_ids >= 5, 1.0, -1.0)  # the one layer that tells
    return split, vectors_TKD


def tagging(rows):
    """A task of two tags for rows of train and dev."""

    def score(split, logits_NSC):
        right = [
            logits_NSC[n, : rows[split].lengths_N[n]].argmax(-1)
            == rows[split].token_labels["label_ids"][slice(*rows[split].offsets[n : n + 2])]
            for n in range(rows[split].examples)
        ]
        return {"accuracy": float(np.concatenate(right).mean())}

    return Task("toy", TAG, 2, rows, ("dev",), score, "accuracy", {}, lambda *_: {})


@pytest.fixture(scope="module")
def toy():
    splits = {"train": toy_split(96, 1), "dev": toy_split(32, 2)}
    rows, vectors = ({name: of[i] for name, of in splits.items()} for i in (0, 1))
    return tagging(rows), vectors


@pytest.mark.long
def test_it_learns_from_the_one_layer_that_tells(toy, capsys):
    task, vectors = toy
    training = Training(units=8, epochs=8, batch_size=16, learning_rate=4e-2)
    screen = Screen(is_writer=True)
    features = frozen_ner.choose_features("second_to_last", LAYERS)
    _, scores, logits = frozen_ner.train_tagger(task, vectors, features, training, screen)
    assert set(logits) == {"dev"}
    assert scores["accuracy"] > 0.98  # noise, as the other layers are, gives half
    assert capsys.readouterr().out.count("second_to_last  epoch") == 8


def test_features_named_twice_are_learned_once():
    assert frozen_ner.parse_features("last,embeddings,last") == ["last", "embeddings"]


def test_the_paper_six_kinds_are_these_layers():
    numbers = {kind: choose_layers(text, 12).numbers for kind, (text, _) in FEATURES.items()}
    assert {kind: tuple(n % 13 for n in chosen) for kind, chosen in numbers.items()} == {
        "embeddings": (0,),
        "second_to_last": (11,),
        "last": (12,),
        "weighted_last_four": (9, 10, 11, 12),
        "concatenated_last_four": (9, 10, 11, 12),
        "weighted_all": tuple(range(1, 13)),
    }
    assert [kind for kind, (_, is_joined) in FEATURES.items() if is_joined] == [
        "concatenated_last_four"
    ]


def test_a_batch_has_the_vectors_of_its_rows_and_zeros_behind(toy):
    task, vectors = toy
    rows, held = task.splits["dev"], vectors["dev"]
    features = frozen_ner.Features("last two", (-2, -1), is_joined=False)
    batch = frozen_ner.build_batch(rows, held, np.array([3, 0]), features)
    for place, row in enumerate((3, 0)):
        start, end = rows.offsets[row : row + 2]
        assert batch["lengths"][place] == end - start
        got = batch["vectors"][place]
        np.testing.assert_array_equal(got[: end - start], held[start:end, 3:])
        assert not got[end - start :].any()


def test_a_disk_that_is_too_small_is_named_before_anything_is_computed(toy, monkeypatch):
    task, vectors = toy
    needed = sum(held.nbytes for held in vectors.values())

    def leave(free_bytes):
        usage = SimpleNamespace(free=free_bytes)
        monkeypatch.setattr(frozen_ner.shutil, "disk_usage", lambda _: usage)

    encoder = Encoder(None, LAYERS + 1, WIDTH, digest="", run=None)
    leave(needed)
    frozen_ner.check_room(task, encoder)
    leave(needed - 1)
    with pytest.raises(ValueError, match=r" GB free, and the vectors of all layers .*TMPDIR"):
        frozen_ner.check_room(task, encoder)
