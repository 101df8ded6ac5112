"""CoVe against NumPy written from its equations, on a made language, and as a whole command."""

import dataclasses
import json
import types
import zlib

import jax
import numpy as np
import pytest
from scipy import special

from bert_jax.inference.hidden_states import VECTORS
from bert_jax.lab.baselines import cove, skipgram, training, vectors
from bert_jax.lab.baselines.settings import CoVe
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import build_rows, make_plain_rows
from data_pipeline.store import open_store
from tests.bert_jax.lab.baselines.test_bilstm import by_hand, draw

SOURCE, TARGET, WIDTH, UNITS = 13, 11, 5, 3
SETTINGS = CoVe(units=UNITS, seed=2)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    static = rng.normal(size=(SOURCE, WIDTH)).astype(np.float32)
    params = draw(lambda: cove.init_params(SETTINGS, static, TARGET)) | {"static": static}
    source, target = rng.integers(0, SOURCE, (2, 7)), rng.integers(0, TARGET, (2, 6))
    return params, source, target, np.array([7, 4]), np.array([3, 6])


def encode_by_hand(params, ids):
    x = params["static"][ids] / np.sqrt(np.mean(params["static"] ** 2))
    for layer in (0, 1):
        forward = by_hand(params["encoder"][f"{layer}_forward"], x)
        backward = by_hand(params["encoder"][f"{layer}_backward"], x[::-1])[::-1]
        x = np.concatenate([forward, backward], axis=1)
    return x


def read_token_by_hand(params, states, z, memory):
    """One step of the decoder: h_dec, alpha and the context-adjusted state."""
    x = np.concatenate([z, memory["adjusted"]])
    for layer, lstm in enumerate(params["decoder"]):
        h, c = memory[layer]
        i, f, g, o = np.split(x @ lstm["input"] + h @ lstm["recurrent"] + lstm["bias"], 4)
        c = special.expit(f) * c + special.expit(i) * np.tanh(g)
        x = special.expit(o) * np.tanh(c)
        memory[layer] = x, c
    alpha = special.softmax(states @ (x @ params["query"]["kernel"] + params["query"]["bias"]))
    joined = np.concatenate([states.T @ alpha, x])
    context = params["context"]
    memory["adjusted"] = np.tanh(joined @ context["kernel"] + context["bias"])
    return memory["adjusted"]


@pytest.mark.slow
def test_states_and_losses_are_those_of_the_equations(model):
    params, source, target, source_lengths, target_lengths = model
    masks = [
        (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int32)
        for ids, lengths in ((source, source_lengths), (target, target_lengths))
    ]
    batch = {"source_ids": source, "source_mask": masks[0]}
    batch |= {"target_ids": target, "target_mask": masks[1]}

    @jax.jit
    def compute(params):
        both = cove.compute_vectors(params, source, source_lengths)
        return both, cove.sum_losses(params, SETTINGS, batch)

    joined, (total, count) = compute(params)
    wanted = 0.0
    for row in range(2):
        ids, words = source[row, : source_lengths[row]], target[row, : target_lengths[row]]
        states = encode_by_hand(params, ids)
        both = np.concatenate([params["static"][ids], states], axis=1)
        np.testing.assert_allclose(joined[row, : len(ids), 0], both, atol=1e-6)
        zeros = np.zeros(UNITS)
        memory = {0: (zeros, zeros), 1: (zeros, zeros), "adjusted": zeros}
        for place, word in enumerate(words[:-1]):
            state = read_token_by_hand(params, states, params["embeddings"][word], memory)
            logits = state @ params["output"]["kernel"] + params["output"]["bias"]
            wanted -= special.log_softmax(logits)[words[place + 1]]
    assert count == 2 + 5
    np.testing.assert_allclose(total, wanted, rtol=1e-6)


def test_a_bad_line_is_refused_by_its_number(tmp_path):
    path = tmp_path / "aligned.tsv"
    for line in (b"no tab", b"one\ttwo\tthree", b" \ttwo", b"one\t", b"one\t\xe4"):
        path.write_bytes(b"a text\tein Text\r\n" + line + b"\n")
        with pytest.raises(ValueError, match=f"{path} row 2"):
            cove.read_pairs(path)
    path.write_bytes(b"a text\tein Text\r\n\n b \tc d \n")
    assert cove.read_pairs(path) == [("a text", "ein Text"), ("b", "c d")]


def make_language(pairs, seed):
    """Translate random texts word for word, in reversed order: id i is 3 + (7 i mod 20)."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(3, 23, n) for n in rng.integers(2, 9, pairs)]
    sides = [
        training.frame_rows(
            make_plain_rows(np.concatenate(side).astype(np.int32), np.cumsum([0, *map(len, side)])),
            1,
            2,
        )
        for side in (texts, [3 + 7 * (text[::-1] - 3) % 20 for text in texts])
    ]
    numbers, static = np.arange(pairs), np.eye(23, dtype=np.float32)
    return cove.AlignedTexts(tuple(sides), (0, 0), numbers[200:], numbers[:200], static, 23)


@pytest.mark.long
def test_a_language_with_reversed_order_is_learned():
    texts = make_language(3000, 1)
    settings = CoVe(units=32, steps=300, batch_size=32, learning_rate=1e-2, dropout=0.0)
    steps = cove.build_steps(texts, settings)
    static, state = np.asarray(steps.initial[0]["static"]), steps.initial
    for step in range(steps.count):
        state, _ = steps.advance(state, step)
    params = state[0]
    np.testing.assert_array_equal(params["static"], static)
    # A decoder that does not read the source pays ln 20 = 3.0 a word.
    assert cove.score_heldout(texts, params, settings) < 0.1


@pytest.mark.parametrize(
    ("sizes", "settings", "words"),
    [
        ({"static_width": -5}, {}, "'static_width' is -5, not from 1 to"),
        ({"target_pieces": 10**12}, {}, "'target_pieces' is 1000000000000, not from 1 to"),
        ({}, {"units": 0}, r"settings\.units is 0; it must be"),
    ],
)
def test_a_record_of_impossible_sizes_is_refused(tmp_path, monkeypatch, sizes, settings, words):
    record = {"kind": "cove", "lowercase": True, "vocabulary": "vocab.txt"}
    record |= {"settings": dataclasses.asdict(SETTINGS) | settings}
    record |= {"static_width": 5, "target_pieces": 7, **sizes}
    (tmp_path / training.RECORD).write_text(json.dumps(record))
    (tmp_path / training.SUMMARY).write_text("{}")
    vocabulary = types.SimpleNamespace(size=SOURCE)
    monkeypatch.setattr(training, "load_recorded", lambda path, record: vocabulary)
    with pytest.raises(Refused, match=words):
        vectors.open_encoder("cove", [str(tmp_path)])


@pytest.mark.long  # tests/docs runs the command, too
def test_the_command_trains_and_its_folder_gives_both_vectors(forked, tiny_store, tmp_path_factory):
    """Both stores are the same one, so texts are translated into themselves."""
    folder = tmp_path_factory.mktemp("cove")
    lines = ["the cat sees a dog .", "a dog hears the old king .", "it was " + "so " * 30 + "old"]
    text = "".join(f"{line} {number}\t{line}\n" for number in range(40) for line in lines)
    (folder / "aligned.tsv").write_text(text)
    usual = [f"--store={tiny_store}", "--seed=3"]
    forked("bert_jax.baseline", "skipgram", *usual, f"--workdir={folder}/static", "--width=5")
    cove_flags = [
        *(f"--target_store={tiny_store}", f"--from={folder}/static", "--units=3", "--steps=4"),
        *(f"--parallel={folder}/aligned.tsv", "--seq_len=24", f"--workdir={folder}/cove"),
    ]
    forked("bert_jax.baseline", "cove", *usual, *cove_flags)
    summary = json.loads((folder / "cove" / training.SUMMARY).read_text())
    heldout = [
        line for line in text.splitlines() if zlib.crc32(line.split("\t")[0].encode()) % 20 == 0
    ]
    short = sum("so so" not in line for line in heldout)
    assert summary["left_out_pairs"] == 40
    assert (summary["pairs"], summary["heldout_pairs"]) == (80 - short, short)
    assert 0 < summary["heldout_loss"] < 2 * np.log(200)

    (folder / "aligned.tsv").write_text(text + "more\tmehr\n")
    refused = forked("bert_jax.baseline", "cove", *usual, *cove_flags, code=2)
    assert "pairs" in refused.stderr

    encoder = vectors.open_encoder("cove", [str(folder / "cove")])
    ids = np.array([2, 9, 12, 8, 3])
    ((_, outputs),) = encoder.run(build_rows([(ids.tolist(), 5)]))
    assert outputs[VECTORS][0, :5].shape == (5, encoder.arrays, encoder.width)
    static, _ = skipgram.read_table(str(folder / "static"))
    np.testing.assert_array_equal(outputs[VECTORS][0, :5, 0, :5], static[ids])
    params = cove.init_params(CoVe(units=3), static, open_store(tiny_store).vocab_size)
    state = training.read_state(folder / "cove", training.init_state(params, CoVe()))
    np.testing.assert_allclose(
        outputs[VECTORS][0, :5, 0, 5:], encode_by_hand(state[0], ids), atol=1e-6
    )
