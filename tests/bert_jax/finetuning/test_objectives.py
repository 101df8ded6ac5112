"""The loss of each kind of task, against SciPy on the logits that the same objective gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from scipy.special import log_softmax

from bert_jax.config import MeshConfig
from bert_jax.finetuning.objectives import OBJECTIVES, PACKED, TERM, make_objective
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.model.dropout import CLASSIFIER_INPUT, Dropout, number_rows
from bert_jax.parallel import collectives, mesh
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.train_step import step
from data_pipeline.labelled.framing import frame
from data_pipeline.labelled.packing import choose_packing, pack_examples
from data_pipeline.labelled.rows import build_rows
from data_pipeline.vocab.template import make_bert_template
from tests.bert_jax.lab.baselines.test_bilstm import by_hand as by_hand_lstm
from tests.bert_jax.tiny_models import MODEL, VOCAB

BERT = make_bert_template({"cls": 2, "sep": 3})
CLASSES = {CLASSIFY: 3, REGRESS: 1, CHOOSE: 1, SPAN: 2, TAG: 5}
EXAMPLES = 7


def rows_of(kind):
    """Examples of different lengths with labels of the kind."""
    rng = np.random.default_rng(3)
    choices = 3 if kind == CHOOSE else 1
    rows = [
        frame(rng.integers(5, VOCAB, rng.integers(1, 9)), rng.integers(5, VOCAB, 3), BERT, 19)
        for _ in range(EXAMPLES * choices)
    ]
    tokens = sum(len(row.token_ids) for row in rows)
    if kind == TAG:
        by_token = {
            "label_ids": rng.integers(0, 5, tokens).astype(np.int32),
            "label_weights": rng.integers(0, 2, tokens).astype(np.float32),
        }
        return build_rows(rows, {}, token_labels=by_token)
    labels = {"label_ids": rng.integers(0, 3, EXAMPLES).astype(np.int32)}
    if kind == REGRESS:
        labels = {"label_values": rng.normal(size=EXAMPLES).astype(np.float32)}
    if kind == SPAN:
        lengths = np.array([len(row.token_ids) for row in rows])
        labels = {
            "start_positions": (lengths // 2).astype(np.int32),
            "end_positions": (lengths - 1).astype(np.int32),
        }
    return build_rows(rows, labels, choices)


def build(kind, devices=1, config=MODEL, preset="dp"):
    """A mesh made current, the model of a kind on it, and its parameters.

    A fresh layer hardly tells classes apart, so that all parameters are made larger.
    """
    of = mesh.make_mesh(MeshConfig(preset=preset), jax.devices()[:devices])
    jax.set_mesh(of)
    heads = bert.Heads(mlm=False, nsp=False, classes=CLASSES[kind])
    model = bert.build(config, "cpu", of.shape["model"], heads=heads)
    return of, model, jax.tree.map(lambda leaf: 9.0 * leaf, model.init(jax.random.key(1)))


def evaluated(kind, batch, devices=1, config=MODEL):
    """Loss sum, right ones, weight and outputs of a batch."""
    of, model, params = build(kind, devices, config)
    found = step.make_eval_step(model, OBJECTIVES[kind])(params, mesh.place_batch(batch, of))
    term = found["terms"][TERM]
    right = None if term.correct_sum is None else float(term.correct_sum)
    return float(term.loss_sum), right, float(found["weights"][TERM]), np.array(found["outputs"])


def assert_same(got, expected):
    assert got[0] == pytest.approx(expected[0], rel=1e-5)
    assert got[1:3] == expected[1:3]


def pack(rows):
    packing = choose_packing(rows.lengths_N[None])
    assert packing.rows < EXAMPLES and packing.examples > 1
    return pack_examples(rows, np.arange(EXAMPLES), packing, pad_id=0)


def by_hand(kind, logits, batch):
    """Loss sum, right ones and weight, an example at a time."""
    loss, right, weight = 0.0, 0, 0.0
    for row in range(EXAMPLES):
        if kind == REGRESS:
            loss += (logits[row, 0] - batch["label_values"][row]) ** 2
        elif kind == TAG:
            for at in np.flatnonzero(batch["label_weights"][row]):
                label = batch["label_ids"][row, at]
                loss -= log_softmax(logits[row, at].astype(np.float64))[label]
                right += logits[row, at].argmax() == label
                weight += 1
        elif kind == SPAN:
            tokens = int(batch["input_mask"][row].sum())
            wanted = batch["start_positions"][row], batch["end_positions"][row]
            ends = logits[row, :tokens].T.astype(np.float64)
            loss -= np.mean([log_softmax(of)[at] for of, at in zip(ends, wanted, strict=True)])
            right += all(of.argmax() == at for of, at in zip(ends, wanted, strict=True))
        else:
            label = batch["label_ids"][row]
            loss -= log_softmax(logits[row].astype(np.float64))[label]
            right += logits[row].argmax() == label
    return loss, None if kind == REGRESS else right, weight or EXAMPLES


@pytest.mark.parametrize("kind", [CLASSIFY, REGRESS, CHOOSE, SPAN, TAG])
def test_sums_are_those_of_the_logits_and_rows_that_fill_up_count_for_nothing(kind):
    batch = rows_of(kind).batch(np.array([0, 1, 2, 3, 4, 5, 6, -1]), 19, pad_id=0)
    loss, right, weight, logits = evaluated(kind, batch)
    expected = by_hand(kind, logits, batch)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert (right, weight) == expected[1:]
    width = {CHOOSE: (3,), SPAN: (19, 2), TAG: (19, 5)}.get(kind, (CLASSES[kind],))
    assert logits.shape == (8, *width)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CHOOSE, SPAN])
def test_longer_rows_and_more_devices_change_no_sum(kind):
    rows, index = rows_of(kind), np.array([0, 1, 2, 3, 4, 5, 6, -1])
    one = evaluated(kind, rows.batch(index, 19, pad_id=0))
    other = evaluated(kind, rows.batch(index, 24, pad_id=0), devices=8)
    assert_same(other, one)
    np.testing.assert_allclose(other[3][:7, : one[3].shape[1]], one[3][:7], atol=1e-4)


@pytest.mark.parametrize("kind", PACKED)
def test_examples_beside_each_other_learn_as_examples_alone(kind):
    rows, index = rows_of(kind), np.arange(EXAMPLES)
    alone = evaluated(kind, rows.batch(np.array([*index, -1]), 19, pad_id=0))
    assert_same(evaluated(kind, pack(rows)), alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("reads", [("gelu_erf", "mean"), ("mlm_transform", "mean")])
def test_the_mean_of_an_example_is_of_its_own_tokens(kind, reads):
    config = dataclasses.replace(MODEL, pooler_type=reads[0], classifier_pooling=reads[1])
    rows, index = rows_of(kind), np.arange(EXAMPLES)
    batch = rows.batch(np.array([*index, -1]), 24, pad_id=0)
    alone = evaluated(kind, batch, config=config)
    assert_same(evaluated(kind, pack(rows), config=config), alone)
    assert_same(evaluated(kind, batch, devices=8, config=config), alone)


@pytest.mark.slow
def test_a_causal_model_classifies_by_its_last_token():
    """[CLS] sees nothing: read there, all examples would have the same logits."""
    causal = dataclasses.replace(MODEL, is_causal=True)
    rows, index = rows_of(CLASSIFY), np.arange(EXAMPLES)
    batch = rows.batch(np.array([*index, -1]), 19, pad_id=0)
    alone = evaluated(CLASSIFY, batch, config=causal)
    assert np.ptp(alone[3][:EXAMPLES], axis=0).min() > 0.1
    longer = rows.batch(np.array([*index, -1]), 24, pad_id=0)
    same = evaluated(CLASSIFY, longer, config=causal)
    np.testing.assert_allclose(same[3][:EXAMPLES], alone[3][:EXAMPLES], atol=1e-4)
    assert_same(evaluated(CLASSIFY, pack(rows), config=causal), alone)


@pytest.mark.parametrize("kind", [pytest.param(CHOOSE, marks=pytest.mark.slow), TAG])
def test_a_causal_model_also_learns_the_texts_of_its_task(kind):
    """Radford et al. 2018, equation 5, an example at a time; packed rows have the same sums."""
    causal, index = dataclasses.replace(MODEL, is_causal=True), np.array([*range(EXAMPLES), -1])
    of = mesh.make_mesh(MeshConfig(preset="dp"), jax.devices()[:1])
    jax.set_mesh(of)
    heads = bert.Heads(nsp=False, classes=CLASSES[kind])
    model = bert.build(causal, "cpu", 1, heads=heads)
    params = jax.tree.map(lambda leaf: 9.0 * leaf, model.init(jax.random.key(1)))
    evaluate = step.make_eval_step(model, make_objective(kind, 0.5))
    rows = rows_of(kind)
    batches = [rows.batch(index, 19, pad_id=0)] + ([pack(rows)] if kind == TAG else [])
    names = ("input_ids", "segment_ids", "input_mask")
    ids_RS, segments_RS, mask_RS = (np.reshape(batches[0][name], (-1, 19)) for name in names)
    bound = model.bind(params)
    hidden_RSD = bound.encode(EncoderRows(ids_RS, segments_RS, hide_padding(jnp.asarray(mask_RS))))
    logits_RSV = np.array(bound.compute_target_logits(hidden_RSD), np.float64)
    loss, weight = 0.0, 0
    for row, length in enumerate(mask_RS.sum(axis=1)):
        for at in range(1, length):
            loss -= log_softmax(logits_RSV[row, at - 1])[ids_RS[row, at]]
            weight += 1
    for batch in batches:
        found = evaluate(params, mesh.place_batch(batch, of))
        term = found["terms"]["causal"]
        assert float(term.loss_sum) == pytest.approx(loss, rel=1e-5)
        assert (term.scale, float(found["weights"]["causal"])) == (0.5, weight)


def read_rows(lstms, x_SD):
    """What the layers of LSTMs make of one example's vectors, by their equations."""
    for layer in ("00", "01"):
        sides = []
        for name, order in (("forward", 1), ("backward", -1)):
            arrays = {leaf: np.array(array) for leaf, array in lstms[layer][name].items()}
            units = len(arrays["recurrent"])
            arrays["bias"][units : 2 * units] += 1  # of the forget gate
            sides.append(by_hand_lstm(arrays, x_SD[::order])[::order])
        x_SD = np.concatenate(sides, axis=1)
    return x_SD


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pooling"), [(CLASSIFY, "cls"), (REGRESS, "mean"), (TAG, "cls")])
def test_lstms_read_each_example_for_itself(kind, pooling):
    config = dataclasses.replace(
        MODEL, is_causal=True, bilstm_units=11, classifier_pooling=pooling, hidden_size=28
    )
    rows, index = rows_of(kind), np.arange(EXAMPLES)
    batch = rows.batch(np.array([*index, -1]), 24, pad_id=0)
    alone = evaluated(kind, batch, config=config)
    assert_same(evaluated(kind, pack(rows), config=config), alone)
    # The encoder's vectors, read by the equations.
    of, model, params = build(kind, config=config)
    assert "pooler" not in params
    placed = mesh.place_batch(batch, of)
    hidden_BSD = model.bind(params).encode(
        EncoderRows(placed["input_ids"], placed["segment_ids"], hide_padding(placed["input_mask"]))
    )
    layer = jax.tree.map(np.asarray, params["classifier"])
    for row, length in enumerate(rows.lengths_N):
        read_SU = read_rows(params["bilstm"], np.asarray(hidden_BSD)[row, :length])
        if kind == CLASSIFY:  # the end of each direction
            read_SU = np.concatenate([read_SU[-1, :11], read_SU[0, 11:]])
        if kind == REGRESS:
            read_SU = read_SU.mean(axis=0)
        expected = read_SU @ layer["kernel"] + layer["bias"]
        logits = alone[3][row, :length] if kind == TAG else alone[3][row]
        np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.slow
def test_gradients_of_lstms_are_the_same_on_eight_devices():
    config = dataclasses.replace(MODEL, bilstm_units=8)
    batch = rows_of(SPAN).batch(np.array([*range(EXAMPLES), -1]), 19, pad_id=0)
    grads = []
    for devices, preset in ((1, "dp"), (8, "fsdp+tp")):
        of, model, _ = build(SPAN, devices, config, preset)

        def loss(params, batch, model=model):
            return OBJECTIVES[SPAN].terms(model.bind(params), batch, None)[TERM].loss_sum

        params = model.init(jax.random.key(1))
        grads.append(jax.jit(jax.grad(loss))(params, mesh.place_batch(batch, of))["bilstm"])
    for wanted, got in zip(*map(jax.tree.leaves, grads), strict=True):
        assert np.abs(wanted).max() > 1e-4
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.slow
def test_nothing_is_dropped_out_before_the_layer_of_spans():
    of, model, params = build(SPAN, config=dataclasses.replace(MODEL, hidden_dropout_prob=0.5))
    bound = model.bind(params)
    batch = rows_of(SPAN).batch(np.arange(EXAMPLES), 19, pad_id=0)
    placed = mesh.place_batch(batch, of)
    dropout = Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(EXAMPLES))
    visible = hide_padding(placed["input_mask"])
    hidden_BSD = bound.encode(
        EncoderRows(placed["input_ids"], placed["segment_ids"], visible, dropout)
    )
    layer = bound.classifier
    kernel, bias = np.asarray(layer.kernel[...]), np.asarray(layer.bias[...])
    expected, *_ = by_hand(SPAN, np.asarray(hidden_BSD) @ kernel + bias, batch)
    found = OBJECTIVES[SPAN].terms(bound, placed, dropout)[TERM].loss_sum
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CLASSIFY, CHOOSE, TAG])
def test_a_layer_reads_what_is_dropped_out_as_the_encoder_is(kind):
    """By the same masks; the choices of a question are rows of their own, numbered in order."""
    of, model, params = build(kind, config=dataclasses.replace(MODEL, hidden_dropout_prob=0.5))
    rows = rows_of(kind)
    batch = rows.batch(np.arange(EXAMPLES), 19, pad_id=0)
    placed = mesh.place_batch(batch, of)
    count = EXAMPLES * rows.rows_per_example
    flat = {
        name: np.reshape(batch[name], (count, 19))
        for name in ("input_ids", "segment_ids", "input_mask")
    }

    @jax.jit
    def read(params, rows):
        bound = model.bind(params)
        dropout = Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(count))
        visible = hide_padding(rows["input_mask"])
        hidden = bound.encode(EncoderRows(rows["input_ids"], rows["segment_ids"], visible, dropout))
        seen = hidden if kind == TAG else bound.pool(hidden)
        return dropout.apply(seen, 0.5, MODEL.num_hidden_layers, CLASSIFIER_INPUT, 1)

    @jax.jit
    def sum_losses(params, batch):
        dropout = Dropout(jnp.uint32(3), jnp.uint32(5), number_rows(EXAMPLES))
        return collectives.map_over_batch(
            lambda params, *given: (
                OBJECTIVES[kind].terms(model.bind(params), *given)[TERM].loss_sum
            ),
            (params, batch, dropout),
            PartitionSpec(),
        )

    dropped = np.asarray(read(params, mesh.place_batch(flat, of)))
    layer = model.bind(params).classifier
    logits = dropped @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])
    if kind == CHOOSE:
        logits = logits.reshape(EXAMPLES, rows.rows_per_example)
    expected, *_ = by_hand(kind, logits, batch)
    assert float(sum_losses(params, placed)) == pytest.approx(expected, rel=1e-4)
