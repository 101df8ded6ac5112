"""The biLM against PyTorch's LSTM, its loss in NumPy, what each direction sees, a resumed run."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit as sigmoid

from bert_jax.lab.baselines import bilm, bilstm, training
from bert_jax.lab.baselines.settings import BiLM
from bert_jax.model import ops
from data_pipeline.store import open_store
from tests.bert_jax.lab.baselines.test_bilstm import draw
from tests.bert_jax.lab.baselines.test_skipgram import train_twice

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "golden" / "lstm_projection.npz"
VOCAB = 13
SETTINGS = BiLM(width=4, units=7, clip=0.4, batch_size=5, seq_len=11, steps=6, seed=3)


@pytest.fixture(scope="module")
def torch_lstm():
    with np.load(GOLDEN) as file:  # made by the script of that name
        return dict(file)


def from_torch(arrays, prefix, end):
    """The arrays of a direction, under our names; PyTorch has two biases, which it adds."""
    read = {
        name: arrays[f"{prefix} {theirs}_l0{end}"]
        for name, theirs in [
            *(("input", "weight_ih"), ("recurrent", "weight_hh"), ("projection", "weight_hr")),
            *(("bias", "bias_ih"), ("other bias", "bias_hh")),
        ]
    }
    other = read.pop("other bias")
    bias = read["bias"] + other if prefix == "parameter" else read["bias"]
    return {name: array.T for name, array in read.items()} | {"bias": bias}


@pytest.mark.slow
def test_outputs_and_gradients_are_pytorch_s(torch_lstm):
    ends = {"forward": "", "backward": "_reverse"}
    params = {name: from_torch(torch_lstm, "parameter", end) for name, end in ends.items()}

    def run(params, x):
        sides = [ops.run_lstm(params[name], x, is_reversed=name == "backward") for name in ends]
        outputs = jnp.concatenate(sides, axis=-1)
        return jnp.sum(outputs * torch_lstm["weights"]), outputs

    grad = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))
    (_, outputs), (of_params, of_inputs) = grad(params, torch_lstm["inputs"])
    np.testing.assert_allclose(outputs, torch_lstm["outputs"], atol=1e-6)
    np.testing.assert_allclose(of_inputs, torch_lstm["gradient inputs"], atol=2e-6)
    for name, end in ends.items():
        wanted = from_torch(torch_lstm, "gradient", end)
        for array, gradient in wanted.items():
            np.testing.assert_allclose(of_params[name][array], gradient, atol=5e-6)


def read_by_hand(params, ids, direction, settings):
    """Run one row a position at a time: the embedding and each layer's output, K arrays."""
    x = params["embeddings"][ids if direction == "forward" else ids[::-1]] * settings.width**0.5
    outputs = [x]
    for layer in range(settings.layers):
        lstm = params[f"{layer}_{direction}"]
        h, c, projected = np.zeros(settings.width), np.zeros(settings.units), []
        for entering in x:
            gates = entering @ lstm["input"] + h @ lstm["recurrent"] + lstm["bias"]
            i, f, g, o = np.split(gates, 4)
            c = np.clip(sigmoid(f) * c + sigmoid(i) * np.tanh(g), -settings.clip, settings.clip)
            h = (sigmoid(o) * np.tanh(c)) @ lstm["projection"]
            h = np.clip(h, -settings.clip, settings.clip)
            projected.append(h)
        x = np.array(projected) + (x if layer else 0)
        outputs.append(x)
    return [x if direction == "forward" else x[::-1] for x in outputs]


@pytest.fixture(scope="module")
def model():
    params = draw(lambda: bilm.init_params(SETTINGS, VOCAB), 1.0)  # large enough to be clipped
    ids = np.random.default_rng(2).integers(0, VOCAB, (3, 8)).astype(np.int32)
    lengths = np.array([8, 5, 1])
    return params, ids, lengths, jax.jit(bilm.compute_vectors, static_argnums=3)


@pytest.mark.long
def test_vectors_and_losses_are_those_of_the_equations(model):
    params, ids, lengths, compute = model
    vectors_BSKD = compute(params, ids, lengths, SETTINGS)
    mask = (np.arange(8) < lengths[:, None]).astype(np.int32)
    batch = {"input_ids": ids, "input_mask": mask}
    sums, count = jax.jit(bilm.sum_losses, static_argnums=2)(params, batch, SETTINGS)
    wanted, clipped = np.zeros(2), 0
    for row, length in enumerate(lengths):
        read = ids[row, :length]
        both = [read_by_hand(params, read, name, SETTINGS) for name in bilstm.DIRECTIONS]
        for layer, pair in enumerate(zip(*both, strict=True)):
            vectors = vectors_BSKD[row, :length, layer]
            np.testing.assert_allclose(vectors, np.concatenate(pair, axis=1), atol=1e-5)
        clipped += sum(int(np.sum(np.abs(layers[1]) == SETTINGS.clip)) for layers in both)
        for number, (hidden, labels) in enumerate(
            [(both[0][-1][:-1], read[1:]), (both[1][-1][1:], read[:-1])]
        ):
            logits = hidden @ params["embeddings"].T + params["bias"]
            shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            wanted[number] -= np.log(shares[np.arange(length - 1), labels]).sum()
    assert clipped > 5
    assert count == 7 + 4
    np.testing.assert_allclose(sums, wanted, rtol=1e-5)


@pytest.mark.slow
def test_a_direction_sees_nothing_of_what_it_predicts(model):
    params, ids, lengths, compute = model
    width = SETTINGS.width
    before = np.asarray(compute(params, ids, lengths, SETTINGS))[0]
    changed = ids.copy()
    changed[0, 5] = (ids[0, 5] + 1) % VOCAB
    after = np.asarray(compute(params, changed, lengths, SETTINGS))[0]
    is_same = np.all(before == after, axis=1)  # [S,2D] over all K
    np.testing.assert_array_equal(before[:5, :, :width], after[:5, :, :width])
    np.testing.assert_array_equal(before[6:, :, width:], after[6:, :, width:])
    assert not is_same[5:, :width].all(axis=1).any()
    assert not is_same[:6, width:].all(axis=1).any()


@pytest.mark.long
def test_it_learns_and_a_killed_training_resumes_to_the_same_weights(
    tiny_store, tmp_path, monkeypatch
):
    store = open_store(tiny_store)
    settings = BiLM(width=16, units=32, seq_len=24, batch_size=16, steps=20, learning_rate=4e-2)
    train_twice(bilm, tmp_path, store, settings, monkeypatch)
    folders = [tmp_path / name for name in ("complete", "killed")]
    like = training.init_state(bilm.init_params(settings, store.vocab_size), settings)
    states = [training.read_state(folder, like) for folder in folders]
    jax.tree.map(np.testing.assert_array_equal, *states)
    summaries = [training.read_summary(folder) for folder in folders]
    assert summaries[0]["heldout_loss"] == summaries[1]["heldout_loss"]
    counts = np.asarray(store.train.token_counts)
    shares = counts[counts > 0] / counts.sum()
    unigram = -np.sum(shares * np.log(shares))
    assert summaries[0]["heldout_loss"] < 0.8 * unigram
    assert summaries[0]["tokens"] == 20 * 16 * 24


@pytest.mark.long
def test_dropout_changes_the_loss_and_its_rate_nothing_without_a_key(model):
    params, ids, _, _ = model
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    dropped = dataclasses.replace(SETTINGS, dropout=0.5)
    trace = jax.make_jaxpr(bilm.sum_losses, static_argnums=2)
    without_a_key = [str(trace(params, batch, settings)) for settings in (SETTINGS, dropped)]
    assert without_a_key[0] == without_a_key[1]
    compute = jax.jit(bilm.sum_losses, static_argnums=2)
    plain, _ = compute(params, batch, SETTINGS)
    losses = [
        compute(params, batch, dropped, key)[0] for key in jax.random.split(jax.random.key(0))
    ]
    assert not np.allclose(losses[0], losses[1]) and not np.allclose(losses[0], plain)
