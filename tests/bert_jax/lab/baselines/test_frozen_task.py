"""What a linear model sees of a row, counted by hand; each kind of vectors; what is refused."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from bert_jax.inference.hidden_states import VECTORS
from bert_jax.lab.baselines import bilm, frozen_task, skipgram, training, vectors
from bert_jax.lab.baselines.frozen_ner import Training
from bert_jax.lab.baselines.settings import BiLM, SkipGram
from bert_jax.lab.baselines.vectors import Encoder
from bert_jax.logging.console import Screen
from bert_jax.tasks.task import CLASSIFY, REGRESS, SPAN, TAG, Task
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import build_rows
from data_pipeline.store import open_store
from data_pipeline.vocab.template import make_bert_template, make_xlnet_template
from tests.bert_jax.lab.baselines.test_frozen_ner import tagging

VOCAB, CLS, SEP = 30, 1, 2
BERT = make_bert_template({"cls": CLS, "sep": SEP})
# [CLS] 9 9 4 [SEP] 7 [SEP]; [CLS] 5 [SEP], without a second text; a second text that is empty.
ROWS = build_rows([([1, 9, 9, 4, 2, 7, 2], 5), ([1, 5, 2], 3), ([1, 6, 2, 2], 3)])


def test_counts_are_those_of_the_texts():
    counts = frozen_task.count_tokens(ROWS, VOCAB, True, BERT).toarray()
    wanted = np.zeros((3, 2 * VOCAB))
    for row, column, count in [(0, 9, 2), (0, 4, 1), (0, VOCAB + 7, 1), (1, 5, 1), (2, 6, 1)]:
        wanted[row, column] = count
    np.testing.assert_array_equal(counts, wanted)
    single = build_rows([([1, 9, 9, 4, 2], 5)])
    counts = frozen_task.count_tokens(single, VOCAB, False, BERT).toarray()
    np.testing.assert_array_equal(counts, wanted[:1, :VOCAB])


@pytest.mark.parametrize("make", [make_xlnet_template, lambda ids: make_bert_template(ids, 2)])
def test_special_tokens_are_those_of_the_template(make):
    """XLNet's [CLS] is last, RoBERTa's pairs have two [SEP] between the texts."""
    template = make({"cls": CLS, "sep": SEP})
    rows = build_rows([frame([9, 9, 4], [7], template, 9), frame([6, CLS], None, template, 9)])
    counts = frozen_task.count_tokens(rows, VOCAB, True, template).toarray()
    wanted = np.zeros((2, 2 * VOCAB))
    for row, column, count in [(0, 9, 2), (0, 4, 1), (0, VOCAB + 7, 1), (1, 6, 1), (1, CLS, 1)]:
        wanted[row, column] = count
    np.testing.assert_array_equal(counts, wanted)


def test_a_pair_has_both_means_their_distance_and_their_product():
    rng = np.random.default_rng(3)
    vectors_NSKD = rng.normal(size=(3, 8, 2, 5)).astype(np.float32)
    order = np.array([2, 0, 1])
    results = iter([(order[:2], {VECTORS: vectors_NSKD[order[:2]]})])
    results = [*results, (order[2:], {VECTORS: vectors_NSKD[order[2:], :3]})]
    pooled = frozen_task.pool_rows(iter(results), ROWS, True, BERT)
    flat = vectors_NSKD.reshape(3, 8, 10)
    zeros = np.zeros(10)
    for row, (a, b) in enumerate(
        [(flat[0, 1:4].mean(0), flat[0, 5]), (flat[1, 1], zeros), (flat[2, 1], zeros)]
    ):
        wanted = np.concatenate([a, b, abs(a - b), a * b])
        np.testing.assert_allclose(pooled[row], wanted, rtol=1e-5, atol=1e-7)
    pooled = frozen_task.pool_rows(iter(results), ROWS, False, BERT)
    np.testing.assert_allclose(pooled[1], flat[1, 1], rtol=1e-6)


def test_vectors_are_scaled_by_their_size_in_train(monkeypatch):
    monkeypatch.setattr(frozen_task, "_TOKENS_AT_ONCE", 3)
    rng = np.random.default_rng(4)
    drawn = {
        name: rng.normal(size=(n, 2, 5)).astype(np.float32)
        for name, n in (("train", 8), ("dev", 4))
    }
    drawn = {name: array * np.float32([[0.1], [30.0]]) for name, array in drawn.items()}
    size = np.sqrt(np.mean(drawn["train"] ** 2, axis=(0, 2)))
    scaled = {name: array.copy() for name, array in drawn.items()}
    frozen_task.scale_vectors(scaled)
    for name, array in drawn.items():
        np.testing.assert_allclose(scaled[name], array / size[:, None], rtol=1e-5)


def toy_task(kind, labels, classes=1):
    """A task whose rows matter to no test; only their labels are read."""
    rows = {
        split: build_rows([([1, 3, 2], 3)] * len(array), {f"label_{name}": array})
        for split, array in labels.items()
        for name in ["values" if kind == REGRESS else "ids"]
    }
    return Task("toy", kind, classes, rows, ("dev",), lambda *_: {}, "a", {}, lambda *_: {})


def test_logits_of_two_classes_are_those_of_the_regression_and_of_unseen_ones_the_lowest():
    rng = np.random.default_rng(5)
    train, dev = rng.normal(size=(200, 4)), rng.normal(size=(50, 4))
    labels = (train @ [1, -2, 0.5, 0] + 0.5 * rng.normal(size=200) > 0).astype(np.int32)
    features = {"train": train, "dev": dev}
    task = toy_task(CLASSIFY, {"train": 2 * labels, "dev": np.zeros(50, np.int32)}, classes=3)
    logits = frozen_task.learn_rows(task, features, seed=0, is_counts=False)["dev"]
    scaler = StandardScaler().fit(train)
    shares = [
        LogisticRegression(C=penalty, max_iter=1000)
        .fit(scaler.transform(train), labels)
        .predict_proba(scaler.transform(dev))
        for penalty in (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
    ]
    got = special.softmax(logits, axis=1)
    assert np.all(got[:, 1] == 0)
    assert min(np.abs(got[:, [0, 2]] - each).max() for each in shares) < 1e-5
    again = frozen_task.learn_rows(task, features, seed=0, is_counts=False)["dev"]
    np.testing.assert_array_equal(logits, again)


def test_three_classes_and_numbers_are_learned():
    rng = np.random.default_rng(6)
    train, dev = rng.normal(size=(300, 3)), rng.normal(size=(80, 3))
    classes = {"train": train.argmax(1).astype(np.int32), "dev": dev.argmax(1).astype(np.int32)}
    features = {"train": train, "dev": dev}
    logits = frozen_task.learn_rows(toy_task(CLASSIFY, classes, 3), features, 0, is_counts=False)
    assert np.mean(logits["dev"].argmax(1) == classes["dev"]) > 0.93
    values = {name: (array @ [1, 2, -1]).astype(np.float32) for name, array in features.items()}
    logits = frozen_task.learn_rows(toy_task(REGRESS, values), features, 0, is_counts=False)
    assert logits["dev"].shape == (80, 1)
    np.testing.assert_allclose(logits["dev"][:, 0], values["dev"], atol=0.05)
    few = {name: (array[:6], classes[name][:6]) for name, array in features.items()}
    task = toy_task(CLASSIFY, {name: labels for name, (_, labels) in few.items()}, 3)
    few_features = {name: array for name, (array, _) in few.items()}
    frozen_task.learn_rows(task, few_features, 0, is_counts=False)  # none can be held out


def test_what_cannot_be_learned_on_frozen_vectors_is_refused():
    counts = Encoder(None, arrays=0, width=0, digest="", run=lambda rows: iter([]))
    with pytest.raises(ValueError, match="has choices or spans"):
        frozen_task.check_task(toy_task(SPAN, {}), counts, "counts")
    with pytest.raises(ValueError, match="counts has no vectors of words"):
        frozen_task.check_task(toy_task(TAG, {}), counts, "counts")
    one, both = (
        toy_task(CLASSIFY, {"train": np.array(labels, np.int32)}, classes=2)
        for labels in ([1, 1], [0, 1])
    )
    with pytest.raises(ValueError, match="all training rows of toy have the same label"):
        frozen_task.check_task(one, counts, "counts")
    frozen_task.check_task(both, counts, "counts")


@pytest.fixture(scope="module")
def folders(tiny_store, tmp_path_factory):
    """A skip-gram and a biLM of few steps."""
    store, folder = open_store(tiny_store), tmp_path_factory.mktemp("baselines")
    reader = BiLM(width=3, units=4, seq_len=12, batch_size=4, steps=2)
    kinds = {"skipgram": (SkipGram(width=5, epochs=0.1), skipgram), "bilm": (reader, bilm)}
    for kind, (settings, module) in kinds.items():
        training.claim_baseline(folder / kind, kind, settings, store)
        module.train(folder / kind, store, settings, Screen(is_writer=False))
    return {kind: str(folder / kind) for kind in kinds}


@pytest.mark.long
def test_each_kind_gives_the_vectors_of_its_folder(folders, tiny_store):
    store = open_store(tiny_store)
    rows = build_rows([([2, 9, 12, 8, 3], 5), ([2, 7, 3], 3), ([2, *range(5, 40), 3], 37)])

    def compute(kind, *names):
        encoder = vectors.open_encoder(kind, [folders[name] for name in names])
        assert encoder.vocabulary.size == store.vocab_size
        per_row = {}
        for index_B, outputs in encoder.run(rows):
            for row, array in zip(index_B, outputs[VECTORS], strict=True):
                assert array.shape[1:] == (encoder.arrays, encoder.width)
                per_row[int(row)] = array[: rows.lengths_N[row]]
        return per_row

    with np.load(f"{folders['skipgram']}/{skipgram.VECTORS}") as file:
        table = file["vectors"]
    static, mixed, both = (
        *(compute("skipgram", "skipgram"), compute("elmo", "bilm")),
        compute("taglm", "skipgram", "bilm"),
    )
    settings = BiLM(width=3, units=4, seq_len=12, batch_size=4, steps=2)
    like = training.init_state(bilm.init_params(settings, store.vocab_size), settings)
    params, _ = training.read_state(pathlib.Path(folders["bilm"]), like)
    batch = rows.batch(np.arange(3), 37, 0)
    run = jax.jit(bilm.compute_vectors, static_argnums=3)
    wanted = run(params, batch["input_ids"], rows.lengths_N, settings)
    for row, length in enumerate(rows.lengths_N):
        ids = batch["input_ids"][row, :length]
        np.testing.assert_array_equal(static[row][:, 0], table[ids])
        np.testing.assert_allclose(mixed[row], wanted[row, :length], atol=1e-6)
        joined = np.concatenate([static[row], mixed[row][:, -1:]], axis=2)
        np.testing.assert_array_equal(both[row], joined)


@pytest.mark.long
def test_tags_are_learned_from_the_vectors_of_a_kind(folders):
    encoder = vectors.open_encoder("taglm", [folders["skipgram"], folders["bilm"]])
    rng = np.random.default_rng(1)
    texts = [rng.choice([7, 9, 25, 27], n) for n in rng.integers(3, 16, 60)]
    tags = np.concatenate([text >= 20 for text in texts]).astype(np.int32)
    labels = {"label_ids": tags, "label_weights": np.ones(len(tags), np.float32)}
    rows = build_rows([(text.tolist(), len(text)) for text in texts])
    rows = dataclasses.replace(rows, token_labels=labels)
    task = tagging({"train": rows, "dev": rows})
    settings = Training(units=8, epochs=12, batch_size=12, learning_rate=5e-2)
    logits = frozen_task.learn(task, encoder, settings, Screen(is_writer=False))
    assert frozen_task.score(task, logits)["heldout_dev_accuracy"] > 0.9


@pytest.mark.long
def test_an_address_that_is_no_such_baseline_is_refused(folders, tmp_path):
    with pytest.raises(ValueError, match="taglm takes SKIPGRAM,BILM"):
        vectors.open_encoder("taglm", [folders["bilm"]])
    with pytest.raises(ValueError, match="holds no finished baseline; train one with"):
        vectors.open_encoder("elmo", [str(tmp_path)])
    with pytest.raises(ValueError, match="which holds 'skipgram'; give the folder of a bilm"):
        vectors.open_encoder("elmo", [folders["skipgram"]])
    (tmp_path / training.SUMMARY).write_text("{}")
    (tmp_path / training.RECORD).write_text(json.dumps({"kind": "skipgram"}))
    with pytest.raises(ValueError, match="'vocabulary'"):
        vectors.open_encoder("skipgram", [str(tmp_path)])
